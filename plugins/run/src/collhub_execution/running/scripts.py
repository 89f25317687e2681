"""Common parts of the scripts that torchrun and mpirun start: arguments, messages, exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, TypeVar

import click

from collhub_execution.ranks.engine import RankEngine
from collhub_execution.ranks.plans import RankTask
from collhub_execution.running.options import run_options
from collhub_execution.running.started_ranks import (
    ByteChannel,
    StartedRun,
    StartedRunReport,
    run_rank,
)
from hub_core.model import Diagnostic, ExitCode, HubError

V = TypeVar("V")

_HELP = """Run an algorithm, a process per rank.

ALGORITHM is a file, or the prefix of a trace set; every rank reads it.
"""


def script_command(function: Callable[..., None]) -> click.Command:
    """Return a click command with the argument ALGORITHM, the flag `--json` and the options of a
    run.
    """
    as_json = click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
    # click lists arguments first if they are the outermost decorators.
    with_arguments = click.argument("algorithm")(as_json(run_options(function)))
    return click.command(help=_HELP)(with_arguments)


def run_script(run: Callable[[], int], *, is_first: bool) -> NoReturn:
    """Exit with the status that `run` returns for this rank, or with that of its error."""
    try:
        status = run()
    except HubError as error:
        # All ranks have the same error, so only the first one prints it.
        if is_first:
            print_findings(error.diagnostics)
        sys.exit(error.exit_code)
    sys.exit(status)


def script_rank(
    run: StartedRun,
    channel: ByteChannel,
    engine_of: Callable[[RankTask], RankEngine[V]],
    late: Callable[[Sequence[Diagnostic]], None],
    *,
    as_json: bool,
) -> int:
    """Call `run_rank`, print the report at rank 0, and return the exit status of this rank."""
    return _report_status(run_rank(run, channel, engine_of, late), as_json)


def _report_status(report: StartedRunReport | None, as_json: bool) -> int:
    """Print the report (None except at rank 0) and return the exit status of `collhub run`."""
    if report is None:
        return ExitCode.DONE
    text = json.dumps(report.fields) if as_json else report.text()
    # Flush, because launchers may kill processes without notice.
    print(text, flush=True)
    print_findings(report.diagnostics)
    return ExitCode.DONE if report.ok else ExitCode.INVALID


def print_findings(findings: Iterable[Diagnostic]) -> None:
    """Print findings on standard error, one per line."""
    for diagnostic in findings:
        print(diagnostic, file=sys.stderr, flush=True)
