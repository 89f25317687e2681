"""Read records of NCCL (Inspector, profiler plugin, logs) and of DeepSpeed as workloads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from collhub_nccl_records import (
    CallRecord,
    NcclLog,
    SkippedLine,
    read_deepspeed_lines,
    read_inspector_lines,
    read_lines,
    read_profiler_events,
)

from collhub_pytorch.analysis import match_communications
from collhub_pytorch.formats import (
    DEEPSPEED,
    INSPECTOR,
    NCCL_CALLS,
    PROFILER,
    ClockOptions,
    DeepSpeedOptions,
    RankOptions,
)
from collhub_pytorch.job import join_ranks
from collhub_pytorch.nccl.graph import CallGraph
from collhub_pytorch.nccl.ranks import RecordedCalls, find_job_ranks
from collhub_pytorch.profile_reading import align_clocks, read_source
from collhub_pytorch.trace_files import TraceFile, open_decompressed
from hub_core.model import (
    InputError,
    JsonValue,
    Location,
    Provenance,
    Workload,
)
from hub_core.plugin_api import Source

Lines = Iterable[tuple[int, bytes | None]]
RecordReader = Callable[[Lines, str], Iterator[CallRecord | SkippedLine]]
# The reader of a log keeps the members of communicators, which may be in another file.
_READERS: dict[str, Callable[[], RecordReader]] = {
    INSPECTOR: lambda: read_inspector_lines,
    PROFILER: lambda: read_profiler_events,
    NCCL_CALLS: lambda: NcclLog().read,
    DEEPSPEED: lambda: read_deepspeed_lines,
}
_MAX_LISTED_LINES = 10


def read_inspector(source: Source, options: ClockOptions) -> Workload:
    """Read the lines of NCCL's Inspector: one file or several, of one or several processes.

    Assumptions and losses are passed to `source.report`. Raises `InputError` without any valid
    line, for contradicting communicators, missing ranks, mismatched collectives, and clocks that
    cannot be aligned.
    """
    return read_source(source, INSPECTOR, workload_of, options)


def read_profiler(source: Source, options: ClockOptions) -> Workload:
    """Read the events of NCCL's example profiler plugin; otherwise as `read_inspector`."""
    return read_source(source, PROFILER, workload_of, options)


def read_log(source: Source, options: RankOptions) -> Workload:
    """Read the calls in logs of NCCL (subsystem COLL) as a job without times.

    The calls of each rank follow each other. Other lines are ignored. Damaged ones are not
    used; the first 10 are named in notes, which are reported to `source`. Raise
    `InputError` without a valid record (`empty`), for contradictory records
    (`communicator`), for ranks without a file unless the options assume them, and for
    collectives that differ between ranks unless the option `mismatches` is `keep`.
    """
    clocks = ClockOptions(ranks_missing=options.ranks_missing, mismatches=options.mismatches)
    return read_source(source, NCCL_CALLS, workload_of, clocks)


def read_deepspeed(source: Source, options: DeepSpeedOptions) -> Workload:
    """Read the log of DeepSpeed's communication logger as a job with durations of calls.

    The log is of rank 0: all calls are assumed to be calls of all ranks, whose number is
    derived from the bandwidths. With the option `ranks_missing` = `assume-same`, the other
    ranks do the same. The calls of a rank follow each other, because the log has no start
    times. Notes are reported to `source`. Raise `InputError` without a valid record
    (`empty`), if no number of ranks fits, for too many calls, and for missing ranks without
    that option.
    """
    clocks = ClockOptions(ranks_missing=options.ranks_missing)
    return read_source(source, DEEPSPEED, workload_of, clocks)


def has_calls(source: Source) -> bool:
    """Return whether a log has calls of all ranks of its largest communicator.

    Such a log can be read as a job; other logs only describe rings and trees. The largest
    communicator of the log has the most ranks, whether or not it has calls; of equal ones it is the
    first. The ranks that recorded a call on it are counted, each once; the result is True if their
    number is that of its ranks. False for a log without calls, and if reading raises `InputError`.
    All files of `source` are read to the end.
    """
    log, ranks = NcclLog(), defaultdict[str, set[int]](set)
    try:
        for part in source.parts:
            with part.stream() as stream:
                for record in log.read(read_lines(stream), part.name):
                    if isinstance(record, CallRecord):
                        ranks[record.member.communicator].add(record.member.rank)
    except InputError:
        return False
    if not ranks:
        return False
    largest = max(log.communicators.values(), key=lambda one: one.rank_count)
    return len(ranks.get(largest.identity, ())) == largest.rank_count


def workload_of(
    files: Sequence[TraceFile], options: ClockOptions, provenance: Provenance
) -> Workload:
    """Return the calls of all files of NCCL records as one workload.

    `provenance.producer` is the format, a key of `_READERS`. `find_job_ranks` numbers the ranks.
    The extension has `assumptions` (empty), `notes` and, if known, `ranks_per_node`. Notes:
    numbering of ranks, matching and placement of calls, assumptions of the reader, the first 10
    unused lines and the number of the others, rounded sizes of DeepSpeed, missing times. Clocks:
    - With durations: aligned as `options` request (`align_clocks`). Without start times all ranks
      count as having one clock.
    - Without durations: not aligned. Calls that differ between ranks raise an error only if
      `options.mismatches` is `refuse`.

    Raises `InputError`: `empty` without a valid record, `communicator` for contradicting records,
    and the errors of `join_ranks` (such as missing ranks) and `align_clocks`.
    """
    calls, skipped, assumptions = RecordedCalls(), list[str](), list[str]()
    first_skipped: tuple[str, SkippedLine] | None = None
    file_of_process: dict[str, str] = {}
    read_records = _READERS[provenance.producer]()
    for file in files:
        with open_decompressed(file) as content:
            records = read_records(read_lines(content), file.name)
            for record in records:
                if isinstance(record, SkippedLine):
                    if not record.is_assumption:
                        first_skipped = first_skipped or (file.name, record)
                    findings = assumptions if record.is_assumption else skipped
                    cure = f"; {record.cure}" if record.cure else ""
                    findings.append(f"{file.name}:{record.line}: {record.message}{cure}")
                    continue
                file_of_process.setdefault(record.member.process, file.name)
                calls.add(record)
    if not len(calls):
        raise _empty_error(files[0].name, provenance.producer, first_skipped)
    job = find_job_ranks(calls.members, files[0].name)
    processes = {rank: member.process for member, rank in job.rank_of.items()}
    is_shared = len(file_of_process) > len(files)
    names = {
        rank: f"{file_of_process[process]} ({process})" if is_shared else file_of_process[process]
        for rank, process in processes.items()
    }
    graph = CallGraph(calls, job, names)
    parts = graph.rank_nodes()
    lines: list[JsonValue] = [*job.notes, *graph.notes, *assumptions]
    lines += [f"not used: {text}" for text in skipped[:_MAX_LISTED_LINES]]
    if len(skipped) > _MAX_LISTED_LINES:
        lines.append(f"not used: {len(skipped) - _MAX_LISTED_LINES} more lines")
    if provenance.producer == DEEPSPEED:
        lines.append(
            "sizes are rounded by up to 0.5 %, and calls are assumed to be of all ranks: the log"
            " names no groups"
        )
    if graph.has_times and not graph.has_starts:
        lines.append(
            "the records have no start times: the calls of a rank follow each other without gaps,"
            " except for waiting"
        )
    if not graph.has_times:
        lines.append("times are not recorded: the calls of a rank follow each other in their order")
    extension: dict[str, JsonValue] = {"assumptions": [], "notes": lines}
    if job.ranks_per_node is not None:
        extension["ranks_per_node"] = job.ranks_per_node
    workload = join_ranks(parts, options, provenance, extension)
    if not graph.has_times:
        if options.mismatches == "refuse":
            match_communications(workload)
        return workload
    return align_clocks(workload, options, has_common_clock=not graph.has_starts)


def _empty_error(
    file: str, format_name: str, skipped: tuple[str, SkippedLine] | None
) -> InputError:
    """Create the error (`empty`) for files without a valid record.

    `skipped`: file and finding of the first line that is not used, which gives place, reason and
    cure; None for files without such a line, of which `file` is the first.
    """
    if skipped is not None:
        name, line = skipped
        message = f"there is no valid record: {line.message}"
        return InputError(message, location=Location(name, line.line), cure=line.cure, code="empty")
    cure = f"give files that the tool writes, see the format {format_name}"
    return InputError("there is no record", location=Location(file), cure=cure, code="empty")
