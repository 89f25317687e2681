"""Algorithms of several groups side by side, as one algorithm that can be simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hub_core.columns import Int64Array, counted_positions, inverse
from hub_core.model import (
    ALL_RANKS,
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    Contributions,
    CustomContract,
    InputError,
    Provenance,
    StepTable,
)

_COPIED = ("rank", "kind", "peer", "src_buffer", "dst_buffer", "duration_ns")
_MOST_UNITS = 1 << 40
# Rows of a contract, and units of memory and messages, above which contents are judged group by
# group alone: verification has such limits, too.
_MOST_ROWS = 20_000_000
_MOST_MEMORY = 1 << 25


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Order among the steps of several algorithms, counted one table behind the other; int64.

    `order`: all steps as they are to stand, in which every step follows those of its rank that it
    waits for. Step `later[i]` waits for `earlier[i]`, both of one rank.
    """

    order: Int64Array
    earlier: Int64Array
    later: Int64Array

    @classmethod
    def none(cls, algorithms: Sequence[Algorithm]) -> Turns:
        """No order but that of each algorithm."""
        total = sum(len(each.steps) for each in algorithms)
        nothing = np.zeros(0, np.int64)
        return cls(np.arange(total), nothing, nothing)


def side_by_side(
    algorithms: Sequence[Algorithm],
    provenance: Provenance,
    turns: Turns | None = None,
) -> Algorithm:
    """One algorithm that does what all do, at once; buffers lie one behind the other.

    All have as many ranks, and state their sizes. Units are the largest that are whole parts of all
    units; messages keep to channels of their own. `turns`: the order of the
    messages of different algorithms, by default none. Raises `InputError` for sizes without a unit
    in common that could be counted.
    """
    unit, factors = _common_unit(algorithms)
    sizes = [_buffer_units(each) * factor for each, factor in zip(algorithms, factors, strict=True)]
    bases = np.cumsum(sizes, axis=0) - sizes
    total = np.sum(sizes, axis=0)
    steps = _steps(algorithms, factors, bases, turns or Turns.none(algorithms))
    units = int(total.max())
    promise = None
    if int(total.sum()) + int(steps.count[steps.sends].sum()) <= _MOST_MEMORY:
        promise = _promise(algorithms, factors, bases)
    # Bytes of as many units, and as many units that these are whole.
    units += -units % unit.denominator
    return Algorithm(
        _collective(algorithms, total, units, promise),
        steps,
        total[:, Buffer.SCRATCH].copy(),
        provenance,
        int(units * unit),
    )


def _common_unit(algorithms: Sequence[Algorithm]) -> tuple[Fraction, list[int]]:
    """Bytes of a unit, and how many of them a unit of each algorithm is."""
    bytes_of = [
        Fraction(each.collective_bytes or 1, each.collective.unit_count) for each in algorithms
    ]
    below = math.lcm(*(each.denominator for each in bytes_of))
    above = math.gcd(*(int(each * below) for each in bytes_of))
    unit = Fraction(above, below)
    factors = [int(each / unit) for each in bytes_of]
    largest = max(
        factor * each.collective.unit_count
        for factor, each in zip(factors, algorithms, strict=True)
    )
    if largest > _MOST_UNITS:
        raise InputError(
            "the sizes of the groups have no unit in common",
            cure="choose sizes that are multiples of one another",
            code="sizes-unlike",
        )
    return unit, factors


def _buffer_units(algorithm: Algorithm) -> Int64Array:
    """Units of every buffer: int64[ranks, 3], by `Buffer`."""
    collective = algorithm.collective
    columns = (collective.input_units(), collective.output_units(), algorithm.scratch_units)
    return np.stack(columns, axis=1)


def _steps(
    algorithms: Sequence[Algorithm],
    factors: Sequence[int],
    bases: Int64Array,
    turns: Turns,
) -> StepTable:
    """All steps, those of a rank by algorithm."""
    columns: dict[str, list[np.ndarray]] = {}
    edges: dict[str, list[Int64Array]] = {
        "data": [],
        "control": [np.stack([turns.earlier, turns.later])],
    }
    rows = channels = 0
    for algorithm, factor, base in zip(algorithms, factors, bases, strict=True):
        steps = algorithm.steps
        found = {name: getattr(steps, name) for name in _COPIED}
        found["channel"] = steps.channel + channels
        found["count"] = steps.count * factor
        found["src_offset"] = _moved(steps, steps.src_buffer, steps.src_offset * factor, base)
        found["dst_offset"] = _moved(steps, steps.dst_buffer, steps.dst_offset * factor, base)
        for name, column in found.items():
            columns.setdefault(name, []).append(column)
        for name, both in edges.items():
            indptr = getattr(steps, f"{name}_indptr")
            children = np.repeat(np.arange(len(steps)), np.diff(indptr))
            both.append(np.stack([getattr(steps, f"{name}_indices"), children]) + rows)
        rows += len(steps)
        channels += int(steps.channel.max(initial=-1)) + 1
    table = {name: np.concatenate(parts)[turns.order] for name, parts in columns.items()}
    # Rows in the joint order: the messages of a channel stay in the order in which they go.
    place = inverse(turns.order)
    data, control = (place[np.concatenate(edges[name], axis=1)] for name in ("data", "control"))
    num_ranks = algorithms[0].num_ranks
    return StepTable.from_columns(num_ranks, table, (data[0], data[1]), (control[0], control[1]))


def _moved(
    steps: StepTable, buffer: np.ndarray, offset: Int64Array, base: Int64Array
) -> Int64Array:
    """Offsets behind what other algorithms have in the same buffer; 0 where none is used."""
    used = buffer != Buffer.UNKNOWN
    # Any place will do for a side that is not used.
    place = np.where(used, buffer, 0)
    behind = base[steps.rank, place]
    return np.where(used, offset + behind, 0)


def _collective(
    algorithms: Sequence[Algorithm],
    total: Int64Array,
    units: int,
    promise: Contributions | None,
) -> Collective:
    """The promise of all at once. One operator is stated, since contracts have one."""
    defined = np.any([each.collective.defined_inputs() for each in algorithms], axis=0)
    inputs, outputs = total[:, Buffer.INPUT].copy(), total[:, Buffer.OUTPUT].copy()
    contract = CustomContract(inputs, outputs, defined, promise)
    ranks = algorithms[0].num_ranks
    operator = algorithms[0].collective.reduce_op
    return Collective(CollectiveKind.CUSTOM, ranks, units, reduce_op=operator, contract=contract)


def _promise(
    algorithms: Sequence[Algorithm], factors: Sequence[int], bases: Int64Array
) -> Contributions | None:
    """What must lie where after, None where that would fill the memory."""
    rows = 0
    for algorithm, factor in zip(algorithms, factors, strict=True):
        counted = _contributions(algorithm.collective)
        rows += counted * factor
    if rows > _MOST_ROWS:
        return None
    parts = [
        _expected(algorithm.collective, factor, base)
        for algorithm, factor, base in zip(algorithms, factors, bases, strict=True)
    ]
    columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Contributions(*columns)


def _contributions(collective: Collective) -> int:
    """Rows of the promise of a collective, with every rank named."""
    stated = collective.postcondition()
    assert stated is not None
    # A row for all ranks becomes one for each.
    everyone = np.count_nonzero(stated.source_rank == ALL_RANKS)
    others = collective.num_ranks - 1
    return len(stated) + int(everyone) * others


def _expected(
    collective: Collective,
    factor: int,
    base: Int64Array,
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Rank, offset, source rank and source unit of the contributions, in the common unit."""
    stated = collective.postcondition()
    assert stated is not None
    found = stated.with_ranks_named(collective.num_ranks)
    # A unit is `factor` of the common ones, one behind another.
    times = np.full(len(found), factor, np.int64)
    within = counted_positions(times)
    rank = np.repeat(found.rank, times)
    source = np.repeat(found.source_rank, times)
    # A place is that of the first part, and how far behind it this one is.
    offset = np.repeat(found.offset, times) * factor + within
    unit = np.repeat(found.source_unit, times) * factor + within
    return (
        rank,
        offset + base[rank, Buffer.OUTPUT],
        source,
        unit + base[source, Buffer.INPUT],
    )
