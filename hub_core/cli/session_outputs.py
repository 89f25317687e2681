"""Outputs of commands: choose the writer and the path, write, and report losses."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hub_core.cli import output
from hub_core.cli.reports.report_objects import say_losses
from hub_core.cli.session_state import SessionState
from hub_core.model import LossPolicy, UsageError, apply_policy

if TYPE_CHECKING:
    from hub_core.cli.arguments import OutputRequest
    from hub_core.cli.command_context import OutputTarget
    from hub_core.model import Algorithm, Loss, Workload
    from hub_core.network import Topology
    from hub_core.pipeline.inputs import OpenedAlgorithm
    from hub_core.pipeline.outputs import ModelWriter, SelectionFolders, Written
    from hub_core.plugin_api import Option, ReportRequest, ReportSubject, Shown, WriteResult

_UNNAMED = "algorithm"


@dataclass(frozen=True, slots=True)
class ChosenOutput:
    """Path of an output and the writer that was chosen for it."""

    out: str
    writer: ModelWriter

    @property
    def format_name(self) -> str:
        """Name of the format that will be written."""
        return self.writer.name

    @property
    def options(self) -> tuple[Option, ...]:
        """Options that the chosen writer declares, an empty tuple without any."""
        from hub_core.registry.compatibility import options_of

        return options_of(self.writer.offer)


class SessionOutputs(SessionState):
    """The part of a session that writes outputs.

    Every method that writes prints the losses on standard error.
    """

    __slots__ = ()

    def output_target(
        self, out: str, request: OutputRequest, *, is_workload: bool = False
    ) -> ChosenOutput:
        """Choose the writer of OUT by `--to`, else by its suffix; nothing is written yet.

        `is_workload`: choose among writers of workloads. The rule for a suffix is that of
        `find_writer`. Without `--to`, an OUT that ends with a slash counts as a path without
        suffix, i.e. a folder of traces.

        Raises `UsageError` in the first of these cases:

        - OUT is standard output (`-`), which the JSON report also needs.
        - OUT is standard output, which is closed.
        - There is no `--to`, and no writer or several writers fit the suffix.

        Raises `HubError` if no writer or several writers have the name in `--to`.
        """
        from hub_core.cli.arguments import check_stdout
        from hub_core.pipeline.outputs import choose_writer
        from hub_core.plugin_api import FormatWriter, WorkloadWriter

        check_stdout(out, request.as_json)
        # `main` replaces a closed stream by the null device. Messages may be lost there, but an
        # output may not.
        if out == "-" and getattr(sys.stdout, "name", "") == os.devnull:
            raise UsageError("standard output is closed", cure="give -o a path")
        # The name of a folder does not determine the format of a file in it.
        file = "" if out.endswith("/") else out
        kind = WorkloadWriter if is_workload else FormatWriter
        writer = choose_writer(self.registry(), file, request.target_format, kind)  # type: ignore[type-var]
        return ChosenOutput(out, writer)  # type: ignore[arg-type]

    def write_output(
        self,
        model: Algorithm | Workload,
        target: OutputTarget,
        options: Mapping[str, str],
        request: OutputRequest,
        losses: Sequence[Loss] = (),
        work: str = "conversion",
    ) -> Written:
        """Write a model completely or not at all; print the losses, and return paths and losses.

        Calls the writer of `target` (`pipeline.outputs.write`). `losses`: losses of earlier
        operations, listed before those of the writer. `work`: the operation that messages name. If
        OUT ends with a slash, the file in it is named after the collective, or `workload`. Under
        `request.strict`, any loss, also an earlier one, raises `LossyError`, and no file is
        written. An existing file is replaced; an existing set of rank files or folder is refused
        except with `request.force`.
        """
        from hub_core.pipeline.outputs import write

        collective = getattr(model, "collective", None)
        name = str(collective.kind) if collective else "workload"
        out = place_in_folder(cast("ChosenOutput", target), name).out
        policy = _policy(request.strict)
        apply_policy(losses, policy)
        with output.progress(f"writing {out}"):
            written = write(
                model,
                out,
                format=target.format_name,
                options=options,
                policy=policy,
                force=request.force,
                registry=self.registry(),
            )
        written = replace(written, losses=(*losses, *written.losses))
        say_losses(written, out, work)
        return written

    def write_result(
        self, result: WriteResult, target: OutputTarget, request: OutputRequest
    ) -> Written:
        """Write the artifacts of a command in the format of `target`; return paths and losses.

        All files are written or none. Then losses are printed as warnings, and after them the
        writer's notes. Under `--strict`, a loss raises `LossyError` instead, and no file is
        written. By the kind of the format:

        - One file: an existing file is replaced.
        - A set of rank files: refused if some files of an existing set would remain.
        - A folder: refused unless it is missing or empty.

        A refusal is a `UsageError`. With `request.force` nothing is refused: the remaining files
        of the set are removed, and other files of the folder are kept. Raises `HubError` for an
        unknown format or an unusable path.
        """
        from hub_core.pipeline.outputs import write_result

        with output.progress(f"writing {target.out}"):
            written = write_result(
                result,
                target.out,
                format=target.format_name,
                policy=_policy(request.strict),
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
        """Write a network to `out` and report the losses; return the written paths and the losses.

        `out`: a file, which is replaced if it exists, or `-` for standard output. `target_format`:
        name of the writer. None chooses the only writer with the suffix of `out`; if none or
        several have it, the hub's topology document. `options`: those of the writer. Losses are
        printed as warnings, then the notes of the writer. If `strict`, `LossyError` is raised for
        losses instead, and nothing is written. Raises `HubError` for an unknown format, wrong
        options, or an output that cannot be written.
        """
        from hub_core.pipeline.outputs import write_topology

        with output.progress(f"writing {out}"):
            written = write_topology(
                topology,
                out,
                format=target_format,
                options=options,
                policy=_policy(strict),
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

        with output.progress(f"writing {out}"):
            written = write_report(
                shown, subject, out, format=report_format, registry=self.registry()
            )
        for note in written.notes:
            output.print_note(f"{out} {note}")
        return written

    def selection_folders(self) -> SelectionFolders:
        """Return a new object that writes and reads folders of tuned selections.

        A selection defines which algorithm is used for which calls. The plugins are those of
        this session.
        """
        from hub_core.pipeline.outputs import SelectionFolders

        return SelectionFolders(self.registry())

    def write_file(self, out: str, content: bytes) -> Written:
        """Write bytes to the file `out`, or to standard output if `out` is `-`.

        An existing file is replaced without a question; missing parent folders are created. The
        file is written completely or not at all. The result has the path of the file, or no path
        for standard output, and an empty list of losses. Raises `UsageError`, a `HubError`, if
        `out` is empty, is a folder, or cannot be written.
        """
        from hub_core.pipeline.artifacts import Content, destination
        from hub_core.pipeline.outputs import Written
        from hub_core.plugin_api import Format

        target = destination(out, Format("file", "", ()), force=True)
        return Written(target.put([Content("", content)]), ())


def choose_path(target: ChosenOutput, opened: OpenedAlgorithm, *, force: bool) -> ChosenOutput:
    """Return an output that is made from an input, with its final path.

    A path with a slash at its end is completed by the stem of the input: its name without folders
    and its last suffix, which a prefix of rank files keeps (`algorithm` for standard input, other
    inputs of unknown size such as pipes, and paths without a name). The format's first suffix is
    appended, except for a format with one file per rank or without suffixes. A format that is a
    folder keeps the path, as do all other paths.

    Raises `UsageError` (`output-is-input`) if the output would replace a file of the input,
    unless `force` is given.
    """
    from hub_core.pipeline.sources import STANDARD_STREAM

    path, first = Path(opened.name), opened.source.parts[0]
    stem = path.stem if first.name == opened.name else path.name
    if not path.name or first.size is None or opened.name == STANDARD_STREAM:
        stem = _UNNAMED
    target = place_in_folder(target, stem)
    if not force and _replaces_input(target, opened):
        message = f"{target.out} is the input itself"
        cure = "choose another place, or overwrite with --force"
        raise UsageError(message, cure=cure, code="output-is-input")
    return target


def place_in_folder(target: ChosenOutput, stem: str) -> ChosenOutput:
    """Complete an output that ends with a slash by a file name in that folder.

    The name is `stem` and the first suffix of the format. There is no suffix for a format with one
    file per rank, whose files extend the name as a prefix, and for a format without suffixes. Other
    outputs, and those whose format is itself a folder, are returned unchanged.
    """
    from hub_core.plugin_api import Layout

    written = target.writer.offer.format
    if not target.out.endswith("/") or written.layout is Layout.FOLDER:
        return target
    suffix = written.suffixes[0] if written.layout is Layout.FILE and written.suffixes else ""
    return replace(target, out=os.path.join(target.out, stem + suffix))


def written_paths(paths: Sequence[Path]) -> list[str]:
    """Convert paths to texts for JSON reports."""
    return [str(path) for path in paths]


def _policy(is_strict: bool) -> LossPolicy:
    return LossPolicy.REFUSE if is_strict else LossPolicy.WARN


def _replaces_input(target: ChosenOutput, opened: OpenedAlgorithm) -> bool:
    """Return whether a file of the input is among the files that the output would replace.

    For a format of one file per rank, all rank files with the prefix `target.out` would be
    replaced, else only `target.out` itself. Different paths of the same file count as equal.
    """
    from hub_core.pipeline.sources import rank_files, set_prefix
    from hub_core.plugin_api import Layout

    written = target.writer.offer.format
    replaced = [Path(target.out)]
    if written.layout is Layout.PREFIX:
        replaced = rank_files(set_prefix(Path(target.out), written.suffixes), written.suffixes)
    return any(_is_same_file(part.name, file) for part in opened.source.parts for file in replaced)


def _is_same_file(name: str, file: Path) -> bool:
    """Return whether both paths lead to the same existing file, also through links.

    False if one of them does not exist, such as `-` for standard input, or is not accessible.
    """
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(name, file)
    return False
