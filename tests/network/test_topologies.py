from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core import parse_topology
from hub_core.documents.topologies import read
from hub_core.model.diagnostics import InputError, UsageError
from hub_core.network.construction import grid
from hub_core.network.links import Links
from hub_core.network.topology import Dimension, DimensionKind, Topology
from hub_core.plugin_api import NoOptions, Source, TopologyBuilder
from hub_core.registry.discovery import load_core_only
from hub_core.testing import check_cabling, check_routes, check_subset, some_npus
from hub_core.testing.reference_results import find_distances

KINDS = st.sampled_from(list(DimensionKind))
GRIDS = st.lists(st.tuples(KINDS, st.integers(1, 4)), min_size=1, max_size=3)
TEXTS = (
    "line:5", "ring:6", "mesh:3x4", "torus:3x4", "fully-connected:5", "switch:5",
    "ring-fc-switch:3x2x2",
)  # fmt: skip
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "topologies.md"
# The core's own builders alone, whatever is installed.
REGISTRY = load_core_only()
BUILDERS = {provided.name for provided in REGISTRY.all(TopologyBuilder)}


def parsed(text):
    return parse_topology(text, REGISTRY)


def built(shape):
    return grid("grid", [Dimension(kind, size, 1e9, 1e-6) for kind, size in shape])


def links(topology):
    return list(zip(topology.source.tolist(), topology.destination.tolist(), strict=True))


@given(GRIDS)
def test_number_of_links_follows_from_the_dimensions(shape):
    npus = int(np.prod([size for _, size in shape]))
    per_row = {
        DimensionKind.LINE: lambda n: 2 * (n - 1),
        DimensionKind.RING: lambda n: 0 if n == 1 else 2 if n == 2 else 2 * n,
        DimensionKind.FULLY_CONNECTED: lambda n: n * (n - 1),
        DimensionKind.SWITCH: lambda n: 2 * n,
    }
    topology = built(shape)
    assert topology.num_links == sum(npus // size * per_row[kind](size) for kind, size in shape)
    assert topology.num_nodes == npus + sum(
        npus // size for kind, size in shape if kind is DimensionKind.SWITCH
    )


@given(GRIDS)
def test_every_link_has_its_way_back_and_stands_once(shape):
    found = links(built(shape))
    assert len(set(found)) == len(found)
    assert {(b, a) for a, b in found} == set(found)


@given(GRIDS)
def test_every_route_of_a_grid_is_a_shortest_path(shape):
    check_routes(built(shape))


@pytest.mark.parametrize("text", TEXTS)
def test_cables_of_a_builder_lead_both_ways_and_routes_are_shortest(text):
    check_cabling(parsed(text))


@given(
    st.integers(3, 6).flatmap(
        lambda n: st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=14)
    )
)
def test_every_route_of_an_irregular_network_is_a_shortest_path(pairs):
    ends = np.asarray([pair for pair in pairs if pair[0] != pair[1]], np.int64).reshape(-1, 2)
    topology = Links.uniform(ends[:, 0], ends[:, 1], 1e9, 1e-6).topology("random", 3, 6)
    for source, destination in itertools.product(range(3), repeat=2):
        wanted = find_distances(topology, source).get(destination)
        pair = np.asarray([source]), np.asarray([destination])
        if wanted is None:
            with pytest.raises(InputError, match=f"no path from {source} to {destination}"):
                topology.routes(*pair)
        else:
            assert topology.routes(*pair).indptr[-1] == wanted


@given(st.integers(2, 40))
def test_opposite_nodes_of_a_ring_are_reached_clockwise(half):
    topology = parsed(f"ring:{2 * half}")
    here = np.arange(2 * half)
    routes = topology.routes(here, (here + half) % (2 * half))
    assert np.array_equal(
        topology.destination[routes.links], (topology.source[routes.links] + 1) % (2 * half)
    )


def test_torus_goes_along_the_first_dimension_first():
    topology = parsed("torus:4x4")
    routes = topology.routes(np.asarray([0]), np.asarray([5]))
    assert topology.destination[routes.links].tolist() == [1, 5]


def test_npu_takes_the_first_of_parallel_links():
    ends = np.asarray([0, 0, 1]), np.asarray([1, 1, 0])
    topology = Links.uniform(*ends, 1e9, 0.0).topology("parallel", 2, 2)
    assert topology.routes(np.asarray([0]), np.asarray([1])).links.tolist() == [0]


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("ring-fc-switch:4x3x2", (24, 12, 24 * 2 + 24 * 2 + 24 * 2)),
    ],
)
def test_npus_switches_and_links_of_large_builders(text, counts):
    network = parsed(text)
    switches = network.num_nodes - network.num_npus
    assert (network.num_npus, switches, network.num_links) == counts


def test_file_of_the_guide_is_read():
    (text,) = re.findall(r"```json\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert read(Source.of_bytes("guide.json", text.encode()), NoOptions()).num_links == 8


def test_product_text_has_two_spellings():
    one, other = (
        parsed("ring-switch:4x2?latency=1ns,2ns"),
        parsed("ring:4*switch:2?latency=1ns,2ns"),
    )
    assert links(one) == links(other)
    assert np.array_equal(one.latency_s, other.latency_s)


def test_each_dimension_has_its_own_bandwidth():
    topology = parsed("mesh:2x2?bandwidth=1GB/s,2GB/s&latency=5ns")
    rates = dict(zip(links(topology), topology.bandwidth_bytes_per_s.tolist(), strict=True))
    assert (rates[0, 1], rates[0, 2]) == (1e9, 2e9)
    assert set(topology.latency_ns.tolist()) == {5.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rign:8", "did you mean 'ring'"),
        ("", "unknown topology ''"),
        ("ring", "the size is missing; write for example ring:8"),
        ("ring:0", "'0' is not a size"),
        ("ring:-1", "'-1' is not a size"),
        ("ring:1e9", "'1e9' is not a size"),
        ("ring:99999999", "'99999999' is not a size"),
        ("ring:4x4", "join dimensions by"),
        ("mesh:9999999", "too large"),
        ("fc:9999", "too large"),
        ("ring-fc:8", "1 numbers where 2 were expected"),
        ("ring:4*mesh:4", "'mesh' is no dimension"),
        ("ring:4*ring:4x4", "write one size a factor"),
        ("ring:4*", "'' is no dimension"),
        ("*".join(["ring:2"] * 33), "more than 32 dimensions"),
        ("ring:8?speed=1GB/s", "unknown key 'speed'"),
        ("ring:8?bandwidth=1GB/s&bandwidth=2GB/s", "bandwidth is given twice"),
        ("ring:8?bandwidth=50", "has no unit"),
        ("ring:8?bandwidth=0GB/s", "is not positive"),
        ("ring:8?bandwidth=-5GB/s", "'-5GB/s' is not a number with a unit"),
        ("mesh:4x4?bandwidth=5GB/s,0GB/s", "'0GB/s' is not positive"),
        ("ring:8?latency=-1ns", "'-1ns' is not a number with a unit"),
        ("mesh:4x0", "'0' in '4x0' is not a size"),
        (
            "ring:4*hypercube:3",
            "'hypercube' is no dimension; join fc, fully-connected, line, ring, switch",
        ),
        ("ring:8?latency=500", "has no unit"),
        ("torus:4x4?bandwidth=1GB/s,2GB/s,3GB/s", "3 bandwidths for 2 dimensions"),
        ("x" * 2000, "more than 1000 characters"),
    ],
)
def test_wrong_text_is_refused_with_the_cure(text, says):
    with pytest.raises(UsageError, match=says):
        parsed(text)


@given(st.text(st.sampled_from("ringfc-swtchmeo*:x?=&,.0123456789GB/ ns"), max_size=30))
def test_any_text_gives_a_topology_or_a_usage_error(text):
    try:
        topology = parsed(text)
    except UsageError:
        return
    assert topology.num_npus >= 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"node_names": ("a",)}, "1 node names for 2 nodes"),
        ({"node_names": ("a", "a")}, "two nodes are named 'a'"),
        ({"groups": {"g": (0, 2)}}, "group 'g'"),
        ({"groups": {"g": (0, 0)}}, "group 'g'"),
        ({"dimensions": (Dimension(DimensionKind.RING, 3, 1e9, 0.0),)}, "do not multiply to 2"),
        ({"num_npus": 0}, "0 NPUs in 2 nodes"),
        ({"num_nodes": 1}, "2 NPUs in 1 nodes; at least 1 and at most all"),
        ({"latency_s": np.asarray([-1.0])}, "negative"),
        ({"bandwidth_bytes_per_s": np.asarray([1e-300])}, "bandwidth is not in 0.001..1e\\+21"),
        ({"latency_s": np.asarray([1e300])}, "latency is above 1e\\+18 s"),
        ({"latency_s": np.asarray([np.nan])}, "negative or not finite"),
        ({"bandwidth_bytes_per_s": np.asarray([0.0])}, "not positive"),
        ({"bandwidth_bytes_per_s": np.asarray([np.inf])}, "not positive and finite"),
        ({"destination": np.asarray([0])}, "joins node 0 to itself"),
        ({"destination": np.asarray([7])}, "outside 0..1"),
        ({"destination": np.asarray([1, 1])}, "differ in length"),
    ],
)
def test_wrong_topology_cannot_be_built(change, says):
    values = {
        "name": "x",
        "num_npus": 2,
        "num_nodes": 2,
        "source": np.asarray([0]),
        "destination": np.asarray([1]),
        "bandwidth_bytes_per_s": np.asarray([1e9]),
        "latency_s": np.asarray([0.0]),
    }
    with pytest.raises(InputError, match=says):
        Topology(**(values | change))


@given(st.sampled_from(TEXTS), st.sampled_from(["", "?latency=7ns"]), st.data())
def test_subset_keeps_the_links_between_the_nodes_that_stay(text, latency, data):
    whole = parsed(text + latency)
    check_subset(whole, data.draw(some_npus(whole)), REGISTRY)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ring:8?npus=8", "NPU 8 is not in 0..7"),
        ("ring:8?npus=", "is not a list of ranks; write for example 0,2,4-7"),
        ("ring:8?npus=3-1", "is not a list of ranks"),
        ("ring:8?npus=1,1", "rank 1 is listed more than once"),
        ("ring:8?npus=1&npus=2", "npus is given twice"),
    ],
)
def test_wrong_subset_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        parsed(text)


@pytest.mark.parametrize("npus", [[], [0, 0], [-1], [4]])
def test_subset_that_cannot_be_is_refused(npus):
    with pytest.raises(
        UsageError, match=r"topology ring:4: (NPU -1|NPU 4|a subset names no NPU, or one twice)"
    ):
        parsed("ring:4").subset(npus)


def test_every_builder_is_tried_here():
    assert {text.partition(":")[0] for text in TEXTS} >= BUILDERS - {"fc"}
