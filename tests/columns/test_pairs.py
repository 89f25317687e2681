"""Links by pair of nodes: parallel ones add up, and every pair knows its way back."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from hub_core.columns import NodePairs


def _pairs(*links: tuple[int, int, int, float, float]) -> NodePairs:
    """Links as (source, destination, plane, bandwidth, latency) among four nodes."""
    source, destination, plane, bandwidth, latency = (
        np.asarray(c) for c in zip(*links, strict=True)
    )
    return NodePairs(
        SimpleNamespace(
            num_nodes=4,
            source=source.astype(np.int64),
            destination=destination.astype(np.int64),
            plane=plane.astype(np.int64),
            bandwidth_bytes_per_s=bandwidth.astype(np.float64),
            latency_s=latency.astype(np.float64),
        )
    )


def test_parallel_links_add_up_and_the_fastest_gives_the_latency() -> None:
    pairs = _pairs((0, 1, 0, 5.0, 2.0), (0, 1, 0, 7.0, 1.0), (2, 3, 0, 1.0, 1.0))
    assert len(pairs) == 2
    assert pairs.count.tolist() == [2, 1]
    assert pairs.bandwidth_bytes_per_s.tolist() == [12.0, 1.0]
    assert pairs.latency_s.tolist() == [1.0, 1.0]


def test_the_way_back_is_on_the_same_plane() -> None:
    pairs = _pairs((0, 1, 0, 5.0, 1.0), (1, 0, 0, 5.0, 1.0), (1, 0, 1, 5.0, 1.0))
    assert pairs.back.tolist() == [1, 0, -1]


def test_ways_back_that_differ_are_told() -> None:
    pairs = _pairs(
        (0, 1, 0, 5.0, 1.0), (1, 0, 0, 6.0, 1.0), (2, 3, 0, 1.0, 1.0), (3, 2, 0, 1.0, 1.0)
    )
    assert pairs.differs_from_back().tolist() == [True, True, False, False]
