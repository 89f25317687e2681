from __future__ import annotations

import json

import numpy as np
import pytest
from collhub_infragraph.plugin import InfragraphReadOptions, InfragraphWriteOptions
from collhub_infragraph.read import read
from collhub_infragraph.write import write
from hypothesis import given
from hypothesis import strategies as st

from hub_core import discover, parse_topology
from hub_core.network import Links, Topology
from hub_core.plugin_api import Source, TopologyBuilder

REGISTRY = discover()
BUILDERS = sorted(provided.offer.example for provided in REGISTRY.all(TopologyBuilder))
TEXTS = [
    *BUILDERS,
    "dgx1v+dgx1-pcie",
    "ring:4*switch:2",
    "line:1",
    "torus:4x4?bandwidth=53GiB/s&latency=0.7us",
]


def content_of(topology: Topology, **options) -> bytes:
    result = write(topology, InfragraphWriteOptions(**options))
    (artifact,) = result.artifacts
    return artifact.content()


def read_back(content: bytes) -> Topology:
    plain = Source.of_bytes("net.yaml", content)
    return read(Source("net.yaml", plain.parts, lambda finding: None), InfragraphReadOptions())


@pytest.mark.parametrize("text", TEXTS)
def test_every_builder_comes_back_equal_to_the_order_of_links(text) -> None:
    topology = parse_topology(text, REGISTRY)
    result = write(topology, InfragraphWriteOptions())
    assert (result.losses, result.restated) == ((), ())
    back = read_back(next(iter(result.artifacts)).content())
    assert topology.differences(back) == []
    # Not only to the digits that count for times: to the last bit.
    assert np.array_equal(topology.latency_s, back.latency_s)


@st.composite
def topologies(draw) -> Topology:
    """Any network: links one way, parallel, of several planes, idle switches, names, groups."""
    npus = draw(st.integers(1, 6))
    nodes = npus + draw(st.integers(0, 4))
    end = st.integers(0, nodes - 1)
    rate = st.sampled_from([1e9, 25e9, 1 / 3, 123456789.123456]) | st.floats(1e-3, 1e17)
    delay = st.sampled_from([0.0, 5e-7, 1e-9 / 3]) | st.floats(0, 1e3)
    row = st.tuples(end, end, rate, delay, st.integers(0, 2))
    rows = [one for one in draw(st.lists(row, max_size=16)) if one[0] != one[1]]
    # Some with a way back that is alike.
    rows += [(one[1], one[0], *one[2:]) for one in rows if draw(st.booleans())]
    source, destination, rates, delays, planes = zip(*rows, strict=True) if rows else [()] * 5
    used = sorted(set(planes))
    links = Links(
        np.asarray(source, np.int64),
        np.asarray(destination, np.int64),
        np.asarray(rates, np.float64),
        np.asarray(delays, np.float64),
        np.asarray([used.index(plane) for plane in planes], np.int64),
    )
    names = tuple(f"node {node}" for node in range(nodes)) if draw(st.booleans()) else ()
    members = st.lists(st.integers(0, npus - 1), unique=True).map(tuple)
    groups = draw(st.dictionaries(st.sampled_from(["a", "b: c"]), members, max_size=2))
    return links.topology("any", npus, nodes, node_names=names, groups=groups)


@given(topologies())
def test_any_topology_comes_back_equal(topology) -> None:
    back = read_back(content_of(topology))
    assert topology.differences(back) == []
    assert np.array_equal(topology.latency_s, back.latency_s)


@given(topologies())
def test_losses_of_the_bare_document_are_what_reading_back_shows(topology) -> None:
    result = write(topology, InfragraphWriteOptions(annotations=False))
    features = {loss.feature for loss in result.losses}
    content = next(iter(result.artifacts)).content()
    assert "annotations" not in json.loads(content)
    if "readable" in features:
        return
    differences = topology.differences(read_back(content))
    assert features == {name.replace("_", " ") for name in differences}


def test_document_is_written_again_byte_by_byte() -> None:
    content = content_of(parse_topology("fat-tree:4", REGISTRY))
    assert content_of(read_back(content)).replace(b"net-yaml", b"fat-tree-4") == content


def test_bare_document_is_written_where_it_suffices() -> None:
    ends = np.asarray([0, 1]), np.asarray([1, 0])
    names = ("npu.0.xpu.0", "npu.1.xpu.0")
    topology = Links.uniform(*ends, 50e9, 5e-7).topology("pair", 2, 2, node_names=names)
    assert "infrastructure" not in json.loads(content_of(topology))


def test_parallel_cables_end_at_ports_of_their_own() -> None:
    ends = np.asarray([0, 1, 0, 1]), np.asarray([1, 0, 1, 0])
    topology = Links.uniform(*ends, 50e9, 5e-7).topology("pair", 2, 2)
    infrastructure = json.loads(content_of(topology))["infrastructure"]
    (device,) = infrastructure["devices"]
    assert [part["count"] for part in device["components"]] == [1, 2]
    assert read_back(content_of(topology)).num_links == 4


@pytest.mark.parametrize("text", ["switch:8", "dgx-a100:2", "dgx1v"])
def test_infragraph_itself_takes_what_is_written(text) -> None:
    """The public package expands the bare document to the same vertices and edges."""
    service = pytest.importorskip(
        "infragraph.infragraph_service", reason="infragraph is no dependency"
    )
    content = content_of(parse_topology(text, REGISTRY), annotations=False)
    graph = service.InfraGraphService()
    graph.set_graph(content.decode())
    found = graph._graph
    from documents import graph as expanded

    ours = expanded(json.loads(content))
    assert (len(found.nodes), len(found.edges)) == (len(ours.names), len(ours.first_vertex))
    assert set(found.nodes) == set(ours.names)
