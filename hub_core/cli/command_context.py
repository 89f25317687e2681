"""The context that every command gets, and the session of a run, which implements it.

It gives inputs, outputs and messages. Plugins import it from `hub_core`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from hub_core.cli import output
from hub_core.cli.reports.report_objects import with_path
from hub_core.cli.session_inputs import SessionInputs
from hub_core.cli.session_outputs import SessionOutputs

if TYPE_CHECKING:
    from pathlib import Path

    from hub_core.cli.arguments import OutputRequest
    from hub_core.model import Algorithm, Diagnostic, Loss
    from hub_core.model.workload import Workload
    from hub_core.network.topology import Topology
    from hub_core.pipeline.outputs import SelectionFolders
    from hub_core.plugin_api.options import Option
    from hub_core.plugin_api.outputs import ReportRequest, ReportSubject, Shown, WriteResult
    from hub_core.plugin_api.runs import WorkloadRequest, WorkloadTimes
    from hub_core.plugin_api.subjects import CheckReport, CheckRequest, Subject
    from hub_core.registry.plugins import Registry
    from hub_core.reports import Report
    from hub_core.verification import VerifyReport


class OpenedInput(Protocol):
    """An input whose reader is chosen; only the first bytes are read."""

    @property
    def name(self) -> str:
        """Name of the input in messages."""

    @property
    def format_name(self) -> str:
        """Name of the format as which the input is read."""

    @property
    def options(self) -> tuple[Option, ...]:
        """Options of the reader."""

    @property
    def holds_workload(self) -> bool:
        """Whether the input is a workload, which `read_workload` reads."""


class OutputTarget(Protocol):
    """Path and format of an output; both are checked, and nothing is written yet."""

    @property
    def out(self) -> str:
        """File, prefix or folder as given by the user."""

    @property
    def format_name(self) -> str:
        """Name of the format that will be written."""

    @property
    def options(self) -> tuple[Option, ...]:
        """Options of the writer."""


class WrittenFiles(Protocol):
    """Result of writing an output."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files in order; empty for standard output."""

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Losses that the format caused."""


class CommandContext(Protocol):
    """Services of the program for its commands: plugins, inputs, outputs, messages.

    Inputs are verified as `--verify` says (`verify_option`). Data is printed on standard output,
    all other messages on standard error.
    """

    def registry(self) -> Registry:
        """Return the plugins of this run, for functions of `hub_core` that take a registry."""

    def options_of(self, kind: type, name: str) -> tuple[Option, ...]:
        """Return the options of an offer, such as `options_of(Executor, "numpy")`.

        Raises `HubError`.
        """

    def bind_options(self, kind: type, name: str, options: Mapping[str, str]) -> object:
        """Return the record of options of an offer, as the offer's function gets it.

        `options`: texts of `-O`. Raises `HubError` for unknown names and invalid values.
        """

    def open_input(
        self, source: str, source_format: str | None = None, more: Sequence[str] = ()
    ) -> OpenedInput:
        """Open IN and find its reader; only the first bytes are read.

        `more`: further files that are rank files of one job together with IN, whatever their names.
        """

    def read_input(self, opened: OpenedInput, options: Mapping[str, str]) -> Algorithm:
        """Read an algorithm and verify it, with progress on a terminal. Raises `HubError`."""

    def admit(self, model: Algorithm | Workload, name: str) -> VerifyReport | None:
        """Verify a model that messages call `name`, as `--verify` says.

        Returns the report on an algorithm; None for a workload, and with `--verify off`. Raises
        `InputError` for an incorrect model, unless `--verify` says otherwise.
        """

    def read_workload(self, opened: OpenedInput, options: Mapping[str, str]) -> Workload:
        """Read a workload and run all checks of workloads, as `--verify` says.

        Raises `InputError` for an algorithm, and for a workload with errors unless `--verify` says
        otherwise.
        """

    def read_unverified_workload(self, opened: OpenedInput, options: Mapping[str, str]) -> Workload:
        """Read a workload without checks, for commands that look for its errors.

        Raises `InputError` for an algorithm.
        """

    def simulate_workload(
        self, request: WorkloadRequest, backend: str, options: Mapping[str, str]
    ) -> WorkloadTimes:
        """Simulate a workload with the simulator of workloads `backend`. Raises `HubError`."""

    def own_topology(self, opened: OpenedInput) -> Topology | None:
        """Read the network that IN contains in addition to its model; None if it has none."""

    def read_topology(self, text: str, source_format: str | None = None) -> Topology:
        """Read the topology that a text or a file describes, with progress on a terminal."""

    def output_target(
        self, out: str, request: OutputRequest, *, is_workload: bool = False
    ) -> OutputTarget:
        """Choose the writer of OUT.

        Raises `UsageError` if OUT and the JSON report are both for stdout.
        """

    def write_output(
        self,
        model: Algorithm | Workload,
        target: OutputTarget,
        options: Mapping[str, str],
        request: OutputRequest,
        losses: Sequence[Loss] = (),
        work: str = "conversion",
    ) -> WrittenFiles:
        """Write a model completely or not at all, and print all losses.

        `losses`: losses of the `work` before the writing. Under `request.strict`, losses raise
        `LossyError` before anything is written.
        """

    def write_result(
        self, result: WriteResult, target: OutputTarget, request: OutputRequest
    ) -> WrittenFiles:
        """Write artifacts that the command built in the format of `target`; print the losses."""

    def write_topology(
        self,
        topology: Topology,
        out: str,
        target_format: str | None = None,
        options: Mapping[str, str] | None = None,
        *,
        strict: bool = False,
    ) -> WrittenFiles:
        """Write a network with the topology writer of a format, by default chosen by suffix.

        If the suffix does not determine it, the hub's own document is written. Losses are printed;
        under `strict` they raise `LossyError`.
        """

    def draw_report(
        self, subject: ReportSubject, out: str, report_format: str | None = None
    ) -> WrittenFiles:
        """Write a picture or a timeline of a subject, and print the notes of the writer.

        The writer is `report_format` if given, else chosen by the suffix of OUT among the writers
        of this kind. A writer that is the only one of its kind is used for any suffix.
        """

    def write_report(
        self, shown: Shown, request: ReportRequest, out: str, report_format: str | None = None
    ) -> WrittenFiles:
        """Write a report of the kind `shown`. Deprecated, removed in 0.2: use `draw_report`."""

    def selection_folders(self) -> SelectionFolders:
        """Return the object that writes and reads folders of tuned selections."""

    def write_file(self, out: str, content: bytes) -> WrittenFiles:
        """Write one file completely or not at all; `-` is stdout. An existing file is replaced."""

    def run_checks(self, subject: Subject, request: CheckRequest) -> tuple[CheckReport, ...]:
        """Run every installed check of a subject, in the order of names. Raises `HubError`."""

    def print_line(self, line: str) -> None:
        """Print one line of data on standard output."""

    def print_json(self, document: object) -> None:
        """Print one JSON document on standard output."""

    def print_report(self, report: Report) -> None:
        """Print the JSON object of a report on standard output."""

    def print_fields(self, fields: Mapping[str, str]) -> None:
        """Print one line `name  value` per field, with aligned values."""

    def print_table(
        self, header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
    ) -> None:
        """Print aligned columns; the columns named in `right` are right-aligned."""

    def say(self, note: str) -> None:
        """Print a note on standard error."""

    def say_written(self, written: WrittenFiles, lead: str = "") -> None:
        """Print `LEADwrote FIRST and N more` on standard error."""

    def report(
        self,
        diagnostics: Iterable[Diagnostic],
        opened: OpenedInput | None = None,
        algorithm: Algorithm | None = None,
    ) -> None:
        """Print findings; those on the file of `algorithm` get the path of `opened`."""

    def progress(self, what: str) -> AbstractContextManager[None]:
        """Show `what` and the elapsed seconds while the body runs, on a terminal."""

    def progress_bar(self, what: str) -> AbstractContextManager[Callable[[float, str], None]]:
        """Yield `show(fraction, detail)`, which reports the progress on a terminal."""


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
        """Print findings as one line each on standard error, in their order.

        With both `opened` and `algorithm`, a finding whose file is the source name of the
        algorithm shows the path of the input that the user gave, if that path has this base name.
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
