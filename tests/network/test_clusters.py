"""Machines below a network of switches, in one text."""

from __future__ import annotations

import numpy as np
import pytest

from hub_core import parse_topology, topology_to_json
from hub_core.model.diagnostics import UsageError

pytestmark = pytest.mark.needs_plugins


def neighbours(topology, node):
    return {
        topology.node_name(int(other)) for other in topology.destination[topology.source == node]
    }


def test_four_machines_hang_at_the_leaves_of_a_leaf_spine() -> None:
    cluster = parse_topology("dgx-h100:4?network=leaf-spine:4,8,2")
    # 32 GPUs, 4 NVSwitches, 4 leaves and 2 spines; a cable a GPU and a leaf with each spine.
    assert (cluster.num_npus, cluster.num_nodes) == (32, 32 + 4 + 4 + 2)
    assert cluster.num_links == 2 * (32 + 32 + 4 * 2)
    assert dict(cluster.groups)["node 3"] == tuple(range(24, 32))
    assert neighbours(cluster, 0) == {"nvswitch 0", "leaf 0"}
    assert neighbours(cluster, 31) == {"nvswitch 3", "leaf 3"}
    # By default all cables are as fast as the NICs: 50 GB/s, and NVLink as ever.
    assert sorted(set(cluster.bandwidth_bytes_per_s.tolist())) == [50e9, 450e9]


def test_rails_take_the_same_nic_of_all_machines() -> None:
    cluster = parse_topology("dgx-h100:4?network=leaf-spine:8,4,2&by-rail=true")
    for gpu in range(32):
        assert f"leaf {gpu % 8}" in neighbours(cluster, gpu)


def test_values_of_the_network_are_its_own() -> None:
    text = (
        "dgx-a100:2?bandwidth=300GB/s,25GB/s&latency=1us"
        "&network=leaf-spine:2,8,2&network-bandwidth=200Gb/s,400Gb/s&network-latency=2us"
    )
    cluster = parse_topology(text)
    rates = dict(zip(*np.unique(cluster.bandwidth_bytes_per_s, return_counts=True), strict=True))
    # 16 GPUs: NVSwitch, NIC, and the cable of the NIC; two leaves with two spines each.
    assert rates == {300e9: 32, 25e9: 32 + 32, 50e9: 8}
    assert sorted(set(cluster.latency_s.tolist())) == [1e-6, 2e-6]
    assert cluster.name == text


def test_places_that_are_left_over_stay_empty() -> None:
    cluster = parse_topology("mi300x:4?network=fat-tree:8")
    assert cluster.num_npus == 32
    # The switches of the whole tree, of 128 places.
    assert cluster.num_nodes - 32 == 80


def test_a_cluster_is_written_as_a_document_and_read_again(tmp_path) -> None:
    from hub_core import read_topology

    cluster = parse_topology("dgx2:2?network=switch:16")
    path = tmp_path / "cluster.json"
    path.write_bytes(topology_to_json(cluster))
    assert read_topology(str(path)).differences(cluster) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dgx-h100:4?network=fat-tree:4", "16 places for 32 NICs"),
        ("dgx-h100?network=switch:8", "no cluster of machines"),
        ("ring:8?network=switch:8", "no cluster of machines"),
        ("dgx-h100:2?network=ring:16", "no network of switches"),
        ("dgx-h100:2?by-rail=true", "by-rail without network"),
        ("dgx-h100:2?network-latency=1us", "network-latency without network"),
        ("dgx-h100:2?netwrk=switch:16", "did you mean 'network'"),
        ("dgx-h100:2?network=leafspine:4,8,4", "leaf-spine"),
    ],
)
def test_what_is_no_cluster_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_topology(text)
    assert says in str(raised.value)
