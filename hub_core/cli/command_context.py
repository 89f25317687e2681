"""What a command gets from the program: inputs, outputs, words. Plugins get it by `hub_core`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from hub_core.model import Diagnostic, Loss
from hub_core.plugin_api.options import Option

if TYPE_CHECKING:
    from pathlib import Path

    from hub_core.cli.arguments import OutputRequest
    from hub_core.cli.selections import SelectionFolders
    from hub_core.model.algorithm import Algorithm
    from hub_core.model.workload import Workload
    from hub_core.network.topology import Topology
    from hub_core.plugin_api.outputs import ReportRequest, ReportSubject, Shown, WriteResult
    from hub_core.plugin_api.runs import WorkloadRequest, WorkloadTimes
    from hub_core.plugin_api.subjects import CheckReport, CheckRequest, Subject
    from hub_core.registry.plugins import Registry
    from hub_core.verification import VerifyReport


class OpenedInput(Protocol):
    """An input whose reader is known, and of which only the first bytes are read."""

    @property
    def name(self) -> str:
        """What messages call the input."""

    @property
    def format_name(self) -> str:
        """The format as which it will be read."""

    @property
    def options(self) -> tuple[Option, ...]:
        """The options of its reader."""

    @property
    def holds_workload(self) -> bool:
        """Whether it will be a whole job, which `read_workload` reads."""


class OutputTarget(Protocol):
    """The place and the format of an output, both chosen and checked, with nothing written yet."""

    @property
    def out(self) -> str:
        """The file, prefix or folder as the user named it."""

    @property
    def format_name(self) -> str:
        """The format that will be written."""

    @property
    def options(self) -> tuple[Option, ...]:
        """The options of its writer."""


class WrittenFiles(Protocol):
    """What a writing left behind."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files in order; none for standard output."""

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What the format could not carry."""


class CommandContext(Protocol):
    """What the program does for its commands: plugins, inputs, outputs, and words for people.

    Inputs are verified as `--verify` says (`verify_option`). Data goes to standard output,
    everything else to standard error.
    """

    def registry(self) -> Registry:
        """The plugins of this run, for the functions of `hub_core` that take a registry."""

    def options_of(self, kind: type, name: str) -> tuple[Option, ...]:
        """The options of an offer, such as `options_of(Executor, "numpy")`. Raises `HubError`."""

    def open_input(self, source: str, source_format: str | None = None) -> OpenedInput:
        """Open IN and find its reader."""

    def read_input(self, opened: OpenedInput, options: Mapping[str, str]) -> Algorithm:
        """Read what was opened and verify it, with progress on a terminal. Raises `HubError`."""

    def admit(self, model: Algorithm | Workload, name: str) -> VerifyReport | None:
        """Verify a model that messages call `name`, as `--verify` says.

        Returns the report on an algorithm; None for a workload, and with `--verify off`. Raises
        `InputError` for an incorrect model, unless `--verify` says otherwise.
        """

    def read_workload(self, opened: OpenedInput, options: Mapping[str, str]) -> Workload:
        """Read a whole job and run every check of workloads, as `--verify` asks. Raises `HubError`.

        Raises `InputError` for an algorithm.
        """

    def simulate_workload(
        self, request: WorkloadRequest, backend: str, options: Mapping[str, str]
    ) -> WorkloadTimes:
        """The times of a workload by the simulator of workloads of a name. Raises `HubError`."""

    def own_topology(self, opened: OpenedInput) -> Topology | None:
        """The network that IN states itself, None where it states none."""

    def read_topology(self, text: str, source_format: str | None = None) -> Topology:
        """The topology that a text or a file names, with progress on a terminal."""

    def output_target(
        self, out: str, request: OutputRequest, *, is_workload: bool = False
    ) -> OutputTarget:
        """Choose the format of OUT; refuse standard output where the JSON report wants it."""

    def write_output(
        self,
        model: Algorithm | Workload,
        target: OutputTarget,
        options: Mapping[str, str],
        request: OutputRequest,
        losses: Sequence[Loss] = (),
        work: str = "conversion",
    ) -> WrittenFiles:
        """Write all or nothing, say every loss, those of the `work` before included.

        Under `request.strict`, losses are refused before anything is written.
        """

    def write_result(
        self, result: WriteResult, target: OutputTarget, request: OutputRequest
    ) -> WrittenFiles:
        """Write files of several algorithms, made by the command in the format of `target`."""

    def write_topology(
        self,
        topology: Topology,
        out: str,
        target_format: str | None = None,
        options: Mapping[str, str] | None = None,
        *,
        strict: bool = False,
    ) -> WrittenFiles:
        """Write a network with the topology writer of a format, by default by suffix.

        Without either, as the hub's document. Losses are said; under `strict` they are refused.
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
        """What writes and reads folders of tuned selections."""

    def write_file(self, out: str, content: bytes) -> WrittenFiles:
        """Write one file as a whole or not at all, over one that is there; `-` for stdout."""

    def run_checks(self, subject: Subject, request: CheckRequest) -> tuple[CheckReport, ...]:
        """The reports of every installed check of a subject, by name. Raises `HubError`."""

    def print_line(self, line: str) -> None:
        """Print one line of data on standard output."""

    def print_json(self, document: object) -> None:
        """Print one JSON document on standard output."""

    def print_fields(self, fields: Mapping[str, str]) -> None:
        """Print one `name  value` line a field, values aligned."""

    def print_table(
        self, header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
    ) -> None:
        """Print aligned columns; those named in `right` are right-aligned."""

    def say(self, note: str) -> None:
        """Print a line that is no data on standard error."""

    def say_written(self, written: WrittenFiles, lead: str = "") -> None:
        """Say what was written on standard error: `LEADwrote FIRST and N more`."""

    def report(
        self,
        diagnostics: Iterable[Diagnostic],
        opened: OpenedInput | None = None,
        algorithm: Algorithm | None = None,
    ) -> None:
        """Print findings; those on the file of `algorithm` name it as the user did: `opened`."""

    def progress(self, what: str) -> AbstractContextManager[None]:
        """Show `what` and the seconds it takes while the body runs, on a terminal."""

    def progress_bar(self, what: str) -> AbstractContextManager[Callable[[float, str], None]]:
        """Yield `show(fraction, detail)`, which tells how far the work is."""
