"""`collhub doctor`: report on the installation, its compatibility and its checks."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import json_flag
from hub_core.cli.command_context import Session
from hub_core.cli.output import print_line
from hub_core.installed import find_distribution, installed_version
from hub_core.model import ExitCode
from hub_core.plugin_api import CheckLine
from hub_core.registry.compatibility import CORE_DISTRIBUTION
from hub_core.registry.plugins import CORE_NAME, Plugin, PluginState, Registry
from hub_core.version import __version__

if TYPE_CHECKING:
    from hub_core.testing.probe import Trial

# Maximum import time of a plugin before it is reported as slow.
_MAX_IMPORT_S = 2.0


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
    """Check Python, the core, its dependencies and every plugin; print one line per check.

    Each enabled plugin is first imported in a process of its own; one that fails or needs
    more than 10 s is BAD. Then the plugins check the installation. A line begins with ok or
    BAD and may have a remedy at the end; a disabled plugin is ok. Exit code 3 if a line is
    BAD, else 0.
    """
    # Imported here: the command's help does not need it.
    from hub_core.testing.probe import trial as try_import

    _, importable = session.unloaded_registry()
    with session.progress("importing each plugin in a process"):
        trials = {plugin.name: try_import(plugin.name) for plugin in importable}
    for name, trial in trials.items():
        if trial.reason is not None:
            session.refused_plugins[name] = trial.reason
    with session.progress("warming up" if is_warming else "looking at the installation"):
        lines = list(_collect_lines(session.registry(), trials, is_warming))
    is_ok = all(line.is_ok for _, line in lines)
    if as_json:
        from hub_core.cli.reports.installation_records import DoctorReport, HealthLine

        session.print_report(
            DoctorReport(
                ok=is_ok,
                lines=[
                    HealthLine(
                        plugin=owner,
                        subject=line.subject,
                        is_healthy=line.is_ok,
                        details=line.details,
                        cure=line.cure,
                    )
                    for owner, line in lines
                ],
            )
        )
    else:
        for owner, line in lines:
            subject = line.subject if owner == CORE_NAME else f"{owner}: {line.subject}"
            cure = f"; {line.cure}" if line.cure else ""
            print_line(f"{'ok' if line.is_ok else 'BAD':5}{subject}: {line.details}{cure}")
    return ExitCode.DONE if is_ok else ExitCode.PLUGIN


def _collect_lines(
    registry: Registry, trials: Mapping[str, Trial], is_warming: bool
) -> Iterator[tuple[str, CheckLine]]:
    """Yield (owner, line) for every line of the report, in this order:

    - The lines of the core: Python, version of the core, its requirements, temporary folder.
    - For each other plugin in the order of the registry: its status, then its requirements.
    - For each name that several offers of one kind have in loaded plugins (`Registry.clashes`): a
      failed line, owned by the core. Equal names of offers of unrelated kinds are allowed.
    - The checks of the installation, each owned by the plugin that offers it.

    `trials`: trial imports by name of the plugin. A status is ok if the plugin is disabled, or
    loaded with a trial import of at most 2 s and without a reason (such as output during the
    import); otherwise it is failed. With `is_warming`, the checks of the installation may compile
    kernels.
    """
    # Imported here: the pipeline needs numpy, the command's help does not.
    from hub_core.pipeline.checks import check_installation

    python = f"{platform.python_version()} at {sys.executable}, {platform.platform()}"
    yield CORE_NAME, CheckLine("python", True, python)
    yield CORE_NAME, CheckLine("collhub", True, __version__)
    yield from ((CORE_NAME, line) for line in _check_requirements(CORE_DISTRIBUTION))
    cure = ""
    try:
        with tempfile.TemporaryDirectory() as folder:
            details = f"{folder.rpartition('/')[0]} can be written"
    except OSError as error:
        details, cure = str(error), "name one that can be written in TMPDIR"
    yield CORE_NAME, CheckLine("temporary folder", not cure, details, cure)
    for plugin in registry.plugins[1:]:
        yield plugin.name, _check_plugin(plugin, trials.get(plugin.name))
        yield from ((plugin.name, line) for line in _check_requirements(plugin.distribution))
    yield from (
        (CORE_NAME, CheckLine("names", False, clash, "disable or uninstall one"))
        for clash in registry.clashes()
    )
    yield from (
        (plugin.name, line) for plugin, line in check_installation(registry, warm=is_warming)
    )


def _check_requirements(distribution: str) -> Iterator[CheckLine]:
    # Imported here: the help of the command needs no numpy.
    from hub_core.testing.loading_checks import find_active_requirements, find_unmet_requirements

    try:
        installed = find_distribution(distribution)
    except ModuleNotFoundError:
        yield CheckLine(
            "dependencies",
            False,
            f"{distribution} is not installed as a distribution",
            "install it with pip",
        )
        return
    unmet = find_unmet_requirements(installed)
    versions = [
        f"{r.name} {installed_version(r.name)}"
        for r in find_active_requirements(installed)
        if installed_version(r.name)
    ]
    details = f"not met: {', '.join(unmet)}" if unmet else ", ".join(sorted(versions)) or "none"
    yield CheckLine(
        "dependencies",
        not unmet,
        details,
        f"install {distribution} again, with what it requires" if unmet else "",
    )


def _check_plugin(plugin: Plugin, trial: Trial | None) -> CheckLine:
    """Return the line on the status of a plugin and the time of its import in another process.

    The line is ok for a disabled plugin, and for a loaded plugin whose trial import took at most
    `_MAX_IMPORT_S` (2 s) and whose status has no reason. It is bad for any other state, for a
    loaded plugin without a trial, for a slower import, and for a status with a reason, such as
    output during the import. Only a loaded plugin with a trial has the time of the import in its
    line.
    """
    status = plugin.status
    reason = f": {status.reason}" if status.reason else ""
    details = f"{plugin.distribution} {plugin.version} is {status.state}{reason}"
    if status.state is PluginState.DISABLED:
        return CheckLine("plugin", True, details)
    if status.state is not PluginState.LOADED or trial is None:
        cure = f"install another version of {plugin.distribution}"
        return CheckLine("plugin", False, details, cure)
    details += f", imported in {trial.import_s * 1e3:.0f} ms"
    if trial.import_s > _MAX_IMPORT_S:
        cure = "its authors shall import what is heavy in the functions that need it"
        return CheckLine("plugin", False, details, cure)
    cure = f"install another version of {plugin.distribution}" if reason else ""
    return CheckLine("plugin", not reason, details, cure)
