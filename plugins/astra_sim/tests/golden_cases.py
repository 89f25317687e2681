"""Golden cases of whole jobs: workloads and algorithms from the JSON of `corpus/workload`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from collhub_astra_sim.networks.network_yaml import read
from collhub_astra_sim.workloads.simulate import LayerTimes, run_workload_layer
from collhub_astra_sim.workloads.system import RemoteMemory, System

from hub_core import NodeTable, NodeType, Topology
from hub_core.model import JobCollective, NodeColumns, NodeKind, ProcessGroup, Workload
from hub_core.plugin_api import NoOptions, Source

Json = Mapping[str, Any]
_KINDS = {
    "COMP": NodeKind.COMPUTE, "COLL": NodeKind.COLLECTIVE, "SEND": NodeKind.SEND,
    "RECV": NodeKind.RECV, "LOAD": NodeKind.LOAD, "STORE": NodeKind.STORE,
}  # fmt: skip
_TYPES = {
    "AR": JobCollective.ALL_REDUCE, "AG": JobCollective.ALL_GATHER,
    "RS": JobCollective.REDUCE_SCATTER, "A2A": JobCollective.ALL_TO_ALL,
    "BC": JobCollective.BROADCAST,
}  # fmt: skip
_TRACE_TYPES = {
    "COMP": NodeType.COMP, "SEND": NodeType.COMM_SEND, "RECV": NodeType.COMM_RECV,
}  # fmt: skip


def golden(folder: Path) -> list[Json]:
    """All cases."""
    cases: list[Json] = json.loads((folder / "workload" / "golden.json").read_bytes())["cases"]
    return cases


def simulated(case: Json, **options: Any) -> LayerTimes:
    """What the simulator says of a case."""
    backend = f"congestion-{case['backend']}"
    memory = RemoteMemory.of_json(json.dumps(case["mem"])) if "mem" in case else None
    return run_workload_layer(
        workload_of(case["ranks"], case.get("groups", {})),
        topology_of(case["net"]),
        System.of_json(json.dumps(case["sys"])),
        algorithms={name: traces_of(ranks) for name, ranks in case.get("alg", {}).items()},
        per_node={int(node): name for node, name in case.get("per_node", {}).items()},
        queues=case.get("queues", 1),
        rendezvous=case.get("rendezvous", False),
        memory=memory,
        backend=backend,
        **options,
    )


def topology_of(net: Json) -> Topology:
    """The topology that a network YAML of these lists describes."""
    return read(Source.of_bytes("network.yml", json.dumps(net).encode()), NoOptions())


def workload_of(ranks: Sequence[Sequence[Json]], groups: Mapping[str, Sequence[int]]) -> Workload:
    """The workload of these nodes."""
    names = list(groups)
    columns: dict[str, list[int]] = {name: [] for name in (
        "rank", "kind", "identity", "duration_ns", "operations", "bytes", "collective", "group",
        "peer", "tag", "dimensions", "on_host",
    )}  # fmt: skip
    edges: dict[str, tuple[list[int], list[int]]] = {"deps": ([], []), "ctrl": ([], [])}
    for rank, nodes in enumerate(ranks):
        first = len(columns["rank"])
        row_of = {node["id"]: first + place for place, node in enumerate(nodes)}
        for node in nodes:
            for key, (parents, children) in edges.items():
                parents += [row_of[parent] for parent in node.get(key, ())]
                children += [row_of[node["id"]]] * len(node.get(key, ()))
            for name, value in _row(rank, node, names).items():
                columns[name].append(value)
    table = NodeColumns.from_columns(len(ranks), columns, edges["deps"], edges["ctrl"])
    process_groups = [ProcessGroup(name, tuple(members)) for name, members in groups.items()]
    return Workload(table, groups=tuple(process_groups))


def _row(rank: int, node: Json, groups: Sequence[str]) -> dict[str, int]:
    """The columns of one node."""
    dims = node.get("dims")
    group = node.get("pg", "")
    return {
        "rank": rank,
        "kind": _KINDS[node["t"]],
        "identity": node["id"],
        "duration_ns": node.get("us", 0) * 1000,
        "operations": node.get("ops", -1),
        "bytes": node.get("size", node.get("ts", -1)),
        "collective": _TYPES[node["ct"]] if "ct" in node else -1,
        "group": groups.index(group) if group not in ("", "0") else -1,
        "peer": node.get("dst" if node["t"] == "SEND" else "src", -1),
        "tag": node.get("tag", 0),
        "dimensions": sum(1 << bit for bit, on in enumerate(dims) if on) if dims else -1,
        "on_host": node.get("cpu", 0),
    }


def traces_of(ranks: Sequence[Sequence[Json]]) -> NodeTable:
    """The traces of a custom algorithm."""
    nodes = [(rank, node) for rank, own in enumerate(ranks) for node in own]
    row_of = {(rank, node["id"]): row for row, (rank, node) in enumerate(nodes)}

    def links(key: str) -> tuple[Any, Any]:
        parents = [[row_of[rank, one] for one in node.get(key, ())] for rank, node in nodes]
        indptr = np.cumsum([0, *map(len, parents)])
        return indptr, np.array([one for some in parents for one in some], np.int64)

    def column(values: Sequence[int], dtype: type[np.generic]) -> Any:
        return np.array(values, dtype)

    data_indptr, data_indices = links("deps")
    control_indptr, control_indices = links("ctrl")
    peers = [node.get("dst" if node["t"] == "SEND" else "src", -1) for _, node in nodes]
    return NodeTable(
        rank_indptr=np.cumsum([0, *map(len, ranks)]),
        node_id=column([node["id"] for _, node in nodes], np.uint64),
        type=column([_TRACE_TYPES[node["t"]] for _, node in nodes], np.uint8),
        peer=column(peers, np.int32),
        tag=column([node.get("tag", 0) for _, node in nodes], np.int32),
        size=column([node.get("size", 0) for _, node in nodes], np.int64),
        duration_ns=column([node.get("us", 0) * 1000 for _, node in nodes], np.int64),
        step=np.full(len(nodes), -1),
        data_indptr=data_indptr,
        data_indices=data_indices,
        control_indptr=control_indptr,
        control_indices=control_indices,
    )
