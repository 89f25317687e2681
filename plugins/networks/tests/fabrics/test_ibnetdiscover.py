"""Listings written by hand after the rules of the format."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from collhub_fabrics.ibnetdiscover import build_infiniband_samples, read
from collhub_fabrics.plugin import INFINIBAND, InfinibandOptions

from hub_core import read_topology
from hub_core.model import InputError
from hub_core.plugin_api import Source

# A fat tree of two leaves and one spine, two cables between each leaf and the spine.
TREE = """\
vendid=0x2c9

Switch\t36 "S-a1"\t# "leaf" enhanced port 0 lid 1 lmc 0
[1]\t"H-1"[1](1) # "n10 mlx5_0" lid 4 4xHDR
[2]\t"H-2"[1](2) # "n2 mlx5_0" lid 5 4xHDR
[19]\t"S-c1"[1] # "spine" lid 9 4xNDR
[20]\t"S-c1"[2] # "spine" lid 9 4xNDR

Switch\t36 "S-a2"\t# "leaf" enhanced port 0 lid 2 lmc 0
[1]\t"H-3"[1](3) # "n3 mlx5_0" lid 6 4xHDR
[19]\t"S-c1"[3] # "spine" lid 9 4xNDR
[20]\t"S-c1"[4] # "spine" lid 9 4xNDR

Switch\t64 "S-c1"\t# "spine" enhanced port 0 lid 9 lmc 0
[1]\t"S-a1"[19] # "leaf" lid 1 4xNDR
[2]\t"S-a1"[20] # "leaf" lid 1 4xNDR
[3]\t"S-a2"[19] # "leaf" lid 2 4xNDR
[4]\t"S-a2"[20] # "leaf" lid 2 4xNDR

Ca\t1 "H-1"\t# "n10 mlx5_0"
[1](1)\t"S-a1"[1] # lid 4 lmc 0 "leaf" lid 1 4xHDR

Ca\t1 "H-2"\t# "n2 mlx5_0"
[1](2)\t"S-a1"[2] # lid 5 lmc 0 "leaf" lid 1 4xHDR

Ca\t1 "H-3"\t# "n3 mlx5_0"
[1](3)\t"S-a2"[1] # lid 6 lmc 0 "leaf" lid 2 4xHDR
"""


def network(text, **options):
    findings = []
    plain = Source.of_bytes("ib.txt", text.encode())
    source = Source("ib.txt", plain.parts, findings.append)
    return read(source, InfinibandOptions(**options)), findings


def cables(topology):
    rows = zip(
        topology.source.tolist(),
        topology.destination.tolist(),
        topology.bandwidth_bytes_per_s.tolist(),
        strict=True,
    )
    return sorted(
        (topology.node_name(one), topology.node_name(other), rate / 1e9)
        for one, other, rate in rows
    )


def test_every_cable_is_read_once_though_both_ends_list_it() -> None:
    topology, findings = network(TREE)
    assert (topology.num_npus, topology.num_nodes, topology.num_links) == (3, 6, 2 * 7)
    assert findings == []


def test_npus_are_in_the_order_of_their_hosts_numbers_by_value() -> None:
    topology, _ = network(TREE)
    assert topology.node_names[:3] == ("n2 mlx5_0", "n3 mlx5_0", "n10 mlx5_0")


def test_switches_of_one_name_are_told_apart() -> None:
    topology, _ = network(TREE)
    assert topology.node_names[3:] == ("leaf", "leaf S-a2", "spine")


def test_four_lanes_of_hdr_are_200_gbit() -> None:
    topology, _ = network(TREE)
    assert ("n2 mlx5_0", "leaf", 25.0) in cables(topology)


def test_parallel_cables_stay_apart() -> None:
    topology, _ = network(TREE)
    assert cables(topology).count(("leaf", "spine", 50.0)) == 2


@pytest.mark.parametrize(
    ("rate", "gbyte"),
    [("1xSDR", 0.25), ("4xSDR", 1), ("4xDDR", 2), ("4xQDR", 4), ("4xFDR10", 5), ("4xFDR", 6.82),
     ("4xEDR", 12.5), ("4xHDR", 25), ("2xHDR", 12.5), ("4xNDR", 50), ("4xXDR", 100), ("12xQDR", 12)],
)  # fmt: skip
def test_rates_are_lanes_times_that_of_a_lane(rate, gbyte) -> None:
    topology, _ = network(TREE.replace("4xHDR", rate))
    assert ("n2 mlx5_0", "leaf", pytest.approx(gbyte)) in cables(topology)


def test_names_that_look_like_rates_are_names() -> None:
    topology, _ = network(TREE.replace("spine", "sw-2xlarge").replace("leaf", "2xA100"))
    expected, _ = network(TREE)
    assert np.array_equal(topology.bandwidth_bytes_per_s, expected.bandwidth_bytes_per_s)


def test_rate_that_one_end_lacks_is_that_of_the_other() -> None:
    first = TREE.replace('"n2 mlx5_0" lid 5 4xHDR', '"n2 mlx5_0" lid 5')
    topology, _ = network(first)
    assert ("n2 mlx5_0", "leaf", 25.0) in cables(topology)


def test_rate_that_both_ends_lack_is_refused_or_supplied() -> None:
    bare = TREE.replace("4xHDR", "")
    with pytest.raises(
        InputError, match=r"ib.txt:4: no rate is given between H-1\[1\] and S-a1\[1\]"
    ):
        network(bare)
    topology, _ = network(bare, bandwidth=12.5e9)
    assert ("n2 mlx5_0", "leaf", 12.5) in cables(topology)


def test_ends_that_disagree_give_the_lower_rate_and_a_warning() -> None:
    topology, findings = network(
        TREE.replace('lid 5 lmc 0 "leaf" lid 1 4xHDR', "lid 5 lmc 0 4xEDR")
    )
    assert ("n2 mlx5_0", "leaf", 12.5) in cables(topology)
    assert [found.code for found in findings] == ["unequal-rates"]


def test_gpus_of_a_host_are_npus_behind_its_cards() -> None:
    topology, _ = network(TREE, gpus_per_node=4, node_bandwidth=100e9)
    assert (topology.num_npus, topology.num_nodes) == (12, 12 + 3 + 3)
    assert ("n2/3", "n2", 100.0) in cables(topology)
    assert ("n2", "leaf", 25.0) in cables(topology)
    assert topology.groups["host n3"] == (4, 5, 6, 7)


def test_gpus_of_a_host_need_a_bandwidth() -> None:
    with pytest.raises(InputError, match="a host has 4 GPUs, at an unknown bandwidth"):
        network(TREE, gpus_per_node=4)


def test_hosts_with_several_cards_give_groups_and_rails() -> None:
    (source,) = build_infiniband_samples()
    topology = read(source, InfinibandOptions())
    assert topology.groups == {
        "host node1": (0, 1),
        "host node2": (2,),
        "rail mlx5_0": (0, 2),
        "rail mlx5_1": (1,),
    }


def test_cards_that_only_switches_name_are_known_by_that_name() -> None:
    topology, _ = network(TREE.partition("Ca\t")[0])
    assert topology.node_names[:3] == ("n2 mlx5_0", "n3 mlx5_0", "n10 mlx5_0")


def test_aggregation_nodes_are_no_npus() -> None:
    text = TREE.replace("n3 mlx5_0", "Mellanox Technologies Aggregation Node")
    topology, findings = network(text)
    assert topology.num_npus == 2
    assert [found.code for found in findings] == ["aggregation-node"]


# What is said, and the text that is put in place of another one.
DAMAGES = {
    "ib.txt:6: the cable leads to S-c1, which is not listed": ('64 "S-c1"', '64 "S-x"'),
    "'4xZDR' is not a known rate; known rates are SDR, DDR": ("4xNDR", "4xZDR"),
    "device H-1 is listed twice, first on line": ('Ca\t1 "H-2"', 'Ca\t1 "H-1"'),
    "ib.txt:4: a port has no device": ('Switch\t36 "S-a1"', "# "),
    "is not a port line; a port is [1]": ('[1]\t"H-1"[1](1)', "[1]\tH-1"),
    "a port is joined to itself": ('"S-c1"[1]', '"S-a1"[19]'),
}


@pytest.mark.parametrize("said", DAMAGES)
def test_damaged_listings_are_refused_with_the_line(said) -> None:
    with pytest.raises(InputError) as caught:
        network(TREE.replace(*DAMAGES[said]))
    found = caught.value.diagnostics[0]
    assert said in f"{found.location}: {found.message}; {found.cure}"


def test_listing_without_cards_is_refused() -> None:
    with pytest.raises(InputError, match=r"no card \(Ca\) is listed"):
        network('Switch\t36 "S-a1"\t# "leaf"\n')


def test_a_listing_without_cables_is_refused_with_its_first_card():
    with pytest.raises(InputError, match=r"ib\.txt:3: cards are listed, but no cable: .*active"):
        network('vendid=0x2c9\n\nCa\t1 "H-1"\t# "n1 mlx5_0"\n')


# The same fabric with -p; the last port of the first leaf has no cable.
PORTS = """\
CA     4  1 0x0000000000000001 4x HDR - SW     1  1 0x00000000000000a1 ( 'n10 mlx5_0' - 'leaf' )
CA     5  1 0x0000000000000002 4x HDR - SW     1  2 0x00000000000000a1 ( 'n2 mlx5_0' - 'leaf' )
CA     6  1 0x0000000000000003 4x HDR - SW     2  1 0x00000000000000a2 ( 'n3 mlx5_0' - 'leaf' )
SW     1  1 0x00000000000000a1 4x HDR - CA     4  1 0x0000000000000001 ( 'leaf' - 'n10 mlx5_0' )
SW     1  2 0x00000000000000a1 4x HDR - CA     5  1 0x0000000000000002 ( 'leaf' - 'n2 mlx5_0' )
SW     1 19 0x00000000000000a1 4x NDR - SW     9  1 0x00000000000000c1 ( 'leaf' - 'spine' )
SW     1 20 0x00000000000000a1 4x NDR - SW     9  2 0x00000000000000c1 ( 'leaf' - 'spine' )
SW     1 21 0x00000000000000a1 4x ???                                    'leaf'
SW     2 19 0x00000000000000a2 4x NDR - SW     9  3 0x00000000000000c1 ( 'leaf' - 'spine' )
SW     2 20 0x00000000000000a2 4x NDR - SW     9  4 0x00000000000000c1 ( 'leaf' - 'spine' )
SW     9  1 0x00000000000000c1 4x NDR - SW     1 19 0x00000000000000a1 ( 'spine' - 'leaf' )
"""


def test_list_of_ports_is_the_same_network() -> None:
    (one, _), (other, findings) = network(TREE), network(PORTS)
    assert (other.num_npus, other.num_nodes, other.num_links) == (3, 6, 2 * 7)
    assert [rate for *_, rate in cables(other)] == [rate for *_, rate in cables(one)]
    assert findings == []


@pytest.mark.parametrize(
    ("speed", "said"),
    [
        ("ZDR", "ib.txt:3: '4xZDR' is not a known rate"),
        ("???", "ib.txt:3: no rate is given between"),
    ],
)
def test_port_without_a_known_rate_is_refused_with_its_line(speed: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        network(PORTS.replace("4x HDR - SW     2", f"4x {speed} - SW     2"))
    assert said in str(caught.value)


def test_list_of_ports_without_those_of_a_switch_is_refused() -> None:
    incomplete = PORTS[: PORTS.index("SW     9  1 0x00000000000000c1 4x NDR - ")]
    with pytest.raises(InputError, match=r"ib\.txt:6: the cable leads to S-00000000000000c1"):
        network(incomplete)


def test_list_of_ports_is_recognized_by_content() -> None:
    assert re.search(INFINIBAND.format.signature, PORTS.encode())


@pytest.mark.needs_plugins
def test_the_content_decides_under_the_suffix_of_another_format(tmp_path: Path) -> None:
    # `.topo` is also the suffix of fat trees for htsim.
    path = tmp_path / "fabric.topo"
    path.write_bytes(build_infiniband_samples()[0].parts[0].load())
    assert read_topology(path).num_npus == 3
