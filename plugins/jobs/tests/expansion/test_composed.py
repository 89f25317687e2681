"""Phases in several dimensions as one algorithm with right contents, and the order of streams."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_expansion.composed import (
    PhaseSteps,
    StreamPhase,
    composed,
    limit_concurrency,
    order_streams,
)
from hypothesis import given
from hypothesis import strategies as st

import hub_core
from hub_core import Algorithm
from hub_core.model import Buffer, Collective, CollectiveKind, StepKind, StepTable

pytest.importorskip("collhub_astra_sim")
AR, AG = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
RS, A2A = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL
SIZES = {0: 4, 1: 2, 2: 4}
_SERIES = [
    (AR, [(AR, 0), (AR, 1), (AR, 2)]),
    (AR, [(RS, 0), (RS, 1), (AR, 2), (AG, 1), (AG, 0)]),
    (AR, [(RS, 0), (AR, 2), (AG, 0)]),
    (RS, [(RS, 0), (RS, 1), (RS, 2)]),
    (AG, [(AG, 2), (AG, 1), (AG, 0)]),
    (A2A, [(A2A, 0), (A2A, 1), (A2A, 2)]),
]
_CASES = [
    *((*one, name) for one in _SERIES for name in ("ring", "direct")),
    *((*one, "halving-doubling") for one in _SERIES[:-1]),
    (*_SERIES[0], "double-binary-tree"),
]


def _phase(kind: CollectiveKind, level: int, name: str) -> PhaseSteps:
    ranks = SIZES[level]
    collective = Collective(kind, ranks, kind.traits.parts(ranks), in_place=True)
    network = hub_core.parse_topology(f"ring:{ranks}")
    made = hub_core.synthesize(collective, network, 1 << 20, name=f"astra-{name}")
    return PhaseSteps(kind, level, made.algorithm, tuple(range(ranks)))


def _of(kind: CollectiveKind, *phases: tuple[CollectiveKind, int], name: str) -> Algorithm:
    return composed(kind, [_phase(one, level, name) for one, level in phases])


@pytest.mark.parametrize(("kind", "phases", "name"), _CASES)
def test_contents_are_right(
    kind: CollectiveKind, phases: list[tuple[CollectiveKind, int]], name: str
) -> None:
    found = hub_core.verify(_of(kind, *phases, name=name))
    assert found.ok, found.diagnostics[:3]


def test_a_dimension_that_is_reduced_twice_is_found() -> None:
    found = hub_core.verify(_of(AR, (AR, 0), (AR, 0), (AR, 1), name="ring"))
    assert not found.ok


def test_phases_follow_each_other_on_a_rank_without_steps_in_one_of_them() -> None:
    """Rank 1 is idle in the second of three phases; its later steps wait for the first one."""
    columns = {
        "kind": [StepKind.COPY], "src_buffer": [Buffer.INPUT], "src_offset": [0],
        "dst_buffer": [Buffer.OUTPUT], "dst_offset": [0], "count": [1],
    }  # fmt: skip
    phases = []
    for ranks in ((0, 1), (0,), (0, 1)):
        rows = {name: values * len(ranks) for name, values in columns.items()}
        table = StepTable.from_columns(2, {**rows, "rank": list(ranks)})
        algorithm = Algorithm(Collective(AR, 2, 2), table, np.zeros(2, np.int64))
        phases.append(PhaseSteps(AR, 0, algorithm, (0, 1)))
    table = composed(AR, phases).steps
    parents, children = table.edges()
    after = {int(np.flatnonzero(table.rank == 1)[0])}
    for parent, child in sorted(zip(parents.tolist(), children.tolist(), strict=True)):
        if parent in after:
            after.add(child)
    assert after == set(np.flatnonzero(table.rank == 1).tolist())


def _streams(count: int, *levels: int, times: tuple[int, ...] = ()) -> list[list[StreamPhase]]:
    taken = times or (1,) * len(levels)
    return [[StreamPhase(0, *one) for one in zip(levels, taken, strict=True)] for _ in range(count)]


def test_one_dimension_is_a_chain() -> None:
    assert limit_concurrency(4, 1) == ((0, 1), (1, 2), (2, 3))
    assert order_streams(_streams(4, 0), 1) == limit_concurrency(4, 1)
    assert order_streams(_streams(4, 0), 2) == limit_concurrency(4, 2) == ((0, 2), (1, 3))


def test_no_streams_and_streams_without_phases_have_no_waits() -> None:
    assert order_streams([], 1) == ()
    assert order_streams([[], []], 1) == ()


def test_a_stream_waits_for_its_last_phase_and_for_the_stream_before() -> None:
    # Phases 0 and 1 of the first stream, 2 and 3 of the second.
    assert order_streams(_streams(2, 0, 1), 1) == ((0, 1), (0, 2), (1, 3), (2, 3))


def test_streams_that_come_back_stand_behind_those_that_wait() -> None:
    # There and back: all go there before the first one comes back.
    waits = order_streams(_streams(3, 0, 1, 0), 1)
    assert {(0, 3), (3, 6), (6, 2), (2, 5), (5, 8)} <= set(waits)


@given(
    count=st.integers(1, 6),
    at_once=st.integers(1, 4),
    phases=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), min_size=1, max_size=5),
)
def test_no_phase_waits_for_itself(count: int, at_once: int, phases: list[tuple[int, int]]) -> None:
    levels, times = zip(*phases, strict=True)
    waits = order_streams(_streams(count, *levels, times=times), at_once)
    total = count * len(phases)
    left = {phase: {one for one, other in waits if other == phase} for phase in range(total)}
    done: set[int] = set()
    while ready := {phase for phase in left if left[phase] <= done}:
        done |= ready
        left = {phase: one for phase, one in left.items() if phase not in ready}
    assert len(done) == total
