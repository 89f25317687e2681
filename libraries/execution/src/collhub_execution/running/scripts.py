"""What the scripts that torchrun and mpirun start have in common: arguments, words, exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

import click

from collhub_execution.running.started_ranks import StartedRunReport
from hub_core.model import Diagnostic, ExitCode

Function = TypeVar("Function", bound=Callable[..., object])

SCRIPT_HELP = """Run an algorithm, a process per rank.

ALGORITHM is a file, or the prefix of a trace set; every rank reads it.
"""


def script_arguments(function: Function) -> Function:
    """Add the argument ALGORITHM and the flag `--json` to a click command."""
    as_json = click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
    # click wants arguments outside options, to list them first.
    return click.argument("algorithm")(as_json(function))


def script_status(report: StartedRunReport | None, as_json: bool) -> int:
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
