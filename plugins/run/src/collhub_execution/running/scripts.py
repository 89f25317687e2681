"""What the scripts that torchrun and mpirun start have in common: arguments, words, exit status."""

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
    """A click command with the argument ALGORITHM, the flag `--json` and the options of a run."""
    as_json = click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
    # click wants arguments outside options, to list them first.
    with_arguments = click.argument("algorithm")(as_json(run_options(function)))
    return click.command(help=_HELP)(with_arguments)


def run_script(run: Callable[[], int], *, is_first: bool) -> NoReturn:
    """End the process with the status that `run` returns for this rank, or of what it raises."""
    try:
        status = run()
    except HubError as error:
        # All ranks have read the same and find the same: one says it.
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
    """`run_rank`, after which rank 0 prints its report; the exit status of this rank."""
    return _status(run_rank(run, channel, engine_of, late), as_json)


def _status(report: StartedRunReport | None, as_json: bool) -> int:
    """Print what rank 0 reports; the other ranks have None. The status is that of `collhub run`."""
    if report is None:
        return ExitCode.DONE
    text = json.dumps(report.fields) if as_json else report.text()
    # flush: launchers end processes without ceremony.
    print(text, flush=True)
    print_findings(report.diagnostics)
    return ExitCode.DONE if report.ok else ExitCode.INVALID


def print_findings(found: Iterable[Diagnostic]) -> None:
    """Print findings on standard error, one a line."""
    for diagnostic in found:
        print(diagnostic, file=sys.stderr, flush=True)
