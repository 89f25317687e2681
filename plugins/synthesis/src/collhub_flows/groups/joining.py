"""Combine the algorithms of several groups into one algorithm that can be simulated."""

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
    StepKind,
    StepTable,
)

_COPIED = ("rank", "kind", "peer", "src_buffer", "dst_buffer", "duration_ns")
_MAX_UNITS = 1 << 40
# Maximum rows of a contract, and units of memory and messages. Above them the joint algorithm has
# no expected contents, and only the algorithms of the groups are verified.
_MAX_ROWS = 20_000_000
_MAX_MEMORY = 1 << 25


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Order of the steps of several algorithms; steps are numbered table after table; int64.

    `order`: all steps in their order in the joint table, each after the steps of its rank for which
    it waits. Step `later[i]` waits for step `earlier[i]` of the same rank.
    """

    order: Int64Array
    earlier: Int64Array
    later: Int64Array

    @classmethod
    def none(cls, algorithms: Sequence[Algorithm]) -> Turns:
        """Create the order of the steps of several algorithms that adds no dependencies.

        The steps of each algorithm follow those of the one before; `earlier` and `later` are
        empty.
        """
        total = sum(len(algorithm.steps) for algorithm in algorithms)
        empty = np.zeros(0, np.int64)
        return cls(np.arange(total), empty, empty)


def combine_algorithms(
    algorithms: Sequence[Algorithm],
    provenance: Provenance,
    turns: Turns | None = None,
    starts_ns: Sequence[int] = (),
) -> Algorithm:
    """Combine one or more algorithms into a custom one that executes all of them at once.

    All must have the same number of ranks (not checked). Each buffer of a rank has the data of the
    algorithms one after another. Channels are separate. Offsets and counts are in the largest
    common unit of the algorithms, possibly a fraction of a byte. An algorithm without a size counts
    as one byte.

    - Unit count: that of the largest buffer of any rank, rounded up until the size is an integer
      number of bytes. The size in bytes is this count times the unit.
    - Operator: that of the first algorithm. A rank has defined input if any algorithm defines it.
    - Expected contents: those of all algorithms. They are None if buffers and sent messages have
      more than 2^25 units together, or for too many rows.
    - `turns`: order of the steps. None: one algorithm after another in the table.
    - `starts_ns`: start of each algorithm in ns. On each rank, its first steps wait for a COMPUTE
      step of this duration. Empty or all 0: no such steps.

    Raises `InputError` (`sizes-unlike`) if an algorithm has more than 2^40 common units.
    """
    unit, factors = _find_common_unit(algorithms)
    sizes = []
    for algorithm, factor in zip(algorithms, factors, strict=True):
        inputs, outputs = algorithm.collective.input_units(), algorithm.collective.output_units()
        # In the order of `Buffer`: int64[ranks, 3].
        sizes.append(np.stack((inputs, outputs, algorithm.scratch_units), axis=1) * factor)
    bases = np.cumsum(sizes, axis=0) - sizes
    total = np.sum(sizes, axis=0)
    steps = _build_steps(algorithms, factors, bases, turns or Turns.none(algorithms))
    if any(starts_ns):
        groups = np.repeat(np.arange(len(algorithms)), [len(one.steps) for one in algorithms])
        order = (turns or Turns.none(algorithms)).order
        by_rank = np.argsort(
            np.concatenate([one.steps.rank for one in algorithms])[order], kind="stable"
        )
        steps = _delay_steps(steps, groups[order][by_rank], np.asarray(starts_ns, np.int64))
    units = int(total.max())
    contributions = None
    if int(total.sum()) + int(steps.count[steps.sends].sum()) <= _MAX_MEMORY:
        contributions = _build_contributions(algorithms, factors, bases)
    # Rounded up, so that the units are an integer number of bytes.
    units += -units % unit.denominator
    # Build the joint collective; its operator is that of the first algorithm.
    defined = np.any([algorithm.collective.defined_inputs() for algorithm in algorithms], axis=0)
    inputs, outputs = total[:, Buffer.INPUT].copy(), total[:, Buffer.OUTPUT].copy()
    contract = CustomContract(inputs, outputs, defined, contributions)
    ranks = algorithms[0].num_ranks
    operator = algorithms[0].collective.reduce_op
    return Algorithm(
        Collective(CollectiveKind.CUSTOM, ranks, units, reduce_op=operator, contract=contract),
        steps,
        total[:, Buffer.SCRATCH].copy(),
        provenance,
        int(units * unit),
    )


def _find_common_unit(algorithms: Sequence[Algorithm]) -> tuple[Fraction, list[int]]:
    """Return the largest unit in which the data of all algorithms can be measured.

    The result is (bytes of the common unit, factors). A unit of an algorithm has its bytes
    divided by its number of units; an algorithm without a size counts as one byte in all. The
    common unit is the greatest common divisor of these fractions: for units of 3/2 and 1 bytes
    it is 1/2. The factors are the number of common units in a unit of each algorithm, here [3,
    2].

    There must be at least one algorithm. Raises `InputError` (`sizes-unlike`) if the full
    buffer of an algorithm has more than `_MAX_UNITS` (2^40) common units.
    """
    bytes_of = [
        Fraction(algorithm.collective_bytes or 1, algorithm.collective.unit_count)
        for algorithm in algorithms
    ]
    denominator = math.lcm(*(algorithm.denominator for algorithm in bytes_of))
    numerator = math.gcd(*(int(algorithm * denominator) for algorithm in bytes_of))
    unit = Fraction(numerator, denominator)
    factors = [int(algorithm / unit) for algorithm in bytes_of]
    largest = max(
        factor * algorithm.collective.unit_count
        for factor, algorithm in zip(factors, algorithms, strict=True)
    )
    if largest > _MAX_UNITS:
        raise InputError(
            "the sizes of the groups have no common unit",
            cure="choose sizes that are multiples of one another",
            code="sizes-unlike",
        )
    return unit, factors


def _build_steps(
    algorithms: Sequence[Algorithm],
    factors: Sequence[int],
    bases: Int64Array,
    turns: Turns,
) -> StepTable:
    """Return the joint step table of several algorithms with equal numbers of ranks.

    `turns`: the order of all steps, and control dependencies between the algorithms. Steps are
    grouped by rank, then in this order; dependencies within an algorithm are kept.

    - Counts and offsets are multiplied by the algorithm's entry of `factors`.
    - The first unit of the algorithm's part in the joint buffer (`bases`: int64[algorithms, ranks,
      buffers]) is added to offsets. An operand without a buffer gets the offset 0.
    - Channels of an algorithm follow the highest channel of the previous ones.
    - Kinds, ranks, peers, buffers and durations are kept. Lanes and all other columns get defaults.

    Raises `InputError` if the dependencies are cyclic or connect different ranks.
    """
    columns: dict[str, list[np.ndarray]] = {}
    edges: dict[str, list[Int64Array]] = {
        "data": [],
        "control": [np.stack([turns.earlier, turns.later])],
    }
    rows = channels = 0
    for algorithm, factor, base in zip(algorithms, factors, bases, strict=True):
        steps = algorithm.steps
        values = {name: getattr(steps, name) for name in _COPIED}
        values["channel"] = steps.channel + channels
        values["count"] = steps.count * factor
        values["src_offset"] = _shift_offsets(
            steps, steps.src_buffer, steps.src_offset * factor, base
        )
        values["dst_offset"] = _shift_offsets(
            steps, steps.dst_buffer, steps.dst_offset * factor, base
        )
        for name, column in values.items():
            columns.setdefault(name, []).append(column)
        for name, both in edges.items():
            both.append(np.stack(getattr(steps, f"{name}_edges")) + rows)
        rows += len(steps)
        channels += int(steps.channel.max(initial=-1)) + 1
    table = {name: np.concatenate(parts)[turns.order] for name, parts in columns.items()}
    # Positions in the joint order, which preserves the order of the messages of each channel.
    position = inverse(turns.order)
    data, control = (position[np.concatenate(edges[name], axis=1)] for name in ("data", "control"))
    num_ranks = algorithms[0].num_ranks
    return StepTable.from_columns(num_ranks, table, (data[0], data[1]), (control[0], control[1]))


def _delay_steps(steps: StepTable, group: Int64Array, starts_ns: Int64Array) -> StepTable:
    """Return the steps with a delay before the first steps of every group.

    `group`: group of every step. `starts_ns`: start of every group in ns. If it is above 0,
    each rank with steps of the group gets one COMPUTE step of this duration. The COMPUTE
    steps of a rank are its first steps, in the order of the groups, and do not wait for
    each other.

    A step waits for the COMPUTE step of its group and rank, by a control dependency, if it
    has no data or control dependency on a step of its own group. Dependencies on other
    groups do not matter, because such a group may start earlier. The order and the
    dependencies of all other steps are unchanged. If no start is above 0, no step is added.
    """
    ranks = steps.num_ranks
    key = group * ranks + steps.rank
    delayed = np.unique(key[starts_ns[group] > 0])
    added = len(delayed)
    no_operand = np.zeros(added, np.int64)
    unused = np.full(added, Buffer.UNKNOWN, np.int64)
    additions: dict[str, Int64Array] = {
        "rank": delayed % ranks,
        "kind": np.full(added, StepKind.COMPUTE, np.int64),
        "peer": np.full(added, -1, np.int64),
        "src_buffer": unused,
        "dst_buffer": unused,
        "duration_ns": starts_ns[delayed // ranks],
    }
    names = (*_COPIED, "channel", "count", "src_offset", "dst_offset")
    table = {
        name: np.concatenate([additions.get(name, no_operand), getattr(steps, name)])
        for name in names
    }
    edges = {}
    has_parent = np.zeros(len(steps), np.bool_)
    for name in ("data", "control"):
        parents, children = getattr(steps, f"{name}_edges")
        has_parent[children[group[parents] == group[children]]] = True
        edges[name] = np.stack([parents, children]) + added
    waiting = np.flatnonzero(np.isin(key, delayed) & ~has_parent)
    delays = np.stack([np.searchsorted(delayed, key[waiting]), waiting + added])
    control = np.concatenate([edges["control"], delays], axis=1)
    return StepTable.from_columns(
        ranks, table, (edges["data"][0], edges["data"][1]), (control[0], control[1])
    )


def _shift_offsets(
    steps: StepTable, buffer: np.ndarray, offset: Int64Array, base: Int64Array
) -> Int64Array:
    """Return the offsets of the steps of one algorithm in the joint buffers: int64[steps].

    `buffer`, `offset`: buffer and offset of an operand of each step, in common units.
    `base`: int64[ranks, 3], the first unit of the algorithm in each joint buffer, which
    is added. Unused operands (buffer UNKNOWN) get 0.
    """
    used = buffer != Buffer.UNKNOWN
    # Unused operands need any valid index.
    index = np.where(used, buffer, 0)
    shift = base[steps.rank, index]
    return np.where(used, offset + shift, 0)


def _build_contributions(
    algorithms: Sequence[Algorithm], factors: Sequence[int], bases: Int64Array
) -> Contributions | None:
    """Return the expected contents of the joint collective in common units; None if too large.

    `factors`: common units per unit of each algorithm. `bases`: int64[algorithms, ranks, buffers],
    the first common unit of an algorithm in each joint buffer. It is added to offsets (OUTPUT) and
    source units (INPUT).

    Rows are by algorithm, in the order of `collective.postcondition()`. A contribution of all ranks
    becomes one row per rank, ascending, in its place. Then each row becomes `factor` adjacent ones,
    one per common unit.

    Returns None if there would be more than `_MAX_ROWS` (20 million) rows. Raises `InputError`
    (`too-large`) for a standard collective of more than 2^26 rows, and `AssertionError` for a
    collective without a defined result; both are raised before None is returned.
    """
    rows = 0
    results = []
    for algorithm, factor in zip(algorithms, factors, strict=True):
        result = algorithm.collective.postcondition()
        assert result is not None
        results.append(result)
        # A row for all ranks is expanded to one per rank.
        total_rows = np.count_nonzero(result.source_rank == ALL_RANKS)
        additional = algorithm.collective.num_ranks - 1
        rows += (len(result) + int(total_rows) * additional) * factor
    if rows > _MAX_ROWS:
        return None
    parts = []
    for result, algorithm, factor, base in zip(results, algorithms, factors, bases, strict=True):
        expanded = result.with_ranks_named(algorithm.num_ranks)
        # A unit consists of `factor` consecutive common units.
        times = np.full(len(expanded), factor, np.int64)
        within = counted_positions(times)
        rank = np.repeat(expanded.rank, times)
        source = np.repeat(expanded.source_rank, times)
        offset = np.repeat(expanded.offset, times) * factor + within
        unit = np.repeat(expanded.source_unit, times) * factor + within
        offset += base[rank, Buffer.OUTPUT]
        unit += base[source, Buffer.INPUT]
        parts.append((rank, offset, source, unit))
    columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Contributions(*columns)
