"""Hypothesis strategies for the model.

Random algorithms that hold every structural rule, whatever they compute.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from hub_core.model.algorithm import Algorithm, JsonValue, Provenance
from hub_core.model.collectives import Collective, Contributions, CustomContract
from hub_core.model.kinds import ROOTED, Buffer, CollectiveKind, ReduceOp, StepKind
from hub_core.model.steps import StepTable, StepTableBuilder

_KNOWN = [Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH]
_READS = {StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE}
_WRITES = {StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE}
_MESSAGES = {StepKind.SEND, StepKind.RECV, StepKind.RECV_REDUCE}

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


@st.composite
def collectives(draw: st.DrawFn, max_ranks: int = 4) -> Collective:
    """Any collective, custom ones with their contract."""
    kind = draw(st.sampled_from(CollectiveKind))
    num_ranks = draw(st.integers(1, max_ranks))
    in_place = draw(st.booleans())
    return Collective(
        kind,
        num_ranks,
        num_ranks * draw(st.integers(1, 8) | st.integers(1, 2**40)),
        root=draw(st.integers(0, num_ranks - 1)) if kind in ROOTED else None,
        in_place=in_place,
        out_of_place=not in_place or draw(st.booleans()),
        reduce_op=draw(st.sampled_from(ReduceOp)),
        contract=draw(_contracts(num_ranks)) if kind is CollectiveKind.CUSTOM else None,
    )


@st.composite
def _contracts(draw: st.DrawFn, num_ranks: int) -> CustomContract:
    sizes = st.lists(st.integers(1, 6), min_size=num_ranks, max_size=num_ranks)
    defined = st.lists(st.booleans(), min_size=num_ranks, max_size=num_ranks)
    ranks = st.integers(0, num_ranks - 1)
    rows = draw(
        st.lists(
            st.tuples(ranks, st.integers(0, 5), ranks | st.just(-1), st.integers(0, 5)), max_size=6
        )
    )
    columns = [np.asarray([row[column] for row in rows], np.int64) for column in range(4)]
    return CustomContract(
        np.asarray(draw(sizes), np.int64),
        np.asarray(draw(sizes), np.int64),
        np.asarray(draw(defined), np.bool_),
        Contributions(*columns) if draw(st.booleans()) else None,
    )


@st.composite
def step_tables(draw: st.DrawFn, num_ranks: int, unit_count: int, max_steps: int = 12) -> StepTable:
    """Steps of every kind with every column in use.

    Messages need not match, dependencies point backwards.
    """
    builder = StepTableBuilder(num_ranks)
    earlier: dict[int, list[int]] = {}
    for _ in range(draw(st.integers(0, max_steps))):
        rank, kind = draw(st.integers(0, num_ranks - 1)), draw(st.sampled_from(StepKind))
        parents = earlier.setdefault(rank, [])
        chosen = (
            st.lists(st.sampled_from(parents), unique=True, max_size=4) if parents else st.just([])
        )
        values = {
            "peer": draw(st.integers(0, num_ranks - 1)) if kind in _MESSAGES else -1,
            "channel": draw(st.integers(0, 3)),
            "count": draw(st.integers(0, unit_count)),
            "lane": draw(st.integers(-1, 200)),
            "duration_ns": draw(st.just(-1) | st.integers(0, 10**7)),
            "source_line": draw(st.just(-1) | st.integers(1, 2**31 - 1)),
        }
        for side, kinds in (("src", _READS), ("dst", _WRITES)):
            if kind in kinds:
                values[f"{side}_buffer"] = draw(st.sampled_from(_KNOWN))
                values[f"{side}_offset"] = draw(st.integers(0, 300) | st.integers(0, 2**40))
        parents.append(builder.add(rank, kind, data=draw(chosen), control=draw(chosen), **values))
    return builder.build()


@st.composite
def algorithms(draw: st.DrawFn, max_ranks: int = 4, max_steps: int = 12) -> Algorithm:
    """Any algorithm in form: a collective and arbitrary steps, provenance, extensions.

    It need not be correct.
    """
    collective = draw(collectives(max_ranks))
    texts = st.text(max_size=12)
    scratch = draw(
        st.lists(
            st.integers(0, 2**40), min_size=collective.num_ranks, max_size=collective.num_ranks
        )
    )
    return Algorithm(
        collective,
        draw(step_tables(collective.num_ranks, collective.unit_count, max_steps)),
        np.asarray(scratch, np.int64),
        Provenance(
            draw(texts),
            draw(texts),
            draw(texts),
            draw(texts),
            draw(st.dictionaries(texts, texts, max_size=2)),
        ),
        draw(st.none() | st.integers(1, 2**40)),
        draw(st.dictionaries(st.text(max_size=6).map("x-{}".format), json_values, max_size=2)),
    )
