"""Phases in several dimensions as one algorithm: contents are right, or found to be wrong."""

from __future__ import annotations

import pytest
from collhub_expansion.composed import PhaseSteps, composed

import hub_core
from hub_core import Algorithm
from hub_core.model import Collective, CollectiveKind

pytest.importorskip("collhub_astra_sim")
AR, AG = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
RS, A2A = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL
SIZES = {0: 4, 1: 2, 2: 4}


def _phase(kind: CollectiveKind, level: int, name: str) -> PhaseSteps:
    ranks = SIZES[level]
    collective = Collective(kind, ranks, kind.traits.parts(ranks), in_place=True)
    network = hub_core.parse_topology(f"ring:{ranks}")
    made = hub_core.synthesize(collective, network, 1 << 20, name=f"astra-{name}")
    return PhaseSteps(kind, level, made.algorithm, tuple(range(ranks)))


def _of(kind: CollectiveKind, *phases: tuple[CollectiveKind, int], name: str) -> Algorithm:
    return composed(kind, [_phase(one, level, name) for one, level in phases])


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


@pytest.mark.parametrize(("kind", "phases", "name"), _CASES)
def test_contents_are_right(
    kind: CollectiveKind, phases: list[tuple[CollectiveKind, int]], name: str
) -> None:
    found = hub_core.verify(_of(kind, *phases, name=name))
    assert found.ok, found.diagnostics[:3]


def test_a_dimension_that_is_reduced_twice_is_found() -> None:
    found = hub_core.verify(_of(AR, (AR, 0), (AR, 0), (AR, 1), name="ring"))
    assert not found.ok
