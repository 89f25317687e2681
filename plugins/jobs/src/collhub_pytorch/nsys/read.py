"""Read exports of Nsight Systems as a workload: work of the devices and calls of NCCL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from collhub_nccl_records import input_bytes
from collhub_nccl_records.calls import operation_word

from collhub_pytorch.calls import Call, GroupRecord
from collhub_pytorch.formats import NSYS, NSYS_PARQUET, NsysOptions
from collhub_pytorch.job import join_ranks
from collhub_pytorch.kineto.events import RankEvents
from collhub_pytorch.kineto.read import (
    ASSUMPTIONS,
    describe_facts,
    device_profile,
    nodes_of_profile,
)
from collhub_pytorch.nccl.ranks import find_job_ranks
from collhub_pytorch.nsys.database import Tables, open_database
from collhub_pytorch.nsys.parquet import group_exports
from collhub_pytorch.nsys.rank_events import FileContents, FileRank, read_file
from collhub_pytorch.profile_reading import align_clocks, read_source, report_notes
from collhub_pytorch.rank_nodes import KERNEL_DELAY_NS, NONE, RankNodes
from collhub_pytorch.trace_files import TraceFile, open_decompressed, rank_numbers
from hub_core.model import (
    InputError,
    JsonValue,
    Location,
    Provenance,
    Workload,
    format_time,
)
from hub_core.plugin_api import Source


def read(source: Source, options: NsysOptions) -> Workload:
    """Read one export per rank, or exports of several ranks.

    Assumptions and losses are passed to `source.report`. Raises `InputError` for damaged files,
    missing ranks, mismatched collectives, and clocks that cannot be aligned.
    """
    return read_source(source, NSYS, workload_of, options)


def workload_of(
    files: Sequence[TraceFile], options: NsysOptions, provenance: Provenance
) -> Workload:
    """Read these SQLite files as a workload, one after the other."""
    return _workload_of(_open_files(files), options, provenance)


def read_folder(source: Source, options: NsysOptions) -> Workload:
    """Read a folder with one export of Parquet files per process as a job.

    Ranks in the names of folders are used as those of files. Notes are reported to `source`. Raises
    `UsageError` without pyarrow, and `InputError` without exports or for damaged files.
    """
    provenance = Provenance(NSYS_PARQUET, "", source.name, source.sha256())
    exports = group_exports(source.parts)
    names = rank_numbers([export.name for export in exports])
    opened = zip(exports, names, strict=True)
    workload = _workload_of(opened, options, provenance)
    report_notes(workload, source)
    return workload


def _open_files(files: Sequence[TraceFile]) -> Iterator[tuple[Tables, int | None]]:
    for file in files:
        with open_decompressed(file) as stream, open_database(stream, file.name) as database:
            yield database, file.rank


def _workload_of(
    exports: Iterable[tuple[Tables, int | None]], options: NsysOptions, provenance: Provenance
) -> Workload:
    """Join exports, with the ranks in their names. An export is open until the next one.

    A rank in a name counts only for exports of a single process and device. Gaps on a stream below
    `KERNEL_DELAY_NS` times the option `kernel_delay_factor` are usual; idle times of the extra
    streams (negative numbers) are not shown. The extension lists notes on contents, numbering and
    missing data. Clocks are aligned.
    """
    parts: list[RankNodes] = []
    ranks: list[FileRank] = []
    stated: dict[str, int | None] = {}
    lines: list[str] = []
    delay_ns = KERNEL_DELAY_NS * options.kernel_delay_factor
    for tables, file_rank in exports:
        contents = read_file(tables)
        lines += _describe_contents(tables.name, contents)
        for rank in contents.ranks:
            stated[rank.process] = file_rank if len(contents.ranks) == 1 else None
            profile = device_profile(rank.events, None, delay_ns)
            shown = tuple(stream_idle for stream_idle in profile.idle if stream_idle.stream >= 0)
            parts.append(nodes_of_profile(rank.events, replace(profile, idle=shown)))
            # Only the nodes of each file are kept.
            rank.events = RankEvents(rank.events.file)
            ranks.append(rank)
            del profile
    lines += _number_ranks(parts, ranks, stated)
    lines += describe_facts(parts)
    assumptions: list[JsonValue] = list(ASSUMPTIONS)
    extension: dict[str, JsonValue] = {"assumptions": assumptions, "notes": [*lines]}
    workload = join_ranks(parts, options, provenance, extension)
    return align_clocks(workload, options)


def _describe_contents(file: str, contents: FileContents) -> list[str]:
    texts = {
        "payloads of NCCL's ranges do not fit their schema: sizes of these calls are unknown":
            contents.undecodable,
        "ranges of NCCL have no payload: sizes of these calls are unknown":
            contents.without_payload - contents.undecodable,
        "kernels of NCCL perform several calls of a group, whose sizes are added": contents.added,
    }  # fmt: skip
    lines = [f"{file}: {count} {text}" for text, count in texts.items() if count > 0]
    if contents.merger is not None and contents.merger.merged:
        gap = format_time(contents.merger.gap_ns)
        lines.append(
            f"{file}: {contents.merger.merged} kernels and copies are merged with others on their"
            f" stream, because the profile is long; computation includes gaps below {gap}"
        )
    return lines


def _number_ranks(
    parts: Sequence[RankNodes], ranks: Sequence[FileRank], stated: Mapping[str, int | None]
) -> list[str]:
    """Set ranks, world size and groups of all parts, and return notes.

    Ranks follow from the initialisation of communicators if all processes recorded one (see
    `find_job_ranks`). Otherwise they follow from the names of the files, else their order, and the
    world size is None. Communicators without initialisation have the ranks whose processes use
    them; with all ranks, or without a name, they are groups of all ranks.
    """
    users = _find_users(parts, ranks)
    members = [member for rank in ranks for member in rank.members]
    lines: list[str] = []
    rank_of: dict[str, int] = {}
    group_of: dict[str, GroupRecord] = {}
    ranks_of: dict[str, tuple[int, ...]] = {}
    world_size: int | None = None
    if members and {member.process for member in members} == {rank.process for rank in ranks}:
        job = find_job_ranks(members, parts[0].file)
        rank_of = {member.process: rank for member, rank in job.rank_of.items()}
        group_of, ranks_of = dict(job.group_of), dict(job.ranks_of)
        world_size = job.world_size
        lines += job.notes
    else:
        for order, rank in enumerate(ranks):
            number = stated[rank.process]
            rank_of[rank.process] = order if number is None else number
        lines.append(
            "initialisations of communicators are not recorded: ranks follow from the names or the"
            " order of the files"
        )
    unknown = sorted(set(users) - set(ranks_of))
    for communicator in unknown:
        numbers = tuple(sorted(rank_of[process] for process in users[communicator]))
        ranks_of[communicator] = numbers
        is_all = not communicator or len(numbers) == len(ranks)
        group_of[communicator] = GroupRecord(communicator, None if is_all else numbers)
    if [communicator for communicator in unknown if communicator]:
        lines.append(
            f"{len(unknown)} communicators: their groups are the ranks whose files use them"
        )
    if "" in unknown:
        lines.append("calls without a communicator are assumed to be calls of all ranks")
    for part, rank in zip(parts, ranks, strict=True):
        part.rank, part.world_size = rank_of[rank.process], world_size
        part.calls = [_resolve_call(call, group_of, ranks_of) for call in part.calls]
        _check_groups(part)
    return lines


def _find_users(parts: Sequence[RankNodes], ranks: Sequence[FileRank]) -> dict[str, list[str]]:
    """Return the processes whose calls use each communicator, by its name ("": none given).

    `parts` and `ranks` describe the same processes in the same order.
    """
    users: dict[str, list[str]] = defaultdict(list)
    for part, rank in zip(parts, ranks, strict=True):
        for communicator in sorted({call.group.name for call in part.calls}):
            users[communicator].append(rank.process)
    return users


def _resolve_call(
    call: Call, group_of: Mapping[str, GroupRecord], ranks_of: Mapping[str, tuple[int, ...]]
) -> Call:
    """Return the call with ranks of the job: bytes of the input buffer, peer, and group.

    NCCL's call counts bytes as its API does, and peers in the communicator. An unknown peer is -1;
    a group with a rank that has no file loses its list of ranks.
    """
    communicator = call.group.name
    ranks = ranks_of[communicator]
    size = input_bytes(operation_word(call.name), call.bytes, len(ranks))
    peer = ranks[call.peer] if 0 <= call.peer < len(ranks) else NONE
    group = group_of[communicator]
    if group.ranks is not None and min(group.ranks) < 0:
        # Ranks of the communicator have no file.
        group = GroupRecord(group.name)
    return replace(call, bytes=size, peer=peer, group=group)


def _check_groups(part: RankNodes) -> None:
    for call in part.calls:
        if call.group.ranks is not None and part.rank not in call.group.ranks:
            message = f"rank {part.rank} uses communicator {call.group.name} of other ranks"
            cure = "name files of one run"
            raise InputError(message, location=Location(part.file), cure=cure, code="communicator")
