"""The context of every command: plugins, inputs, outputs, messages."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from hub_core.cli import output
from hub_core.cli.reports.findings import say_losses, with_path
from hub_core.model import (
    Diagnostic,
    InputError,
    Loss,
    LossPolicy,
    UsageError,
    apply_policy,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hub_core.cli.arguments import OutputRequest
    from hub_core.cli.command_context import OpenedInput, OutputTarget, WrittenFiles
    from hub_core.cli.selections import SelectionFolders
    from hub_core.model import Algorithm, Workload
    from hub_core.network import Topology
    from hub_core.pipeline.inputs import OpenedAlgorithm
    from hub_core.pipeline.outputs import ModelWriter, Written
    from hub_core.plugin_api import (
        CheckReport,
        CheckRequest,
        Option,
        ReportRequest,
        ReportSubject,
        Shown,
        Subject,
        WorkloadRequest,
        WorkloadTimes,
        WriteResult,
    )
    from hub_core.registry.plugins import Plugin, Registry
    from hub_core.verification import VerifyReport


@dataclass(frozen=True, slots=True)
class ChosenOutput:
    """Where an output goes, and the writer that was chosen for it."""

    out: str
    writer: ModelWriter

    @property
    def format_name(self) -> str:
        """The format that will be written."""
        return self.writer.name

    @property
    def options(self) -> tuple[Option, ...]:
        """The options of its writer."""
        from hub_core.registry.descriptions import options_of

        return options_of(self.writer.offer)


@dataclass(slots=True)
class Session:
    """State of one run of the program, and the `CommandContext` of its commands.

    `separated_arguments`: how many arguments stand behind `--` on the command line;
    `source_arguments`: those of them that follow IN, for readers whose input is a program.
    `rank_files`: files that are one input together, of which IN is the first, if not a set by name.
    `verify_policy`: the value of `--verify`.
    `refused_plugins`: why plugins that were tried are not to be imported, by name.

    Modules are imported inside the methods: the help of a command needs no numpy.
    """

    use_plugins: bool = True
    disabled_plugins: tuple[str, ...] = ()
    is_debug: bool = False
    separated_arguments: int = 0
    source_arguments: tuple[str, ...] = ()
    rank_files: tuple[str, ...] = ()
    verify_policy: str = "refuse"
    refused_plugins: dict[str, str] = field(default_factory=dict)
    _registry: Registry | None = field(default=None, repr=False)

    def registry(self) -> Registry:
        """The plugins of this run, discovered when first asked for."""
        if self._registry is None:
            from hub_core.cli.start_record import data_kept_apart, recorded_start
            from hub_core.registry.discovery import discover

            recorded = recorded_start(self.refused_plugins, output.print_diagnostic)
            with data_kept_apart(), recorded as admission:
                self._registry = discover(
                    use_plugins=self.use_plugins,
                    disabled=self.disabled_plugins,
                    admission=admission,
                )
        return self._registry

    def unloaded_registry(self) -> tuple[Registry, list[Plugin]]:
        """All plugins, of which none is imported, and those that `registry` would import."""
        from hub_core.registry.discovery import discover

        importable: list[Plugin] = []

        def refuse(plugin: Plugin) -> str:
            importable.append(plugin)
            return "not imported"

        found = discover(
            use_plugins=self.use_plugins, disabled=self.disabled_plugins, admission=refuse
        )
        return found, importable

    def options_of(self, kind: type, name: str) -> tuple[Option, ...]:
        """The options of an offer. Raises `HubError` where there is none of the name."""
        from hub_core.registry.descriptions import options_of

        return options_of(self.registry().find(kind, name).offer)

    def open_input(self, source: str, source_format: str | None = None) -> OpenedAlgorithm:
        """Open IN and find its reader; nothing but the first bytes is read yet."""
        from hub_core.cli.memory import keep_freed_memory
        from hub_core.pipeline.inputs import open_algorithm

        keep_freed_memory()
        return open_algorithm(
            source,
            format=source_format,
            registry=self.registry(),
            report=output.print_diagnostic,
            more=self.rank_files[1:] if self.rank_files[:1] == (source,) else (),
        )

    def read_input(self, opened: OpenedInput, options: Mapping[str, str]) -> Algorithm:
        """Read what was opened, and verify it as `--verify` says."""
        algorithm = self.read_unverified(opened, options)
        # Ends the command where it is wrong and the policy refuses.
        self.admit(algorithm, opened.name)
        return algorithm

    def admit(self, algorithm: Algorithm, name: str) -> VerifyReport | None:
        """The verdict on an algorithm that messages call `name`, as `--verify` asks for one."""
        from hub_core.cli.gate import VerifyPolicy, admit

        def report(found: Diagnostic) -> None:
            output.print_diagnostic(with_path([found], algorithm, name)[0])

        with self.progress(f"verifying {name}"):
            try:
                return admit(algorithm, name, VerifyPolicy(self.verify_policy), report)
            except InputError as error:
                raise InputError(with_path(error.diagnostics, algorithm, name)) from None

    def read_unverified(self, opened: OpenedInput, options: Mapping[str, str]) -> Algorithm:
        """Read what was opened, for commands that judge it themselves."""
        given = self.with_arguments(opened, options)
        with self.progress(f"reading {opened.name}"):
            return cast("OpenedAlgorithm", opened).read(given)

    def read_topology(self, text: str, source_format: str | None = None) -> Topology:
        """The topology that a text or a file names."""
        from hub_core.pipeline.topology_input import read_topology

        with self.progress(f"reading {text}"):
            return read_topology(
                text,
                format=source_format,
                registry=self.registry(),
                report=output.print_diagnostic,
            )

    def own_topology(self, opened: OpenedInput) -> Topology | None:
        """The network that IN states beside its algorithm, None where it states none."""
        from hub_core.pipeline.topology_input import own_topology

        with self.progress(f"reading the network of {opened.name}"):
            return own_topology(cast("OpenedAlgorithm", opened), self.registry())

    def output_target(
        self, out: str, request: OutputRequest, *, is_workload: bool = False
    ) -> ChosenOutput:
        """Choose the format of OUT; refuse standard output where the JSON report wants it."""
        from hub_core.cli.arguments import check_stdout
        from hub_core.pipeline.outputs import chosen_writer
        from hub_core.plugin_api import FormatWriter, WorkloadWriter

        check_stdout(out, request.as_json)
        # The null device in its place: see `main`. Words may be lost there, an output may not.
        if out == "-" and getattr(sys.stdout, "name", "") == os.devnull:
            raise UsageError("standard output is closed", cure="give -o a path")
        # The name of a folder tells no format of what is written into it.
        told = "" if out.endswith("/") else out
        asked = self.registry(), told, request.target_format
        kind = WorkloadWriter if is_workload else FormatWriter
        return ChosenOutput(out, chosen_writer(*asked, kind))  # type: ignore[type-var, arg-type]

    def read_workload(self, opened: OpenedInput, options: Mapping[str, str]) -> Workload:
        """Read a workload and judge it as `--verify` says."""
        from hub_core.cli.jobs.workloads import admit_workload, read_workload

        workload = read_workload(self, cast("OpenedAlgorithm", opened), options)
        admit_workload(self, workload, opened.name)
        return workload

    def simulate_workload(
        self, request: WorkloadRequest, backend: str, options: Mapping[str, str]
    ) -> WorkloadTimes:
        """The times of a workload by the simulator of a name."""
        from hub_core.pipeline.simulation import simulate_job

        with self.progress("simulating (the first run compiles the simulator)"):
            return simulate_job(replace(request, hub=self.registry()), backend, options)

    def write_output(
        self,
        model: Algorithm | Workload,
        target: OutputTarget,
        options: Mapping[str, str],
        request: OutputRequest,
        losses: Sequence[Loss] = (),
        work: str = "conversion",
    ) -> Written:
        """Write all or nothing, and say every loss, those of the `work` before included."""
        from hub_core.cli.placed_output import within
        from hub_core.pipeline.outputs import write

        # What has no name of its own is called after its collective.
        collective = getattr(model, "collective", None)
        name = str(collective.kind) if collective else "workload"
        out = within(cast("ChosenOutput", target), name).out
        policy = LossPolicy.REFUSE if request.strict else LossPolicy.WARN
        apply_policy(losses, policy)
        with self.progress(f"writing {out}"):
            written = write(
                model,
                out,
                format=target.format_name,
                options=options,
                policy=policy,
                force=request.force,
                registry=self.registry(),
            )
        whole = replace(written, losses=(*losses, *written.losses))
        say_losses(whole, out, work)
        return whole

    def write_result(
        self, result: WriteResult, target: OutputTarget, request: OutputRequest
    ) -> Written:
        """Write what a command made in the format of `target`, and say every loss."""
        from hub_core.pipeline.outputs import write_result

        with self.progress(f"writing {target.out}"):
            written = write_result(
                result,
                target.out,
                format=target.format_name,
                policy=LossPolicy.REFUSE if request.strict else LossPolicy.WARN,
                force=request.force,
                registry=self.registry(),
            )
        say_losses(written, target.out, "conversion")
        return written

    def write_topology(
        self,
        topology: Topology,
        out: str,
        target_format: str | None = None,
        options: Mapping[str, str] | None = None,
        *,
        strict: bool = False,
    ) -> Written:
        """Write a network with the topology writer of a format, and say every loss."""
        from hub_core.pipeline.outputs import write_topology

        with self.progress(f"writing {out}"):
            written = write_topology(
                topology,
                out,
                format=target_format,
                options=options,
                policy=LossPolicy.REFUSE if strict else LossPolicy.WARN,
                registry=self.registry(),
            )
        say_losses(written, out, "conversion")
        return written

    def draw_report(
        self, subject: ReportSubject, out: str, report_format: str | None = None
    ) -> Written:
        """Write a picture or a timeline of a subject, and print the notes of the writer."""
        return self._write_report(subject.shows, subject, out, report_format)

    def write_report(
        self, shown: Shown, request: ReportRequest, out: str, report_format: str | None = None
    ) -> Written:
        """Write a report of the kind `shown`. Deprecated: use `draw_report`."""
        return self._write_report(shown, request, out, report_format)

    def _write_report(
        self,
        shown: Shown,
        subject: ReportSubject | ReportRequest,
        out: str,
        report_format: str | None,
    ) -> Written:
        from hub_core.pipeline.outputs import write_report

        with self.progress(f"writing {out}"):
            written = write_report(
                shown, subject, out, format=report_format, registry=self.registry()
            )
        for note in written.notes:
            output.print_note(f"{out} {note}")
        return written

    def selection_folders(self) -> SelectionFolders:
        """Write and read folders of tuned selections."""
        from hub_core.cli.selections import SelectionFolders

        return SelectionFolders(self.registry())

    def write_file(self, out: str, content: bytes) -> Written:
        """Write one file, or standard output (`-`)."""
        from hub_core.pipeline.artifacts import Content, destination
        from hub_core.pipeline.outputs import Written
        from hub_core.plugin_api import Format

        place = destination(out, Format("file", "", ()), force=True)
        return Written(place.put([Content("", content)]), ())

    def run_checks(self, subject: Subject, request: CheckRequest) -> tuple[CheckReport, ...]:
        """Run every installed check of a subject, by name."""
        from hub_core.pipeline.checks import checks_of, run_check

        checks = checks_of(subject, self.registry())
        return tuple(run_check(check, request) for check in checks)

    def print_line(self, line: str) -> None:
        """Print one line of data on standard output."""
        output.print_line(line)

    def print_json(self, document: object) -> None:
        """Print one JSON document on standard output."""
        output.print_json(document)

    def print_fields(self, fields: Mapping[str, str]) -> None:
        """Print one `name  value` line a field, values aligned."""
        output.print_fields(fields)

    def print_table(
        self, header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
    ) -> None:
        """Print aligned columns; those named in `right` are right-aligned."""
        output.print_table(header, rows, right)

    def say(self, note: str) -> None:
        """Print a line that is no data on standard error."""
        output.print_note(note)

    def say_written(self, written: WrittenFiles, lead: str = "") -> None:
        """Say what was written: `LEADwrote FIRST and N more`; nothing for standard output."""
        if written.paths:
            first, rest = written.paths[0], len(written.paths) - 1
            output.print_note(f"{lead}wrote {first}" + (f" and {rest} more" if rest else ""))

    def report(
        self,
        diagnostics: Iterable[Diagnostic],
        opened: OpenedInput | None = None,
        algorithm: Algorithm | None = None,
    ) -> None:
        """Print findings; those on the file of `algorithm` name it as the user named it."""
        found = list(diagnostics)
        if opened is not None and algorithm is not None:
            found = with_path(found, algorithm, opened.name)
        for diagnostic in found:
            output.print_diagnostic(diagnostic)

    def progress(self, what: str) -> AbstractContextManager[None]:
        """Show `what` and the seconds it takes while the body runs, on a terminal."""
        return output.progress(what)

    def progress_bar(self, what: str) -> AbstractContextManager[Callable[[float, str], None]]:
        """Yield `show(fraction, detail)`, which tells how far the work is."""
        return output.progress_bar(what)

    def with_arguments(self, opened: OpenedInput, options: Mapping[str, str]) -> Mapping[str, str]:
        """Options of the reader, with what follows IN on the command line as `arguments`."""
        if not self.source_arguments:
            return options
        if "arguments" not in (option.name for option in opened.options):
            first = self.source_arguments[0]
            reader = f"{opened.name} is read as {opened.format_name}"
            raise UsageError(f"{reader}, which takes no arguments, but {first!r} follows it")
        if "arguments" in options:
            message = "arguments of the program are given twice: by -O arguments and behind IN"
            raise UsageError(message)
        return {**options, "arguments": shlex.join(self.source_arguments)}


def written_paths(paths: Sequence[Path]) -> list[str]:
    """Paths as the reports carry them."""
    # JSON knows no paths.
    return [str(path) for path in paths]
