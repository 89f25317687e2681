"""`collhub doctor`: what is installed, whether it fits together, what checks of it say."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import json_flag
from hub_core.cli.output import print_json, print_line
from hub_core.cli.session import Session
from hub_core.installed import find_distribution, installed_version
from hub_core.model import ExitCode
from hub_core.plugin_api import CheckLine
from hub_core.registry.compatibility import CORE_DISTRIBUTION
from hub_core.registry.plugins import CORE_NAME, Plugin, PluginState, Registry
from hub_core.testing.requirements import find_active_requirements, find_unmet_requirements
from hub_core.version import __version__

if TYPE_CHECKING:
    from hub_core.testing.probe import Trial

# All plugins together shall be loaded in less than a command takes to be typed.
_LONGEST_IMPORT_S = 2.0


@click.command()
@click.option(
    "--warm",
    "is_warming",
    is_flag=True,
    help="Also let plugins do now what their first use would wait for, such as compiling.",
)
@json_flag
@click.pass_obj
def doctor(session: Session, is_warming: bool, as_json: bool) -> int:
    """Report on Python, the core, its dependencies and every plugin.

    Each plugin is first imported in a process of its own, for 10 s at most. Exit 3 where something
    is not as it should be.
    """
    trials = _trials(session)
    for name, trial in trials.items():
        if trial.reason is not None:
            session.refused_plugins[name] = trial.reason
    with session.progress("warming up" if is_warming else "looking at the installation"):
        lines = list(_lines(session.registry(), trials, is_warming))
    is_ok = all(line.is_ok for _, line in lines)
    if as_json:
        print_json(
            {
                "schema": "collhub/report-doctor-1",
                "ok": is_ok,
                "lines": [_object(owner, line) for owner, line in lines],
            }
        )
    else:
        for owner, line in lines:
            subject = line.subject if owner == CORE_NAME else f"{owner}: {line.subject}"
            cure = f"; {line.cure}" if line.cure else ""
            print_line(f"{'ok' if line.is_ok else 'BAD':5}{subject}: {line.details}{cure}")
    return ExitCode.DONE if is_ok else ExitCode.PLUGIN


def _trials(session: Session) -> dict[str, Trial]:
    """What became of a process that imported each plugin, by the plugin's name."""
    # Imported here: the command's help does not need it.
    from hub_core.testing.probe import trial

    _, importable = session.unloaded_registry()
    # One at a time, so that no import slows another one down.
    with session.progress("importing each plugin in a process"):
        return {plugin.name: trial(plugin.name) for plugin in importable}


def _lines(
    registry: Registry, trials: Mapping[str, Trial], is_warming: bool
) -> Iterator[tuple[str, CheckLine]]:
    """Every line with the name of the plugin that it is about."""
    # Imported here: the pipeline needs numpy, the command's help does not.
    from hub_core.pipeline.checks import check_installation

    yield from ((CORE_NAME, line) for line in _core_lines())
    for plugin in registry.plugins[1:]:
        yield plugin.name, _plugin_line(plugin, trials.get(plugin.name))
        yield from ((plugin.name, line) for line in _requirement_lines(plugin.distribution))
    yield from (
        (CORE_NAME, CheckLine("names", False, clash, "disable or uninstall one"))
        for clash in registry.clashes()
    )
    yield from (
        (plugin.name, line) for plugin, line in check_installation(registry, warm=is_warming)
    )


def _core_lines() -> Iterator[CheckLine]:
    yield CheckLine(
        "python", True, f"{platform.python_version()} at {sys.executable}, {platform.platform()}"
    )
    yield CheckLine("collhub", True, __version__)
    yield from _requirement_lines(CORE_DISTRIBUTION)
    yield _temporary_folder()


def _requirement_lines(distribution: str) -> Iterator[CheckLine]:
    try:
        found = find_distribution(distribution)
    except ModuleNotFoundError:
        yield CheckLine(
            "dependencies",
            False,
            f"{distribution} is not installed as a distribution",
            "install it with pip",
        )
        return
    unmet = find_unmet_requirements(found)
    versions = [
        f"{r.name} {installed_version(r.name)}"
        for r in find_active_requirements(found)
        if installed_version(r.name)
    ]
    details = f"not met: {', '.join(unmet)}" if unmet else ", ".join(sorted(versions)) or "none"
    yield CheckLine(
        "dependencies",
        not unmet,
        details,
        f"install {distribution} again, with what it requires" if unmet else "",
    )


def _temporary_folder() -> CheckLine:
    try:
        with tempfile.TemporaryDirectory() as folder:
            return CheckLine(
                "temporary folder", True, f"{folder.rpartition('/')[0]} can be written"
            )
    except OSError as error:
        return CheckLine(
            "temporary folder", False, str(error), "name one that can be written in TMPDIR"
        )


def _plugin_line(plugin: Plugin, trial: Trial | None) -> CheckLine:
    """The status of a plugin, and how long its import took, alone in a fresh process."""
    status = plugin.status
    reason = f": {status.reason}" if status.reason else ""
    details = f"{plugin.distribution} {plugin.version} is {status.state}{reason}"
    if status.state is PluginState.DISABLED:
        return CheckLine("plugin", True, details)
    if status.state is not PluginState.LOADED or trial is None:
        cure = f"install another version of {plugin.distribution}"
        return CheckLine("plugin", False, details, cure)
    details += f", imported in {trial.import_s * 1e3:.0f} ms"
    if trial.import_s > _LONGEST_IMPORT_S:
        cure = "its authors shall import what is heavy in the functions that need it"
        return CheckLine("plugin", False, details, cure)
    cure = f"install another version of {plugin.distribution}" if reason else ""
    return CheckLine("plugin", not reason, details, cure)


def _object(owner: str, line: CheckLine) -> dict[str, object]:
    return {
        "plugin": owner,
        "subject": line.subject,
        "is_healthy": line.is_ok,
        "details": line.details,
        "cure": line.cure,
    }
