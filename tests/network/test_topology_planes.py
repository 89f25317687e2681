"""Planes: networks side by side on the same NPUs, one of which a message takes by its channel."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hub_core
from hub_core import parse_topology
from hub_core.documents.topologies import read, topology_to_json
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import InputError, UsageError
from hub_core.model.kinds import CollectiveKind, StepKind
from hub_core.network.bounds import lower_bound_ns
from hub_core.network.topology import Topology
from hub_core.plugin_api import NoOptions, Source
from hub_core.registry.discovery import load_core_only

BOTH = "mesh:2x2x2+ring:4*switch:2"
PAIR = "fc:2?bandwidth=50GB/s&latency=0ns+fc:2?bandwidth=10GB/s&latency=0ns"
COLUMNS = ("source", "destination", "bandwidth_bytes_per_s", "latency_s", "plane")


def same(one: Topology, other: Topology) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in COLUMNS)


def test_parts_joined_by_plus_are_planes_with_their_switches_in_order() -> None:
    both = parse_topology("switch:4+switch:8?npus=0-3+fc:4?bandwidth=1e+9B/s")
    assert (both.num_planes, both.num_npus, both.num_nodes) == (3, 4, 6)
    assert np.unique(both.destination[both.plane == 1]).tolist() == [0, 1, 2, 3, 5]
    assert both.bandwidth_bytes_per_s[both.plane == 2].tolist() == [1e9] * 12


def test_a_plane_alone_is_the_part_it_came_from() -> None:
    both = parse_topology(BOTH)
    for plane, part in enumerate(("mesh:2x2x2", "ring:4*switch:2")):
        alone = both.on_plane(plane)
        assert same(alone, parse_topology(part))
        assert alone.num_nodes == parse_topology(part).num_nodes


def test_the_channel_chooses_the_plane_of_a_route() -> None:
    both, switched = parse_topology(BOTH), parse_topology("ring:4*switch:2")
    routes = both.routes(np.zeros(4, np.int64), np.full(4, 5), np.arange(4))
    assert np.diff(routes.indptr).tolist() == [2, 3, 2, 3]
    expected = switched.routes(np.zeros(1, np.int64), np.full(1, 5)).links
    assert (routes.links[2:5] - 24).tolist() == expected.tolist()
    default = both.routes(np.zeros(1, np.int64), np.full(1, 5))
    assert default.links.tolist() == routes.links[:2].tolist()


def test_a_pair_that_its_plane_does_not_join_is_refused() -> None:
    with pytest.raises(InputError, match="plane 1"):
        _half().routes(np.asarray([0]), np.asarray([2]), np.asarray([1]))


def _half() -> Topology:
    ends = np.asarray([0, 1, 0, 2]), np.asarray([1, 0, 2, 0])
    return Topology(
        "half", 3, 3, *ends, np.full(4, 1e9), np.zeros(4), plane=np.asarray([1, 1, 0, 0])
    )


def test_a_subset_keeps_planes_and_closes_up_where_one_is_gone() -> None:
    both = parse_topology(BOTH)
    part = both.subset([1, 4, 5])
    assert part.num_planes == 2
    assert same(part, parse_topology(part.name))
    assert both.subset([0, 5]).num_planes == 1
    assert same(both.subset([0, 5]), parse_topology("ring:4*switch:2").subset([0, 5]))


def test_the_document_states_planes_only_where_there_are_several() -> None:
    both = parse_topology(BOTH)
    content = topology_to_json(both)
    assert same(read(Source.of_bytes("t.json", content), NoOptions()), both)
    assert b"plane" not in topology_to_json(parse_topology("mesh:2x2x2"))


@pytest.mark.parametrize(
    ("plane", "message"),
    [(2, "without a gap"), (-1, "from 0 on"), ("x", "from 0 on"), (True, "from 0 on")],
)
def test_wrong_planes_of_a_document_are_refused(plane: object, message: str) -> None:
    links = [
        {"from": 0, "to": 1, "bandwidth": "1GB/s", "latency": "0ns"} | more
        for more in ({}, {"plane": plane})
    ]
    content = json.dumps({"schema": "collhub/topology-1", "npus": 2, "links": links}).encode()
    with pytest.raises(InputError, match=message):
        read(Source.of_bytes("t.json", content), NoOptions())


@pytest.mark.parametrize("text", ["fc:4+fc:5", "fc:4+fc:4?npus=0,1", "fc:4+nonsense:3"])
def test_parts_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_topology(text, load_core_only())


def test_dimensions_are_of_one_plane() -> None:
    ring = parse_topology("ring:3")
    with pytest.raises(InputError, match="dimensions describe one network"):
        Topology(
            "t",
            3,
            3,
            *(getattr(ring, name) for name in COLUMNS[:4]),
            ring.dimensions,
            plane=np.arange(6) % 2,
        )


def _sent(channels: list[int], startup_ns: tuple[int, ...] = ()) -> Algorithm:
    """A broadcast from rank 0 to rank 1 of one chunk per entry, on these channels."""
    # Imported here: the library is not there where the core is tested alone.
    from hub_core.schedules import Chunks, Transfers, algorithm_of

    count = len(channels)
    collective = Collective(CollectiveKind.BROADCAST, 2, count, root=0, in_place=True)
    number = np.arange(count)
    transfers = Transfers(
        number,
        np.zeros(count, np.int64),
        np.ones(count, np.int64),
        np.asarray(channels),
        number,
        number + 1,
        np.zeros(count, np.bool_),
        np.ones(count, np.int64),
        np.asarray(channels),
    )
    return algorithm_of(
        collective, Chunks.cut(collective, [1] * count), transfers, startup_ns=startup_ns
    )


@pytest.mark.needs_plugins
def test_simulated_messages_take_the_plane_of_their_channel() -> None:
    both = parse_topology(PAIR)
    times = [
        hub_core.simulate(_sent(channels), both, 10**6 * len(channels)).rank_finish_ns[1]
        for channels in ([0], [1], [2], [3], [0, 1])
    ]
    assert times == [20_000, 100_000, 20_000, 100_000, 100_000]


@pytest.mark.needs_plugins
def test_the_lower_bound_holds_on_planes() -> None:
    both = parse_topology(PAIR)
    algorithm = _sent([0, 0, 0, 0, 0, 1])
    time_ns = hub_core.simulate(algorithm, both, 6 * 10**6).rank_finish_ns[1]
    bound = lower_bound_ns(algorithm.collective, both, 6 * 10**6)
    assert bound is not None
    assert time_ns is not None
    assert bound == time_ns == 100_000


@pytest.mark.needs_plugins
def test_a_plane_starts_up_once_a_rank_before_its_first_messages() -> None:
    algorithm = _sent([0, 1, 1, 3], (0, 500_000))
    assert hub_core.verify(algorithm).ok
    computes = np.flatnonzero(algorithm.steps.kind == StepKind.COMPUTE)
    assert algorithm.steps.duration_ns[computes].tolist() == [500_000]
    simulated = hub_core.simulate(algorithm, parse_topology(PAIR), 4 * 10**6)
    assert simulated.rank_finish_ns[1] == 500_000 + 300_000
