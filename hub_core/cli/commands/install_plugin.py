"""Install a plugin distribution with pip and report the plugins that it added or changed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from hub_core.cli.output import print_note
from hub_core.installed import canonical_name
from hub_core.model import ExitCode, PluginError, UsageError
from hub_core.registry.plugins import CORE_NAME

if TYPE_CHECKING:
    from hub_core.model import JsonValue

# A start that takes longer hangs in a plugin; the next one then tries that in a process.
_LONGEST_LISTING_S = 60
# -P: a folder named pip in the current one is not what shall run.
_PYTHON = (sys.executable, "-P", "-m")


def install_plugin(target: str, pip_options: Sequence[str]) -> list[dict[str, JsonValue]]:
    """Run `python -m pip install TARGET` and return the plugins that were added or changed.

    The result has the form of the plugin report. It includes the plugins of distributions that
    were installed again or were already present. A target that is an existing file or folder is
    installed from there, as `spell_target` describes.

    pip's output goes to standard error. Raises `PluginError` if pip is missing or fails.
    """
    if target.startswith("-"):
        raise UsageError(
            f"{target!r} is not a path or the name of a distribution",
            cure="put options for pip behind --",
        )
    if importlib.util.find_spec("pip") is None:
        own_tool = f"install {target} with the tool of your environment"
        cure = f"install it with '{sys.executable} -m ensurepip', or {own_tool}"
        raise PluginError("this Python has no pip", cure=cure, code="no-pip")
    target = spell_target(target)
    before = _installed()
    asked = _run_pip(target, pip_options) | _named(target)
    return [plugin for plugin in _installed() if plugin not in before or _is_one_of(plugin, asked)]


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
    """Run pip; the canonical names of the distributions that it installed."""
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
        return _reported(report)


def _reported(report: Path) -> set[str]:
    """Names in pip's installation report (pip's documentation, "Installation Report")."""
    # An option such as --report of the user's leaves ours unwritten.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        installed = json.loads(report.read_bytes())["install"]
        return {canonical_name(item["metadata"]["name"]) for item in installed}
    return set()


def _named(target: str) -> set[str]:
    """The distribution that the target itself names, where it is no path."""
    try:
        return {canonical_name(Requirement(target).name)}
    except InvalidRequirement:
        return set()


def _is_one_of(plugin: dict[str, JsonValue], distributions: set[str]) -> bool:
    is_asked = canonical_name(str(plugin["distribution"])) in distributions
    return is_asked and plugin["name"] != CORE_NAME


def _installed() -> list[dict[str, JsonValue]]:
    """What a fresh process, which sees new packages, reports of its plugins."""
    command = [*_PYTHON, "hub_core.cli.main", "plugins", "list", "--json"]
    # Where a plugin ends or stops the first process, the second one skips it.
    done = _listing(command) or _listing(command)
    if done is None:
        raise PluginError(f"'collhub plugins list' is not done after {_LONGEST_LISTING_S} s")
    if done.returncode != ExitCode.DONE:
        raise PluginError(f"'collhub plugins list' fails: {done.stderr.strip()[:300]}")
    plugins: list[dict[str, JsonValue]] = json.loads(done.stdout)["plugins"]
    return plugins


def _listing(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """The outcome of a listing, None where something ended it from within or it took too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LONGEST_LISTING_S
        )
    except subprocess.TimeoutExpired:
        return None
    is_ended = done.returncode < 0 or (done.returncode == ExitCode.DONE and not done.stdout)
    return None if is_ended else done
