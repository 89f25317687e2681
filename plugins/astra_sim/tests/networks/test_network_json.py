"""The network JSON of ASTRA-sim 1.

The format: README, `NetworkConfigParser` and `HierarchicalTopology` of
astra-sim/astra-network-analytical; the files here are written for these tests.
"""

from __future__ import annotations

import json

import pytest
from collhub_astra_sim.networks.network_json import read

from hub_core import discover, parse_topology, read_topology
from hub_core.model import Diagnostic, InputError
from hub_core.network import Topology
from hub_core.plugin_api import NoOptions, Source

GB = 1e9


def network(heard: list[str] | None = None, **values: object) -> Topology:
    """Read a file with two dimensions, of which the given keys are replaced (None: left out)."""
    keys: dict[str, object] = {
        "topology-name": "Hierarchical",
        "topologies-per-dim": ["FullyConnected", "Switch"],
        "dimensions-count": 2,
        "units-count": [4, 2],
        "links-count": [3, 1],
        "link-latency": [300, 700],
        "link-bandwidth": [20, 12.5],
    }
    keys |= {name.replace("_", "-"): value for name, value in values.items()}
    content = json.dumps({key: value for key, value in keys.items() if value is not None})
    plain = Source.of_bytes("net.json", content.encode())

    def report(finding: Diagnostic) -> None:
        (pytest.fail if heard is None else heard.append)(finding.code)

    return read(Source("net.json", plain.parts, report), NoOptions())


def dimension(topology: Topology, index: int = 0) -> tuple[str, int, float, float]:
    found = topology.dimensions[index]
    return (
        str(found.kind),
        found.size,
        found.bandwidth_bytes_per_s / GB,
        round(found.latency_s * 1e9, 6),
    )


def test_network_is_the_product_of_its_dimensions_in_gb_per_s_and_ns() -> None:
    topology = network()
    wanted = parse_topology("fc:4*switch:2?bandwidth=20GB/s,12.5GB/s&latency=300ns,700ns")
    assert topology.differences(wanted) == []


def test_parallel_links_of_a_mesh_are_one_link_with_their_bandwidth() -> None:
    """Six links of an NPU for three neighbours are two links to each of them."""
    assert dimension(network(links_count=[6, 1])) == ("fully-connected", 4, 40.0, 300.0)


def test_links_at_a_switch_add_up() -> None:
    assert dimension(network(links_count=[3, 4]), 1) == ("switch", 2, 50.0, 700.0)


@pytest.mark.parametrize(("size", "links", "bandwidth"), [(4, 2, 20.0), (4, 6, 60.0), (2, 2, 40.0)])
def test_ring_divides_its_links_between_two_neighbours(size, links, bandwidth) -> None:
    """The two neighbours of a ring of two are the same NPU, which gets all links."""
    heard: list[str] = []
    topology = network(
        heard,
        topologies_per_dim=["Ring", "Switch"], units_count=[size, 2], links_count=[links, 1],
    )  # fmt: skip
    assert dimension(topology) == ("ring", size, bandwidth, 300.0)
    assert heard == (["ring-bandwidth"] if size > 2 else [])


def test_links_without_a_neighbour_are_left_out_with_a_warning() -> None:
    heard: list[str] = []
    assert dimension(network(heard, links_count=[5, 1])) == ("fully-connected", 4, 20.0, 300.0)
    assert heard == ["links-count"]


def test_latencies_of_nic_and_router_are_part_of_the_links_of_a_switch() -> None:
    """The simulator adds 2 x link + 2 x NIC + router: a message has two links of 700 + 40 + 10."""
    topology = network(nic_latency=[0, 40], router_latency=[0, 20])
    assert dimension(topology, 1)[3] == 750.0


def test_nic_latency_of_a_long_ring_counts_per_link_with_a_warning() -> None:
    heard: list[str] = []
    topology = network(
        heard, topologies_per_dim=["Ring", "Switch"], links_count=[2, 1], nic_latency=[50, 0]
    )
    assert dimension(topology)[3] == 400.0
    assert heard == ["nic-latency", "ring-bandwidth"]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"topology-name": "Ring_AllToAll_Switch", "units-count": [2, 8, 2]},
            "ring:2*fc:8*switch:2",
        ),
        ({"topology-name": "Torus2D", "units-count": [8, 6]}, "torus:8x6"),
        ({"topology-name": "Torus2D_AllToAll", "nodes-per-dim": [9, 4]}, "ring:3*ring:3*fc:4"),
        ({"topology-name": "torus", "dims-count": 1, "nodes-per-dim": 16}, "torus:4x4"),
        ({"topology-name": "switch", "dims-count": 1, "nodes-per-dim": 4}, "switch:4"),
    ],
)
def test_older_files_have_the_kinds_in_the_name(values, text) -> None:
    """Without `links-count`, each neighbour has one link. A torus in one entry is square."""
    size = values.get("units-count", values.get("nodes-per-dim"))
    numbers = len(size) if isinstance(size, list) else None
    rates = {
        "link-bandwidth": 50 if numbers is None else [50] * numbers,
        "link-latency": 500 if numbers is None else [500] * numbers,
    }
    source = Source.of_bytes("old.json", json.dumps(values | rates).encode())
    assert read(source, NoOptions()).differences(parse_topology(text)) == []


def test_configuration_with_a_topology_is_read() -> None:
    values = {
        "system-configuration": "sample",
        "topology-configuration": {
            "topology-name": "switch", "dims-count": 1, "nodes-per-dim": 4,
            "link-bandwidth": 50, "link-latency": 500,
        },
    }  # fmt: skip
    source = Source.of_bytes("Configuration.json", json.dumps(values).encode())
    assert read(source, NoOptions()).differences(parse_topology("switch:4")) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"link_latency": [1]}, r"\$\.link-latency: 1 values; 2 expected; write one value per"),
        ({"units_count": None}, r"\$: 'units-count' is missing"),
        ({"link_bandwidth": None}, r"\$: 'link-bandwidth' is missing"),
        ({"link_bandwidth": [0, 1]}, r"\$\.link-bandwidth\[0\]: a bandwidth in GB/s above 0"),
        ({"link_latency": [-1, 0]}, r"\$\.link-latency\[0\]: a latency in ns of at least 0"),
        ({"units_count": [4, 2.5]}, r"\$\.units-count\[1\]: expected a whole number"),
        ({"units_count": [10**6, 10**6], "links_count": None}, r"\$: topology .* is too large"),
        ({"dimensions_count": 3}, r"\$\.dimensions-count: 3 dimensions, and 2 numbers of NPUs"),
        ({"topologies_per_dim": ["Ring", "Bus"]}, r"dim\[1\]: 'Bus' is no kind of network; use one"),
        ({"topologies_per_dim": None}, r"'topologies-per-dim' is missing; list the kinds: Ring"),
        ({"links_count": [2, 1]}, r"count\[0\]: 2 links of an NPU for 3 neighbours; write a multiple"),
        (
            {"topologies_per_dim": None, "topology_name": "Ring"},
            r"1 kinds of networks for 2 dimensions; name one per dimension, joined by underscores",
        ),
        (
            {"topologies_per_dim": None, "topology_name": "Torus3D"},
            r"\$\.topology-name: Torus3D has 3 dimensions, and the file 2",
        ),
        (
            {"topologies_per_dim": None, "topology_name": "Torus2D_Switch", "units_count": [8, 2]},
            r"\$\.units-count\[0\]: 8 NPUs do not form a torus with 2 sides of equal length",
        ),
        ({"logical_dims": ["8", "8"]}, r"are no network; read the text file .* TOPOLOGY_FILE names"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_with_path_and_cure(values, said) -> None:
    with pytest.raises(InputError, match=said):
        network([], **values)


@pytest.mark.parametrize("key", ["topologies-per-dim", "units-count", "dimensions-count"])
def test_format_is_known_whichever_key_is_first(tmp_path, key) -> None:
    """A document of the hub begins with `dimensions`, which `dimensions-count` is not."""
    values = {
        "topologies-per-dim": ["Ring"], "dimensions-count": 1, "units-count": [4],
        "link-bandwidth": [50], "link-latency": [500],
    }  # fmt: skip
    path = tmp_path / "network.json"
    path.write_text(json.dumps({key: values[key]} | values))
    found = read_topology(path, registry=discover())
    assert found.differences(parse_topology("ring:4")) == []
