"""Hypothesis strategies for the model.

Random algorithms that hold every structural rule, whatever they compute.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

from hub_core.model.algorithm import Algorithm, JsonValue, Provenance
from hub_core.model.collectives import ALL_RANKS, Collective, Contributions, CustomContract
from hub_core.model.kinds import ROOTED, Buffer, CollectiveKind, ReduceOp, StepKind
from hub_core.model.steps import StepTable, StepTableBuilder
from hub_core.network.topology import Topology

_KNOWN = [Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH]
_READS = {StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE}
_WRITES = {StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE}
_MESSAGES = {StepKind.SEND, StepKind.RECV, StepKind.RECV_REDUCE}

T = TypeVar("T")

# Units of a rank's buffer in a custom collective.
_MOST_UNITS = 6
# Small numbers meet each other, large ones find columns that are too narrow.
_FEW_OR_MANY = st.integers(1, 8) | st.integers(1, 2**40)
_OFFSETS = st.integers(0, 300) | st.integers(0, 2**40)

# More make a subset no more telling.
_MOST_NPUS_OF_A_SUBSET = 9

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
"""Values of JSON as every reader keeps them: whole numbers that a double holds, all finite."""

# The prefix keeps clear of names that the formats use themselves.
_EXTENSIONS = st.dictionaries(st.text(max_size=6).map("x-{}".format), json_values, max_size=2)


@st.composite
def collectives(draw: st.DrawFn, max_ranks: int = 4) -> Collective:
    """Any collective, custom ones with their contract."""
    kind = draw(st.sampled_from(CollectiveKind))
    num_ranks = draw(st.integers(1, max_ranks))
    in_place = draw(st.booleans())
    # Few units a rank, and more than 32 bits hold; divisible by the ranks, as most kinds want it.
    units_per_rank = draw(_FEW_OR_MANY)
    root = draw(_below(num_ranks)) if kind in ROOTED else None
    # At least one of the two modes is claimed.
    out_of_place = not in_place or draw(st.booleans())
    reduce_op = draw(st.sampled_from(ReduceOp))
    is_custom = kind is CollectiveKind.CUSTOM
    contract = draw(_contracts(num_ranks)) if is_custom else None
    return Collective(
        kind,
        num_ranks,
        num_ranks * units_per_rank,
        root=root,
        in_place=in_place,
        out_of_place=out_of_place,
        reduce_op=reduce_op,
        contract=contract,
    )


@st.composite
def _contracts(draw: st.DrawFn, num_ranks: int) -> CustomContract:
    """Sizes and contributions that need not fit each other."""
    promised = draw(_contributions(num_ranks))
    sizes = _one_a_rank(st.integers(1, _MOST_UNITS), num_ranks)
    input_units = np.asarray(draw(sizes), np.int64)
    output_units = np.asarray(draw(sizes), np.int64)
    defined = draw(_one_a_rank(st.booleans(), num_ranks))
    # A contract may leave open what comes out.
    stated = promised if draw(st.booleans()) else None
    return CustomContract(input_units, output_units, np.asarray(defined, np.bool_), stated)


@st.composite
def _contributions(draw: st.DrawFn, num_ranks: int) -> Contributions:
    """Up to six rows of (rank, unit of its output, source rank or all, unit of its input)."""
    ranks = _below(num_ranks)
    units = _below(_MOST_UNITS)
    rows = draw(st.lists(st.tuples(ranks, units, ranks | st.just(ALL_RANKS), units), max_size=6))
    # An empty list has no second axis.
    table = np.asarray(rows, np.int64).reshape(-1, 4)
    return Contributions(*(column.copy() for column in table.T))


def _below(count: int) -> st.SearchStrategy[int]:
    """A whole number of 0..count-1."""
    return st.integers(0, count - 1)


def _one_a_rank(values: st.SearchStrategy[T], num_ranks: int) -> st.SearchStrategy[list[T]]:
    """A value for every rank."""
    return st.lists(values, min_size=num_ranks, max_size=num_ranks)


@st.composite
def step_tables(draw: st.DrawFn, num_ranks: int, unit_count: int, max_steps: int = 12) -> StepTable:
    """Steps of every kind with every column in use.

    Messages need not match, dependencies point backwards.
    """
    builder = StepTableBuilder(num_ranks)
    earlier: dict[int, list[int]] = {}
    for _ in range(draw(st.integers(0, max_steps))):
        rank = draw(_below(num_ranks))
        kind = draw(st.sampled_from(StepKind))
        rows = earlier.setdefault(rank, [])
        values = draw(_step_values(kind, num_ranks, unit_count))
        parents = _some_of(rows)
        row = builder.add(rank, kind, data=draw(parents), control=draw(parents), **values)
        rows.append(row)
    return builder.build()


def _some_of(rows: list[int]) -> st.SearchStrategy[list[int]]:
    """Up to four of the earlier rows of a rank, in any order."""
    # Hypothesis samples from nothing only under protest.
    if not rows:
        return st.just([])
    return st.lists(st.sampled_from(rows), unique=True, max_size=4)


@st.composite
def _step_values(
    draw: st.DrawFn,
    kind: StepKind,
    num_ranks: int,
    unit_count: int,
) -> dict[str, int]:
    """Columns of a step: regions where its kind has them, maybe beyond the buffers."""
    values = {
        "peer": draw(_below(num_ranks)) if kind in _MESSAGES else -1,
        "channel": draw(st.integers(0, 3)),
        "count": draw(st.integers(0, unit_count)),
        # -1 stands for what is not stated.
        "lane": draw(st.integers(-1, 200)),
        "duration_ns": draw(st.just(-1) | st.integers(0, 10**7)),
        "source_line": draw(st.just(-1) | st.integers(1, 2**31 - 1)),
    }
    for side, kinds in (("src", _READS), ("dst", _WRITES)):
        if kind in kinds:
            values[f"{side}_buffer"] = draw(st.sampled_from(_KNOWN))
            values[f"{side}_offset"] = draw(_OFFSETS)
    return values


@st.composite
def algorithms(draw: st.DrawFn, max_ranks: int = 4, max_steps: int = 12) -> Algorithm:
    """Any algorithm in form: a collective and arbitrary steps, provenance, extensions.

    It need not be correct.
    """
    collective = draw(collectives(max_ranks))
    scratch = draw(_one_a_rank(st.integers(0, 2**40), collective.num_ranks))
    steps = draw(step_tables(collective.num_ranks, collective.unit_count, max_steps))
    return Algorithm(
        collective,
        steps,
        np.asarray(scratch, np.int64),
        draw(_provenances()),
        draw(st.none() | st.integers(1, 2**40)),
        draw(_EXTENSIONS),
    )


@st.composite
def _provenances(draw: st.DrawFn) -> Provenance:
    """Any texts: they are people's, and come back as they were."""
    texts = st.text(max_size=12)
    options = st.dictionaries(texts, texts, max_size=2)
    return Provenance(
        draw(texts),
        draw(texts),
        draw(texts),
        draw(texts),
        draw(options),
    )


def some_npus(topology: Topology) -> st.SearchStrategy[list[int]]:
    """Up to nine NPUs of a topology, in any order, each once."""
    npus = st.integers(0, topology.num_npus - 1)
    return st.lists(npus, min_size=1, max_size=_MOST_NPUS_OF_A_SUBSET, unique=True)
