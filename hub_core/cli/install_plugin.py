"""Install a plugin distribution with pip and see what came of it."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hub_core.cli.output import print_note
from hub_core.model import ExitCode, PluginError, UsageError

if TYPE_CHECKING:
    from hub_core.model import JsonValue


def install_plugin(target: str, pip_options: Sequence[str]) -> list[dict[str, JsonValue]]:
    """Run `python -m pip install`.

    Return the plugins, as in the plugin report, that came or changed.

    pip's output goes to standard error. Raises `PluginError` where pip is missing or fails.
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
    before = _installed()
    # -P: a folder named pip where the user happens to stand is not the pip that is meant.
    command = [sys.executable, "-P", "-m", "pip", "install", *pip_options, target]
    print_note(f"running: {shlex.join(command)}")
    status = subprocess.run(command, stdout=sys.stderr.fileno(), check=False).returncode
    if status:
        raise PluginError(
            f"pip ended with status {status}; nothing was installed",
            cure="see pip's message above",
            code="pip",
        )
    return [plugin for plugin in _installed() if plugin not in before]


def _installed() -> list[dict[str, JsonValue]]:
    """What a fresh process, which sees new packages, reports of its plugins."""
    command = [sys.executable, "-P", "-m", "hub_core.cli.main", "plugins", "list", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != ExitCode.DONE:
        raise PluginError(f"'collhub plugins list' fails: {done.stderr.strip()[:300]}")
    plugins: list[dict[str, JsonValue]] = json.loads(done.stdout)["plugins"]
    return plugins
