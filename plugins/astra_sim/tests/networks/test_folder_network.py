from __future__ import annotations

import contextlib
import dataclasses
import re

import numpy as np
import pytest
from astra_calls import write_folder
from collhub_astra_sim.networks import NETWORK_YAML, network_yaml
from collhub_astra_sim.networks.network_yaml import find_astra_network, format_network, read
from hypothesis import given
from hypothesis import strategies as st

from hub_core import parse_topology
from hub_core.model import InputError, UsageError
from hub_core.network import Dimension, DimensionKind, grid
from hub_core.plugin_api import NoOptions, Source
from hub_core.testing import ring_all_reduce

WRITTEN = {
    "ring:4": "Ring",
    "switch:4": "Switch",
    "fc:4": "FullyConnected",
    "torus:2x4": "FullyConnected, Ring",
    "ring-fc-switch:3x2x2": "Ring, FullyConnected, Switch",
    "mesh:2x2": "FullyConnected, FullyConnected",
    "dgx-h100": "Switch",
}
KINDS = (DimensionKind.RING, DimensionKind.FULLY_CONNECTED, DimensionKind.SWITCH)
DIMENSIONS = st.builds(
    Dimension,
    st.sampled_from(KINDS),
    st.integers(2, 4),
    st.floats(1e6, 1e13),
    st.integers(0, 10**10).map(lambda picoseconds: picoseconds / 1e12),
)


def pairs(*ends):
    return (np.asarray(column, np.int64) for column in zip(*ends, strict=True))


def described(text):
    return read(
        Source.of_bytes("net.yml", text if isinstance(text, bytes) else text.encode()), NoOptions()
    )


@given(st.lists(DIMENSIONS, min_size=1, max_size=3))
def test_network_comes_back_to_the_last_bit(dimensions):
    topology = described(format_network(dimensions))
    assert np.array_equal(
        topology.bandwidth_bytes_per_s, grid("x", dimensions).bandwidth_bytes_per_s
    )
    assert np.array_equal(topology.latency_ns, grid("x", dimensions).latency_ns)
    assert [(d.kind, d.size) for d in topology.dimensions] == [(d.kind, d.size) for d in dimensions]


@given(st.floats(1e6, 1e13))
def test_simulator_computes_the_bandwidth_that_the_hub_uses(bandwidth):
    (line,) = (
        line
        for line in format_network([Dimension(DimensionKind.RING, 3, bandwidth, 0.0)]).splitlines()
        if "bandw" in line
    )
    written = float(line.split("[")[1].split("]")[0])
    assert written * 2**30 / 1e9 == bandwidth / 1e9


def test_numbers_are_written_without_exponent():
    text = format_network([Dimension(DimensionKind.RING, 3, 1.0, 1e-15)])
    assert text.splitlines()[2:] == [
        "bandwidth: [ 0.0000000009313225746154785 ]",
        "latency: [ 0.000001 ]",
    ]


@pytest.mark.parametrize("text", WRITTEN)
def test_regular_networks_are_written_as_they_are(text):
    kinds = WRITTEN[text]
    # The simulator that sees congestion has one dimension.
    network = "congestion-unaware" if "," in kinds else "congestion-aware"
    result = write_folder(ring_all_reduce(4), topology=text, network=network)
    written = next(
        artifact.content() for artifact in result.artifacts if artifact.name == "network.yml"
    )
    assert f"topology: [ {kinds} ]".encode() in written
    assert not result.losses


def test_algorithm_between_neighbours_on_uniform_links_is_written_as_fully_connected(
    store, run_script, aware
):
    # On a mesh of 4 x 2 the ring 0 1 2 3 7 6 5 4 would fit; the sample's ring fits a torus of one
    # dimension beside another.
    result = write_folder(
        ring_all_reduce(4), topology="ring:4*ring:3?bandwidth=50GiB/s", size=1 << 20
    )
    assert [loss.where for loss in result.losses] == ["network.yml"]
    assert "FullyConnected: the times are those of this topology" in result.losses[0].consequence
    folder = store(result)
    assert "npus_count: [ 12 ]" in (folder / "network.yml").read_text()
    assert run_script(folder, aware).stdout.count("finished, 32295 cycles") == 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("line:4", "from NPU 3 to NPU 0, which are no neighbours"),
        ("dgx1v", "its links differ in bandwidth \\(25 to 50 GB/s\\)"),
        ("torus:4x2?latency=1ns,2ns", "its links differ in latency \\(1 to 2 ns\\)"),
        ("fc:4+fc:4", "it has 2 planes"),
        ("fat-tree:4", "from NPU 0 to NPU 1, which are no neighbours"),
    ],
)
def test_other_networks_are_refused_with_the_reason(text, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        write_folder(ring_all_reduce(4), topology=text)
    assert "analytical" in caught.value.diagnostics[0].cure


def test_network_without_links_is_refused():
    with pytest.raises(UsageError, match="it has no links"):
        find_astra_network(parse_topology("line:1"), *pairs((0, 0)), is_congestion_aware=True)


def test_dimensions_of_one_node_are_left_out():
    network = find_astra_network(
        parse_topology("ring:4*switch:1"), *pairs((0, 1)), is_congestion_aware=True
    )
    assert [(d.kind, d.size) for d in network.dimensions] == [(DimensionKind.RING, 4)]


def test_ring_of_two_is_a_pair():
    network = find_astra_network(parse_topology("ring:2"), *pairs((0, 1)), is_congestion_aware=True)
    assert [(d.kind, d.size) for d in network.dimensions] == [(DimensionKind.FULLY_CONNECTED, 2)]


def test_topology_that_states_no_dimensions_is_judged_by_its_links():
    bare = dataclasses.replace(parse_topology("ring:4"), dimensions=())
    network = find_astra_network(bare, *pairs((0, 1), (3, 0)), is_congestion_aware=True)
    assert [(d.kind, d.size) for d in network.dimensions] == [(DimensionKind.FULLY_CONNECTED, 4)]


GOOD = "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"
EMPTY = "topology: []\nnpus_count: []\nbandwidth: []\nlatency: []\n"


def test_network_file_reads_as_the_builder_makes_it():
    topology, built = described(GOOD), parse_topology("ring:8?bandwidth=50GiB/s&latency=500ns")
    assert np.array_equal(topology.source, built.source)
    assert np.array_equal(topology.destination, built.destination)
    assert np.array_equal(topology.bandwidth_bytes_per_s, built.bandwidth_bytes_per_s)
    assert np.array_equal(topology.latency_s, built.latency_s)


def test_network_file_may_be_json_with_tabs():
    content = b'{\n\t"topology": ["Switch"],\n\t"npus_count": [8],\n\t"bandwidth": [50.0],\n'
    content += b'\t"latency": [500.0]\n}\n'
    topology = read(Source.of_bytes("net.json", content), NoOptions())
    assert (topology.num_npus, topology.num_links) == (8, 16)


def test_network_file_may_be_written_as_block_lists_with_comments():
    text = (
        "# net\ntopology:\n  - Ring\n  - Switch\nnpus_count: [2, 4]\n"
        "bandwidth: [1e2, 50]\nlatency:\n - 5e-1\n - 0\n"
    )
    assert [(d.size, d.latency_s) for d in described(text).dimensions] == [(2, 5e-10), (4, 0.0)]


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("", "net.yml", "this is not a network YAML"),
        ("[1, 2]", "net.yml", "this is not a network YAML"),
        ("a: [", "net.yml:1", "this is not YAML"),
        (b"\xff\xfe\x00", "net.yml", "this is not YAML"),
        ("\x00", "net.yml", "this is not YAML"),
        (
            GOOD.replace("Ring", "Rong"),
            "net.yml:1",
            "'Rong' is not one of Ring, FullyConnected, Switch",
        ),
        (GOOD.replace("8", "0"), "net.yml:2", "npus_count '0'"),
        (GOOD.replace("8", "1e9"), "net.yml:2", "npus_count '1e9'"),
        (GOOD.replace("8", "9999999"), "net.yml", "too large"),
        (GOOD.replace("8", "-1"), "net.yml:2", "npus_count '-1'"),
        (GOOD.replace("50.0", "0"), "net.yml:3", "bandwidth '0'"),
        (GOOD.replace("50.0", ".nan"), "net.yml:3", "bandwidth '.nan'"),
        (GOOD.replace("50.0", "inf"), "net.yml:3", "bandwidth 'inf'"),
        (GOOD.replace("500.0", "-1"), "net.yml:4", "latency '-1'"),
        (GOOD.replace("[ 500.0 ]", "[[500.0]]"), "net.yml:4", "latency: one value"),
        (GOOD.replace("[ 500.0 ]", "[1, 2]"), "net.yml", "differ in length"),
        (GOOD + "latency: [ 1 ]\n", "net.yml:5", "occurs twice"),
        (EMPTY, "net.yml", "the lists are empty"),
        (GOOD.replace("topology: [ Ring ]", "topology: { a: Ring }"), "net.yml:1", "one value, or"),
        (GOOD.replace("latency", "delay"), "net.yml", "missing: latency"),
        (GOOD.replace("Ring", "!!python/object:os.system Ring"), None, ""),
        ("[" * 100000, "net.yml", "this is not YAML"),
        ("a" * (1 << 21), "net.yml", "larger than 1 MiB"),
    ],
)
def test_wrong_network_file_is_refused_with_its_line(text, place, says):
    if place is None:
        assert (
            described(text).num_npus == 8
        )  # a tag is not obeyed, the text behind it is what counts
        return
    with pytest.raises(InputError, match=says) as caught:
        described(text)
    assert str(caught.value.diagnostics[0].location) == place


@given(st.binary(max_size=200))
def test_any_bytes_give_a_topology_or_an_input_error(content):
    with contextlib.suppress(InputError):
        assert described(content).num_npus


_LINES = st.sampled_from(
    [
        "", "# comment", "   # comment", "---", "other: abc", "other: [ a , b ]", "x: y#z", "a: b: c",
        "topology: [ Ring ]", "topology: [ Ring, Switch ]", "topology:[Ring]", " topology: [Ring]",
        "npus_count: [ 4 ]", "npus_count: 8 ", "npus_count: [ 4, ]", "npus_count: [ 4 , 2 ]",
        "bandwidth: [ 50.0 ]  # GB/s", "bandwidth: [50.0,1e3]", "bandwidth: -5", "bandwidth: [5]#x",
        "latency: [ 500.0 ]", "latency: 500 #x", "latency: [ ]", "latency: [5 ,6 ] # a [b]",
        "latency: [a b]", "latency: 'q'", "latency: {a: 1}", "k: [l]m", "t:\tx", "u: é",
    ]
)  # fmt: skip
_KEY_LINES = st.tuples(
    st.sampled_from(["topology: [ Ring ]", "topology: Ring", "topology: [Ring,Switch] # x"]),
    st.sampled_from(["npus_count: [ 4 ]", "npus_count:   8 ", "npus_count: [ 4 , 2 ]"]),
    st.sampled_from(["bandwidth: [ 50.0 ]  # GB/s", "bandwidth: [50.0,1e3]"]),
    st.sampled_from(["latency: [ 500.0 ]", "latency: 500 #x", "latency: [5 ,6 ] # a [b]"]),
)


@given(_KEY_LINES, st.lists(_LINES, max_size=2), st.randoms(), st.sampled_from(["", "\n", "\n\n"]))
def test_plain_files_are_read_as_yaml_reads_them(keys, others, random, end):
    lines = [*keys, *others]
    random.shuffle(lines)
    content = ("\n".join(lines) + end).encode()
    plain = network_yaml._parse_plain_values(content)
    if plain is not None:
        by_yaml = network_yaml._collect_values(
            "net.yml", network_yaml._parse_yaml("net.yml", content)
        )
        assert {key: plain[key] for key in by_yaml} == by_yaml
    if not others:
        assert plain is not None


@pytest.mark.parametrize(
    ("text", "is_astra_sim"),
    [
        ("topology: [ Ring ]\n", True),
        ("topology:\n  - Ring\n", True),
        ('{"topology" : ["Ring"]}', True),
        ("# ranks\nnpus_count: [ 4 ]\n", True),
        # A model of Topograph in its first form.
        ('topology: "topology/tree"\nswitches: []\n', False),
        ("topology: tree\n", False),
    ],
)
def test_a_text_as_topology_is_no_network_of_astra_sim(text: str, is_astra_sim: bool) -> None:
    assert bool(re.search(NETWORK_YAML, text.encode())) == is_astra_sim
