"""Generated LLM jobs against runs of ASTRA-sim 518bd51 (`corpus/workload/truth.json`)."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from collhub_astra_sim.workloads.simulate import run_workload_layer
from collhub_astra_sim.workloads.system import System
from golden_cases import Json, topology_of, workload_of

from hub_core.chakra import decoded_records
from hub_core.model import Workload

SETS = (
    "llama_dp8", "llama_fsdp8", "llama_tp4_dp2", "llama_tp8_notpsp", "llama_sp2_tp2_dp2",
    "llama_dp2_tp2_pp2", "llama_pp4_dp2", "llama_dp2_tp4_pp2", "llama_dp4_tp4_pp4",
    "llama_dp8_tp8",
)  # fmt: skip
_KINDS = {4: "COMP", 5: "SEND", 6: "RECV", 7: "COLL"}
_TYPES = {0: "AR", 2: "AG", 6: "A2A", 7: "RS"}


def load(archive: Path) -> Workload:
    """The workload of an archive."""
    ranks: dict[int, list[Json]] = {}
    groups: Any = {}
    with tarfile.open(archive) as opened:
        for member in opened:
            file = opened.extractfile(member)
            if file is None:
                continue
            if member.name.endswith("groups.json"):
                groups = json.loads(file.read())
            elif found := re.search(r"\.(\d+)\.et$", member.name):
                records = list(decoded_records(file.read(), member.name))[1:]
                ranks[int(found[1])] = [_node(record) for record in records]
    return workload_of([ranks[rank] for rank in sorted(ranks)], groups)


def _node(record: Any) -> Json:
    values = {one.name: getattr(one, one.WhichOneof("value")) for one in record.attr if
              one.WhichOneof("value")}  # fmt: skip
    node = {"id": record.id, "t": _KINDS[record.type], "deps": list(record.data_deps)}
    names = {
        "ops": "num_ops", "ts": "tensor_size", "size": "comm_size", "dst": "comm_dst",
        "src": "comm_src", "tag": "comm_tag", "pg": "pg_name",
    }  # fmt: skip
    node |= {short: values[name] for short, name in names.items() if name in values}
    if node["t"] == "COLL":
        node["ct"] = _TYPES[values["comm_type"]]
    return node


@pytest.mark.parametrize("name", SETS)
def test_every_rank_is_equal(corpus: Path, name: str) -> None:
    truth = json.loads((corpus / "workload" / "truth.json").read_bytes())[name]
    workload = load(corpus / "workload" / f"{name}.tar.gz")
    for run in truth.values():
        times = run_workload_layer(
            workload,
            topology_of(run["net"]),
            System.of_json(json.dumps(run["sys"])),
            backend=f"congestion-{run['backend']}",
        )
        assert list(times.rank_finish_ns) == run["cycles"]
        assert list(times.rank_exposed_ns) == run["exposed"]
