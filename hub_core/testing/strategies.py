"""Hypothesis strategies for the model.

Random algorithms satisfy all structural rules, but need not compute their collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

from hub_core.model.algorithm import Algorithm, JsonValue, Provenance
from hub_core.model.collectives import ALL_RANKS, Collective, Contributions, CustomContract
from hub_core.model.counts import UnitCounts
from hub_core.model.kinds import (
    ROOTED,
    STANDARD_KINDS,
    UNEVEN_KINDS,
    Buffer,
    CollectiveKind,
    ReduceOp,
    StepKind,
)
from hub_core.model.steps import StepTable, StepTableBuilder
from hub_core.network.topology import Topology

_BUFFERS = [Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH]
_READS = {StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE}
_WRITES = {StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE}
_MESSAGES = {StepKind.SEND, StepKind.RECV, StepKind.RECV_REDUCE}

T = TypeVar("T")

KINDS_OF_EQUAL_PARTS = (*STANDARD_KINDS, CollectiveKind.CUSTOM)
"""All kinds but those with a table of counts, which many formats refuse."""

# Maximum size in units of a rank's buffer in a custom collective.
_MAX_UNITS = 6
# Small numbers collide often; large numbers detect columns with too few bits.
_SMALL_OR_LARGE = st.integers(1, 8) | st.integers(1, 2**40)
_OFFSETS = st.integers(0, 300) | st.integers(0, 2**40)

# Larger subsets would find no further defects.
_MAX_SUBSET_SIZE = 9

json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
"""JSON values that every reader preserves: finite, with integers that a double represents."""

# The prefix avoids names that the formats use.
_EXTENSIONS = st.dictionaries(st.text(max_size=6).map("x-{}".format), json_values, max_size=2)


@st.composite
def collectives(
    draw: st.DrawFn, max_ranks: int = 4, kinds: Sequence[CollectiveKind] = KINDS_OF_EQUAL_PARTS
) -> Collective:
    """Draw collectives of one of `kinds` with 1 to `max_ranks` ranks and any reduction operator.

    They support in place, out of place, or both. Rooted kinds have any rank as root, others
    None. The unit count is ranks * u, where u is drawn from 1 to 2^40; this holds for custom
    kinds too, whatever their contract. Custom collectives have a contract, which need not be
    consistent. Uneven kinds have a table of counts instead (`unit_counts`), some of which may
    be 0, and their unit count is its total, which need not be a multiple of the ranks. The
    default `kinds` have no uneven ones. Drawing fails for `max_ranks` below 1 and for empty
    `kinds`.
    """
    kind = draw(st.sampled_from(kinds))
    num_ranks = draw(st.integers(1, max_ranks))
    in_place = draw(st.booleans())
    # The unit count is divisible by the number of ranks, as most kinds require.
    units_per_rank = draw(_SMALL_OR_LARGE)
    root = draw(_below(num_ranks)) if kind in ROOTED else None
    # At least one of the two modes is supported.
    out_of_place = not in_place or draw(st.booleans())
    reduce_op = draw(st.sampled_from(ReduceOp))
    is_custom = kind is CollectiveKind.CUSTOM
    contract = draw(_contracts(num_ranks)) if is_custom else None
    counts = draw(unit_counts(num_ranks, kind)) if kind in UNEVEN_KINDS else None
    return Collective(
        kind,
        num_ranks,
        num_ranks * units_per_rank if counts is None else counts.total,
        root=root,
        in_place=in_place,
        out_of_place=out_of_place,
        reduce_op=reduce_op,
        contract=contract,
        counts=counts,
    )


@st.composite
def unit_counts(draw: st.DrawFn, num_ranks: int, kind: CollectiveKind) -> UnitCounts:
    """Draw a table of counts for an uneven `kind`: 0 to 2^40 units per entry.

    All-to-all-v has one entry per ordered pair of ranks, each rank with itself included.
    The other uneven kinds have one entry per rank. If all entries are 0, the first one
    becomes 1. There must be at least one rank.
    """
    is_per_pair = kind.traits.has_counts_per_pair
    size = num_ranks * num_ranks if is_per_pair else num_ranks
    values = draw(st.lists(st.just(0) | _SMALL_OR_LARGE, min_size=size, max_size=size))
    values[0] += not any(values)
    rows = [values[start : start + num_ranks] for start in range(0, size, num_ranks)]
    return UnitCounts.from_table(rows if is_per_pair else values, is_per_pair)


@st.composite
def _contracts(draw: st.DrawFn, num_ranks: int) -> CustomContract:
    """Draw contracts of custom collectives, which need not be consistent.

    Every rank has 1 to 6 input units and 1 to 6 output units; its INPUT is either defined
    or not. The required contents of OUTPUT are None or 0 to 6 rows, which may be repeated. A row
    has a rank, an output unit, a source (a rank or `ALL_RANKS`) and an input unit. Units are 0
    to 5, so that they may be outside of the buffers.
    """
    ranks, units = _below(num_ranks), _below(_MAX_UNITS)
    rows = draw(st.lists(st.tuples(ranks, units, ranks | st.just(ALL_RANKS), units), max_size=6))
    # `reshape`, because an empty list has no second axis.
    table = np.asarray(rows, np.int64).reshape(-1, 4)
    contributions = Contributions(*(column.copy() for column in table.T))
    sizes = _one_per_rank(st.integers(1, _MAX_UNITS), num_ranks)
    input_units = np.asarray(draw(sizes), np.int64)
    output_units = np.asarray(draw(sizes), np.int64)
    defined = draw(_one_per_rank(st.booleans(), num_ranks))
    # A contract need not have a postcondition.
    postcondition = contributions if draw(st.booleans()) else None
    return CustomContract(input_units, output_units, np.asarray(defined, np.bool_), postcondition)


def _below(count: int) -> st.SearchStrategy[int]:
    """Integers from 0 to count - 1."""
    return st.integers(0, count - 1)


def _one_per_rank(values: st.SearchStrategy[T], num_ranks: int) -> st.SearchStrategy[list[T]]:
    """Lists with one value per rank."""
    return st.lists(values, min_size=num_ranks, max_size=num_ranks)


@st.composite
def step_tables(draw: st.DrawFn, num_ranks: int, unit_count: int, max_steps: int = 12) -> StepTable:
    """Draw step tables of 0 to `max_steps` steps of any kind on the ranks 0 to `num_ranks` - 1.

    The columns are drawn as in `_step_values`, so sends and receives need not match, and
    regions may exceed the buffers. A step has 0 to 4 distinct data parents and, independently,
    0 to 4 distinct control parents. They are steps of its rank that were drawn before it; one
    step may be a parent of both kinds. The rows of the table are grouped by rank, those of a
    rank in the order of drawing.
    """
    builder = StepTableBuilder(num_ranks)
    earlier: dict[int, list[int]] = {}
    for _ in range(draw(st.integers(0, max_steps))):
        rank = draw(_below(num_ranks))
        kind = draw(st.sampled_from(StepKind))
        rows = earlier.setdefault(rank, [])
        values = draw(_step_values(kind, num_ranks, unit_count))
        parents: st.SearchStrategy[list[int]] = st.just([])
        # Hypothesis refuses to sample from an empty list.
        if rows:
            parents = st.lists(st.sampled_from(rows), unique=True, max_size=4)
        row = builder.add(rank, kind, data=draw(parents), control=draw(parents), **values)
        rows.append(row)
    return builder.build()


@st.composite
def _step_values(
    draw: st.DrawFn,
    kind: StepKind,
    num_ranks: int,
    unit_count: int,
) -> dict[str, int]:
    """Draw values for the columns of a step of one kind, as a dictionary by column name.

    - `peer`: 0 to `num_ranks` - 1 for messages (send, receive, receive-reduce), which may be
      the step's own rank; -1 for other kinds
    - `channel`: 0 to 3; `count`: 0 to `unit_count`, for every kind
    - `lane`: -1 to 200; `duration_ns`: -1, or 0 to 10^7; `source_line`: -1, or 1 to 2^31 - 1.
      -1 means not specified
    - `src_buffer` and `src_offset` only if the kind reads, `dst_buffer` and `dst_offset` only
      if it writes: input, output or scratch, and 0 to 2^40, so regions may exceed the buffers

    Other columns are not in the result.
    """
    values = {
        "peer": draw(_below(num_ranks)) if kind in _MESSAGES else -1,
        "channel": draw(st.integers(0, 3)),
        "count": draw(st.integers(0, unit_count)),
        # -1: not specified.
        "lane": draw(st.integers(-1, 200)),
        "duration_ns": draw(st.just(-1) | st.integers(0, 10**7)),
        "source_line": draw(st.just(-1) | st.integers(1, 2**31 - 1)),
    }
    for side, kinds in (("src", _READS), ("dst", _WRITES)):
        if kind in kinds:
            values[f"{side}_buffer"] = draw(st.sampled_from(_BUFFERS))
            values[f"{side}_offset"] = draw(_OFFSETS)
    return values


@st.composite
def algorithms(
    draw: st.DrawFn,
    max_ranks: int = 4,
    max_steps: int = 12,
    kinds: Sequence[CollectiveKind] = KINDS_OF_EQUAL_PARTS,
) -> Algorithm:
    """Draw algorithms that are structurally valid but need not be correct.

    The collective is drawn by `collectives`: one of `kinds` with 1 to `max_ranks` ranks. The steps
    are drawn by `step_tables`: 0 to `max_steps`. SCRATCH has 0 to 2^40 units on each rank. The size
    is None or 1 to 2^40 bytes. Up to two extensions are drawn, and the provenance: four texts of at
    most 12 characters, and at most two options with such names and values. Drawing fails for
    `max_ranks` below 1 and for empty `kinds`.
    """
    collective = draw(collectives(max_ranks, kinds))
    scratch = draw(_one_per_rank(st.integers(0, 2**40), collective.num_ranks))
    steps = draw(step_tables(collective.num_ranks, collective.unit_count, max_steps))
    texts = st.text(max_size=12)
    options = st.dictionaries(texts, texts, max_size=2)
    origin = Provenance(draw(texts), draw(texts), draw(texts), draw(texts), draw(options))
    return Algorithm(
        collective,
        steps,
        np.asarray(scratch, np.int64),
        origin,
        draw(st.none() | st.integers(1, 2**40)),
        draw(_EXTENSIONS),
    )


def some_npus(topology: Topology) -> st.SearchStrategy[list[int]]:
    """Return a strategy for lists of 1 to `_MAX_SUBSET_SIZE` (9) distinct NPUs in any order.

    The NPUs are numbers from 0 to `topology.num_npus` - 1. A list has at most all of them.
    """
    npus = st.integers(0, topology.num_npus - 1)
    return st.lists(npus, min_size=1, max_size=_MAX_SUBSET_SIZE, unique=True)
