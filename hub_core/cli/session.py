"""The session of a run: the object that every command gets as its context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from hub_core.cli import output
from hub_core.cli.reports.report_objects import with_path
from hub_core.cli.session_inputs import SessionInputs
from hub_core.cli.session_outputs import SessionOutputs

if TYPE_CHECKING:
    from hub_core.cli.command_context import OpenedInput, WrittenFiles
    from hub_core.model import Algorithm, Diagnostic
    from hub_core.reports import Report


class SessionMessages:
    """The part of a session that prints: data on standard output, all else on standard error."""

    __slots__ = ()

    def print_line(self, line: str) -> None:
        """Print one line of data on standard output."""
        output.print_line(line)

    def print_json(self, document: object) -> None:
        """Print one JSON document on standard output."""
        output.print_json(document)

    def print_report(self, report: Report) -> None:
        """Print the JSON object of a report on standard output."""
        # Imported here, because most commands print text.
        from hub_core.reports import to_json

        output.print_json(to_json(report))

    def print_fields(self, fields: Mapping[str, str]) -> None:
        """Print one line `name  value` per field, with aligned values."""
        output.print_fields(fields)

    def print_table(
        self, header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
    ) -> None:
        """Print aligned columns; the columns named in `right` are right-aligned."""
        output.print_table(header, rows, right)

    def say(self, note: str) -> None:
        """Print a note on standard error."""
        output.print_note(note)

    def say_written(self, written: WrittenFiles, lead: str = "") -> None:
        """Print `LEADwrote FIRST and N more` on standard error.

        FIRST is the first written path, N the number of all others; that part is omitted for a
        single file. Nothing is printed for standard output, which has no paths.
        """
        if written.paths:
            first, rest = written.paths[0], len(written.paths) - 1
            output.print_note(f"{lead}wrote {first}" + (f" and {rest} more" if rest else ""))

    def report(
        self,
        diagnostics: Iterable[Diagnostic],
        opened: OpenedInput | None = None,
        algorithm: Algorithm | None = None,
    ) -> None:
        """Print findings on stderr, in their order.

        If `opened` and `algorithm` are given, findings on the file from which the algorithm was
        read get the path that the user gave instead of the file's base name.
        """
        findings = list(diagnostics)
        if opened is not None and algorithm is not None:
            findings = with_path(findings, algorithm, opened.name)
        for finding in findings:
            output.print_diagnostic(finding)

    def progress(self, what: str) -> AbstractContextManager[None]:
        """Show `what` and the elapsed seconds while the body runs, on a terminal."""
        return output.progress(what)

    def progress_bar(self, what: str) -> AbstractContextManager[Callable[[float, str], None]]:
        """Yield `show(fraction, detail)`, which reports the progress on a terminal."""
        return output.progress_bar(what)


class Session(SessionInputs, SessionOutputs, SessionMessages):
    """State of one run of the program, and the `CommandContext` of its commands."""

    __slots__ = ()
