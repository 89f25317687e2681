"""Golden cases of whole jobs as folders on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hub_core.chakra import encoded_record

Json = Mapping[str, Any]
_TYPES = {
    "INVALID": 0, "METADATA": 1, "LOAD": 2, "STORE": 3, "COMP": 4, "SEND": 5, "RECV": 6, "COLL": 7,
}  # fmt: skip
_COLLECTIVES = {"AR": 0, "RD": 1, "AG": 2, "RS": 7, "A2A": 6, "BC": 5}
_ATTRIBUTES = {
    "size": ("comm_size", "int64_val"),
    "ts": ("tensor_size", "uint64_val"),
    "ops": ("num_ops", "int64_val"),
    "dst": ("comm_dst", "int32_val"),
    "src": ("comm_src", "int32_val"),
    "tag": ("comm_tag", "int32_val"),
    "pg": ("pg_name", "string_val"),
    "ns": ("duration_ns", "int64_val"),
}


def _trace(nodes: Sequence[Json]) -> bytes:
    return encoded_record("GlobalMetadata", version="0.0.4") + b"".join(map(_record, nodes))


def _record(node: Json) -> bytes:
    attributes = [{"name": "is_cpu_op", "bool_val": bool(node.get("cpu", 0))}]
    for key, (name, kind) in _ATTRIBUTES.items():
        if key in node:
            attributes.append({"name": name, kind: node[key]})
    if "ct" in node:
        attributes.append({"name": "comm_type", "int64_val": _COLLECTIVES[node["ct"]]})
    if "dims" in node:
        attributes.append({"name": "involved_dim", "bool_list": {"values": node["dims"]}})
    return encoded_record(
        "Node",
        id=node["id"],
        type=_TYPES[node["t"]],
        duration_micros=node.get("us", 0),
        data_deps=node.get("deps", []),
        ctrl_deps=node.get("ctrl", []),
        attr=attributes,
    )


def golden_folder(case: Json, folder: Path) -> Path:
    """The case as ASTRA-sim's users have it on disk."""
    system = dict(case["sys"])
    if "per_node" in case:
        lines = [f"{node}: {prefix}\n" for node, prefix in case["per_node"].items()]
        (folder / "algorithms.yml").write_text("".join(lines))
        system["per-node-custom-implementation"] = "algorithms.yml"
    memory = case.get("mem", {"memory-type": "NO_MEMORY_EXPANSION"})
    texts = {"system.json": system, "network.yml": case["net"], "memory.json": memory}
    if "groups" in case:
        texts["groups.json"] = case["groups"]
    for name, value in texts.items():
        (folder / name).write_text(json.dumps(value))
    for prefix, ranks in {"workload": case["ranks"], **case.get("alg", {})}.items():
        for rank, nodes in enumerate(ranks):
            file = folder / f"{prefix}.{rank}.et"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_trace(nodes))
    return folder


def golden_options(case: Json) -> list[str]:
    """The options that the case states, as arguments of the program."""
    stated = {"network": f"congestion-{case['backend']}"}
    if "queues" in case:
        stated["queues"] = str(case["queues"])
    if case.get("rendezvous"):
        stated["rendezvous"] = "true"
    return [word for key, value in stated.items() for word in ("-O", f"{key}={value}")]
