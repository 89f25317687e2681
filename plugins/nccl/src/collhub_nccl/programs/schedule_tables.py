"""Convert a levelled program to the tables of the emitted program.

C++ for the runtime (declared in `schedule.hpp`), JSON for the Python entry point.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from collhub_execution import LevelledProgram, bus_bandwidth

from collhub_nccl.programs.lanes import LaneChanges, assign_lanes
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

# Offsets and counts are int32 in a record, which therefore takes 24 bytes.
_MAX_INT32 = 2**31 - 1
# Limits for arrays that a C++ compiler can process.
_MAX_RECORDS = 4_000_000
_MAX_PROMISES = 1_000_000
# Collectives whose result the runtime compares with that of NCCL's collective; names of
# `schedule.hpp`.
_NATIVE = {
    CollectiveKind.ALL_REDUCE: "kAllReduce",
    CollectiveKind.ALL_GATHER: "kAllGather",
    CollectiveKind.REDUCE_SCATTER: "kReduceScatter",
    CollectiveKind.BROADCAST: "kBroadcast",
    CollectiveKind.REDUCE: "kReduce",
}
# In `Record` of `schedule.hpp` the lane follows the buffers.
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
class ScheduleTables:
    """Contents of the tables of an emitted folder, in blocks of the program.

    `records`: int64[n, 9], columns as in `_RECORD_FIELDS`, unused sides zero; those of a rank
    sorted by level and lane, messages first. `promises` (the required result): int64[n, 4], runs of
    blocks: offset in OUTPUT, source rank (-1: all, reduced), offset in its INPUT, count.
    `promise_indptr`: int64[ranks + 1], first promise of every rank. `scratch`: int64[ranks], sizes
    of SCRATCH, which lanes may increase.
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
        """Number of lanes with records; 1 without records."""
        return int(self.records[:, -1].max(initial=0)) + 1

    @property
    def num_parts(self) -> int:
        """Return into how many parts of the size `count` (of a call) the full buffer is divided.

        For a custom collective and one with uneven shares, these are the blocks of the program,
        because only those are known to have equal sizes. For other kinds it is
        `kind.traits.parts` of the number of ranks.
        """
        kind = self.collective.kind
        if kind is CollectiveKind.CUSTOM or kind.traits.is_uneven:
            # Only its blocks are known to have equal sizes.
            return self.program.unit_count
        return kind.traits.parts(self.program.num_ranks)


def build_tables(
    algorithm: Algorithm, program: LevelledProgram, most_lanes: int = 1
) -> ScheduleTables:
    """Build the tables of the emitted program from an algorithm and its levelled program.

    - Records are the operations of the program. Their offsets and counts are in its blocks.
    - Promises are the runs of contents that the collective requires in OUTPUT. They are in blocks
      of the program, or in units for a custom collective. A custom collective without required
      contents has no promises.

    `most_lanes`: maximum number of lanes (groups of channels that run at the same time); the
    actual number can be lower.

    Raises `InputError` (`too-large`) for more than 4,000,000 records, a number of a record above
    2^31 - 1, more than 1,000,000 promises, or a standard collective that requires more than 2^26
    units. The arguments are not changed.
    """
    collective = algorithm.collective
    # The contract of a custom collective is defined per unit, and the program does not divide
    # units.
    if collective.kind is not CollectiveKind.CUSTOM:
        collective = collective.in_blocks(collective.unit_count // program.unit_count)
    lanes = assign_lanes(program, algorithm, most_lanes)
    records = _build_records(program, lanes)
    promises, indptr = _build_promises(collective)
    return ScheduleTables(
        algorithm.provenance, collective, program, records, promises, indptr, lanes.scratch
    )


def _build_records(program: LevelledProgram, lanes: LaneChanges) -> Int64Array:
    """Return the records of all ranks: int64[n, 9], one row per record of `program`.

    Columns are those of `_RECORD_FIELDS`; rank is no column. Rows are sorted by rank, level and
    lane; equal rows keep the order of the program. Lanes and both offsets come from `lanes`,
    all other columns from `program`. Buffers that are UNKNOWN (the target of a send, the source
    of a receive) become 0, because nothing reads them.

    Raises `InputError` (`too-large`) for more than `_MAX_RECORDS` records, and if any column
    has a value above 2^31 - 1.
    """
    changed = {
        "lane": lanes.lane,
        "src_offset": lanes.src_offset,
        "dst_offset": lanes.dst_offset,
    }
    columns = []
    for name in _RECORD_FIELDS:
        column = changed[name] if name in changed else getattr(program, name)
        columns.append(column.astype(np.int64))
    # Stable, so that the order of the program is kept within a lane.
    order = np.lexsort((lanes.lane, program.level, program.rank))
    records = np.stack(columns, axis=1)[order]
    # A send has no destination and a receive no source: the runtime reads neither.
    buffers = records[:, 1:3]
    buffers[buffers == Buffer.UNKNOWN] = 0
    if len(records) > _MAX_RECORDS or records.max(initial=0) > _MAX_INT32:
        raise InputError(
            f"{len(records)} records are more than an emitted program holds",
            cure=f"use at most {_MAX_RECORDS} records, and offsets below 2^31",
            code="too-large",
        )
    return records


def _build_promises(collective: Collective) -> tuple[Int64Array, Int64Array]:
    """Return the required contents of OUTPUT as runs of units, and the first run of each rank.

    A run is a row (offset in OUTPUT, source rank, unit in the INPUT of the source rank, count)
    of int64[runs, 4]. It has consecutive units of OUTPUT whose source units are consecutive
    too. The source rank is `ALL_RANKS` for a reduction over all ranks. Runs are sorted by rank,
    source, (source unit - offset), then offset. The second result is int64[ranks + 1]: the
    first run of each rank, and the number of runs.

    A custom collective without defined contents has no runs, and only zeros in the second
    result. Raises `InputError` (`too-large`) for more than `_MAX_PROMISES` runs, and, from
    `Collective.postcondition`, for a standard collective with more than 2^26 required units.
    """
    result = collective.postcondition()
    if result is None:
        no_runs = np.zeros((0, len(_PROMISE_FIELDS)), np.int64)
        return no_runs, np.zeros(collective.num_ranks + 1, np.int64)
    shift = result.source_unit - result.offset
    # Sorted by source first, so that blocks adjacent on both sides become one run.
    order = np.lexsort((result.offset, shift, result.source_rank, result.rank))
    rank, source = result.rank[order], result.source_rank[order]
    offset, unit = result.offset[order], result.source_unit[order]
    # For blocks adjacent on both sides, offset minus index is constant.
    index = np.arange(len(rank))
    first = run_starts(rank, source, offset - index, unit - index)
    if len(first) > _MAX_PROMISES:
        message = f"the result has {len(first)} parts, more than {_MAX_PROMISES}"
        raise InputError(message, code="too-large")
    count = run_lengths(first, len(rank))
    runs = np.stack([offset[first], source[first], unit[first], count], axis=1)
    return runs, group_pointer(rank[first], collective.num_ranks)


def format_schedule_cpp(tables: ScheduleTables) -> str:
    """Return the text of `schedule.cpp`, the definitions for `schedule.hpp`.

    It has five arrays and the facts about the schedule. The arrays are, in this order: the
    records (steps), the first record of each rank, the memory of each rank, the promises
    (runs of required contents of OUTPUT), and the first promise of each rank. The second
    and the fifth array have one more entry at the end, the number of records or promises.
    """
    # The lane is last in a row of the table, but follows source and target in the initializer.
    records = [
        _format_initializer([f"Kind({kind})", source, target, lane, *rest])
        for kind, source, target, *rest, lane in tables.records.tolist()
    ]
    memories = []
    for memory in _iterate_memories(tables):
        begin, size = _format_initializer(memory.begin), _format_initializer(memory.size)
        is_defined = _format_bool(memory.is_defined)
        memories.append(_format_initializer([begin, size, memory.total, is_defined]))
    first_records = tables.program.rank_indptr.tolist()
    first_promises = tables.promise_indptr.tolist()
    lines = [
        *_format_array("Record", "kRecords", records),
        *_format_array("std::int64_t", "kRecordBegin", map(str, first_records)),
        *_format_array("Memory", "kMemory", memories),
        *_format_array("Promise", "kPromises", map(_format_initializer, tables.promises.tolist())),
        *_format_array("std::int64_t", "kPromiseBegin", map(str, first_promises)),
    ]
    return _CPP.format(arrays="\n".join(lines), facts=_format_initializer(_list_facts(tables)))


def _format_array(type_name: str, name: str, values: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a constant C++ array, one value a line, followed by an empty line.

    Without values, the array has one empty element, `{}`: C++ has no arrays without elements.
    """
    yield f"const {type_name} {name}[] = {{"
    # C++ has no arrays without elements.
    for text in list(values) or ["{}"]:
        yield f"{text},"
    yield "};"
    yield ""


def _format_initializer(values: Iterable[object]) -> str:
    """A C++ initializer of values."""
    return f"{{{','.join(map(str, values))}}}"


@dataclass(frozen=True, slots=True)
class _RankMemory:
    """Start and size of INPUT, OUTPUT and SCRATCH in a rank's memory, in blocks."""

    begin: list[int]
    size: list[int]
    total: int
    is_defined: bool


def _iterate_memories(tables: ScheduleTables) -> Iterator[_RankMemory]:
    """Yield the memory of each rank, by ascending rank; its addresses begin at 0.

    All numbers are in blocks. `begin` and `size` have three entries: INPUT, OUTPUT, SCRATCH. In
    place, INPUT and OUTPUT may overlap. SCRATCH is the last buffer; its size is `tables.scratch` of
    the rank, not that of the program's layout. `total` is the end of SCRATCH.

    `is_defined`: whether the rank has data in INPUT before the collective. In a broadcast or
    scatter only the root has; in a custom collective its contract decides; otherwise every rank
    has.
    """
    layout = tables.program.layout
    is_defined = tables.collective.defined_inputs()
    for rank in range(tables.program.num_ranks):
        memory_range = tables.program.rank_memory(rank)
        begin = layout.base[rank] - memory_range.start
        # SCRATCH comes last.
        size = [*layout.size[rank, : Buffer.SCRATCH].tolist(), int(tables.scratch[rank])]
        yield _RankMemory(
            begin=begin.tolist(),
            size=size,
            total=int(begin[Buffer.SCRATCH]) + size[Buffer.SCRATCH],
            is_defined=bool(is_defined[rank]),
        )


def _list_facts(tables: ScheduleTables) -> list[str]:
    """Return the 17 fields of the C++ type `Schedule` as C++ expressions, in their order.

    - 1: kind of the collective, as a string literal
    - 2: NCCL's own collective: `Native::kAllReduce`, `kAllGather`, `kReduceScatter`, `kBroadcast`
      or `kReduce`; `Native::kNone` for other kinds
    - 3 and 4: number of ranks, and of units (blocks of the program)
    - 5 and 6: `num_parts` and `num_lanes` of the tables
    - 7: root; -1 without one
    - 8 to 10: `true` or `false` for each: the program is in place, its kind of collective reduces,
      the tables have promises (required results)
    - 11: operator of the reduction as a string literal, also if the collective does not reduce
    - 12: bandwidth factor: `bus_bandwidth` of 1 byte in 1 second; 0.0 for a custom collective
    - 13 to 17: the names `kRecords`, `kRecordBegin`, `kMemory`, `kPromises`, `kPromiseBegin`
    """
    collective, program = tables.collective, tables.program
    return [
        f'"{collective.kind}"',
        f"Native::{_NATIVE.get(collective.kind, 'kNone')}",
        str(program.num_ranks),
        str(program.unit_count),
        str(tables.num_parts),
        str(tables.num_lanes),
        str(-1 if collective.root is None else collective.root),
        _format_bool(program.in_place),
        _format_bool(collective.kind in REDUCING),
        _format_bool(len(tables.promises)),
        f'"{collective.reduce_op}"',
        # The factor is the bus bandwidth of one byte in one second.
        repr(bus_bandwidth(collective, 1, 1.0) or 0.0),
        "kRecords",
        "kRecordBegin",
        "kMemory",
        "kPromises",
        "kPromiseBegin",
    ]


def _format_bool(value: object) -> str:
    """A C++ bool."""
    return "true" if value else "false"


def format_schedule_json(tables: ScheduleTables) -> str:
    """Return the text of `schedule.json`: all tables of a schedule, for the Python program.

    The text is one line of compact JSON with a line feed. Its members, in this order:

    - `provenance`, `collective` (the kind), `num_ranks`, `blocks` (units of the program), `root`
      (null without one), `in_place`, `is_reducing`, `reduce_op`
    - `memory`: one object per rank with `begin`, `size`, `total`, `is_defined`
      (`_iterate_memories`)
    - `record_fields`: names of the columns of a record
    - `records`: one list per rank, of rows of integers in the order of `tables.records`
    - `promise_fields` and `promises`: likewise; a source of -1 is the sum of all ranks

    A rank without rows has an empty list.
    """
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
        "memory": [asdict(memory) for memory in _iterate_memories(tables)],
        "record_fields": list(_RECORD_FIELDS),
        "records": _split_by_rank(tables.records, program.rank_indptr),
        "promise_fields": list(_PROMISE_FIELDS),
        "promises": _split_by_rank(tables.promises, tables.promise_indptr),
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def _split_by_rank(rows: Int64Array, indptr: Int64Array) -> list[list[list[int]]]:
    """Rows of every rank."""
    return [part.tolist() for part in np.split(rows, indptr[1:-1])]
