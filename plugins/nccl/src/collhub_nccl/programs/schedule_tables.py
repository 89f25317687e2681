"""State a levelled program as the tables of the emitted program: C++ for the runtime, JSON for the Python entry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hub_core.algorithm import Algorithm, Provenance
from hub_core.collectives import REDUCING, Buffer, Collective, CollectiveKind
from hub_core.diagnostics import InputError
from hub_core.execution.bandwidth import bus_bandwidth
from hub_core.execution.program import LevelledProgram

Int64Array = npt.NDArray[np.int64]

_LARGEST = 2**31 - 1
_MOST_RECORDS = 4_000_000
_MOST_PROMISES = 1_000_000
_NATIVE = {
    CollectiveKind.ALL_REDUCE: "kAllReduce",
    CollectiveKind.ALL_GATHER: "kAllGather",
    CollectiveKind.REDUCE_SCATTER: "kReduceScatter",
    CollectiveKind.BROADCAST: "kBroadcast",
    CollectiveKind.REDUCE: "kReduce",
}
_RECORD_FIELDS = (
    "kind",
    "src_buffer",
    "dst_buffer",
    "level",
    "peer",
    "src_offset",
    "dst_offset",
    "count",
)


@dataclass(frozen=True, slots=True)
class Tables:
    """What an emitted folder states, in blocks of the program.

    `records`: int64[n, 8], columns as in `_RECORD_FIELDS`, unused sides zero. `promises`: int64[n, 4], runs of equal step:
    offset in OUTPUT, source rank (-1: all, reduced), offset in its INPUT, count; `promise_indptr`: those of every rank.
    """

    provenance: Provenance
    collective: Collective
    program: LevelledProgram
    records: Int64Array
    promises: Int64Array
    promise_indptr: Int64Array


def tables_of(algorithm: Algorithm, program: LevelledProgram) -> Tables:
    """The tables of an algorithm and what it was levelled to. Raises `InputError` for what they cannot hold."""
    collective = algorithm.collective
    if collective.kind is not CollectiveKind.CUSTOM:
        collective = replace(collective, unit_count=program.unit_count)
    records = np.stack([getattr(program, name).astype(np.int64) for name in _RECORD_FIELDS], axis=1)
    records[:, 1:3] = np.where(records[:, 1:3] == Buffer.UNKNOWN, 0, records[:, 1:3])
    if len(records) > _MOST_RECORDS or records.max(initial=0) > _LARGEST:
        message = f"{len(records)} records are more than an emitted program holds"
        raise InputError(
            message,
            cure=f"use at most {_MOST_RECORDS} records, and offsets below 2^31",
            code="too-large",
        )
    promises, indptr = _promises(collective)
    return Tables(algorithm.provenance, collective, program, records, promises, indptr)


def _promises(collective: Collective) -> tuple[Int64Array, Int64Array]:
    """The result that the collective states, in runs of blocks."""
    stated = collective.postcondition()
    if stated is None:
        return np.zeros((0, 4), np.int64), np.zeros(collective.num_ranks + 1, np.int64)
    # Sorted by source first, so that what lies side by side at both ends becomes one run.
    order = np.lexsort(
        (stated.offset, stated.source_unit - stated.offset, stated.source_rank, stated.rank)
    )
    rank, offset, source, unit = (
        column[order]
        for column in (stated.rank, stated.offset, stated.source_rank, stated.source_unit)
    )
    is_first = np.ones(len(rank), np.bool_)
    is_first[1:] = (
        (np.diff(rank) != 0)
        | (np.diff(source) != 0)
        | (np.diff(offset) != 1)
        | (np.diff(unit) != 1)
    )
    first = np.flatnonzero(is_first)
    if len(first) > _MOST_PROMISES:
        raise InputError(
            f"the result has {len(first)} parts, more than {_MOST_PROMISES}", code="too-large"
        )
    count = np.diff(np.append(first, len(rank)))
    runs = np.stack([offset[first], source[first], unit[first], count], axis=1)
    return runs, np.searchsorted(rank[first], np.arange(collective.num_ranks + 1)).astype(np.int64)


def schedule_cpp(tables: Tables) -> str:
    """`schedule.cpp`: all tables and the facts that `schedule.hpp` declares."""
    program = tables.program
    lines = [
        "// Tables of one schedule; made by Collective Hub, read by runtime.cuh.",
        '#include "schedule.hpp"',
        "",
        "namespace collhub {",
        "namespace {",
        "",
        *_array("Record", "kRecords", map(_record, tables.records.tolist())),
        *_array("std::int64_t", "kRecordBegin", map(str, program.rank_indptr.tolist())),
        *_array("Memory", "kMemory", _memories(tables)),
        *_array("Promise", "kPromises", (_braced(row) for row in tables.promises.tolist())),
        *_array("std::int64_t", "kPromiseBegin", map(str, tables.promise_indptr.tolist())),
        "}  // namespace",
        "",
        f"const Schedule kSchedule = {_braced(_facts(tables))};",
        "",
        "}  // namespace collhub",
    ]
    return "\n".join(lines) + "\n"


def _record(row: list[int]) -> str:
    kind, source, target, *rest = row
    return f"{{Kind({kind}),{_braced([source, target, 0, *rest])[1:]}"


def _braced(values: Iterable[object]) -> str:
    return f"{{{','.join(map(str, values))}}}"


def _array(type_name: str, name: str, values: Iterable[str]) -> Iterator[str]:
    texts = list(values)
    yield f"const {type_name} {name}[] = {{"
    # C++ has no arrays without elements.
    yield from (f"{text}," for text in texts or ["{}"])
    yield "};"
    yield ""


def _memories(tables: Tables) -> Iterator[str]:
    layout, defined = tables.program.layout, tables.collective.defined_inputs()
    for rank in range(tables.program.num_ranks):
        memory = tables.program.rank_memory(rank)
        begin, size = (layout.base[rank] - memory.start).tolist(), layout.size[rank].tolist()
        yield _braced(
            [_braced(begin), _braced(size), memory.stop - memory.start, _truth(defined[rank])]
        )


def _facts(tables: Tables) -> list[str]:
    collective, program = tables.collective, tables.program
    return [
        f'"{collective.kind}"',
        f"Native::{_NATIVE.get(collective.kind, 'kNone')}",
        str(program.num_ranks),
        str(program.unit_count),
        str(-1 if collective.root is None else collective.root),
        _truth(program.in_place),
        _truth(collective.kind in REDUCING),
        _truth(len(tables.promises)),
        f'"{collective.reduce_op}"',
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
    layout = program.layout
    starts = [program.rank_memory(rank) for rank in range(program.num_ranks)]
    document = {
        "provenance": tables.provenance.as_json(),
        "collective": str(collective.kind),
        "num_ranks": program.num_ranks,
        "blocks": program.unit_count,
        "root": collective.root,
        "in_place": program.in_place,
        "is_reducing": collective.kind in REDUCING,
        "reduce_op": str(collective.reduce_op),
        "memory": [
            {
                "begin": (layout.base[rank] - memory.start).tolist(),
                "size": layout.size[rank].tolist(),
                "total": memory.stop - memory.start,
                "is_defined": bool(collective.defined_inputs()[rank]),
            }
            for rank, memory in enumerate(starts)
        ],
        "record_fields": list(_RECORD_FIELDS),
        "records": [part.tolist() for part in np.split(tables.records, program.rank_indptr[1:-1])],
        "promise_fields": ["offset", "source", "source_offset", "count"],
        "promises": [
            part.tolist() for part in np.split(tables.promises, tables.promise_indptr[1:-1])
        ],
    }
    return json.dumps(document, separators=(",", ":")) + "\n"
