"""Join the nodes of all ranks to one workload: groups, names, missing ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import NoReturn

import numpy as np

from collhub_pytorch.calls import HOST_LIBRARIES, MAX_RANKS, Call, GroupRecord
from collhub_pytorch.formats import RankOptions
from collhub_pytorch.rank_nodes import NONE, RankNodes, StreamIdle, translate_group
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import (
    InputError,
    JsonValue,
    Location,
    NodeColumns,
    NodeKind,
    ProcessGroup,
    Provenance,
    Workload,
    format_ranks,
)

EXTENSION = "pytorch"
_MAX_COPIED_NODES = 1 << 26
_NUMBERS_END = 1 << 63
# Lists of the extension with one entry per rank.
_FACTS_BY_RANK = ("files", "has_device", "idle")


def join_ranks(
    parts: Sequence[RankNodes],
    options: RankOptions,
    provenance: Provenance,
    extension: Mapping[str, JsonValue],
) -> Workload:
    """Join the nodes of all ranks to one workload, by rank, each in the order of its file.

    The number of ranks is the recorded one, else the highest rank plus 1. With the option
    `ranks_missing=assume-same`, a rank r without a file copies file number r modulo F, where F is
    the number of files, sorted by rank. Recorded dependencies become data dependencies, assumed
    ones control dependencies. Members of `extension` replace those of equal names. Its list `notes`
    gets one more note if a message has no partner.

    Raises `ValueError` without files. Raises `InputError`, in this order: two files of one rank;
    wrong numbers of ranks; missing ranks without the option, or more than 2^26 copied nodes with
    it; numbers beyond 64 bits. Per call also: a rank that is no member of its group, a copied
    message, a copied call whose group cannot be derived.
    """
    sources = _select_sources(parts, options)
    has_file = {part.rank for part in parts}
    files: list[JsonValue] = [part.file for part in sources]
    assumed: list[JsonValue] = [rank for rank in range(len(sources)) if rank not in has_file]
    tables = _Tables(len(sources))
    nodes = _nodes(sources, tables, provenance.source_name or None)
    memory = frozenset[str]().union(*(part.facts.memory_names for part in parts))
    communication = tables.demoted.union(*(part.facts.communication_names for part in parts))
    facts: dict[str, JsonValue] = {
        "files": files,
        "assumed_ranks": assumed,
        "has_device": [part.facts.has_device for part in sources],
        "memory_names": [*sorted(memory)],
        "communication_names": [*sorted(communication)],
        "idle": [
            [asdict(stream) for stream in part.facts.idle]
            if rank in has_file and part.facts.idle is not None
            else None
            for rank, part in enumerate(sources)
        ],
    }
    given = extension.get("notes")
    lone = tables.lone_messages
    if lone and isinstance(given, list):
        note = (
            f"{format_rank_list([*lone])}: {sum(lone.values())} messages without a recorded peer"
            " count as communication with an unknown rank, for which nobody waits"
        )
        extension = {**extension, "notes": [*given, note]}
    return Workload(
        nodes,
        tuple(tables.names),
        tuple(ProcessGroup(*group) for group in tables.groups),
        extras=tuple(tables.extras),
        provenance=provenance,
        extensions={EXTENSION: {**facts, **extension}},
    )


def format_rank_list(ranks: Sequence[int]) -> str:
    """Return `rank 3` or `ranks 0-1,3`; the order of `ranks` does not matter."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(sorted(ranks))}"


def _select_sources(parts: Sequence[RankNodes], options: RankOptions) -> list[RankNodes]:
    """Return for every rank its nodes, or those of the rank that it copies.

    The number of ranks is that of `_find_world_size`, whose errors pass through. With
    `ranks_missing=assume-same`, missing rank r copies the file at position r modulo the number of
    files, in the order of ranks. With files of ranks 0 and 3, rank 5 copies that of rank 3.

    Raises `InputError`: first `rank-twice` for two parts of one rank, later `missing-ranks` for
    missing ranks without this option. With it, the same is raised if missing ranks * nodes of the
    largest file exceeds 2^26. Raises `ValueError` without parts.
    """
    by_rank: dict[int, RankNodes] = {}
    for part in parts:
        if part.rank in by_rank:
            message = f"this is rank {part.rank}, as is {by_rank[part.rank].file}"
            cure = "name one file per rank"
            raise InputError(message, location=Location(part.file), cure=cure, code="rank-twice")
        by_rank[part.rank] = part
    world_size = _find_world_size(parts)
    missing = sorted(set(range(world_size)) - set(by_rank))
    copied = len(missing) * max(len(part.kind) for part in parts)
    if options.ranks_missing == "assume-same" and copied > _MAX_COPIED_NODES:
        message = f"copies for {len(missing)} missing ranks would have {copied} nodes"
        cure = f"name the files of more ranks; at most {_MAX_COPIED_NODES} nodes are copied"
        raise InputError(message, location=Location(parts[0].file), cure=cure, code="missing-ranks")
    if missing and options.ranks_missing != "assume-same":
        have = f"ranks {format_ranks(missing)} of {world_size} are missing"
        cure = "name the files of all ranks, or give -O ranks_missing=assume-same"
        raise InputError(have, location=Location(parts[0].file), cure=cure, code="missing-ranks")
    available = sorted(by_rank)
    return [
        by_rank.get(rank, by_rank[available[rank % len(available)]]) for rank in range(world_size)
    ]


def _nodes(sources: Sequence[RankNodes], tables: _Tables, file: str | None) -> NodeColumns:
    """Build the nodes of all ranks, in the order of `sources`, whose positions are the ranks.

    The nodes of a rank keep their order. Recorded dependencies become data dependencies, assumed
    ones control dependencies. Names, groups and extras are added to `tables`. There must be at
    least one source.

    Raises `InputError`: first `too-large` if bytes, peer or root of any call need more than 64
    bits; then the errors of `_to_job_call` (`group`, `missing-ranks`); then those of
    `NodeColumns.from_columns` for values out of range and wrong dependencies. `file` is the file in
    the last ones.
    """
    for part in sources:
        _check_numbers(part)
    columns = [tables.columns(part, rank) for rank, part in enumerate(sources)]
    first_row = np.cumsum([0, *(len(part.kind) for part in sources)]).tolist()
    edges = [
        (
            np.array(part.before, np.int64) + row,
            np.array(part.after, np.int64) + row,
            np.array(part.is_stated, np.int64),
        )
        for part, row in zip(sources, first_row, strict=False)
    ]
    before, after, is_stated = (np.concatenate(column) for column in zip(*edges, strict=True))
    is_true = is_stated.astype(np.bool_)
    return NodeColumns.from_columns(
        len(sources),
        # Each column is dropped when it is joined: those of all ranks together are large.
        {
            name: np.concatenate([rank_columns.pop(name) for rank_columns in columns])
            for name in list(columns[0])
        },
        (before[is_true], after[is_true]),
        (before[~is_true], after[~is_true]),
        file=file,
    )


def _check_numbers(part: RankNodes) -> None:
    """Raise `InputError` for a number that does not fit in the 64-bit columns of a workload."""
    for call in part.calls:
        for name in ("bytes", "peer", "root"):
            value: int = getattr(call, name)
            if not -_NUMBERS_END <= value < _NUMBERS_END:
                raise InputError(
                    f"the call {call.name}: its number of {name} needs more than 64 bits"
                    if name == "bytes"
                    else f"the call {call.name}: its {name} needs more than 64 bits",
                    location=Location(part.file),
                    cure="record the file again, or correct the number",
                    code="too-large",
                )


def fact_list(workload: Workload, name: str) -> list[JsonValue]:
    """Return the list `name` of the plugin's extension, not copied.

    Empty if the list is missing or no list, as in a workload of another reader. A document of a
    job may have any values there. Raises `InputError` (`invalid-json`) in these cases:

    - `files`, `has_device` or `idle` has neither 0 entries nor one per rank.
    - An entry of `assumed_ranks` is no integer.

    Other entries are not checked; `idle_streams` checks those of `idle`.
    """
    facts = workload.extensions.get(EXTENSION)
    values = facts.get(name) if isinstance(facts, dict) else None
    if not isinstance(values, list):
        return []
    if name in _FACTS_BY_RANK and len(values) not in (0, workload.num_ranks):
        expected = f"one entry for each of {workload.num_ranks} ranks"
        _refuse_fact(workload, name, f"{expected} was expected, there are {len(values)}")
    # `file_of` reads the list of files once per rank: only the list with a rule is examined.
    for position, value in enumerate(values if name == "assumed_ranks" else ()):
        if type(value) is not int:
            _refuse_fact(workload, f"{name}[{position}]", f"{value!r:.40} is no rank")
    return values


def idle_streams(workload: Workload) -> list[list[StreamIdle] | None]:
    """Return the idle times of the streams of each rank; None if a rank has none.

    A rank has none without a device and without a file of its own. All ranks have none if the
    workload has no list `idle` in the plugin's extension, or an empty one. Other members of a
    stream than those of `StreamIdle` are ignored.

    Raises `InputError` (`invalid-json`) for a list of another number of ranks, and for an entry
    that is neither null nor a list of objects with an integer for each member of `StreamIdle`.
    """
    names = [each.name for each in fields(StreamIdle)]
    by_rank: list[list[StreamIdle] | None] = []
    for rank, entry in enumerate(fact_list(workload, "idle") or [None] * workload.num_ranks):
        if entry is None:
            by_rank.append(None)
            continue
        streams = []
        for stream in entry if isinstance(entry, list) else [None]:
            members = stream if isinstance(stream, dict) else {}
            times = [value for name in names if type(value := members.get(name)) is int]
            if len(times) < len(names):
                _refuse_fact(workload, f"idle[{rank}]", "no idle times by stream")
            streams.append(StreamIdle(*times))
        by_rank.append(streams)
    return by_rank


def _refuse_fact(workload: Workload, path: str, message: str) -> NoReturn:
    raise InputError(
        f"$.extensions.{EXTENSION}.{path}: {message}",
        location=Location(workload.provenance.source_name or None),
        cure=f"correct the member, or remove the extension {EXTENSION}",
        code="invalid-json",
    )


def recorded_ranks_per_node(workload: Workload) -> int | None:
    """Return the number of ranks on each node as the files record it; None if they do not.

    Rank r is on node r // (this number). Raise `InputError` (`invalid-json`) for an
    integer below 1; values of other types count as missing.
    """
    facts = workload.extensions.get(EXTENSION)
    value = facts.get("ranks_per_node") if isinstance(facts, dict) else None
    if type(value) is not int:
        return None
    if value < 1:
        _refuse_fact(workload, "ranks_per_node", f"{value} is below 1")
    return value


def file_of(workload: Workload, rank: int) -> str | None:
    """Return the file of a rank, as the plugin's extension lists it.

    A rank that is assumed to be a copy has the file of its original. Without the list, as
    in a workload of another reader, the result is the name of the source, None if that is
    unknown. Raise `InputError` for a list of another number of ranks.
    """
    files = fact_list(workload, "files")
    return str(files[rank]) if files else workload.provenance.source_name


def has_device(workload: Workload, rank: int) -> bool:
    """Return whether the file of a rank records the work of a device.

    It is the entry of the list `has_device` in the plugin's extension; False for a workload
    of another reader, which has no such list. Raise `InputError` (`invalid-json`) for a list of
    another number of ranks.
    """
    flags = fact_list(workload, "has_device")
    return bool(flags[rank]) if flags else False


def is_host_group(workload: Workload) -> BoolArray:
    """Mark nodes whose process group belongs to a host library: bool[nodes].

    Such a group has the name of the library, `gloo`, `mpi` or `ucc`; readers give it this name if
    the rank also has collectives of a device. False for nodes without a group.
    """
    libraries = [f"{group.name}:" in HOST_LIBRARIES for group in workload.groups]
    mask: BoolArray = np.array([*libraries, False], np.bool_)[workload.nodes.group]
    return mask


def _find_world_size(parts: Sequence[RankNodes]) -> int:
    """Return the recorded number of ranks; without one, the highest rank that occurs plus 1.

    Ranks occur as ranks of files, peers of calls, and members of groups. Files that record no
    number are compatible with any number. Raises `ValueError` without parts, and `InputError` in
    this order:

    1. `mixed-jobs`: files record different numbers. The message names the two smallest.
    2. `rank-range`: the recorded number, or the highest rank plus 1, is more than `MAX_RANKS`
       (2^20).
    3. `rank-range`: a rank is not below the recorded number.
    """
    highest = max(part.rank for part in parts)
    for part in parts:
        for call in part.calls:
            highest = max(highest, call.peer, *(call.group.ranks or ()))
    stated = {part.world_size: part.file for part in parts if part.world_size is not None}
    if len(stated) > 1:
        (first_size, file), (second_size, second_file) = sorted(stated.items())[:2]
        message = f"this is of a job of {first_size} ranks, {second_file} of one of {second_size}"
        raise InputError(
            message, location=Location(file), cure="name files of one job", code="mixed-jobs"
        )
    size = next(iter(stated), highest + 1)
    if max(size, highest + 1) > MAX_RANKS:
        message = f"a job of {max(size, highest + 1)} ranks; at most {MAX_RANKS} are read"
        raise InputError(message, location=Location(parts[0].file), code="rank-range")
    if size <= highest:
        message = f"rank {highest} is named, but the job has {size} ranks"
        raise InputError(message, location=Location(parts[0].file), code="rank-range")
    return size


class _Tables:
    """Tables of the distinct names, groups and extras of the job."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self.names: dict[str, int] = {}
        # Names of messages without a known peer, which count as work of the device.
        self.demoted: set[str] = set()
        # Their number by rank, only of ranks that have some.
        self.lone_messages: dict[int, int] = {}
        self.extras: dict[str, int] = {}
        self.groups: dict[tuple[str, tuple[int, ...]], int] = {}

    def columns(self, part: RankNodes, rank: int) -> dict[str, Int64Array]:
        """Build the int64 columns of the nodes of `rank` from the nodes of `part`, in their order.

        The keys are `rank`, `kind`, `name`, `duration_ns`, `on_host`, `bytes`, `collective`,
        `peer`, `root`, `group` and `extra`. `_to_job_call` first converts every call of `part` to a
        call of `rank`, also if `part` has the nodes of another rank.

        - A node without a call has the kind and name in `part`, and -1 from `bytes` to `extra`.
        - A node with a call has the kind, the name and the values from `bytes` to `extra` of the
          converted call. Its `duration_ns` and `on_host` are those in `part`.
        - `name`, `group` and `extra` are indices in tables of `self`, which get new entries. -1: no
          name; a message or a group of all ranks; no extra.

        Converted calls of kind COMPUTE are messages with an unknown peer. Their names are added to
        `self.demoted`. If nodes have such calls, their number becomes `self.lone_messages[rank]`.
        Raises `InputError` (`group`, `missing-ranks`) as `_to_job_call`.
        """
        calls = [_to_job_call(call, part, rank, self._world_size) for call in part.calls]
        self.demoted |= {job_call.name for job_call in calls if job_call.kind is NodeKind.COMPUTE}
        call = np.array(part.call, np.int64)
        has_call = call >= 0
        kind = np.array(part.kind, np.int64)
        kind_of_call = np.array([int(job_call.kind) for job_call in calls], np.int64)
        kind[has_call] = kind_of_call[call[has_call]]
        if lone := int(np.count_nonzero(kind[has_call] == NodeKind.COMPUTE)):
            self.lone_messages[rank] = lone
        part_names = [_index(self.names, name) for name in part.names]
        names = np.array([*part_names, NONE], np.int64)[np.array(part.name, np.int64)]
        name_of_call = np.array([_index(self.names, job_call.name) for job_call in calls], np.int64)
        names[has_call] = name_of_call[call[has_call]]

        def of_calls(value: Callable[[Call], int]) -> Int64Array:
            # Index -1 (no call) selects the last entry.
            table = np.array([*map(value, calls), NONE], np.int64)
            return table[call]

        return {
            "rank": np.full(len(kind), rank, np.int64),
            "kind": kind,
            "name": names,
            "duration_ns": np.array(part.duration_ns, np.int64),
            "on_host": np.array(part.on_host, np.int64),
            "bytes": of_calls(lambda job_call: job_call.bytes),
            "collective": of_calls(lambda job_call: job_call.collective),
            "peer": of_calls(lambda job_call: job_call.peer),
            "root": of_calls(lambda job_call: job_call.root),
            "group": of_calls(self._group),
            "extra": of_calls(self._extra),
        }

    def _extra(self, call: Call) -> int:
        """Return the index of the call's extra, its dtype and splits as JSON; add it if it is new.

        NONE (-1) for a call without them.
        """
        text = call.extra()
        return _index(self.extras, text) if text else NONE

    def _group(self, call: Call) -> int:
        """Return the index of the group of a call; a group that is not known is added to `groups`.

        The result is NONE (-1), and nothing is added, for messages (SEND, RECV), and for groups
        without a list of ranks, which mean all ranks. Otherwise a group is identified by its name
        and the tuple of its ranks in their order. A new group gets the next index, from 0 in the
        order of first use.
        """
        ranks = call.group.ranks
        if ranks is None or call.collective < 0:
            return NONE
        # Different groups may have the same name on different ranks.
        key = (call.group.name, ranks)
        if key not in self.groups:
            self.groups[key] = len(self.groups)
        return self.groups[key]


def _index(table: dict[str, int], text: str) -> int:
    return table.setdefault(text, len(table))


def _to_job_call(call: Call, part: RankNodes, rank: int, world_size: int) -> Call:
    """Convert a recorded call to a call of rank `rank` of the job; return it as a new record.

    `part` has the nodes with the call. Its rank differs from `rank` if the nodes are copied for a
    rank that was not recorded; the group is then translated to that of `rank`
    (`translate_group`). A group whose ranks are None has all `world_size` ranks.

    - Collective: the root, a position in the group, becomes the rank at this position; -1 if there
      is none.
    - Message: a peer of 0 or above is kept. A peer below 0 becomes the other rank, if the group has
      one other rank; otherwise the call becomes a computation.

    All other fields are kept. Raises `InputError`, checked in this order: the rank of `part` is
    no member of the group (`group`); the call is a copied message, or the group of `rank` cannot be
    derived (both `missing-ranks`).
    """
    ranks = call.group.ranks
    if ranks is not None and part.rank not in ranks:
        message = f"rank {part.rank} communicates in process group {call.group.name!r} of others"
        raise InputError(message, location=Location(part.file, rank=part.rank), code="group")
    if rank != part.rank:
        ranks = translate_group(call, part, rank, world_size)
    group = GroupRecord(call.group.name, ranks)
    members = ranks if ranks is not None else tuple(range(world_size))
    if call.kind is NodeKind.COLLECTIVE:
        root = members[call.root] if 0 <= call.root < len(members) else NONE
        return replace(call, group=group, root=root)
    peers = [member for member in members if member != rank]
    peer = peers[0] if call.peer < 0 and len(peers) == 1 else call.peer
    kind = call.kind if peer >= 0 else NodeKind.COMPUTE
    return replace(call, group=group, peer=peer, kind=kind)
