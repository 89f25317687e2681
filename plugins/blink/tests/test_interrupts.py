"""Ctrl-C ends the search with the best so far, or passes where there is nothing yet."""

from __future__ import annotations

import numpy as np
import pytest
from blink_requests import MIB
from collhub_blink.packing.weight_search import Budget, search_counts
from collhub_packing import SpanningTree
from collhub_packing.compiling import COMPILING

import hub_core
from hub_core import parse_topology
from hub_core.model import Collective, CollectiveKind
from hub_core.plugin_api import SynthesisResult


def interrupted_at(call: int) -> SynthesisResult:
    """An all-reduce whose packing number `call` is interrupted; compilations do not count."""
    calls = []

    def progress(fraction: float, what: str) -> None:
        if what != COMPILING:
            calls.append(fraction)
        if len(calls) == call:
            raise KeyboardInterrupt

    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 1, in_place=True)
    return hub_core.synthesize(
        collective, parse_topology("dgx1p"), MIB, name="blink", progress=progress
    )


def test_an_interrupt_after_the_first_schedule_keeps_it() -> None:
    made = interrupted_at(2)
    assert made.statistics["interrupted"] is True
    assert hub_core.verify(made.algorithm).ok


def test_an_interrupt_before_the_first_schedule_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_at(1)


def _interrupt(count: int) -> tuple[None, bool]:
    raise KeyboardInterrupt


def test_an_interrupted_proof_keeps_the_known_trees() -> None:
    budget = Budget(10)
    known = tuple(SpanningTree(0, 1, np.full(2, -1), np.full(2, -1)) for _ in range(3))
    found = search_counts(known, 2, "given", _interrupt, range(2, 9), budget)
    assert (found.trees, found.lower_bound, budget.is_interrupted) == (known, 2, True)
    with pytest.raises(KeyboardInterrupt):
        search_counts((), 2, "given", _interrupt, range(2, 9), budget)
