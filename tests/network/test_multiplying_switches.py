"""Switches that multicast and reduce: how networks declare them, and what bounds then hold."""

from __future__ import annotations

import pytest

from hub_core import Collective, CollectiveKind, InputError, UsageError, parse_topology
from hub_core.documents.topologies import read, topology_to_json
from hub_core.network import lower_bound_ns
from hub_core.network.topology import Topology
from hub_core.plugin_api import NoOptions, Source
from hub_core.registry.discovery import load_core_only

BOTH = "switch:4?multicast=true&reduce=true"
REGISTRY = load_core_only()


def parsed(text: str) -> Topology:
    return parse_topology(text, REGISTRY)


def document(text: str) -> Topology:
    return read(Source.of_bytes("net.json", text.encode()), NoOptions())


def test_a_text_declares_all_switches() -> None:
    topology = parsed("ring:2*switch:2?multicast=true")
    assert topology.multicast == (4, 5)
    assert topology.reduction == ()


def test_a_document_says_what_switches_do() -> None:
    topology = parsed(BOTH)
    back = document(topology_to_json(topology).decode())
    assert back.differences(topology) == []
    assert topology.differences(parsed("switch:4")) == ["multicast", "reduction"]


@pytest.mark.parametrize(("stated", "found"), [("true", (2, 3)), ('["s"]', (3,)), ("false", ())])
def test_a_document_names_switches_or_all(stated: str, found: tuple[int, ...]) -> None:
    nodes = '"schema": "collhub/topology-1", "npus": 2, "switches": ["r", "s"], "links": []'
    assert document(f'{{{nodes}, "reduce": {stated}}}').reduction == found


def test_an_npu_that_multicasts_is_refused() -> None:
    nodes = '"schema": "collhub/topology-1", "npus": 2, "switches": 1, "links": []'
    with pytest.raises(InputError, match=r"\$: .*only switches, 2..2, multicast or reduce"):
        document(f'{{{nodes}, "multicast": [0]}}')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ring:4?multicast=true", "no switches|there are none"),
        ("switch:4?reduce=yes", "reduce is not true; write reduce=true"),
        ("switch:4?multicast=true&multicast=true", "multicast is given twice"),
    ],
)
def test_what_a_text_cannot_declare_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parsed(text)


def test_a_part_of_a_network_keeps_what_its_switches_do() -> None:
    assert parsed(f"{BOTH}&npus=0,2").multicast == (2,)
    planes = parsed(f"switch:4+{BOTH}")
    assert (planes.multicast, planes.reduction) == ((5,), (5,))
    assert planes.on_plane(1).multicast == (5,)
    assert planes.on_plane(0).multicast == ()


@pytest.mark.parametrize(
    ("query", "shares"), [("", 6), ("?multicast=true", 6), ("?reduce=true", 6), (BOTH[8:], 4)]
)
def test_switches_halve_what_an_all_reduce_must_send(query: str, shares: int) -> None:
    """2 (n - 1) shares a rank without them, each rank's own vector with both: n = 4 shares."""
    topology = parsed(f"switch:4?bandwidth=1GB/s&latency=0ns{query.replace('?', '&')}")
    collective = Collective(CollectiveKind.ALL_REDUCE, 4, 4)
    assert lower_bound_ns(collective, topology, 4000) == 1000 * shares


def test_a_multicast_leaves_its_root_once() -> None:
    collective = Collective(CollectiveKind.BROADCAST, 4, 1, root=0)
    topology = parsed("switch:4?bandwidth=1GB/s&latency=0ns&multicast=true")
    assert lower_bound_ns(collective, topology, 1000) == 1000
