"""Requests and networks that are refused, each with one clear line."""

from __future__ import annotations

import numpy as np
import pytest

import hub_core
from hub_core import InputError, UsageError, parse_topology
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Links


@pytest.mark.parametrize("name", ["tacos", "blink"])
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE])
def test_npus_without_a_link_are_named(name: str, kind: CollectiveKind) -> None:
    collective = Collective(kind, 2, 2)
    with pytest.raises(InputError, match=r"no link leaves (NPU|the nodes) 0"):
        hub_core.synthesize(collective, "dgx1v?npus=0,5", 1 << 20, name=name)


@pytest.mark.parametrize("name", ["tacos", "blink"])
def test_times_beyond_the_clock_are_refused(name: str) -> None:
    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 8)
    with pytest.raises(
        InputError, match=r"a message takes .* s on a link; times are counted up to"
    ):
        hub_core.synthesize(collective, "ring:8?bandwidth=1B/s", 1 << 30, name=name)


def test_switches_that_are_alike_in_one_direction_only() -> None:
    # All pairs are equally distant on the transposed network, not on the network itself: only one
    # of them has spreadings without an order of links. Found by benchmarks/synthesis/fuzz.py.
    links = [
        *((0, 1, 1e9 / 3, 5e-7), (1, 0, 16.6e9, 1e-12), (1, 2, 1e9 / 3, 5e-7)),
        *((1, 3, 1e9 / 3, 5e-7), (1, 4, 1e9 / 3, 1e-12), (2, 0, 16.6e9, 0.0)),
        *((2, 1, 1e9 / 3, 5e-7), (3, 1, 1e9 / 3, 5e-7), (3, 2, 1e9 / 3, 1e-12)),
        *((3, 4, 1e9 / 3, 0.0), (4, 1, 1e9 / 3, 5e-7), (4, 2, 1e9 / 3, 5e-7)),
        (4, 3, 1e9 / 3, 0.0),
    ]
    ends = np.array([link[:2] for link in links], np.int64)
    bandwidths, latencies = (
        np.array(column) for column in zip(*(x[2:] for x in links), strict=True)
    )
    topology = Links(ends[:, 0], ends[:, 1], bandwidths, latencies).topology("graph", 3, 5)
    result = hub_core.synthesize(
        Collective(CollectiveKind.ALL_REDUCE, 3, 1), topology, 64, name="tacos"
    )
    assert hub_core.verify(result.algorithm).ok


def test_several_planes_are_refused() -> None:
    collective = Collective(CollectiveKind.BROADCAST, 2, 1, root=0, in_place=True)
    with pytest.raises(UsageError, match="tacos makes algorithms for one plane, not for 2"):
        hub_core.synthesize(collective, parse_topology("fc:2+fc:2"), 1 << 20, name="tacos")
