"""Write a new plugin distribution, or install one with pip and report the plugins it changed.

A new plugin is that of the tutorial, or one with other kinds of offers.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement, Requirement

from hub_core.cli.commands.offer_scaffolds import (
    SCAFFOLDS,
    kinds_of,
    plugin_module,
    readme,
)
from hub_core.cli.output import print_note
from hub_core.cli.reports.installation_records import PluginItem, PluginReport
from hub_core.installed import canonical_name
from hub_core.model import ExitCode, PluginError, UsageError
from hub_core.model.diagnostics import closest
from hub_core.pipeline.artifacts import Content, destination
from hub_core.plugin_api import Format, Layout
from hub_core.registry.plugins import CORE_NAME, Registry

OF_THE_TUTORIAL = ("reader", "writer")
_TEMPLATE = "collhub-example"
_OFFERS = "offers"
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*\Z")
_TEMPLATE_FILES = (".md", ".py", ".toml", ".typed")
_PACKAGE = "src/collhub_example/"
# Files of the tutorial's distribution that every plugin has.
_OF_EVERY_PLUGIN = ("pyproject.toml", f"{_PACKAGE}__init__.py", f"{_PACKAGE}py.typed")


def write_plugin(
    name: str, directory: str | None, offers: Sequence[str], registry: Registry
) -> tuple[Path, tuple[Path, ...]]:
    """Write the distribution `collhub-NAME` into a new or empty folder; return (folder, files).

    NAME is `name` without a prefix `collhub-` or `collhub_`. `directory`: the folder, None for
    `collhub-NAME` in the current one, with `-` for `_`. `offers`: kinds of the example offers; an
    unknown kind raises `KeyError`. If they are exactly those of the tutorial (`OF_THE_TUTORIAL`),
    the files are those of the tutorial, otherwise they are assembled.

    Raises `UsageError` (`plugin-name`) if the name is invalid, is `core` or `hub`, or is already
    used by a plugin, a package, or an offer of a kind in `offers` (`_find_owner`). Raises
    `UsageError` for a folder that is not empty.
    """
    plain = name.removeprefix("collhub-").removeprefix("collhub_")
    if not _NAME.match(plain) or plain in (CORE_NAME, "hub"):
        cure = "use lower-case letters and digits, words joined by '-'"
        raise UsageError(f"{name!r} cannot be the name of a plugin", cure=cure, code="plugin-name")
    if reason := _find_owner(plain, offers, registry):
        message = f"the name {plain!r} is taken: {reason}"
        raise UsageError(message, cure="choose another name", code="plugin-name")
    folder = Path(directory if directory is not None else f"collhub-{plain.replace('_', '-')}")
    form = Format("plugin", "", (), layout=Layout.FOLDER)
    cure = "choose an empty or new folder with --directory"
    target = destination(folder, form, force=False, cure=cure)
    files = _read_tutorial() if set(offers) == set(OF_THE_TUTORIAL) else _assemble_files(offers)
    contents = (
        Content(_replace_name(path, plain), _replace_name(text, plain).encode("utf-8"))
        for path, text in files
    )
    return folder, target.put(contents)


def parse_offers(text: str) -> tuple[str, ...]:
    """Parse the kinds of offers in `--offers`, separated by commas; the order is kept.

    Blanks around a kind and empty parts are ignored; repeated kinds are not removed. Raises
    `UsageError` (`unknown-offer`) for the first unknown kind, and if no kind remains. The cure is
    the kind with the most similar name, or a list of all kinds if none is similar.
    """
    nouns = tuple(filter(None, (word.strip() for word in text.split(","))))
    for noun in nouns or ("",):
        if noun not in SCAFFOLDS:
            cure = closest(noun, SCAFFOLDS) or f"use some of {', '.join(SCAFFOLDS)}"
            raise UsageError(f"{noun!r} is no kind of offer", cure=cure, code="unknown-offer")
    return nouns


def _find_owner(name: str, offers: Sequence[str], registry: Registry) -> str | None:
    """Describe the plugin, package or offer that already has the name; None if the name is free.

    `name`: name of the new plugin without `collhub-`. The first owner found is described, in this
    order:

    1. A plugin in the registry (loaded or not) whose name or distribution is `name`, or `collhub-`
       and `name`, in any usual spelling: "PLUGIN is installed".
    2. An importable package `collhub_NAME`, with `_` for `-`: the text has its path.
    3. An offer that has the name that the new plugin's example of this kind would get: "PLUGIN
       offers a KIND 'OFFER'". Only offers of the kinds in `offers` are compared, in the order of
       `OFFER_KINDS`.

    `offers`: kinds that the new plugin shall have; unknown kinds are ignored.
    """
    canonical = canonical_name(name)
    for plugin in registry.plugins:
        names = canonical_name(plugin.name), canonical_name(plugin.distribution)
        if canonical in names or f"collhub-{canonical}" in names:
            return f"{plugin} is installed"
    package = f"collhub_{name.replace('-', '_')}"
    spec = importlib.util.find_spec(package)
    if spec is not None:
        path = spec.origin or ", ".join(spec.submodule_search_locations or ())
        return f"the package {package} is installed, at {path}"
    for kind in kinds_of(offers):
        offer_name = _replace_name(SCAFFOLDS[kind.word].name, name)
        for provided in registry.all(kind.type):
            if provided.name == offer_name:
                return f"{provided.plugin} offers a {kind.noun} {offer_name!r}"
    return None


def _read_tutorial() -> Iterator[tuple[str, str]]:
    """Yield (path, text) of the files of the tutorial's example distribution, read as UTF-8.

    Paths are relative to that distribution, with `/`. In each folder the entries are in the
    order of their names; the files of a subfolder are at its position. Only files with one
    of the suffixes `.md`, `.py`, `.toml` and `.typed` are included. Folders `__pycache__`
    and `*.egg-info` are skipped.
    """
    root = importlib.resources.files("hub_core.examples").joinpath(_TEMPLATE)
    for path, file in _walk_files(root, ""):
        yield path, file.read_text("utf-8")


def _assemble_files(offers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of the files of a distribution with these offers, in this order:

    - the files of every plugin (`pyproject.toml`, `__init__.py`, `py.typed`), from the tutorial,
      with "plugin example" for "format example"
    - `README.md` and the module of the plugin, generated for `offers`
    - the modules of each kind in `offers`, each module once: from the tutorial, otherwise from the
      folder of scaffolds
    - the conformance test `tests/test_plugin.py`

    Paths are relative to the distribution and contain the package name of the example. Raises
    `KeyError` for a kind that is not in `SCAFFOLDS`.
    """
    example = dict(_read_tutorial())
    for path in _OF_EVERY_PLUGIN:
        yield path, example[path].replace("he format example", "he plugin example")
    yield "README.md", readme(offers)
    yield f"{_PACKAGE}plugin.py", plugin_module(offers)
    root = importlib.resources.files("hub_core.examples").joinpath(_OFFERS)
    modules = [module for noun in offers for module in SCAFFOLDS[noun].modules]
    for module in dict.fromkeys(modules):
        path = f"{_PACKAGE}{module}"
        yield path, example.get(path) or root.joinpath(module).read_text("utf-8")
    yield "tests/test_plugin.py", root.joinpath("conformance.py").read_text("utf-8")


def _walk_files(folder: Traversable, lead: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda found: found.name):
        if entry.is_dir() and entry.name != "__pycache__" and not entry.name.endswith(".egg-info"):
            yield from _walk_files(entry, f"{lead}{entry.name}/")
        elif entry.is_file() and entry.name.endswith(_TEMPLATE_FILES):
            yield f"{lead}{entry.name}", entry


def _replace_name(text: str, name: str) -> str:
    """Replace the name of the example distribution in a text by `name`.

    `collhub_example` becomes `collhub_NAME` with `_` for `-`. The separate word `example` becomes
    `name` with `-` for `_`.
    """
    text = text.replace("collhub_example", f"collhub_{name.replace('-', '_')}")
    return re.sub(r"\bexample\b", name.replace("_", "-"), text)


# A start that takes longer hangs in a plugin; the next start then imports that plugin in a separate
# process.
_MAX_LISTING_S = 60
# -P: a folder named `pip` in the working folder must not be executed.
_PYTHON = (sys.executable, "-P", "-m")


def install_plugin(target: str, pip_options: Sequence[str]) -> list[PluginItem]:
    """Run `python -m pip install TARGET` and return the plugins that were added or changed.

    The result is in the order of the list of plugins after the installation. It has the plugins
    whose entry in the list is new or differs from before. It also has, even if unchanged, the
    plugins of the distributions that pip reports as installed (dependencies included), and of the
    distribution that `target` names. The plugin of the core is in the result only if its entry has
    changed. The result may be empty.

    A target that is an existing file or folder is installed from there, as a path. The command and
    pip's output are printed on standard error. `pip_options` precede the target. Errors in this
    order:

    1. `UsageError` for a target that starts with `-`
    2. `PluginError` (`no-pip`) if pip is missing
    3. `PluginError` if the plugins cannot be listed before
    4. `PluginError` (`pip`) if pip fails
    5. `PluginError` if the plugins cannot be listed afterwards
    """
    if target.startswith("-"):
        raise UsageError(
            f"{target!r} is not a path or the name of a distribution",
            cure="put options for pip after --",
        )
    if importlib.util.find_spec("pip") is None:
        own_tool = f"install {target} with the tool of your environment"
        cure = f"install it with '{sys.executable} -m ensurepip', or {own_tool}"
        raise PluginError("this Python has no pip", cure=cure, code="no-pip")
    target = spell_target(target)
    before = _list_plugins()
    requested = _run_pip(target, pip_options)
    # The target may have extras and versions, as `name[extra]>=1`, or be a path.
    with contextlib.suppress(InvalidRequirement):
        requested.add(canonical_name(Requirement(target).name))
    # A requested distribution that was installed before has the same entry, but is reported too.
    return [
        plugin
        for plugin in _list_plugins()
        if plugin not in before
        or (plugin.name != CORE_NAME and canonical_name(plugin.distribution) in requested)
    ]


def spell_target(target: str | Path) -> str:
    """Spell an existing file or folder so that pip treats it as a path, not as a package name.

    pip looks up a word without a path separator in the package index even if a folder of that name
    exists (pip's documentation, "pip install", section "Argument Handling"), so `name` becomes
    `./name`. Absolute paths and paths that begin with a dot are returned unchanged, and so is the
    name of a package.
    """
    text = os.fspath(target)
    is_explicit = os.path.isabs(text) or text.startswith(os.curdir)
    return text if is_explicit or not Path(text).exists() else os.path.join(os.curdir, text)


def _run_pip(target: str, pip_options: Sequence[str]) -> set[str]:
    """Run pip and return the canonical names of the distributions that it installed.

    The command is printed first, without the internal `--report`; pip's output goes to standard
    error. Dependencies that it installed are included, those that were present are not. Empty if
    pip's report does not exist or cannot be read. Raises `PluginError` if pip's exit status is not
    0.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        options = ("--report", str(report))
        command = [*_PYTHON, "pip", "install", *options, *pip_options, target]
        print_note(f"running: {shlex.join([*_PYTHON, 'pip', 'install', *pip_options, target])}")
        status = subprocess.run(command, stdout=sys.stderr.fileno(), check=False).returncode
        if status:
            raise PluginError(
                f"pip ended with status {status}; nothing was installed",
                cure="see pip's message above",
                code="pip",
            )
        # If the user gives --report, our report is not written. Source of its form: pip's
        # documentation, "Installation Report".
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            installed = json.loads(report.read_bytes())["install"]
            return {canonical_name(item["metadata"]["name"]) for item in installed}
    return set()


def _list_plugins() -> Sequence[PluginItem]:
    """Return the plugins that `collhub plugins list --json` lists in a new process.

    A new process is needed because this one does not see newly installed packages. If the first
    process is ended or blocked by a plugin (`_MAX_LISTING_S`, 60 s), a second one is started; the
    program then skips that plugin. Raises `PluginError` if the second process fails in the same
    way, or if a process ends with a positive exit code.
    """
    command = [*_PYTHON, "hub_core.cli.main", "plugins", "list", "--json"]
    # If a plugin ends or blocks the first process, the second one skips the plugin.
    done = _run_listing(command) or _run_listing(command)
    if done is None:
        raise PluginError(f"'collhub plugins list' is not done after {_MAX_LISTING_S} s")
    if done.returncode != ExitCode.DONE:
        raise PluginError(f"'collhub plugins list' fails: {done.stderr.strip()[:300]}")
    return msgspec.json.decode(done.stdout, type=PluginReport).plugins


def _run_listing(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a listing of plugins; return the finished process with its output as text.

    Returns None if it was not done after 60 s, was ended by a signal, or ended with exit code 0 but
    without output, which happens if a plugin ends the process. A process with another exit code is
    returned, and no error is raised.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_MAX_LISTING_S
        )
    except subprocess.TimeoutExpired:
        return None
    is_ended = done.returncode < 0 or (done.returncode == ExitCode.DONE and not done.stdout)
    return None if is_ended else done
