"""Networks of cables: ns-3 takes any, htsim fat trees."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from collhub_astra_sim.networks import fat_trees, htsim_write, ns3
from collhub_astra_sim.options import Ns3WriteOptions
from collhub_astra_sim.samples import htsim
from collhub_astra_sim.samples import ns3 as ns3_samples

import hub_core
from hub_core.cli.main import main
from hub_core.model import Diagnostic, InputError, LossyError, UsageError
from hub_core.network import Links, Topology
from hub_core.plugin_api import NoOptions, Source

NS3, OF_SIMAI = Ns3WriteOptions(), Ns3WriteOptions(header="simai", gpu_type="H100")
SAMPLE_OF_ASTRA_SIM = "9 1 8\n8\n" + "".join(f"{npu} 8 400Gbps 0.0005ms 0\n" for npu in range(8))
NETWORKS = ["dgx1v", "dgx-h100:2", "rail:2x4", "fat-tree:4", "dragonfly:4,2,2", "ring:5", "fc:4"]


def written(topology: Topology, writer=ns3, options: object = NS3) -> tuple[str, list[str]]:
    """The text, and the features that are lost."""
    result = writer.write(topology, options)
    (artifact,) = result.artifacts
    return artifact.content().decode(), [loss.feature for loss in result.losses]


def read(text: str, reader=ns3, heard: list[Diagnostic] | None = None) -> Topology:
    source = Source.of_bytes("net", text.encode())
    report = heard.append if heard is not None else pytest.fail
    return reader.read(Source("net", source.parts, report), NoOptions())


def link_rows(topology: Topology) -> list[tuple[object, ...]]:
    """The links, sorted."""
    latencies = topology.latency_ns.tolist()
    return sorted(
        (link.source, link.destination, link.bandwidth_bytes_per_s, latency)
        for link, latency in zip(topology.links(), latencies, strict=True)
    )


# --- ns-3 ---


def test_sample_of_astra_sim_is_eight_npus_at_one_switch() -> None:
    topology = read(SAMPLE_OF_ASTRA_SIM)
    assert (topology.num_npus, topology.num_nodes) == (8, 9)
    wanted = hub_core.parse_topology("switch:8?bandwidth=400Gbit/s&latency=500ns")
    assert link_rows(topology) == link_rows(wanted)


def test_a_word_after_the_header_of_simai_is_refused_with_its_line() -> None:
    text = "3 2 0 1 2 X000 2\n2\n0 2 200Gbps 0.0005ms 0\n1 2 200Gbps 0.0005ms 0\n"
    with pytest.raises(InputError, match=r"net:1: '2' follows the type of GPU; .* has 6 words"):
        read(text)
    assert read(text.replace("X000 2", "X000")).num_npus == 2


@pytest.mark.parametrize("reader", [ns3, fat_trees])
def test_a_byte_order_mark_before_cables_is_no_content(reader) -> None:
    text = SAMPLE_OF_ASTRA_SIM if reader is ns3 else htsim()[0].content().decode()
    with_mark = read("\ufeff" + text, reader)
    assert link_rows(with_mark) == link_rows(read(text, reader))


def test_line_breaks_of_ns3_mean_nothing() -> None:
    assert link_rows(read(SAMPLE_OF_ASTRA_SIM.replace("\n", " "))) == link_rows(
        read(SAMPLE_OF_ASTRA_SIM)
    )


def test_header_of_simai_counts_nvswitches_among_the_switches() -> None:
    one_switch, simai = (read(source.content().decode()) for source in ns3_samples())
    assert (one_switch.num_npus, simai.num_npus, simai.num_nodes) == (2, 2, 4)
    assert sorted(set(simai.bandwidth_bytes_per_s.tolist())) == [50e9, 360e9]


def test_idle_switches_are_no_error() -> None:
    assert read("4 2 1\n2 3\n0 1 1Gbps 1ns 0\n").num_nodes == 4


def test_npus_keep_their_order_wherever_the_switch_stands() -> None:
    topology = read("3 1 2\n0\n1 0 8Gbps 1ns 0\n2 0 16Gbps 1ns 0\n")
    assert link_rows(topology)[0][:3] == (0, 2, 1e9)
    assert link_rows(topology)[1][:3] == (1, 2, 2e9)


@pytest.mark.parametrize(
    ("rate", "bytes_per_s"),
    [
        ("8bps", 1),
        ("8b/s", 1),
        ("3Bps", 3),
        ("3B/s", 3),
        ("8kbps", 1e3),
        ("8Kbps", 1e3),
        ("8Mbps", 1e6),
        ("8Gibps", 2**30),
        ("2.5GB/s", 2.5e9),
    ],
)
def test_rates_of_ns3_count_bits_or_bytes(rate: str, bytes_per_s: float) -> None:
    topology = read(f"2 0 1\n0 1 {rate} 1ns 0")
    assert topology.bandwidth_bytes_per_s.tolist() == [bytes_per_s] * 2


@pytest.mark.parametrize(
    ("delay", "ns"),
    [("1s", 1e9), ("2ms", 2e6), ("3us", 3e3), ("25ns", 25), ("500ps", 0.5), ("1000fs", 0.001)],
)
def test_delays_of_ns3_have_units(delay: str, ns: float) -> None:
    assert read(f"2 0 1\n0 1 1Gbps {delay} 0").latency_ns.tolist() == [ns] * 2


def test_parallel_cables_stay_parallel() -> None:
    assert read("2 0 2\n0 1 1Gbps 1ns 0\n1 0 1Gbps 1ns 0").num_links == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2 0 2\n0 1 1Gbps 1ns 0", "2 links are announced, 1 follow; 1 are read"),
        ("2 0 1\n0 1 1Gbps 1ns 0 1", "1 links are announced, more follows; 1 are read"),
    ],
)
def test_other_number_of_links_than_announced_is_said(text: str, says: str) -> None:
    heard: list[Diagnostic] = []
    assert read(text, heard=heard).num_links == 2
    assert [found.message for found in heard] == [says]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "net:1: a number of nodes"),
        ("2 2 1 0 1", "there is no NPU"),
        ("3 2 1 2 2", "a switch is named twice"),
        ("2 0 1\n0 2 1Gbps 1ns 0", "net:2: a node, 0 to 1, was expected, not '2'"),
        ("2 0 1\n0 0 1Gbps 1ns 0", "a link joins a node to itself"),
        ("2 0 1\n0 1 1Gb 1ns 0", "'1Gb' is no data rate; write for example 400Gbps"),
        ("2 0 1\n0 1 0Gbps 1ns 0", "'0Gbps' is no data rate"),
        ("2 0 1\n0 1 1Gbps 1 0", "'1' is no delay; write for example 500ns"),
        ("2 0 1\n0", "a node, 0 to 1, was expected, not the end of the file"),
        ("2 0 99999999999", "a number of nodes"),
        ("é", "a number of nodes"),
    ],
)
def test_wrong_ns3_file_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        read(text)


@pytest.mark.parametrize("text", NETWORKS)
def test_network_comes_back_from_ns3(text: str) -> None:
    topology = hub_core.parse_topology(text)
    content, _ = written(topology)
    again = read(content)
    assert (again.num_npus, again.num_nodes) == (topology.num_npus, topology.num_nodes)
    assert link_rows(again) == link_rows(topology)


def test_ns3_file_is_these_bytes() -> None:
    content, losses = written(hub_core.parse_topology("switch:2?bandwidth=50GB/s&latency=500ns"))
    assert content == "3 1 2\n2\n0 2 400Gbps 500ns 0\n1 2 400Gbps 500ns 0\n"
    assert losses == []


@pytest.mark.parametrize(
    ("text", "header"),
    [
        # Two servers of 8 with an NVSwitch each, and the switch between them.
        ("dgx-h100:2", "{nodes} 8 2 {others} {links} H100"),
        ("fat-tree:4", "{nodes} 1 0 {others} {links} H100"),
        ("switch:8", "{nodes} 1 0 {others} {links} H100"),
        ("rail:2x4", "{nodes} 4 2 {others} {links} H100"),
    ],
)
def test_header_of_simai_tells_servers_and_their_switches(text: str, header: str) -> None:
    topology = hub_core.parse_topology(text)
    content, _ = written(topology, options=OF_SIMAI)
    words = content.splitlines()[0].split()
    others = topology.num_nodes - topology.num_npus - int(words[2])
    counts = {"nodes": topology.num_nodes, "others": others, "links": topology.num_links // 2}
    assert " ".join(words) == header.format(**counts)
    again = read(content)
    assert (again.num_npus, again.num_links) == (topology.num_npus, topology.num_links)


def test_servers_that_simai_cannot_number_are_refused() -> None:
    cables = [(0, 4), (1, 4), (2, 5), (3, 5), (6, 5), (0, 7), (1, 7), (2, 7), (3, 7), (6, 7)]
    # Servers of two and of three NPUs.
    nodes = {0: 0, 1: 1, 2: 2, 3: 3, 6: 4, 4: 5, 5: 6, 7: 7}
    ends = np.array([(nodes[one], nodes[other]) for one, other in cables])
    both = np.concatenate([ends, ends[:, ::-1]])
    rates, delays = np.full(len(both), 1e9), np.zeros(len(both))
    topology = Links(both[:, 0], both[:, 1], rates, delays).topology("uneven", 5, 8)
    with pytest.raises(UsageError, match="joins NPUs 0 to 1, others 3 NPUs of a server"):
        written(topology, options=OF_SIMAI)


def test_names_and_groups_are_losses_of_ns3() -> None:
    assert written(hub_core.parse_topology("fat-tree:4"))[1] == ["node_names", "groups"]


def test_what_ns3_rounds_is_a_loss() -> None:
    ring = hub_core.parse_topology("fc:3?bandwidth=0.3B/s&latency=0.5ns")
    assert written(ring)[1] == ["bandwidth_bytes_per_s", "latency_s"]


@pytest.mark.parametrize(
    ("text", "paths"), [("ring:4", 4), ("dgx1v", 24), ("fc:4", 0), ("dragonfly:4,2,2", 0)]
)
def test_paths_over_npus_are_a_loss_of_ns3(text: str, paths: int) -> None:
    lost = [loss for loss in written(hub_core.parse_topology(text))[1] if "paths" in loss]
    assert lost == ([f"{paths} paths over NPUs"] if paths else [])


def one_way() -> Topology:
    ends = np.array([0, 1]), np.array([1, 2])
    return Links.uniform(*ends, 1e9, 1e-6).topology("one-way", 3, 3)


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        (one_way(), "the link from 0 to 1 has no reverse link of the same bandwidth and latency"),
        (hub_core.parse_topology("ring:4+fc:4"), "has 2 planes, a cable network one"),
    ],
)
@pytest.mark.parametrize("writer", [ns3, htsim_write])
def test_links_that_are_no_cables_are_refused(topology: Topology, says: str, writer) -> None:
    with pytest.raises(UsageError, match=says):
        written(topology, writer)


# --- htsim ---


def tiers(**changes: str) -> str:
    """The sample with some lines replaced."""
    text = htsim()[0].content().decode()
    for old, new in changes.items():
        assert old.replace("__", " ") in text
        text = text.replace(old.replace("__", " "), new, 1)
    return text


def test_fat_tree_of_htsim_is_the_one_of_the_hub() -> None:
    wanted = hub_core.parse_topology("fat-tree:4?bandwidth=50GB/s&latency=1us")
    again = read(written(wanted, htsim_write)[0], fat_trees)
    sample = read(tiers(), fat_trees)
    assert link_rows(again) == link_rows(sample)
    assert (sample.num_npus, sample.num_nodes, sample.num_links) == (16, 36, 96)
    every = np.arange(16)
    pairs = np.repeat(every, 16), np.tile(every, 16)
    hops = [np.diff(network.routes(*pairs).indptr).tolist() for network in (sample, wanted)]
    assert hops[0] == hops[1]


def test_two_tiers_join_every_switch_below_to_every_one_above() -> None:
    text = """
        # 8 NPUs at 2 switches below 2 others, by pairs of cables of half the speed
        nodes 8
        TIERS 2
        Podsize 8
        Tier 0
        Downlink_speed_Gbps 100
        Radix_Down 4
        Radix_Up 4
        Downlink_Latency_ns 1000
        Queue_Down 1000000
        Tier 1
        Downlink_speed_Gbps 50
        Radix_Down 4
        Downlink_Latency_ns 2000
        Oversubscribed 1
        Bundle 2
        Switch_Latency_ns 300
    """.replace("Radix_Up 4", "Radix_Up 4\n Oversubscribed 2")
    topology = read(text, fat_trees)
    rows = link_rows(topology)
    assert (topology.num_npus, topology.num_nodes, len(rows)) == (8, 12, 2 * (8 + 8))
    assert rows.count((8, 10, 6.25e9, 2000.0)) == 2
    # The latency of a switch counts on the links that leave it.
    assert rows.count((10, 8, 6.25e9, 2300.0)) == 2
    assert rows.count((0, 8, 12.5e9, 1000.0)) == 1


TWO_TIERS = """
Nodes 12
Tiers 2
Podsize 12
Tier 0
Downlink_speed_Gbps 100
Radix_Down 4
Radix_Up 4
Downlink_Latency_ns 1000
Oversubscribed 2
Tier 1
Downlink_speed_Gbps 50
Radix_Down 6
Downlink_Latency_ns 2000
Bundle 2
"""


@pytest.mark.parametrize("text", [tiers(), TWO_TIERS])
def test_fat_tree_comes_back_from_htsim(text: str) -> None:
    tree = read(text, fat_trees)
    again = read(written(tree, htsim_write)[0], fat_trees)
    assert link_rows(again) == link_rows(tree)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"Nodes__16": "Nodes x"}, "net:1: a key and a whole number"),
        ({"Nodes__16": "Nodes 16 16"}, "net:1: a key and a whole number"),
        ({"Nodes__16": "Nods 16"}, "net:1: 'nods' is not one of nodes, tiers, podsize"),
        ({"Nodes__16": "Podsize 4"}, "net:3: podsize occurs twice"),
        ({"Nodes__16": "#"}, "missing: nodes"),
        ({"Nodes__16": "Nodes 999999999"}, "Nodes 999999999 is not in"),
        ({"Nodes__16": "Nodes 18"}, "Nodes / Podsize: 18 / 4 is no whole number"),
        ({"Tiers__3": "Tiers 2"}, "Tiers is 2, and the blocks are of tiers 0, 1, 2"),
        ({"Tier__1": "Tier 0"}, "tier 0 occurs twice"),
        ({"Radix_Up__2": ""}, "tier 0 lacks radix_up"),
        ({"Radix_Up__2": "Radix_Up 4"}, "ports up"),
        ({"Radix_Down__2": "Radix_Down 3"}, "Radix_Down"),
        ({"Downlink_Latency_ns__1000": "Downlink_Latency_ns 0"}, "at least 1 was expected"),
    ],
)
def test_wrong_htsim_file_is_refused(changes: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(tiers(**changes), fat_trees)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("switch:8", "it has 1 tiers of switches"),
        ("ring:8", "a link joins two NPUs"),
        ("rail:2x4", "it has 1 tiers"),
        ("dragonfly:4,2,2", "a link joins two NPUs, or two switches"),
        ("fat-tree:4?bandwidth=50GiB/s", "not 429.497 Gbit/s and 500 ns"),
        ("fat-tree:4?latency=0.5ns", "not 400 Gbit/s and 0.5 ns"),
    ],
)
def test_network_that_is_no_fat_tree_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"no fat tree that htsim has: .*{says}"):
        written(hub_core.parse_topology(text), htsim_write)


def rewired(*swaps: tuple[int, int]) -> Topology:
    """A fat tree of four ports, links of whose switches end elsewhere."""
    tree = hub_core.parse_topology("fat-tree:4")
    number = np.arange(tree.num_nodes)
    destination, source = tree.destination.copy(), tree.source.copy()
    for one, other in swaps:
        number[[one, other]] = number[[other, one]]
    return Links(
        number[source], number[destination], tree.bandwidth_bytes_per_s, tree.latency_s
    ).topology("rewired", tree.num_npus, tree.num_nodes)


def test_npus_at_other_switches_are_no_fat_tree_of_htsim() -> None:
    with pytest.raises(UsageError, match="NPUs of consecutive numbers"):
        written(rewired((0, 5)), htsim_write)


def test_switches_may_have_any_numbers() -> None:
    assert (
        written(rewired((17, 30), (20, 33)), htsim_write)[0]
        == (written(hub_core.parse_topology("fat-tree:4"), htsim_write)[0])
    )


def test_cores_that_differ_by_pod_are_no_fat_tree_of_htsim() -> None:
    tree = hub_core.parse_topology("fat-tree:4")
    number = {name: node for node, name in enumerate(tree.node_names)}
    first, last = number["aggregation 0.0"], number["aggregation 0.1"]
    mixed = {number["core 1"]: number["core 2"], number["core 2"]: number["core 1"]}
    ends = []
    for link in tree.links():
        is_mixed = {link.source, link.destination} & {first, last}
        swap = mixed if is_mixed else {}
        pair = (swap.get(link.source, link.source), swap.get(link.destination, link.destination))
        ends.append(pair)
    source, destination = np.array(ends).T
    links = Links(source, destination, tree.bandwidth_bytes_per_s, tree.latency_s)
    with pytest.raises(UsageError, match="differ between pods"):
        written(links.topology("rewired", 16, 36), htsim_write)


# --- the program ---


def test_content_tells_networks_of_cables(tmp_path: Path) -> None:
    for name, text in (("a.txt", SAMPLE_OF_ASTRA_SIM), ("b.topo", tiers()), ("c", tiers())):
        (tmp_path / name).write_text(text)
        assert hub_core.read_topology(tmp_path / name).num_npus in (8, 16)
    simai = ns3_samples()[1].content()
    (tmp_path / "SimAI_16g").write_bytes(simai)
    assert hub_core.read_topology(tmp_path / "SimAI_16g").num_nodes == 4


def test_network_is_converted_by_format_or_suffix(tmp_path: Path) -> None:
    out = tmp_path / "net.txt"
    assert main(["topology", "convert", "dgx-h100:2", "--to", "ns3", "-o", str(out)]) == 0
    assert hub_core.read_topology(out).num_npus == 16
    tree = tmp_path / "net.topo"
    assert main(["topology", "convert", "fat-tree:4", "-o", str(tree)]) == 0
    assert tree.read_text().startswith("Nodes 16\n")


def test_lossy_network_is_refused_under_strict(tmp_path: Path) -> None:
    out = tmp_path / "net.txt"
    command = ["topology", "convert", "dgx1v", "--to", "ns3", "-o", str(out), "--strict"]
    assert (main(command), out.exists()) == (int(LossyError.exit_code), False)
