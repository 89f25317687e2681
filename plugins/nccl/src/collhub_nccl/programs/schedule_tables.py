"""State a levelled program as the tables of the emitted program.

C++ for the runtime (`schedule.hpp` declares it), JSON for the Python entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
from collhub_execution import LevelledProgram, bus_bandwidth

from collhub_nccl.programs.lanes import Lanes, lanes_of
from hub_core.columns import Int64Array, group_pointer, run_lengths, run_starts
from hub_core.model import (
    REDUCING,
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    InputError,
    Provenance,
)

# Offsets and counts are int32 in a record, which so takes 24 bytes.
_LARGEST = 2**31 - 1
# Bounds on what a C++ compiler is asked to take in as one array.
_MOST_RECORDS = 4_000_000
_MOST_PROMISES = 1_000_000
# Collectives whose result the runtime compares with that of NCCL's own; names of `schedule.hpp`.
_NATIVE = {
    CollectiveKind.ALL_REDUCE: "kAllReduce",
    CollectiveKind.ALL_GATHER: "kAllGather",
    CollectiveKind.REDUCE_SCATTER: "kReduceScatter",
    CollectiveKind.BROADCAST: "kBroadcast",
    CollectiveKind.REDUCE: "kReduce",
}
# `Record` in `schedule.hpp` has the lane behind the buffers.
_RECORD_FIELDS = (
    "kind",
    "src_buffer",
    "dst_buffer",
    "level",
    "peer",
    "src_offset",
    "dst_offset",
    "count",
    "lane",
)
_PROMISE_FIELDS = ("offset", "source", "source_offset", "count")
_CPP = """\
// Tables of one schedule; made by Collective Hub, read by plan.hpp.
#include "schedule.hpp"

namespace collhub {{
namespace {{

{arrays}
}}  // namespace

const Schedule kSchedule = {facts};

}}  // namespace collhub
"""


@dataclass(frozen=True, slots=True)
class Tables:
    """What an emitted folder states, in blocks of the program.

    `records`: int64[n, 9], columns as in `_RECORD_FIELDS`, unused sides zero; those of a rank
    sorted by level and lane, messages first. `promises`: int64[n, 4], runs of equal step: offset in
    OUTPUT, source rank (-1: all, reduced), offset in its INPUT, count. `promise_indptr`:
    int64[ranks + 1], the promises of every rank. `scratch`: int64[ranks], sizes of SCRATCH, which
    lanes may make larger than those of the program.
    """

    provenance: Provenance
    collective: Collective
    program: LevelledProgram
    records: Int64Array
    promises: Int64Array
    promise_indptr: Int64Array
    scratch: Int64Array

    @property
    def num_lanes(self) -> int:
        """Lanes that have records; 1 where there are none."""
        return int(self.records[:, -1].max(initial=0)) + 1

    @property
    def num_parts(self) -> int:
        """Parts of the full buffer that are as large as the `count` of a call."""
        kind = self.collective.kind
        if kind is CollectiveKind.CUSTOM:
            # Only its blocks are known to be alike.
            return self.program.unit_count
        return kind.traits.parts(self.program.num_ranks)


def tables_of(algorithm: Algorithm, program: LevelledProgram, most_lanes: int = 1) -> Tables:
    """The tables of an algorithm and of what it was levelled to.

    `most_lanes`: of the channels that can run beside each other. Raises `InputError` for what the
    tables cannot hold.
    """
    collective = algorithm.collective
    # The contract of a custom collective is in units already, which the program does not cut.
    if collective.kind is not CollectiveKind.CUSTOM:
        collective = replace(collective, unit_count=program.unit_count)
    lanes = lanes_of(program, algorithm, most_lanes)
    records = _records(program, lanes)
    promises, indptr = _promises(collective)
    return Tables(
        algorithm.provenance, collective, program, records, promises, indptr, lanes.scratch
    )


def _records(program: LevelledProgram, lanes: Lanes) -> Int64Array:
    """The records of all ranks as `Tables` has them."""
    changed = {
        "lane": lanes.lane,
        "src_offset": lanes.src_offset,
        "dst_offset": lanes.dst_offset,
    }
    columns = []
    for name in _RECORD_FIELDS:
        column = changed[name] if name in changed else getattr(program, name)
        columns.append(column.astype(np.int64))
    # Stable, so that within a lane the order of the program is kept.
    order = np.lexsort((lanes.lane, program.level, program.rank))
    records = np.stack(columns, axis=1)[order]
    # A send has no destination and a receive no source: the runtime reads neither.
    buffers = records[:, 1:3]
    buffers[buffers == Buffer.UNKNOWN] = 0
    if len(records) > _MOST_RECORDS or records.max(initial=0) > _LARGEST:
        raise InputError(
            f"{len(records)} records are more than an emitted program holds",
            cure=f"use at most {_MOST_RECORDS} records, and offsets below 2^31",
            code="too-large",
        )
    return records


def _promises(collective: Collective) -> tuple[Int64Array, Int64Array]:
    """The result that the collective states, in runs of blocks, and where those of a rank begin."""
    stated = collective.postcondition()
    if stated is None:
        nothing = np.zeros((0, len(_PROMISE_FIELDS)), np.int64)
        return nothing, np.zeros(collective.num_ranks + 1, np.int64)
    shift = stated.source_unit - stated.offset
    # Sorted by source first, so that what lies side by side at both ends becomes one run.
    order = np.lexsort((stated.offset, shift, stated.source_rank, stated.rank))
    rank, source = stated.rank[order], stated.source_rank[order]
    offset, unit = stated.offset[order], stated.source_unit[order]
    # Side by side at both ends, rows lie equally far from their places.
    place = np.arange(len(rank))
    first = run_starts(rank, source, offset - place, unit - place)
    if len(first) > _MOST_PROMISES:
        message = f"the result has {len(first)} parts, more than {_MOST_PROMISES}"
        raise InputError(message, code="too-large")
    count = run_lengths(first, len(rank))
    runs = np.stack([offset[first], source[first], unit[first], count], axis=1)
    return runs, group_pointer(rank[first], collective.num_ranks)


def schedule_cpp(tables: Tables) -> str:
    """`schedule.cpp`: all tables and the facts that `schedule.hpp` declares."""
    lines = [
        *_array("Record", "kRecords", map(_record, tables.records.tolist())),
        *_array("std::int64_t", "kRecordBegin", _texts(tables.program.rank_indptr)),
        *_array("Memory", "kMemory", map(_memory, _memories(tables))),
        *_array("Promise", "kPromises", map(_braced, tables.promises.tolist())),
        *_array("std::int64_t", "kPromiseBegin", _texts(tables.promise_indptr)),
    ]
    return _CPP.format(arrays="\n".join(lines), facts=_braced(_facts(tables)))


def _array(type_name: str, name: str, values: Iterable[str]) -> Iterator[str]:
    yield f"const {type_name} {name}[] = {{"
    # C++ has no arrays without elements.
    for text in list(values) or ["{}"]:
        yield f"{text},"
    yield "};"
    yield ""


def _texts(column: Int64Array) -> Iterable[str]:
    """The numbers of a column as decimal texts, which C++ reads too."""
    return map(str, column.tolist())


def _braced(values: Iterable[object]) -> str:
    """An initializer of C++."""
    return f"{{{','.join(map(str, values))}}}"


def _record(row: list[int]) -> str:
    """The initializer of a `Record`."""
    kind, source, target, *rest, lane = row
    return _braced([f"Kind({kind})", source, target, lane, *rest])


@dataclass(frozen=True, slots=True)
class _RankMemory:
    """Where INPUT, OUTPUT and SCRATCH begin in a rank's memory, and their sizes, in blocks."""

    begin: list[int]
    size: list[int]
    total: int
    is_defined: bool


def _memories(tables: Tables) -> Iterator[_RankMemory]:
    """The memory of every rank, whose addresses begin at 0 in its own process."""
    layout = tables.program.layout
    is_defined = tables.collective.defined_inputs()
    for rank in range(tables.program.num_ranks):
        place = tables.program.rank_memory(rank)
        begin = layout.base[rank] - place.start
        # SCRATCH comes last.
        size = [*layout.size[rank, : Buffer.SCRATCH].tolist(), int(tables.scratch[rank])]
        yield _RankMemory(
            begin=begin.tolist(),
            size=size,
            total=int(begin[Buffer.SCRATCH]) + size[Buffer.SCRATCH],
            is_defined=bool(is_defined[rank]),
        )


def _memory(memory: _RankMemory) -> str:
    """The initializer of a `Memory`."""
    begin, size = _braced(memory.begin), _braced(memory.size)
    return _braced([begin, size, memory.total, _truth(memory.is_defined)])


def _facts(tables: Tables) -> list[str]:
    """The fields of `Schedule`, in its order."""
    collective, program = tables.collective, tables.program
    return [
        f'"{collective.kind}"',
        f"Native::{_NATIVE.get(collective.kind, 'kNone')}",
        str(program.num_ranks),
        str(program.unit_count),
        str(tables.num_parts),
        str(tables.num_lanes),
        str(-1 if collective.root is None else collective.root),
        _truth(program.in_place),
        _truth(collective.kind in REDUCING),
        _truth(len(tables.promises)),
        f'"{collective.reduce_op}"',
        # The factor is what one byte in one second comes to.
        repr(bus_bandwidth(collective, 1, 1.0) or 0.0),
        "kRecords",
        "kRecordBegin",
        "kMemory",
        "kPromises",
        "kPromiseBegin",
    ]


def _truth(value: object) -> str:
    return "true" if value else "false"


def schedule_json(tables: Tables) -> str:
    """`schedule.json`: the same tables for the Python entry, a list of integers per record."""
    collective, program = tables.collective, tables.program
    document = {
        "provenance": tables.provenance.as_json(),
        "collective": str(collective.kind),
        "num_ranks": program.num_ranks,
        "blocks": program.unit_count,
        "root": collective.root,
        "in_place": program.in_place,
        "is_reducing": collective.kind in REDUCING,
        "reduce_op": str(collective.reduce_op),
        "memory": [asdict(memory) for memory in _memories(tables)],
        "record_fields": list(_RECORD_FIELDS),
        "records": _by_rank(tables.records, program.rank_indptr),
        "promise_fields": list(_PROMISE_FIELDS),
        "promises": _by_rank(tables.promises, tables.promise_indptr),
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def _by_rank(rows: Int64Array, indptr: Int64Array) -> list[list[list[int]]]:
    """Rows of every rank."""
    return [part.tolist() for part in np.split(rows, indptr[1:-1])]
