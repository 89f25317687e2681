"""Estimates of synthesizers: near the time by the own account, from few messages."""

from __future__ import annotations

import pytest
from collhub_classic.plugin import ClassicOptions
from collhub_classic.synthesize import bidirectional_ring, bidirectional_ring_ns, direct_ns

import hub_core
from hub_core import Collective, CollectiveKind
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest


def request_on(text: str, size: int = 1 << 26) -> SynthesisRequest:
    topology = hub_core.parse_topology(text)
    ranks = topology.num_npus
    collective = Collective(CollectiveKind.ALL_GATHER, ranks, ranks, in_place=True)
    npus = tuple(range(ranks))
    return SynthesisRequest(collective, topology, size, npus, Occupancy.SERIALIZATION)


@pytest.mark.parametrize("text", ["ring:8", "mesh:8x8"])
def test_an_estimate_is_near_the_time_by_the_own_account(text: str) -> None:
    """A sample of the messages stands for all of them on the mesh."""
    request, options = request_on(text), ClassicOptions()
    made = bidirectional_ring(request, options)
    assert bidirectional_ring_ns(request, options) == pytest.approx(made.time_ns, rel=0.1)


def test_plans_of_many_ranks_are_not_estimated() -> None:
    assert direct_ns(request_on("ring:129"), ClassicOptions()) is None
