"""Estimates of synthesizers: near the time by the own account, from few messages."""

from __future__ import annotations

import pytest
from collhub_classic.plugin import ClassicOptions
from collhub_classic.synthesize import (
    bidirectional_ring,
    bidirectional_ring_ns,
    direct_ns,
    pairwise_ns,
)

import hub_core
from hub_core import Collective, CollectiveKind
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest


def request_on(
    text: str, size: int = 1 << 26, kind: CollectiveKind = CollectiveKind.ALL_GATHER
) -> SynthesisRequest:
    topology = hub_core.parse_topology(text)
    ranks = topology.num_npus
    collective = Collective(kind, ranks, ranks, in_place=kind is CollectiveKind.ALL_GATHER)
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


def test_a_pairwise_exchange_of_many_ranks_is_estimated_by_its_busiest_link() -> None:
    """A rank sends 255 / 256 of 64 MiB at 50 GB/s over routes of two links of 500 ns each."""
    request = request_on("switch:256", kind=CollectiveKind.ALL_TO_ALL)
    expected_ns = (255 << 18) / 50 + 1000
    assert pairwise_ns(request, ClassicOptions()) == pytest.approx(expected_ns, abs=1)


def test_an_exchange_beyond_the_limit_is_not_estimated() -> None:
    request = request_on("switch:5000", kind=CollectiveKind.ALL_TO_ALL)
    with pytest.raises(hub_core.HubError, match="24995000 blocks in messages are too many"):
        pairwise_ns(request, ClassicOptions())
