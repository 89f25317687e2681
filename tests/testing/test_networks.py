"""The laws of topologies catch what breaks them."""

from __future__ import annotations

import pytest

from hub_core import Topology, parse_topology
from hub_core.testing import check_routes, check_subset


def test_a_ring_keeps_the_laws() -> None:
    ring = parse_topology("ring:6")
    check_routes(ring)
    check_subset(ring, [0, 1, 4])


def test_a_route_the_wrong_way_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Topology.routes
    monkeypatch.setattr(Topology, "routes", lambda self, start, end: forward(self, end, start))
    with pytest.raises(AssertionError, match="route from 0 to 1: ends at 0"):
        check_routes(parse_topology("ring:6"))


def test_a_subset_with_other_links_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    ring, other = parse_topology("ring:6"), parse_topology("ring:3")
    monkeypatch.setattr(Topology, "subset", lambda self, npus: other)
    with pytest.raises(AssertionError, match="links of the subset are"):
        check_subset(ring, [0, 1, 4])
