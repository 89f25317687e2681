"""Domains of memory channels, and plans for networks that span several hosts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.plugin import PlanWriteOptions
from collhub_mscclpp.reading.read_plan import parse_plan
from collhub_mscclpp.writing.networks import find_memory_domains
from collhub_mscclpp.writing.write import write

import hub_core
from hub_core import parse_topology
from hub_core.documents.topologies import read
from hub_core.model import Collective, CollectiveKind, UsageError
from hub_core.network import Topology
from hub_core.plugin_api import NoOptions, Source
from hub_core.testing import direct_all_to_all, ring_all_reduce


def trays(hosts: int, gpus: int, domains: int = 1, **abilities: object) -> str:
    """Hosts of a rack as GB200 trays: an NVLink switch a domain, a network switch for all."""
    ranks = range(hosts * gpus)
    links = []
    for rank in ranks:
        switch = f"nvswitch {rank * domains // len(ranks)}"
        for other, bandwidth in ((switch, "900GB/s"), ("network", "50GB/s")):
            ends = {"from": rank, "to": other, "duplex": True}
            links.append({**ends, "bandwidth": bandwidth, "latency": "1us"})
    document = {
        "schema": "collhub/topology-1",
        "npus": [str(rank) for rank in ranks],
        "switches": [*(f"nvswitch {number}" for number in range(domains)), "network"],
        "groups": {
            f"host {host}": [str(rank) for rank in ranks if rank // gpus == host]
            for host in range(hosts)
        },
        "links": [{**link, "from": str(link["from"])} for link in links],
        **abilities,
    }
    return json.dumps(document)


def topology_of(document: str) -> Topology:
    return read(Source.of_bytes("rack.json", document.encode()), NoOptions())


@pytest.mark.parametrize(
    ("hosts", "domains", "expected"),
    [(2, 1, [0] * 8), (4, 2, [0] * 8 + [1] * 8), (2, 2, [0] * 4 + [1] * 4)],
)
def test_hosts_at_one_nvlink_switch_are_one_domain(
    hosts: int, domains: int, expected: list[int]
) -> None:
    assert find_memory_domains(topology_of(trays(hosts, 4, domains))).tolist() == expected


def test_hosts_that_only_direct_links_join_are_separate_domains() -> None:
    document = {
        "schema": "collhub/topology-1",
        "npus": 3,
        "groups": {f"host {host}": [host] for host in range(3)},
        "links": [
            {"from": 0, "to": npu, "duplex": True, "bandwidth": "50GB/s", "latency": "1us"}
            for npu in (1, 2)
        ],
    }
    assert find_memory_domains(topology_of(json.dumps(document))).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("switch:4", [0] * 4),
        ("ring:4", [0] * 4),
        ("dgx-h100", [0] * 8),
        ("dgx-h100:2", [0] * 8 + [1] * 8),
        ("dgx-a100:2", [0] * 8 + [1] * 8),
        ("rail:2x4", [0] * 4 + [1] * 4),
        # The network is nearly as fast as a link between two GPUs, and slower than all of them.
        ("mi300x:2", [0] * 8 + [1] * 8),
        ("mi300x:2?bandwidth=64GB/s,100GB/s", [0] * 8 + [1] * 8),
        # Pairs with one lane are in a host with pairs of two lanes.
        ("dgx1v?npus=0-3", [0] * 4),
        ("switch:4*switch:2?bandwidth=900GB/s,50GB/s", [0] * 4 + [1] * 4),
        # A GPU alone in its host still has its link to the NVLink switch.
        ("dgx-h100:2?npus=0-2,8", [0, 0, 0, 1]),
        # Between the CPUs the path is slower than PCIe: proxies are safe there.
        ("dgx1-pcie", [0] * 4 + [1] * 4),
    ],
)
def test_domains_end_where_the_fastest_medium_ends(text: str, expected: list[int]) -> None:
    pytest.importorskip("collhub_topologies")
    assert find_memory_domains(parse_topology(text)).tolist() == expected


@pytest.mark.parametrize(
    ("switch", "bandwidth", "domains"),
    [
        # Cards of two hosts at one InfiniBand switch, as `ibnetdiscover` describes them.
        ("leaf 0", "50GB/s", 2),
        ("nvswitch 0", "50GB/s", 1),
        ("leaf 0", "900GB/s", 1),
    ],
)
def test_only_switch_of_several_hosts_is_a_network_unless_it_must_be_nvlink(
    switch: str, bandwidth: str, domains: int
) -> None:
    document = json.loads(trays(2, 2))
    document["switches"] = [switch]
    document["links"] = [
        {**link, "to": switch, "bandwidth": bandwidth}
        for link in document["links"]
        if link["to"] != "network"
    ]
    assert len(set(find_memory_domains(topology_of(json.dumps(document))).tolist())) == domains


def test_groups_named_as_nvlink_domains_are_domains() -> None:
    document = json.loads(trays(2, 2, 2))
    document["groups"]["x/nvlink-domain rack 1"] = ["0", "1", "2", "3"]
    assert find_memory_domains(topology_of(json.dumps(document))).tolist() == [0] * 4


def written(algorithm: Any, tmp_path: Any, document: str, **options: Any) -> dict[str, Any]:
    """The plan for a network, which runs rightly."""
    path = tmp_path / "rack.json"
    path.write_text(document)
    (artifact,) = write(algorithm, PlanWriteOptions(topology=str(path), **options)).artifacts
    report = check_plan(parse_plan(artifact.content(), "plan.json"))
    assert (report.diagnostics, report.verdict_relaunch) == ((), "ok")
    plan: dict[str, Any] = json.loads(artifact.content())
    return plan


def peers(plan: dict[str, Any], kind: str) -> list[set[int]]:
    return [
        {
            peer
            for channel in gpu["channels"]
            if channel["channel_type"] == kind
            for peer in channel["connected_to"]
        }
        for gpu in plan["gpus"]
    ]


def test_memory_channels_lead_across_hosts_of_one_domain(tmp_path: Any) -> None:
    plan = written(direct_all_to_all(8), tmp_path, trays(2, 4))
    assert peers(plan, "port") == [set()] * 8
    assert peers(plan, "memory")[0] == set(range(1, 8))
    plan = written(direct_all_to_all(8), tmp_path, trays(4, 2, 2))
    assert peers(plan, "port") == [{4, 5, 6, 7}] * 4 + [{0, 1, 2, 3}] * 4
    assert peers(plan, "memory")[0] == {1, 2, 3}


def test_switch_channels_lead_across_hosts_of_one_domain(tmp_path: Any) -> None:
    pytest.importorskip("collhub_classic")
    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 1)
    algorithm = hub_core.synthesize(collective, "switch:8", 1 << 20, name="direct").algorithm
    plan = written(algorithm, tmp_path, trays(2, 4, multicast=True, reduce=True))
    names = [
        one["name"] for gpu in plan["gpus"] for block in gpu["threadblocks"] for one in block["ops"]
    ]
    assert (names.count("glres"), names.count("put")) == (8, 0)
    groups = [
        group["ranks"]
        for channel in plan["gpus"][0]["channels"]
        for group in channel.get("rank_groups", [])
    ]
    assert groups == [list(range(8))] * 2


def test_topology_takes_precedence_over_the_number_of_nodes(tmp_path: Any) -> None:
    plan = written(direct_all_to_all(8), tmp_path, trays(2, 4), nodes=2)
    assert peers(plan, "port") == [set()] * 8


def test_packets_travel_within_a_domain_only(tmp_path: Any) -> None:
    plan = written(ring_all_reduce(8), tmp_path, trays(2, 4), protocol="LL")
    assert peers(plan, "port") == [set()] * 8
    with pytest.raises(UsageError, match="packets do not travel between nodes"):
        written(ring_all_reduce(8), tmp_path, trays(2, 4, 2), protocol="LL")


def test_topology_of_other_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="the topology has 8 NPUs, the algorithm 4 ranks"):
        write(ring_all_reduce(4), PlanWriteOptions(topology="switch:8"))
