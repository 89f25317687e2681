"""Options of `collhub verify` for CI, and the files that they request.

`--sarif`, `--junit`, `--baseline`, `--write-baseline`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

from hub_core.cli.output import print_line, print_note
from hub_core.cli.parameter_types import FILE
from hub_core.model import Diagnostic, UsageError

if TYPE_CHECKING:
    from hub_core.cli.reports.check_results import Baseline, CheckedSource
    from hub_core.registry.plugins import Registry

Function = TypeVar("Function", bound=Callable[..., object])
_OPTIONS = (
    ("--sarif", "OUT", "Write the findings as SARIF 2.1.0, for code scanning."),
    ("--junit", "OUT", "Write a JUnit document with one test case per input."),
    ("--baseline", "FILE", "Accept the findings in FILE: only others cause exit 1."),
    ("--write-baseline", "FILE", "Write all findings to FILE, which accepts them."),
)


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Files that are written after the verification, and the accepted findings.

    `reported`: findings that readers reported since the last verdict; `note` removes them.
    """

    sarif: str | None
    junit: str | None
    new_baseline: str | None
    baseline: Baseline | None
    registry: Registry
    reported: list[Diagnostic]

    def note(self, source: str, ok: bool, diagnostics: Sequence[Diagnostic]) -> CheckedSource:
        """Return one input with its verdict `ok` and all findings, for `write`.

        The findings are those in `self.reported` (from readers, since the last call) that are not
        in `diagnostics`, followed by `diagnostics`. `self.reported` is cleared. The result is not
        stored here.
        """
        # Imported here, as below: the help of the command needs no reports.
        from hub_core.cli.reports.check_results import CheckedSource

        of_reader = [finding for finding in self.reported if finding not in diagnostics]
        self.reported.clear()
        return CheckedSource(source, ok, (*of_reader, *diagnostics))

    def write(self, checked: Sequence[CheckedSource], *, is_quiet: bool) -> bool:
        """Write the requested files of findings; return whether every error is accepted.

        A finding is accepted if its fingerprint is in the baseline that was read. If a new baseline
        is written, all are accepted. An input that failed without an error gets one
        (`not-verified`). Warnings and notes do not change the result.

        Each file is written if it has a path: new baseline (all findings), then SARIF and JUnit
        (without accepted findings). Unless `is_quiet`, stdout gets the numbers of findings and
        accepted ones, if any fingerprint is accepted, and stderr the number of accepted ones that
        no longer occur, if above 0. Raises `HubError` for a file that cannot be written; earlier
        ones remain.
        """
        from hub_core.cli.reports import check_results as results
        from hub_core.pipeline.core_rules import collect_rules

        findings = results.locate_findings(checked)
        entries = self.baseline.accepted if self.baseline else ()
        accepted = {entry.fingerprint for entry in entries}
        if self.new_baseline is not None:
            _write_file(self.new_baseline, results.build_baseline(findings))
            accepted |= {finding.fingerprint for finding in findings}
        new = [finding for finding in findings if finding.fingerprint not in accepted]
        if self.sarif is not None:
            _write_file(self.sarif, results.build_sarif(new, collect_rules(self.registry)))
        if self.junit is not None:
            _write_file(self.junit, results.build_junit(checked, new))
        if not is_quiet and accepted:
            print_line(f"{len(findings)} findings, {len(findings) - len(new)} of them accepted")
        stale = accepted - {finding.fingerprint for finding in findings}
        if not is_quiet and stale:
            print_note(f"{len(stale)} accepted findings no longer occur; write the baseline again")
        return not any(finding.is_error for finding in new)


def report_file_options(function: Function) -> Function:
    """Add `--sarif`, `--junit`, `--baseline` and `--write-baseline` to a command.

    The command gets the paths as `sarif`, `junit`, `baseline` and `write_baseline`; each is
    None without its option.
    """
    for name, metavar, text in reversed(_OPTIONS):
        function = click.option(name, metavar=metavar, type=FILE, help=text)(function)
    return function


def open_report_files(
    sources: Sequence[str],
    registry: Registry,
    reported: list[Diagnostic],
    *,
    sarif: str | None,
    junit: str | None,
    baseline: str | None,
    write_baseline: str | None,
) -> ReportFiles | None:
    """Return the requested files of findings; None if none of the four options is given.

    Each option is a path. `sarif`, `junit` and `write_baseline` are written later, by the result;
    `baseline` is read at once. `sources`: the inputs of the command. `registry`: the plugins whose
    rules the SARIF file lists. `reported`: list to which the session adds the findings of readers;
    it is shared with the result. Raises, in this order:

    - `UsageError` if both options for baselines are given.
    - `UsageError` (`output-is-input`) if a file would replace an input, the baseline or another of
      these files.
    - `InputError` if the baseline cannot be read.
    """
    if sarif is junit is baseline is write_baseline is None:
        return None
    if baseline is not None and write_baseline is not None:
        raise UsageError(
            "--baseline and --write-baseline exclude each other",
            cure="write a new baseline, then verify with it",
        )
    outputs = {"--sarif": sarif, "--junit": junit, "--write-baseline": write_baseline}
    taken = {os.path.realpath(source): "an input" for source in (*sources, baseline) if source}
    for option, out in outputs.items():
        if out is None:
            continue
        place = os.path.realpath(out)
        if place in taken:
            message = f"{option} {out} would replace {taken[place]}"
            raise UsageError(message, cure="name another file", code="output-is-input")
        taken[place] = f"the file of {option}"
    # Imported here: the help of the command needs no reports.
    from hub_core.cli.reports.check_results import read_baseline

    accepted = None if baseline is None else read_baseline(baseline)
    return ReportFiles(sarif, junit, write_baseline, accepted, registry, reported)


def _write_file(out: str, content: bytes) -> None:
    """Write a file completely or not at all; an existing file is replaced.

    `out` is a path, or `-` for standard output. Raise `HubError` if it cannot be written, for
    example because it is a folder.
    """
    from hub_core.pipeline.artifacts import Content, destination
    from hub_core.plugin_api.formats import Format

    place = destination(out, Format("report", "file of findings", ()), force=True)
    place.put([Content("", content)])
