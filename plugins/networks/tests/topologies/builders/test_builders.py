"""Switched networks and machines: counts, links, routes, groups, and what their texts may say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from collhub_topologies.plugin import collhub_topologies
from hypothesis import given
from hypothesis import strategies as st

from hub_core import UsageError, discover, parse_topology
from hub_core.network import MeasuredSwitches
from hub_core.plugin_api import TopologyBuilder
from hub_core.testing import check_cabling, check_subset, some_npus

TEXTS = (
    "fat-tree:4", "dragonfly:3,2,1", "rail:3x4", "dgx1p", "dgx1v", "dgx1v-smi", "dgx1-pcie", "dgx2",
    "dgx-a100", "dgx-a100:2", "dgx-h100", "dgx-h100:2", "dgx-h200", "dgx-h200:2", "dgx-b200",
    "dgx-b200:2", "gb200", "gb200:2", "mi250", "mi250:2", "mi300x", "mi300x:2", "leaf-spine:3,2,2",
    "hypercube:3", "dgx-b300:2", "gb300", "gh200-slingshot:2", "l40s", "p4de:2", "p5:2",
    "p6-b200:2", "rtx-pro-6000",
)  # fmt: skip
BUILDERS = [builder.name for builder in collhub_topologies()]
GUIDE = Path(__file__).resolve().parents[5] / "docs" / "topologies.md"
# Once for all texts: the tests below build hundreds of networks.
REGISTRY = discover()


def parsed(text):
    return parse_topology(text, REGISTRY)


@pytest.fixture(scope="module")
def machines(corpus):
    """The collection of machines beside the corpus."""
    file = corpus.parent / "specs" / "topologies.json"
    if not file.is_file():
        pytest.skip("the collection of machines (specs/topologies.json) is not beside the corpus")
    return json.loads(file.read_text())["topologies"]


def links(topology):
    return list(zip(topology.source.tolist(), topology.destination.tolist(), strict=True))


def all_pairs(topology):
    return np.divmod(np.arange(topology.num_npus**2), topology.num_npus)


@pytest.mark.parametrize("text", TEXTS)
def test_cables_of_a_builder_lead_both_ways_and_routes_are_shortest(text):
    check_cabling(parsed(text))


@pytest.mark.parametrize("ports", [2, 4, 6])
def test_fat_tree_carries_every_shift_without_two_messages_on_a_link(ports):
    topology = parsed(f"fat-tree:{ports}")
    here = np.arange(topology.num_npus)
    for shift in range(1, topology.num_npus):
        routes = topology.routes(here, (here + shift) % topology.num_npus)
        assert np.bincount(routes.links).max() == 1


def test_route_does_not_depend_on_the_other_pairs():
    topology = parsed("fat-tree:4")
    sources, destinations = all_pairs(topology)
    together = topology.routes(sources, destinations)
    for pair in range(0, len(sources), 7):
        alone = topology.routes(sources[pair : pair + 1], destinations[pair : pair + 1])
        assert np.array_equal(
            alone.links, together.links[together.indptr[pair] : together.indptr[pair + 1]]
        )


def test_dragonfly_joins_every_two_groups_once():
    topology = parsed("dragonfly:3,2,2")
    router = (
        np.maximum(topology.source - topology.num_npus, 0),
        np.maximum(topology.destination - topology.num_npus, 0),
    )
    is_switch = (topology.source >= topology.num_npus) & (topology.destination >= topology.num_npus)
    groups = np.stack([column // 3 for column in router])[:, is_switch]
    between = [tuple(pair) for pair in groups.T.tolist() if pair[0] != pair[1]]
    assert sorted(between) == [(a, b) for a in range(7) for b in range(7) if a != b]


def test_dragonfly_router_has_its_ports():
    topology = parsed("dragonfly:3,2,2")
    assert set(np.bincount(topology.source)[topology.num_npus :].tolist()) == {2 + 2 + 2}


def test_longest_route_of_a_dragonfly_has_three_links_between_routers():
    topology = parsed("dragonfly:3,1,1")
    assert np.diff(topology.routes(*all_pairs(topology)).indptr).max() == 5


def test_rail_without_spine_passes_a_gpu_of_the_senders_node():
    topology = parsed("rail:2x4")
    path = topology.routes(np.asarray([0]), np.asarray([5])).links
    assert [topology.node_name(node) for node in topology.destination[path].tolist()] == [
        "nvswitch 0",
        "1",
        "rail 1",
        "5",
    ]


def test_machines_alone_are_the_builder_without_a_number():
    machines = ("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "gb200", "mi250", "mi300x")
    for text in (*machines, "dgx-b300", "gb300", "p4de", "p5", "p6-b200", "gh200-slingshot"):
        assert links(parsed(f"{text}:1")) == links(parsed(text))


def test_machines_from_h100_on_measure_multicasts_and_sums_of_their_switches() -> None:
    rates = {"dgx-h100": 262e9, "dgx-h200": 272.8e9, "dgx-b200": 479.5e9, "gb200": 479.5e9}
    for text, rate in rates.items():
        machine = parsed(text)
        assert machine.measured_switches == MeasuredSwitches((machine.num_npus,), rate)
        # Times of nominal links are those of ASTRA-sim, whose switches only forward.
        assert (machine.multicast, machine.reduction) == ((), ())
        both = machine.with_measured_switches()
        assert (both.multicast, both.reduction) == ((machine.num_npus,), (machine.num_npus,))
    assert parsed("dgx-a100").measured_switches is None
    assert parsed("dgx-h100:2").measured_switches == MeasuredSwitches((16, 17), 262e9)
    above = parsed("dgx-h100:2?network=leaf-spine:2,8,2").measured_switches
    assert above == MeasuredSwitches((16, 17), 262e9)
    parts = parsed("dgx-h100:2?npus=0-3,8-11").measured_switches
    assert parts == MeasuredSwitches((8, 9), 262e9)
    planes = parsed("dgx-h100+dgx-b200")
    assert planes.measured_switches == MeasuredSwitches((8, 9), 262e9)
    assert planes.on_plane(0).measured_switches == MeasuredSwitches((8,), 262e9)


def test_nominal_rates_between_nodes_are_those_of_the_nics() -> None:
    """GB/s of all NICs of a node, by the data sheets of the machines."""
    rates = {
        "p4de:2": 50, "p5:2": 400, "p6-b200:2": 400, "dgx-b300:2": 800, "gh200-slingshot:2": 100
    }  # fmt: skip
    for text, rate in rates.items():
        machine = parsed(text)
        network = machine.num_nodes - 1
        into_network = machine.destination == network
        total = machine.bandwidth_bytes_per_s[into_network].sum() / 2
        assert total == pytest.approx(rate * 1e9), text


def test_a_node_of_gh200_is_fully_connected() -> None:
    node = parsed("gh200-slingshot")
    assert (node.num_npus, node.num_nodes, len(node.source)) == (4, 4, 12)
    assert set(node.bandwidth_bytes_per_s.tolist()) == {150e9}


@pytest.mark.parametrize(("text", "rate"), [("l40s", 32e9), ("rtx-pro-6000", 64e9)])
def test_machines_without_nvlink_have_the_rate_of_their_pcie(text: str, rate: float) -> None:
    machine = parsed(text)
    assert (machine.num_npus, machine.measured_switches) == (8, None)
    assert set(machine.bandwidth_bytes_per_s.tolist()) == {rate}


def test_a_rack_of_gb200_is_one_domain() -> None:
    rack = parsed("gb200:18")
    assert (rack.num_npus, rack.num_nodes, rack.groups) == (72, 73, {})
    with pytest.raises(UsageError, match="an NVLink domain has at most 18"):
        parsed("gb200:19")


def test_network_of_machines_has_its_own_bandwidth_and_latency():
    topology = parsed("dgx-a100:2?bandwidth=100GB/s,10GB/s&latency=1us,5us")
    by_class = {
        (rate, latency)
        for rate, latency in zip(topology.bandwidth_bytes_per_s, topology.latency_ns, strict=True)
    }
    assert by_class == {(100e9, 1000.0), (10e9, 5000.0)}
    assert topology.groups == {"node 0": tuple(range(8)), "node 1": tuple(range(8, 16))}


def test_table_of_the_guide_states_the_counts():
    rows = [
        line.split("|")
        for line in GUIDE.read_text().splitlines()
        if line.startswith("| `") and line.count("|") == 6
    ]
    stated = {
        text: tuple(map(int, counts))
        for _, texts, _, *counts, _ in rows
        for text in re.findall("`([^`]+)`", texts)
    }
    found = {text: parsed(text) for text in stated}
    assert {
        text: (t.num_npus, t.num_nodes - t.num_npus, t.num_links) for text, t in found.items()
    } == stated
    builders = {provided.name for provided in REGISTRY.all(TopologyBuilder)}
    assert {text.partition(":")[0] for text in stated} >= builders


def test_leaf_reaches_every_spine_and_its_npus_are_a_group():
    topology = parsed("leaf-spine:2,3,2?bandwidth=50GB/s,100GB/s")
    names = [
        (topology.node_name(a), topology.node_name(b))
        for a, b in links(topology)
        if a >= 6 and b > a
    ]
    assert names == [(f"leaf {leaf}", f"spine {spine}") for leaf in (0, 1) for spine in (0, 1)]
    assert topology.groups == {"leaf 0": (0, 1, 2), "leaf 1": (3, 4, 5)}
    assert set(topology.bandwidth_bytes_per_s[topology.source < 6]) == {50e9}


def test_groups_stay_where_all_their_members_do():
    part = parsed("rail:2x4?npus=7,6,5,4,0")
    assert part.groups == {"node 1": (3, 2, 1, 0)}


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("fat-tree:2", (2, 5, 12)),
        ("fat-tree:4", (16, 20, 96)),
        ("fat-tree:8", (128, 80, 768)),
        ("dragonfly:4,2,2", (72, 36, 2 * (72 + 9 * 6 + 36))),
        ("dragonfly:1,1,1", (2, 2, 6)),
        ("rail:4x8", (32, 12, 128)),
        ("leaf-spine:8,8,4", (64, 12, 2 * (64 + 8 * 4))),
        ("leaf-spine:1,3,1", (3, 2, 2 * (3 + 1))),
        ("hypercube:10", (1024, 0, 10240)),
    ],
)
def test_npus_switches_and_links_of_large_builders(text, counts):
    network = parsed(text)
    switches = network.num_nodes - network.num_npus
    assert (network.num_npus, switches, network.num_links) == counts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fat-tree:3", "not an even number"),
        ("hypercube:20", "the order is not in 1..19"),
        ("hypercube:2x2", "2 numbers where 1 were expected"),
        ("fat-tree:66", "not an even number in 2..64"),
        ("dragonfly:4", "1 numbers where 3 were expected; write for example dragonfly:4,2,2"),
        ("dragonfly:9999999,1,1", "too large"),
        ("rail:9999999x9", "too large"),
        ("leaf-spine:8x8", "'8x8' is not a size; write for example leaf-spine:8,8,4"),
        ("leaf-spine:9999999,9999999,1", "too large"),
        ("rail:8", "1 numbers where 2 were expected"),
        ("dgx1v:x", "'x' is not a size; write for example dgx1v:2 for two machines"),
        ("dgx2:0", "'0' is not a size; write for example dgx2:2 for two machines"),
        ("dgx1-pcie:2?bandwidth=1GB/s,2GB/s", "2 bandwidths for 3 classes of links"),
        ("dgx-a100:0", "'0' is not a size; write for example dgx-a100:2 for two machines"),
        ("dgx-a100:2x2", "2 numbers where 1 were expected"),
        ("dgx-h100:9999999", "too large"),
        ("dgx-h100?bandwidth=1GB/s,2GB/s", "2 bandwidths for 1 dimensions"),
        ("dgx-h100:2?bandwidth=1GB/s,2GB/s,3GB/s", "3 bandwidths for 2 classes of links"),
        ("mi250:x", "'x' is not a size"),
        ("rail:2x2?latency=1ns,2ns,3ns", "3 latencies for 2 classes of links"),
    ],
)
def test_wrong_text_is_refused_with_the_cure(text, says):
    with pytest.raises(UsageError, match=says):
        parsed(text)


@pytest.mark.parametrize(
    ("text", "gpus", "nics"),
    [
        ("dgx1p:2", 8, 4),
        ("dgx1v:3", 8, 4),
        ("dgx1v-smi:2", 8, 4),
        ("dgx1-pcie:2", 8, 4),
        ("dgx2:2", 16, 8),
        ("dgx-a100:2", 8, 8),
        ("mi300x:2", 8, 8),
    ],
)
def test_joined_machines_repeat_the_machine_and_reach_the_network_by_nics(text, gpus, nics):
    topology, machine = parsed(text), parsed(text.partition(":")[0])
    count = topology.num_npus // gpus
    assert list(topology.groups.values()) == [
        tuple(range(first, first + gpus)) for first in range(0, count * gpus, gpus)
    ]
    # Between the first machine and the rest of the network, each NIC carries one link each way.
    between = [
        rate
        for source, rate in zip(topology.source, topology.bandwidth_bytes_per_s, strict=True)
        if topology.node_names[source].startswith(("network", "spine"))
    ]
    assert len(between) == count * nics
    rate = {8: 25e9, 4: 12.5e9}[nics] if text.startswith("dgx") else 50e9
    rate = 12.5e9 if text.startswith("dgx2") else rate
    assert set(between) == {rate}
    # Links between the NPUs of one machine are those of the machine alone.
    inside = {
        (s, d, b)
        for s, d, b in zip(
            topology.source, topology.destination, topology.bandwidth_bytes_per_s, strict=True
        )
        if s < gpus and d < gpus
    }
    ends = zip(machine.source, machine.destination, machine.bandwidth_bytes_per_s, strict=True)
    assert inside == {(s, d, b) for s, d, b in ends if s < gpus and d < gpus}


MACHINES = {
    "dgx1p": "DGX-1P",
    "dgx1v": "DGX-1V",
    "dgx1v-smi": "DGX-1V-smi",
    "dgx1-pcie": "DGX-1-PCIe",
    "dgx2": "DGX-2",
    "dgx-a100": "DGX-A100",
    "dgx-h100": "DGX-H100",
    "dgx-a100:2": "DGX-A100-x2",
    "dgx-a100:4": "DGX-A100-x4",
    "dgx-h100:2": "DGX-H100-x2",
    "dgx-h100:4": "DGX-H100-x4",
    "dgx-h100:8": "DGX-H100-x8",
    "rail:2x8": "DGX-H100-x2-rails",
    "mi250": "MI250-8",
    "mi250:2": "MI250-8-x2",
}


@pytest.mark.parametrize(("text", "name"), MACHINES.items(), ids=MACHINES.keys())
def test_builder_is_the_machine_that_the_collection_describes(machines, text, name):
    machine = machines[name]
    number = {
        node: index
        for index, node in enumerate(
            [*machine["nodes"]["gpu"], *machine["nodes"].get("switch", [])]
        )
    }
    wanted = {}
    for link in machine["links"]:
        a, b, rate = number[link["a"]], number[link["b"]], link["gb_per_s"] * 1e9
        wanted |= {(a, b): rate, (b, a): rate}
    topology = parsed(text)
    found = dict(zip(links(topology), topology.bandwidth_bytes_per_s.tolist(), strict=True))
    assert found == wanted
    assert topology.num_npus == machine["expected"]["gpus"]


def test_every_machine_of_the_collection_has_a_builder(machines):
    assert set(MACHINES.values()) == set(machines)


@given(st.sampled_from(TEXTS), st.sampled_from(["", "?latency=7ns"]), st.data())
def test_subset_keeps_the_links_between_the_nodes_that_stay(text, latency, data):
    whole = parsed(text + latency)
    check_subset(whole, data.draw(some_npus(whole)), REGISTRY)


def test_every_builder_is_tried_here():
    assert {text.partition(":")[0] for text in TEXTS} == set(BUILDERS)
