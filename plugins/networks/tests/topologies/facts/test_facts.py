"""Facts and findings of networks: what a plain search finds, the same for renumbered nodes."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from collhub_topologies import summary as summary_module
from collhub_topologies.connectedness import check, check_topology, find_reached
from collhub_topologies.summary import (
    collect_facts,
    collect_spans,
    compute_diameter,
    find_half_cuts,
    find_link_classes,
)
from hypothesis import given
from hypothesis import strategies as st

from hub_core import Severity, Topology, parse_topology
from hub_core.network import Dimension, DimensionKind, Links, grid
from hub_core.plugin_api import CheckRequest, NoOptions

SHAPES = st.lists(
    st.tuples(st.sampled_from(list(DimensionKind)), st.integers(1, 4)), min_size=1, max_size=3
)
PAIRS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda pair: pair[0] != pair[1]),
    max_size=24,
)


def network(pairs, npus: int = 6, nodes: int = 9, rates=None) -> Topology:
    ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    rates = np.full(len(ends), 1e9) if rates is None else np.asarray(rates, np.float64)
    return Links(ends[:, 0], ends[:, 1], rates, np.full(len(ends), 1e-6)).topology(
        "random", npus, nodes
    )


def distances(topology: Topology, start: int) -> dict[int, int]:
    ahead: dict[int, list[int]] = {}
    for source, destination in zip(
        topology.source.tolist(), topology.destination.tolist(), strict=True
    ):
        ahead.setdefault(source, []).append(destination)
    found, queue = {start: 0}, deque([start])
    while queue:
        node = queue.popleft()
        for other in ahead.get(node, []):
            if other not in found:
                found[other] = found[node] + 1
                queue.append(other)
    return found


def plain_diameter(topology: Topology) -> int | None:
    lengths = [
        distances(topology, npu).get(other)
        for npu in range(topology.num_npus)
        for other in range(topology.num_npus)
    ]
    return None if None in lengths else max(lengths)


@given(PAIRS)
def test_diameter_is_that_of_a_plain_search(pairs):
    topology = network(pairs)
    assert compute_diameter(topology) == plain_diameter(topology)


@pytest.mark.once
@given(SHAPES)
def test_diameter_of_a_regular_network_follows_from_its_dimensions(shape):
    regular = grid("grid", [Dimension(kind, size, 1e9, 1e-6) for kind, size in shape])
    assert compute_diameter(regular) == plain_diameter(regular)


def test_diameter_is_the_same_in_batches_of_npus(monkeypatch):
    topology = parse_topology("fat-tree:4")
    monkeypatch.setattr(summary_module, "_MAX_TABLE_BYTES", 1)
    assert compute_diameter(topology) == 6


def test_diameter_that_takes_too_long_is_not_known(monkeypatch):
    monkeypatch.setattr(summary_module, "_MAX_WORK_BYTES", 100)
    assert compute_diameter(parse_topology("fat-tree:4")) is None


@given(PAIRS, st.integers(0, 8))
def test_reached_nodes_are_those_of_a_plain_search(pairs, start):
    topology = network(pairs)
    backwards = network([(b, a) for a, b in pairs])
    assert np.flatnonzero(find_reached(topology, start)).tolist() == sorted(
        distances(topology, start)
    )
    assert np.flatnonzero(find_reached(topology, start, backwards=True)).tolist() == sorted(
        distances(backwards, start)
    )


@given(SHAPES)
def test_links_between_the_halves_are_those_that_are_counted(shape):
    regular = grid("grid", [Dimension(kind, size, 2e9, 1e-6) for kind, size in shape])
    per_row = {
        DimensionKind.LINE: lambda n: 1,
        DimensionKind.RING: lambda n: 1 if n == 2 else 2,
        DimensionKind.FULLY_CONNECTED: lambda n: (n // 2) * (n - n // 2),
        DimensionKind.SWITCH: lambda n: n // 2,
    }
    for cut in find_half_cuts(regular):
        kind, size = shape[cut.dimension]
        expected = regular.num_npus // size * per_row[kind](size)
        assert (cut.links_up, cut.links_down) == (expected, expected)
        assert cut.bandwidth_up_bytes_per_s == cut.bandwidth_down_bytes_per_s == expected * 2e9


def test_classes_count_every_link_once():
    classes = find_link_classes(parse_topology("rail:2x4"))
    assert sum(one.count for one in classes) == 32
    assert [(one.source, one.destination, one.bandwidth_bytes_per_s) for one in classes] == [
        ("NPU", "switch", 450e9), ("NPU", "switch", 50e9), ("switch", "NPU", 450e9),
        ("switch", "NPU", 50e9),
    ]  # fmt: skip


def test_spans_tell_npus_and_switches_apart():
    found = collect_spans(parse_topology("mesh:3x3"))
    assert set(found) == {"NPU"}
    assert (found["NPU"]["links_out"].minimum, found["NPU"]["links_out"].maximum) == (2, 4)
    switched = collect_spans(parse_topology("switch:4?bandwidth=3GB/s"))
    assert switched["switch"]["bandwidth_in_bytes_per_s"].maximum == 12e9
    assert switched["NPU"]["bandwidth_out_bytes_per_s"].minimum == 3e9


@given(PAIRS, st.permutations(range(6)))
def test_facts_do_not_depend_on_the_numbers_of_npus(pairs, order):
    number = [*order, 6, 7, 8]
    one, other = network(pairs), network([(number[a], number[b]) for a, b in pairs])
    assert collect_facts(one) == collect_facts(other)


def findings(topology: Topology) -> dict[str, str]:
    return {found.code: found.message for found in check_topology(topology)}


@pytest.mark.parametrize(
    "text",
    [
        "ring:5",
        "mesh:3x3",
        "switch:4",
        "fat-tree:4",
        "dragonfly:3,2,1",
        "rail:2x4",
        "dgx1v",
        "mi250:2",
        "line:1",
        "dgx2",
    ],
)
def test_builders_give_networks_without_findings(text):
    assert check_topology(parse_topology(text)) == ()


@given(PAIRS)
def test_unreachable_is_found_where_a_pair_of_npus_has_no_path(pairs):
    topology = network(pairs)
    is_connected = plain_diameter(topology) is not None
    errors = [found.code for found in check_topology(topology) if found.severity is Severity.ERROR]
    assert ("unreachable" in errors) is not is_connected
    assert is_connected is not bool(errors)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0, 1), (1, 0), (2, 3), (3, 2)], "NPU 0 cannot reach NPU 2: no link leaves NPUs 0,1"),
        ([(0, 1), (1, 2), (2, 3)], "NPU 1 cannot reach NPU 0: no link leaves NPUs 1-3"),
        (
            [(0, 4), (4, 0), (1, 0), (2, 0), (3, 0)],
            "NPU 0 cannot reach NPU 1: no link leaves NPU 0 and switch 0",
        ),
    ],
)
def test_cut_between_two_npus_is_named(pairs, message):
    assert findings(network(pairs, 4, 5))["unreachable"] == message


def test_cut_has_the_names_of_the_nodes():
    ends = np.asarray([0, 1]), np.asarray([1, 0])
    topology = Links.uniform(*ends, 1e9, 0.0).topology("named", 3, 3, node_names=("a", "b", "c"))
    assert findings(topology)["unreachable"] == "NPU a cannot reach NPU c: no link leaves NPUs a, b"
    assert findings(topology)["npu-without-links"] == "NPU c has no link"


def test_long_lists_of_nodes_are_cut_short():
    pairs = [(npu, npu + 2) for npu in range(0, 196, 2)] + [(196, 0)]
    message = findings(network(pairs, 200, 200))["unreachable"]
    assert message.endswith(",...")
    assert len(message) < 130


@pytest.mark.parametrize(
    ("pairs", "rates", "code", "message"),
    [
        ([(0, 1), (1, 2), (2, 0)], [1, 1, 1], "one-way-links",
         "3 connections are without a reverse link, the first from 0 to 1"),
        ([(0, 1), (1, 0), (1, 2), (2, 1)], [1, 2, 3, 3], "unequal-directions",
         "1 connection is different from the reverse link, the first from 0 to 1"),
        ([(0, 1), (1, 0), (1, 2), (2, 1), (2, 1)], [1, 1, 2, 1, 1], "parallel-links",
         "1 connection is of several parallel links, the first from 2 to 1"),
        ([(0, 1), (1, 0), (1, 2), (2, 1), (0, 3)], [1] * 5, "idle-switch",
         "switch 0 lacks links in or links out, so no message can pass"),
    ],
)  # fmt: skip
def test_oddities_are_notes(pairs, rates, code, message):
    topology = network(pairs, 3, 4 if code == "idle-switch" else 3, rates)
    (found,) = (found for found in check_topology(topology) if found.code == code)
    assert (found.severity, found.message) == (Severity.NOTE, message)


def test_lanes_that_add_up_to_the_way_back_are_equal():
    assert "unequal-directions" not in findings(network([(0, 1), (1, 0), (1, 0)], 2, 2, [2, 1, 1]))


def test_links_of_different_planes_are_not_parallel() -> None:
    assert not check_topology(parse_topology("fc:3+fc:3"))


@pytest.mark.parametrize(
    ("text", "verdict"), [("ring:4", "connected"), ("line:3?npus=0,2", "not connected")]
)
def test_the_offered_check_passes_connected_networks_alone(text, verdict):
    report = check(CheckRequest(text, topology=parse_topology(text)), NoOptions())
    assert (report.ok, report.verdict) == (verdict == "connected", verdict)
