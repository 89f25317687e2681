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

# A start that takes longer hangs in a plugin; the next start then imports that plugin in a separate
# process.
_MAX_LISTING_S = 60
# -P: a folder named `pip` in the working folder must not be executed.
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
    before = _list_plugins()
    requested = _run_pip(target, pip_options) | _get_named_distribution(target)
    return [
        plugin
        for plugin in _list_plugins()
        if plugin not in before or _is_one_of(plugin, requested)
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
    """Run pip and return the canonical names of the distributions that it installed."""
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
        return _read_report(report)


def _read_report(report: Path) -> set[str]:
    """Read the names in pip's installation report (pip's documentation, "Installation Report")."""
    # If the user gives --report, our report is not written.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        installed = json.loads(report.read_bytes())["install"]
        return {canonical_name(item["metadata"]["name"]) for item in installed}
    return set()


def _get_named_distribution(target: str) -> set[str]:
    """Return the distribution that the target names; empty if the target is a path."""
    try:
        return {canonical_name(Requirement(target).name)}
    except InvalidRequirement:
        return set()


def _is_one_of(plugin: dict[str, JsonValue], distributions: set[str]) -> bool:
    is_asked = canonical_name(str(plugin["distribution"])) in distributions
    return is_asked and plugin["name"] != CORE_NAME


def _list_plugins() -> list[dict[str, JsonValue]]:
    """List the plugins in a new process, which sees new packages."""
    command = [*_PYTHON, "hub_core.cli.main", "plugins", "list", "--json"]
    # If a plugin ends or blocks the first process, the second one skips the plugin.
    done = _run_listing(command) or _run_listing(command)
    if done is None:
        raise PluginError(f"'collhub plugins list' is not done after {_MAX_LISTING_S} s")
    if done.returncode != ExitCode.DONE:
        raise PluginError(f"'collhub plugins list' fails: {done.stderr.strip()[:300]}")
    plugins: list[dict[str, JsonValue]] = json.loads(done.stdout)["plugins"]
    return plugins


def _run_listing(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a listing; None if a plugin ended the process or the time limit was exceeded."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_MAX_LISTING_S
        )
    except subprocess.TimeoutExpired:
        return None
    is_ended = done.returncode < 0 or (done.returncode == ExitCode.DONE and not done.stdout)
    return None if is_ended else done
