"""A folder whose workload is a whole job is one input; its times are those of ASTRA-sim."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from collhub_chakra.trace_records import encoded_record
from golden_cases import golden

Collhub = Callable[..., Any]
Json = Mapping[str, Any]
_TYPES = {"COMP": 4, "SEND": 5, "RECV": 6, "COLL": 7, "LOAD": 2, "STORE": 3}
_COLLECTIVES = {"AR": 0, "AG": 2, "RS": 7, "A2A": 6, "BC": 5}
_ATTRIBUTES = {
    "size": ("comm_size", "int64_val"),
    "ts": ("tensor_size", "uint64_val"),
    "ops": ("num_ops", "int64_val"),
    "dst": ("comm_dst", "int32_val"),
    "src": ("comm_src", "int32_val"),
    "tag": ("comm_tag", "int32_val"),
    "pg": ("pg_name", "string_val"),
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


def _folder(case: Json, folder: Path) -> Path:
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


def _options(case: Json) -> list[str]:
    stated = {"network": f"congestion-{case['backend']}"}
    if "queues" in case:
        stated["queues"] = str(case["queues"])
    if case.get("rendezvous"):
        stated["rendezvous"] = "true"
    return [word for key, value in stated.items() for word in ("-O", f"{key}={value}")]


@pytest.mark.parametrize("part", range(4))
def test_simulate_takes_the_folder_alone(
    collhub: Collhub, corpus: Path, tmp_path: Path, part: int
) -> None:
    different = []
    for number, case in enumerate(golden(corpus)):
        # A job of custom collectives alone is read as their algorithm, without a workload layer.
        if number % 4 != part or case["name"].endswith(("_flat_custom", "_ring_shipped")):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        run = collhub("simulate", _folder(case, folder), *_options(case), "--json")
        report = run.report()
        found = report["rank_finish_ns"], report["rank_exposed_ns"]
        if found != (case["cycles"], case["exposed"]) or run.code != (None in case["cycles"]):
            different.append(case["name"])
    assert different == []


def test_a_job_of_custom_collectives_alone_is_an_algorithm(
    collhub: Collhub, corpus: Path, tmp_path: Path
) -> None:
    cases = [one for one in golden(corpus) if one["name"].endswith("_flat_custom")]
    assert len(cases) >= 6
    for number, case in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = collhub("simulate", _folder(case, folder), *_options(case), "--json")
        assert run.report()["rank_finish_ns"] == case["cycles"], case["name"]


def test_the_network_of_the_folder_may_be_replaced(
    collhub: Collhub, corpus: Path, tmp_path: Path
) -> None:
    case = next(one for one in golden(corpus) if one["name"] == "dp8_overlap")
    folder = _folder(case, tmp_path)
    slow = collhub(
        "simulate", folder, "--topology", "ring:8?bandwidth=5GiB/s&latency=500ns", "--json"
    )
    assert slow.report()["time_ns"] > case["cycles"][0]


def test_options_of_the_system_are_refused_where_the_folder_states_it(
    collhub: Collhub, corpus: Path, tmp_path: Path
) -> None:
    case = next(one for one in golden(corpus) if one["name"] == "dp8_overlap")
    run = collhub("simulate", _folder(case, tmp_path), "-O", "splits=4")
    assert run.code == 2
    assert "the folder states its system: option splits has no meaning" in run.err
