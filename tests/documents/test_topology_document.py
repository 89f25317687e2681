from __future__ import annotations

import contextlib
import copy
import importlib.resources
import json
import time
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core import parse_topology
from hub_core.documents.topologies import read, topology_to_json
from hub_core.model.diagnostics import InputError
from hub_core.network.links import Links
from hub_core.network.topology import Dimension, DimensionKind, MeasuredSwitches, Topology
from hub_core.plugin_api import NoOptions, Source

SCHEMA = json.loads(
    importlib.resources.files("hub_core.schemas").joinpath("topology-1.json").read_bytes()
)
TEXTS = (
    "ring:4",
    "mesh:2x3?latency=0.5ns",
    "switch:3",
    "mesh:2x2x2?npus=0,1,5",
    "fc:3+switch:3",
    "ring:2*switch:3",
    "ring-fc-switch:3x2x2",
    "line:1",
)
GOOD = {
    "schema": "collhub/topology-1",
    "name": "two nodes",
    "npus": ["a", "b"],
    "switches": 1,
    "links": [
        {"from": "a", "to": "b", "bandwidth": "50GB/s", "latency": "500ns", "duplex": True},
        {"from": 0, "to": 2, "bandwidth_bytes_per_s": 1e9, "latency_s": 0},
    ],
    "groups": {"all": ["b", 0]},
}


@st.composite
def topologies(draw):
    nodes = draw(st.integers(1, 6))
    npus = draw(st.integers(1, nodes))
    end = st.integers(0, nodes - 1)
    ends = draw(
        st.lists(
            st.tuples(end, end).filter(lambda pair: pair[0] != pair[1]),
            max_size=8 if nodes > 1 else 0,
        )
    )
    rates = st.lists(st.floats(1e-3, 1e17), min_size=len(ends), max_size=len(ends))
    columns = np.asarray(ends, np.int64).reshape(-1, 2).T
    names = draw(
        st.just(())
        | st.lists(st.text(min_size=1, max_size=5), min_size=nodes, max_size=nodes, unique=True)
    )
    groups = draw(
        st.dictionaries(st.text(max_size=5), st.permutations(range(npus)).map(tuple), max_size=2)
    )
    links = Links(
        columns[0],
        columns[1],
        np.asarray(draw(rates), np.float64),
        np.asarray(draw(rates), np.float64),
    )
    return links.topology(
        draw(st.text(max_size=10)), npus, nodes, node_names=tuple(names), groups=groups
    )


def document(value):
    return read(Source.of_bytes("net.json", json.dumps(value).encode()), NoOptions())


def check_equal(one: Topology, other: Topology):
    for column in ("source", "destination", "bandwidth_bytes_per_s", "latency_s"):
        assert np.array_equal(getattr(one, column), getattr(other, column))
    for field in ("name", "num_npus", "num_nodes", "dimensions", "node_names"):
        assert getattr(one, field) == getattr(other, field)
    assert dict(one.groups) == dict(other.groups)


@given(topologies())
def test_topology_comes_back_and_gives_the_same_bytes(topology):
    content = topology_to_json(topology)
    again = read(Source.of_bytes("net.json", content), NoOptions())
    check_equal(topology, again)
    assert topology_to_json(again) == content


@pytest.mark.parametrize("text", TEXTS)
def test_built_topology_comes_back_with_its_dimensions(text):
    topology = parse_topology(text)
    content = topology_to_json(topology)
    check_equal(topology, read(Source.of_bytes("net.json", content), NoOptions()))
    jsonschema.validate(json.loads(content), SCHEMA)


def test_measured_switches_come_back() -> None:
    measured = MeasuredSwitches((3,), 262e9)
    topology = replace(parse_topology("switch:3"), measured_switches=measured)
    content = topology_to_json(topology)
    again = read(Source.of_bytes("net.json", content), NoOptions())
    assert again.measured_switches == measured
    assert topology_to_json(again) == content
    jsonschema.validate(json.loads(content), SCHEMA)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"switches": ["a"], "bytes_per_s": 1e9}, "only switches, 2..2, multicast or reduce"),
        ({"switches": [9], "bytes_per_s": 1e9}, r"\$.measured_switches.switches\[0\]"),
        ({"switches": [2], "bytes_per_s": 0}, "measured_switches.bytes_per_s"),
        ({"switches": [2]}, "bytes_per_s"),
    ],
)
def test_invalid_measured_switches_are_refused(value, message: str) -> None:
    with pytest.raises(InputError, match=message):
        document(GOOD | {"measured_switches": value})


def test_written_form_is_this():
    content = topology_to_json(parse_topology("ring:2?bandwidth=2.5GB/s&latency=500ns"))
    assert content.decode() == (
        "{\n"
        '  "dimensions": [\n'
        '    {"bandwidth_bytes_per_s": 2500000000, "kind": "ring", "latency_s": 5e-07, "size": 2}\n'
        "  ],\n"
        '  "links": [\n'
        '    {"bandwidth_bytes_per_s": 2500000000, "from": 0, "latency_s": 5e-07, "to": 1},\n'
        '    {"bandwidth_bytes_per_s": 2500000000, "from": 1, "latency_s": 5e-07, "to": 0}\n'
        "  ],\n"
        '  "name": "ring:2?bandwidth=2.5GB/s&latency=500ns",\n'
        '  "npus": 2,\n'
        '  "schema": "collhub/topology-1"\n'
        "}\n"
    )


def test_names_units_and_duplex_links_are_read():
    topology = document(GOOD)
    assert [(link.source, link.destination) for link in topology.links()] == [
        (0, 1),
        (1, 0),
        (0, 2),
    ]
    assert topology.bandwidth_bytes_per_s.tolist() == [50e9, 50e9, 1e9]
    assert topology.latency_ns.tolist() == [500.0, 500.0, 0.0]
    assert topology.node_names == ("a", "b", "switch 0")
    assert topology.groups == {"all": (1, 0)}


def test_name_of_the_file_stands_in_for_a_missing_name():
    assert document({key: value for key, value in GOOD.items() if key != "name"}).name == "net.json"


def test_dimensions_alone_make_the_links():
    ring = {"kind": "ring", "size": 4, "bandwidth": "1GB/s", "latency": "1ns"}
    topology = document({"schema": "collhub/topology-1", "npus": 4, "dimensions": [ring]})
    assert np.array_equal(topology.source, parse_topology("ring:4").source)
    assert topology.dimensions == (Dimension(DimensionKind.RING, 4, 1e9, 1e-9),)


def changed(path, value):
    """GOOD with the value at a path replaced; `...` removes it."""
    result = copy.deepcopy(GOOD)
    holder = result
    for key in path[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return result


LINK_DEFECTS = [
    (("links", 1, "from"), ..., "$.links[1]: 'from' and 'to' are needed"),
    (("links", 1, "from"), 3, "$.links[1]: node 3 is not in 0..2"),
    (("links", 1, "from"), -1, "$.links[1]: node -1 is not in 0..2"),
    (("links", 1, "from"), 1 << 80, "$.links[1]: node 2^63 or more"),
    (("links", 1, "from"), "c", "$.links[1]: no node is named 'c'; name it in npus or switches"),
    (("links", 1, "from"), 0.0, "expected a node's number or name, got a number"),
    (("links", 1, "from"), True, "expected a node's number or name, got a boolean"),
    (("links", 1, "from"), None, "expected a node's number or name, got null"),
    (("links", 1, "to"), 0, "$.links[1]: the link joins node 0 to itself"),
    (
        ("links", 1, "latency_s"),
        ...,
        "exactly one of 'latency' (text with a unit) and 'latency_s' (number)",
    ),
    (("links", 1, "latency"), "1ns", "exactly one of 'latency'"),
    (("links", 1, "latency_s"), -1, "the latency is negative"),
    (("links", 1, "latency_s"), "1", "latency_s: expected a number, got a string"),
    (("links", 1, "bandwidth_bytes_per_s"), 0, "the bandwidth is not above 0"),
    (("links", 1, "bandwidth_bytes_per_s"), 10**400, "the bandwidth is not above 0 and below"),
    (
        ("links", 1, "bandwidth_bytes_per_s"),
        True,
        "bandwidth_bytes_per_s: expected a number, got a boolean",
    ),
    (("links", 0, "bandwidth"), "50", "$.links[0]: bandwidth '50' has no unit"),
    (("links", 0, "bandwidth"), 50, "bandwidth: expected a string, got an integer"),
    (("links", 0, "duplex"), 1, "duplex: expected true or false, got an integer"),
    (("links", 0, "speed"), 1, "unknown key 'speed'"),
    (("links", 0), 5, "$.links[0]: expected an object, got an integer"),
]
OTHER_DEFECTS = [
    (("schema",), "collhub/topology-2", "$.schema: this is not a collhub/topology-1 document"),
    (("schema",), ..., "$.schema: this is not a collhub/topology-1 document"),
    (("npus",), ..., "$: 'npus' is a required property"),
    (("npus",), 0, "no node is named 'a'"),
    (("npus",), -1, "$.npus: -1 is less than the minimum"),
    (("npus",), 2.0, "$.npus: expected integer or array"),
    (("npus",), 10**9, "$.npus: 1000000000 is greater than the maximum"),
    (("npus",), (1 << 20) + 1, "$.npus: 1048577 NPUs are more than 1048576"),
    (("npus",), ["a", 5], "$.npus[1]: expected string, got an integer"),
    (("npus",), ["a", "a", "b"], "two nodes are named 'a'"),
    (("switches",), -1, "$.switches"),
    (("links",), 5, "$.links: expected array, got an integer"),
    (("links",), None, "$.links: expected array, got null"),
    (("links",), ..., "$: links are missing"),
    (("groups", "all"), [0, 2], "$.groups.all[1]: node 2 is not in 0..1"),
    (("groups", "all"), [0, 0], "group 'all' names an NPU twice"),
    (("groups", "all"), 5, "$.groups.all: expected array"),
    (("dimensions",), [{"kind": "rong", "size": 2}], "$.dimensions[0].kind: 'rong' is not one of"),
    (("dimensions",), [{"kind": "ring", "size": 2}], "$.dimensions[0]: exactly one of 'bandwidth'"),
    (
        ("dimensions",),
        [{"kind": "ring", "size": 2, "bandwidth": "1GB/s", "latency": "1ns"}],
        "not the nodes and links that are",
    ),
    (
        ("dimensions",),
        [{"kind": "ring", "size": 3, "bandwidth": "1GB/s", "latency": "1ns"}],
        "the dimensions do not multiply to 2",
    ),
    (("extra",), 1, "unknown member 'extra'"),
]


@pytest.mark.parametrize(("path", "value", "says"), LINK_DEFECTS + OTHER_DEFECTS)
def test_wrong_document_is_refused_with_the_path(path, value, says):
    with pytest.raises(InputError) as caught:
        document(changed(path, value))
    assert says in str(caught.value)
    assert caught.value.diagnostics[0].location.file == "net.json"


# Defects that lie in what stands elsewhere, or in a number that JSON Schema takes for an integer, are the reader's alone.
_IN_FORM = (
    "'from' and 'to'",
    "got null",
    "got a string",
    "got a boolean",
    "got an integer",
    "unknown key",
    "not above 0",
)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (path, value)
        for path, value, says in LINK_DEFECTS
        if any(form in says for form in _IN_FORM) and value != 10**400
    ],
)
def test_schema_refuses_a_link_of_the_wrong_form(path, value):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed(path, value), SCHEMA)


def test_schema_accepts_what_the_reader_accepts():
    jsonschema.validate(GOOD, SCHEMA)
    assert document(GOOD)


def test_document_without_npus_is_refused():
    with pytest.raises(InputError, match="0 NPUs in 0 nodes"):
        document({"schema": "collhub/topology-1", "npus": 0, "links": []})


def test_key_that_stands_twice_is_refused():
    with pytest.raises(InputError, match="'npus' occurs twice"):
        read(
            Source.of_bytes("net.json", b'{"schema": "collhub/topology-1", "npus": 2, "npus": 3}'),
            NoOptions(),
        )


@given(
    st.binary(max_size=100)
    | st.sampled_from(list(range(len(json.dumps(GOOD))))).map(
        lambda n: json.dumps(GOOD)[:n].encode()
    )
)
def test_any_bytes_give_a_topology_or_an_input_error(content):
    with contextlib.suppress(InputError):
        assert read(Source.of_bytes("net.json", content), NoOptions()).num_npus


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    st.lists,
)
PATHS = [
    ("npus",),
    ("switches",),
    ("links",),
    ("links", 0),
    ("groups",),
    ("groups", "all"),
    ("dimensions",),
    ("name",),
]
PATHS += [
    ("links", 0, key) for key in ("from", "to", "bandwidth", "latency", "duplex", "latency_s")
]


@given(st.sampled_from(PATHS), JSON_VALUES)
def test_any_value_anywhere_gives_a_topology_or_an_input_error(path, value):
    with contextlib.suppress(InputError):
        assert document(changed(path, value)).num_npus


def test_many_links_are_read_in_linear_time():
    content = topology_to_json(parse_topology("fc:150"))
    started = time.process_time()
    assert read(Source.of_bytes("net.json", content), NoOptions()).num_links == 150 * 149
    assert time.process_time() - started < 5
