"""`collhub verify`: matching, deadlock, races and contents of one algorithm.

Exit 1 and the first causes where it is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from hub_core.cli.check_report import check_object, print_check
from hub_core.cli.output import print_diagnostic, print_json, print_table, progress
from hub_core.cli.runtime_check import report_runtime
from hub_core.cli.session import Session, with_path
from hub_core.model import ExitCode, InputError, PluginError, UsageError
from hub_core.model.diagnostics import diagnostic_object
from hub_core.plugin_api import (
    Assignments,
    assign,
    from_option,
    json_flag,
    option_pairs,
    source_argument,
)

if TYPE_CHECKING:
    from hub_core.model import Algorithm, JsonValue
    from hub_core.plugin_api import CheckReport
    from hub_core.verification import VerifyReport


# By whether the contents were judged: a custom collective may state no outcome, a timing-only trace
# no contents.
_CORRECT = {True: "correct as claimed", False: "nothing wrong found, contents not judged"}


@click.command()
@source_argument
@from_option
@option_pairs
@click.option(
    "--expect",
    metavar="TEXT",
    help="What a custom collective must do, e.g. 'broadcast root 0', 'o[r]=i[r+1]'.",
)
@click.option(
    "--root",
    type=click.IntRange(0),
    metavar="R",
    help="Root rank: of --expect where given, else for the reader (-O root=R).",
)
@click.option(
    "--fifo-capacity",
    type=click.IntRange(1),
    metavar="N",
    help="Also find deadlocks with N slots a connection.",
)
@click.option(
    "--fifo-units",
    type=click.IntRange(1),
    metavar="K",
    help="Units that one slot holds (default: one message).",
)
@click.option(
    "--certificate",
    "is_certified",
    is_flag=True,
    help="Also recompute the certificate of optimality that IN carries.",
)
@click.option(
    "--check",
    "check_names",
    metavar="NAME",
    multiple=True,
    help="Also run this check of algorithms (repeatable; `collhub formats` lists them).",
)
@click.option(
    "--topology",
    "topology_text",
    metavar="T",
    help="Network of the certificate (default: the links that it states).",
)
@click.option(
    "--runtime",
    metavar="NAME",
    help="Only tell whether this runtime will use the file, and for which calls.",
)
@json_flag
@click.pass_obj
def verify(
    session: Session,
    source: str,
    source_format: str | None,
    assignments: Assignments,
    expect: str | None,
    root: int | None,
    fifo_capacity: int | None,
    fifo_units: int | None,
    is_certified: bool,
    check_names: tuple[str, ...],
    topology_text: str | None,
    runtime: str | None,
    as_json: bool,
) -> int:
    """Verify the algorithm in IN.

    Matching, deadlock, races and contents, in place and out of place.

    Exit 0 where every mode that the algorithm claims is correct, else 1. With --runtime: 0 where
    the runtime, whose own rules a plugin knows, will use the file for some call. With
    --certificate: 1 also where the certificate is wrong.
    """
    if runtime is not None:
        others: dict[str, object] = {
            "--from": source_format,
            "--expect": expect,
            "--root": root,
            "--fifo-capacity": fifo_capacity,
        }
        others |= {"--certificate": is_certified or None, "--topology": topology_text}
        _check_alone({**others, "--check": check_names or None})
        return report_runtime(session, source, runtime, assignments, as_json)
    if fifo_units is not None and fifo_capacity is None:
        raise UsageError("--fifo-units has no meaning without --fifo-capacity", cure="give both")
    if topology_text is not None and not is_certified:
        raise UsageError("--topology has no meaning without --certificate", cure="give both")
    if root is not None and expect is None:
        assignments = {**assignments, "root": str(root)}
    elif root is not None and expect is not None:
        expect = f"{expect} root {root}"
    opened = session.open_input(source, source_format)
    given = assign(assignments, {"reader": opened.options})
    algorithm = session.read_unverified(opened, given["reader"])
    report = _verified(algorithm, expect, fifo_capacity, fifo_units)
    found = with_path(report.diagnostics, algorithm, opened.name)
    report = replace(report, diagnostics=tuple(found))
    checked = _checked(session, algorithm, check_names)
    if is_certified:
        checked["certificate"] = _certified(session, algorithm, opened.name, topology_text)
    if as_json:
        print_json(_object(opened.name, report, checked))
    else:
        _print(opened.name, algorithm, report)
        for name, other in checked.items():
            print_check(name, other)
    is_ok = report.ok and all(other.ok for other in checked.values())
    return ExitCode.DONE if is_ok else ExitCode.INVALID


def _check_alone(others: Mapping[str, object]) -> None:
    for name, value in others.items():
        if value is not None:
            raise UsageError(
                f"{name} has no meaning with --runtime, which looks at the file as the runtime does"
            )


def _verified(
    algorithm: Algorithm, expect: str | None, fifo_capacity: int | None, fifo_units: int | None
) -> VerifyReport:
    from hub_core import verification
    from hub_core.verification import parse_expectation

    expected = None if expect is None else parse_expectation(expect, algorithm.collective)
    with progress("verifying"):
        return verification.verify(
            algorithm, expected=expected, fifo_capacity=fifo_capacity, fifo_units=fifo_units
        )


def _checked(
    session: Session, algorithm: Algorithm, names: tuple[str, ...]
) -> dict[str, CheckReport]:
    """The reports of the checks that were asked for by name."""
    from hub_core.pipeline.checks import find_check, run_check
    from hub_core.plugin_api import CheckRequest, Subject

    reports = {}
    for name in names:
        found = find_check(name, Subject.ALGORITHM, session.registry())
        with progress(f"checking {name}"):
            reports[name] = run_check(found, CheckRequest(algorithm=algorithm))
    return reports


def _certified(
    session: Session, algorithm: Algorithm, source: str, topology_text: str | None
) -> CheckReport:
    """What is left of the certificate; a missing one is an error, since the user asked for it."""
    from hub_core.pipeline.checks import checks_of, run_check
    from hub_core.plugin_api import CheckRequest, Subject

    checks = checks_of(Subject.CERTIFICATE, session.registry())
    if not checks:
        raise PluginError(
            "no installed plugin checks certificates",
            cure="install one that does; see 'collhub plugins list'",
            code="not-available",
        )
    topology = None if topology_text is None else session.read_topology(topology_text)
    request = CheckRequest(algorithm=algorithm, topology=topology, name=source)
    reports = [run_check(check, request) for check in checks]
    # Each check knows its own kinds of certificate and says nothing of others.
    judged = [report for report in reports if report.is_applicable]
    if not judged:
        cure = "synthesize it with a synthesizer that proves its rate"
        raise InputError(f"{source} carries no certificate", cure=cure, code="no-certificate")
    return judged[0]


def _object(
    source: str, report: VerifyReport, checked: dict[str, CheckReport]
) -> dict[str, JsonValue]:
    parts: dict[str, JsonValue] = {}
    others = {name: check_object(other) for name, other in checked.items()}
    if "certificate" in others:
        parts["certificate"] = others.pop("certificate")
    if others:
        parts["checks"] = dict(others)
    return {
        "schema": "collhub/report-verify-1",
        "source": source,
        "ok": report.ok,
        "modes": {name: mode.verdict == "ok" for name, mode in report.modes.items()},
        "claims": {name: mode.is_claimed for name, mode in report.modes.items()},
        "verdicts": {name: mode.verdict for name, mode in report.modes.items()},
        "method": report.method,
        "error_probability": report.error_probability,
        "diagnostics": [diagnostic_object(found) for found in report.diagnostics],
        **parts,
    }


def _print(source: str, algorithm: Algorithm, report: VerifyReport) -> None:
    collective = algorithm.collective
    outcome = "not correct as claimed" if not report.ok else _CORRECT[report.method != "none"]
    size = f"{collective.num_ranks} ranks, {len(algorithm.steps)} steps"
    print(f"{source}: {collective.kind}, {size}: {outcome}")
    rows = [
        (name.replace("_", " "), "claimed" if mode.is_claimed else "not claimed", mode.verdict)
        for name, mode in report.modes.items()
    ]
    print_table(("mode", "claim", "verdict"), rows)
    print(f"contents compared by: {report.method}" + _probability(report))
    for found in report.diagnostics:
        print_diagnostic(found)


def _probability(report: VerifyReport) -> str:
    return (
        f" (a wrong output passes with probability at most {report.error_probability:.1g})"
        if report.error_probability
        else ""
    )
