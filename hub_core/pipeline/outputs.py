"""Write models, topologies, reports and tuned selections with the writers of plugins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hub_core.model import (
    Algorithm,
    Loss,
    LossPolicy,
    PluginError,
    UsageError,
    Workload,
    apply_policy,
    format_ranks,
)
from hub_core.network.topology import Topology
from hub_core.pipeline.artifacts import Content, Destination, destination, name_defect
from hub_core.pipeline.calls import blame, bound_options, call, misfit
from hub_core.pipeline.detection import W, find_writer
from hub_core.pipeline.inputs import PathText
from hub_core.plugin_api import (
    Artifact,
    Format,
    FormatReader,
    Selection,
    SelectionWriter,
    ServedCalls,
    Source,
    resolve,
)
from hub_core.plugin_api.formats import (
    FormatWriter,
    Layout,
    MeasuredGain,
    TopologyWriter,
    WorkloadReader,
    WorkloadWriter,
)
from hub_core.plugin_api.outputs import (
    ReportRequest,
    ReportSubject,
    ReportWriter,
    Shown,
    WriteResult,
)
from hub_core.registry.bind_options import OptionText
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Provided, Registry

CANONICAL_TOPOLOGY = "topology-json"

ModelWriter = Provided[FormatWriter] | Provided[WorkloadWriter]

AnyWriter = ModelWriter | Provided[ReportWriter] | Provided[TopologyWriter]


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a writing: files in order (empty for standard output), losses and notes."""

    paths: tuple[Path, ...]
    losses: tuple[Loss, ...]
    notes: tuple[str, ...] = ()


def write(
    model: Algorithm | Workload,
    out: PathText,
    *,
    format: str | None = None,
    options: OptionText | None = None,
    policy: LossPolicy = LossPolicy.WARN,
    force: bool = False,
    registry: Registry | None = None,
) -> Written:
    """Write an algorithm or a workload to a file, a prefix, a folder or standard output (`-`).

    `format`: name of the writer; None chooses it by suffix, and canonical traces without a suffix.
    The output is written completely or not at all. `force` is required if it would mix with
    existing files. The model is not verified. Losses are returned; under `LossPolicy.REFUSE` they
    raise `LossyError`, and nothing is written. Raises `HubError` for an unusable output or format.
    """
    registry = registry or run_registry()
    writer: ModelWriter = (
        choose_writer(registry, str(out), format, WorkloadWriter)
        if isinstance(model, Workload)
        else choose_writer(registry, str(out), format, FormatWriter)
    )
    target = destination(str(out), writer.offer.format, force=force)
    return _call_writer(writer, model, options, target, policy)


def measure_gain(
    before: Workload,
    after: Workload,
    format: str,
    *,
    options: OptionText | None = None,
    registry: Registry,
) -> MeasuredGain:
    """Run two workloads as files of a format, and compare their times and results.

    `format`: name of a writer of workloads, which runs the files; `options`: its options. Raises
    `UsageError` if the writer cannot run its files, `HubError` for an unknown writer or option and
    if a run fails, and `PluginError` if the writer returns no `MeasuredGain`.
    """
    writer = registry.find(WorkloadWriter, format)
    if not writer.offer.run:
        message = f"files of the format {format} cannot be run"
        raise UsageError(message, cure="leave --run out, or name a format that can with --to")
    with blame(writer):
        gain = resolve(writer.offer.run)(before, after, bound_options(writer, options))
    if not isinstance(gain, MeasuredGain):
        raise misfit(writer, f"returned {type(gain).__name__}, expected MeasuredGain")
    return gain


def write_topology(
    topology: Topology,
    out: str,
    *,
    format: str | None = None,
    options: OptionText | None = None,
    policy: LossPolicy = LossPolicy.WARN,
    registry: Registry,
) -> Written:
    """Write a network to a file or to standard output (`-`); return the paths and losses.

    `format`: name of the writer. None chooses the only writer with the suffix of `out` (case
    counts); if none or several have it, as for `-`, the hub's topology document. An existing file
    is replaced. Paths are empty for standard output. Formats other than this document lose the
    measured rate of switches that multicast and reduce, if the network has one; this loss comes
    after those of the writer.

    Nothing is written after an error. Raises `LossyError` for losses under `LossPolicy.REFUSE`,
    and `HubError` for an unknown writer or option, for an unusable output, and if the writer
    refuses the network or fails.
    """
    named = [
        offered.name
        for offered in registry.all(TopologyWriter)
        if out.endswith(offered.offer.format.suffixes)
    ]
    name = format or (named[0] if len(named) == 1 else CANONICAL_TOPOLOGY)
    writer = registry.find(TopologyWriter, name)
    target = destination(out, writer.offer.format, force=True)
    result = call(writer, WriteResult, topology, bound_options(writer, options))
    measured = topology.measured_switches
    if measured is not None and writer.name != CANONICAL_TOPOLOGY:
        rate = f"multicasts and sums at {measured.bytes_per_s / 1e9:g} GB/s on machines are dropped"
        loss = Loss("measured_switches", format_ranks(measured.switches), rate)
        result = replace(result, losses=(*result.losses, loss))
    return _write_artifacts(writer, result, target, policy)


def write_result(
    result: WriteResult,
    out: str,
    *,
    format: str,
    policy: LossPolicy = LossPolicy.WARN,
    force: bool = False,
    registry: Registry,
) -> Written:
    """Write artifacts that a command built, as if the writer of `format` had returned them.

    All files are written or none; returns paths, losses and notes. An existing file is replaced; an
    existing rank set or a non-empty folder is refused without `force`. Raises `LossyError` for
    losses under `LossPolicy.REFUSE`, and `HubError` for an unusable output or unknown format.
    """
    writer = registry.find(FormatWriter, format)
    target = destination(out, writer.offer.format, force=force)
    return _write_artifacts(writer, result, target, policy)


def write_report(
    shown: Shown,
    subject: ReportSubject | ReportRequest,
    out: str,
    *,
    format: str | None = None,
    registry: Registry,
) -> Written:
    """Write a picture, a timeline or another report of the kind `shown`.

    The writer is the one named `format`, whose kind is not checked; without it, the only one of
    this kind with the suffix of `out` or, if none has it, at all. Options have their defaults. An
    existing file is replaced. Raises `HubError` if no or several writers fit, and if writing fails.
    """
    if format is not None:
        writer = registry.find(ReportWriter, format)
    else:
        able = [offered for offered in registry.all(ReportWriter) if offered.offer.shows is shown]
        named = [offered for offered in able if out.endswith(offered.offer.format.suffixes)]
        fitting = named or able
        if not fitting:
            message, cure = f"no installed plugin shows a {shown}", "see 'collhub plugins list'"
            raise PluginError(message, cure=cure, code="not-available")
        if len(fitting) > 1:
            names = " or ".join(offered.name for offered in fitting)
            cure = "name the file with the suffix of one"
            raise UsageError(f"{out!r} may be {names}", cure=cure)
        writer = fitting[0]
    target = destination(out, writer.offer.format, force=True)
    return _call_writer(writer, subject, None, target, LossPolicy.WARN)


def render_report(subject: ReportSubject, *, registry: Registry, suffix: str = "") -> bytes:
    """Return the content of the report on a subject, by the first writer for its kind.

    `suffix`: the writer must have it, such as `.svg`; "" for any. Options have their defaults.
    Several artifacts are concatenated. Raises `HubError` without such a writer, and if it fails.
    """
    for writer in registry.all(ReportWriter):
        suffixes = ("", *writer.offer.format.suffixes)
        if writer.offer.shows is subject.shows and suffix in suffixes:
            break
    else:
        message = f"no plugin shows a {subject.shows} as {suffix or 'a file'}"
        raise PluginError(message, cure="see 'collhub plugins list'", code="not-available")
    result = call(writer, WriteResult, subject, bound_options(writer, None))
    return b"".join(content.data for content in _check_artifacts(writer, result))


def choose_writer(
    registry: Registry, out: str, target_format: str | None, kind: type[W]
) -> Provided[W]:
    """Return the writer named `target_format`, or if it is None, the writer for `out`'s suffix.

    Raises `HubError` if no writer or several writers of the kind have that name, and `UsageError`
    if no writer or several writers fit the suffix (see `find_writer`).
    """
    if target_format is not None:
        return registry.find(kind, target_format)
    return find_writer(out, kind, registry)


_SEARCHED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class SelectionFolders:
    """Access to folders of selections with the selection writers of a registry."""

    registry: Registry

    def files(self, selection: Selection, format: str, options: Mapping[str, str]) -> WriteResult:
        """Return the files of a selection in a format, with loaded contents; nothing is written.

        A selection defines which algorithm is used for which calls. `format`: name of a writer of
        selections; `options`: its options as texts. The result has the writer's files in order,
        its losses and notes, and its runtimes: those that it returned, else those of its offer.
        Raises `HubError` for an unknown format or option and if the writer refuses the selection.
        Raises `PluginError` if the writer fails, and for the first file whose name is no relative
        path within the folder. Repeated names are not checked.
        """
        writer = self.registry.find(SelectionWriter, format)
        result = call(writer, WriteResult, selection, bound_options(writer, options))
        with blame(writer):
            artifacts = [
                Artifact(artifact.name, artifact.content(), artifact.executable)
                for artifact in result.artifacts
            ]
        for artifact in artifacts:
            if reason := name_defect(artifact.name, Layout.FOLDER):
                raise misfit(writer, f"returned an artifact whose name {reason}")
        runtimes = tuple(result.runtimes or writer.offer.runtimes)
        return WriteResult(artifacts, tuple(result.losses), (), tuple(result.notes), runtimes)

    def runtimes_of(self, format: str) -> Sequence[str]:
        """Return the products and versions that read the files of a format; may be empty.

        Raises `HubError` if no writer of selections is named `format`.
        """
        return tuple(self.registry.find(SelectionWriter, format).offer.runtimes)

    def served_calls(self, source: Source, format: str) -> Sequence[ServedCalls]:
        """Read the files of a selection; return the calls that a runtime serves with them.

        `format`: name of a writer of selections, whose function `read` is called. The order of its
        result is kept. Raises `HubError` for an unknown format and if the function refuses the
        files, and `PluginError` if it fails or returns neither a list nor a tuple.
        """
        writer = self.registry.find(SelectionWriter, format)
        with blame(writer):
            calls = resolve(writer.offer.read)(source)
        if not isinstance(calls, list | tuple):
            raise misfit(writer, f"reads {type(calls).__name__}, expected a list of ServedCalls")
        return calls

    def formats_of(self, name: str, content: bytes, *, may_be_input: bool = False) -> list[str]:
        """Return the names of the formats that a tuner file may have, in the order of the registry.

        Suffixes are compared with `name` in lower case. Candidates are the formats with a suffix
        of `name` and those without suffixes; all formats if none has a suffix of `name`. The first
        rule applies:

        1. The signature (a regular expression) of some candidates occurs in the first 64 KiB of
           `content`: these candidates.
        2. The formats with a suffix of `name`; [] if there are none. With `may_be_input`, a format
           is left out if a reader of algorithms or jobs also has this suffix, such as `.json`.
        """
        formats = [provided.offer.format for provided in self.registry.all(SelectionWriter)]
        by_suffix = [form for form in formats if name.lower().endswith(form.suffixes)]
        candidates = [form for form in formats if form in by_suffix or not form.suffixes]
        by_content = [
            form
            for form in (candidates if by_suffix else formats)
            if form.signature and re.search(form.signature, content[:_SEARCHED_BYTES])
        ]
        if may_be_input and not by_content:
            readers = (*self.registry.all(FormatReader), *self.registry.all(WorkloadReader))
            taken = {suffix for reader in readers for suffix in reader.offer.format.suffixes}
            by_suffix = [
                form
                for form in by_suffix
                if not name.lower().endswith(tuple(taken & {*form.suffixes}))
            ]
        return [form.name for form in by_content or by_suffix]

    def admit(self, folder: str, *, force: bool) -> None:
        """Raise `UsageError` for a folder that `put` would refuse, before any work."""
        _get_destination(folder, force)

    def put(self, folder: str, files: Iterable[Artifact], *, force: bool) -> Written:
        """Write all files into `folder` or none; return their paths, without losses.

        The folder is created if it is missing; with `force` it may contain further files, which
        remain. Raises `UsageError` if it is not empty without `force`, and if it cannot be written.
        """
        contents = (Content(file.name, bytes(file.content()), file.executable) for file in files)
        return Written(_get_destination(folder, force).put(contents), ())


def _call_writer(
    writer: AnyWriter,
    subject: object,
    options: OptionText | None,
    target: Destination,
    policy: LossPolicy,
) -> Written:
    result = call(writer, WriteResult, subject, bound_options(writer, options))
    return _write_artifacts(writer, result, target, policy)


def _write_artifacts(
    writer: AnyWriter, result: WriteResult, target: Destination, policy: LossPolicy
) -> Written:
    with blame(writer):
        losses = tuple(result.losses)
    if not all(isinstance(loss, Loss) for loss in losses):
        raise misfit(writer, "returned losses that are not Loss")
    apply_policy(losses, policy)
    return Written(target.put(_check_artifacts(writer, result)), losses, tuple(result.notes))


def _check_artifacts(writer: AnyWriter, result: WriteResult) -> Iterator[Content]:
    """Yield the artifacts of a writer as contents, in its order; each is loaded on request.

    Ends after the last artifact, or at a None in place of an artifact. Raises `PluginError` for the
    first defect of a loaded artifact, in this order: a name that does not fit the layout of the
    format (`name_defect`); a repeated name; content that is not `bytes`, `bytearray` or
    `memoryview`. Raises it at the end if there was no artifact. For a plugin's writer, it also
    replaces all exceptions except `HubError`, `KeyboardInterrupt` and `MemoryError` (`blame`).
    """
    is_single = writer.offer.format.layout is Layout.FILE
    seen: set[str] = set()
    with blame(writer):
        artifacts = iter(result.artifacts)
    while True:
        with blame(writer):
            artifact = next(artifacts, None)
            data = artifact.content() if artifact is not None else b""
        if artifact is None:
            break
        reason = name_defect(artifact.name, writer.offer.format.layout)
        if not reason and artifact.name in seen:
            reason = f"comes twice{', though the format is one file' if is_single else ''}"
        if reason:
            raise misfit(writer, f"returned an artifact whose name {reason}")
        seen.add(artifact.name)
        if not isinstance(data, bytes | bytearray | memoryview):
            kind = type(data).__name__
            raise misfit(writer, f"returned an artifact whose content is {kind}, expected bytes")
        yield Content(artifact.name, bytes(data), artifact.executable)
    if not seen:
        raise misfit(writer, "returned no artifact")


def _get_destination(folder: str, force: bool) -> Destination:
    return destination(folder, Format("tuned", "", (), layout=Layout.FOLDER), force=force)
