"""Small folders that trigger the hazards of ASTRA-sim: `verify --sarif` names the rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from collhub_astra_sim.workloads import simulate
from collhub_astra_sim.workloads.system import System
from golden_folders import Json, golden_folder

import hub_core
from hub_core.model import NodeColumns, NodeKind, Workload

Collhub = Callable[..., Any]
SYSTEM = {
    "scheduling-policy": "FIFO", "preferred-dataset-splits": 1, "all-reduce-implementation": ["ring"],
    "all-gather-implementation": ["ring"], "local-mem-bw": 1600,
}  # fmt: skip
NETWORK = {"topology": ["Ring"], "npus_count": [4], "bandwidth": [50.0], "latency": [500.0]}
COMPUTE = {"t": "COMP", "us": 1}
GATHER = {"t": "COLL", "ct": "AG", "size": 3}
REDUCE = {"t": "COLL", "ct": "AR", "size": 1 << 20}
SEND = {"t": "SEND", "size": 1 << 20, "dst": 1, "tag": 0}
RECEIVE = {"t": "RECV", "size": 1 << 20, "src": 0, "tag": 0}
Case = Mapping[str, Any]
UNTAGGED = {"t": "SEND", "size": 1 << 20, "dst": 1}
PAIRS = {"1": [0, 1], "2": [0, 1], "500": [0, 1]}

CROSSED: list[list[Json]] = [
    [{"id": 0, **REDUCE, "pg": first}, {"id": 1, **REDUCE, "pg": second}]
    for first, second in (("1", "2"), ("2", "1"))
] + [[], []]


def _chain(*nodes: Json) -> list[Json]:
    """Return the nodes of a rank, each of which waits for the one before."""
    return [
        {"id": number, "deps": [number - 1] if number else [], **node}
        for number, node in enumerate(nodes)
    ]


def _on_all(*nodes: Json) -> list[list[Json]]:
    return [_chain(*nodes)] * 4


def _on_pair(*nodes: Json) -> list[list[Json]]:
    """Return nodes of ranks 0 and 1; all other nodes compute."""
    return [_chain(*nodes)] * 2 + [_chain(COMPUTE)] * 2


# By rule: the nodes of every rank, and changes of the folder.
HAZARDS: Mapping[str, tuple[Sequence[Sequence[Json]], Case]] = {
    "h1": (
        [
            _chain({**COMPUTE, "cpu": 1}, SEND),
            _chain({**COMPUTE, "cpu": 1}, RECEIVE),
            *[_chain(COMPUTE)] * 2,
        ],
        {},
    ),
    "h2": (_on_all({"t": "METADATA"}, COMPUTE), {}),
    "h3": (
        _on_all({"t": "COMP", "ops": 5, "ts": 0}, {"t": "COMP", "ops": 5, "ts": 8}),
        {"sys": {**SYSTEM, "roofline-enabled": 1, "peak-perf": 1}},
    ),
    "h6": (_on_all({"t": "COLL", "ct": "RD", "size": 1 << 20}, COMPUTE), {}),
    "h7": (_on_all(GATHER, COMPUTE), {"sys": {**SYSTEM, "preferred-dataset-splits": 4}}),
    "h8": (_on_pair({**REDUCE, "pg": "1"}, {**REDUCE, "pg": "2"}), {"groups": PAIRS}),
    "h9": (_on_pair({**REDUCE, "pg": "500"}, COMPUTE), {"groups": PAIRS}),
    "host-message": ([_chain({**SEND, "cpu": 1}), _chain({**RECEIVE, "cpu": 1}), [], []], {}),
    "no-size": (_on_all({"t": "COLL", "ct": "AR"}, COMPUTE), {}),
    "no-tag": ([_chain(UNTAGGED), _chain(RECEIVE), [], []], {}),
    "foreign-end": ([_chain({**SEND, "src": 2}), _chain(RECEIVE), [], []], {}),
    "empty-message": ([_chain({**SEND, "size": 0}), _chain({**RECEIVE, "size": 0}), [], []], {}),
    "no-memory": (_on_all({"t": "LOAD", "ts": 8}, COMPUTE), {}),
    "no-operations": (
        _on_all(COMPUTE),
        {"sys": {**SYSTEM, "roofline-enabled": 1, "peak-perf": 1}},
    ),
    # No node finishes after a node without duration, so that its children are never issued.
    "never-issued": (
        _on_all({"t": "COMP", "ops": 5, "ts": 0}, {"t": "COMP", "ops": 5, "ts": 8}),
        {"sys": {**SYSTEM, "roofline-enabled": 1, "peak-perf": 1}},
    ),
    # The smallest ID takes the slot of communication: ranks 0 and 1 start different groups.
    "slot-occupied": (CROSSED, {"groups": PAIRS}),
    "unfinished-node": (CROSSED, {"groups": PAIRS}),
}


def _find_rules(
    collhub: Collhub, folder: Path, ranks: Sequence[Sequence[Json]], changes: Case
) -> set[str]:
    """Return the rules of the results that `verify --sarif` writes for a folder."""
    used = [list(nodes) or _chain(COMPUTE) for nodes in ranks]
    golden_folder({"sys": SYSTEM, "net": NETWORK, "ranks": used, **changes}, folder)
    collhub("verify", folder, "--sarif", folder / "findings.sarif")
    (run,) = json.loads((folder / "findings.sarif").read_text())["runs"]
    return {result["ruleId"] for result in run["results"]}


@pytest.mark.parametrize("rule", HAZARDS)
def test_a_folder_triggers_the_rule(rule: str, collhub: Collhub, tmp_path: Path) -> None:
    ranks, changes = HAZARDS[rule]
    assert rule in _find_rules(collhub, tmp_path, ranks, changes)


def test_the_node_with_the_same_slot_is_named(collhub: Collhub, tmp_path: Path) -> None:
    # Rank 1 waits for a message (no slot) and runs a collective (the slot of communication).
    waiting = {"id": 0, **RECEIVE}
    ranks = [
        [{"id": 1, **REDUCE, "pg": "1"}, {"id": 2, **REDUCE, "pg": "2"}],
        [waiting, {"id": 1, **REDUCE, "pg": "2"}, {"id": 2, **REDUCE, "pg": "1"}],
    ] + [_chain(COMPUTE)] * 2
    case = {"sys": SYSTEM, "net": NETWORK, "ranks": ranks, "groups": PAIRS}
    result = collhub("verify", golden_folder(case, tmp_path))
    lines = (result.out + result.err).splitlines()
    # Equal texts of ranks 0 and 1 are one line.
    (line,) = (line for line in lines if "waits for the slot of" in line)
    assert "node 2 (COLLECTIVE) waits for the slot of node 1 (COLLECTIVE)" in line


@pytest.mark.parametrize("digits", [13, 5000])
def test_a_group_with_too_many_digits_is_above_the_last(
    digits: int, collhub: Collhub, tmp_path: Path
) -> None:
    # 13 digits exceed the tags of 64 bits; Python converts at most 4300.
    name = "9" * digits
    changes = {"groups": {**PAIRS, name: [0, 1]}}
    ranks = _on_pair({**REDUCE, "pg": name}, COMPUTE)
    assert "h9" in _find_rules(collhub, tmp_path, ranks, changes)


def test_ranks_that_only_rendezvous_stops_are_unfinished(collhub: Collhub, tmp_path: Path) -> None:
    size = {"size": 1 << 20, "tag": 0}
    algorithm = [
        _chain({"t": "SEND", "dst": 1 - rank, **size}, {"t": "RECV", "src": 1 - rank, **size})
        for rank in range(2)
    ]
    case = {
        "sys": {
            "scheduling-policy": "FIFO",
            "preferred-dataset-splits": 1,
            "all-reduce-implementation-custom": ["alg"],
        },
        "net": {**NETWORK, "topology": ["FullyConnected"], "npus_count": [2]},
        "ranks": [_chain(REDUCE)] * 2,
        "alg": {"alg": algorithm},
    }
    run = collhub("simulate", golden_folder(case, tmp_path), "-O", "rendezvous=true", "--json")
    (finding,) = run.report()["diagnostics"]
    assert finding["code"] == "unfinished"


def test_transfers_above_the_limit_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "MAX_TRANSFERS", 3)
    topology = hub_core.parse_topology("ring:4?bandwidth=50GB/s&latency=500ns")
    columns = {"rank": [0, 1, 2, 3], "kind": [int(NodeKind.COLLECTIVE)] * 4, "bytes": [4096] * 4}
    nodes = NodeColumns.from_columns(4, {**columns, "collective": [0] * 4, "group": [-1] * 4})
    system = System.of_json(json.dumps(SYSTEM))
    times = simulate.run_workload_layer(Workload(nodes), topology, system, wants_transfers=True)
    assert [finding.code for finding in times.diagnostics] == ["omitted-transfers"]
    assert times.transfers is not None
    assert len(times.transfers.link) == 3


def test_a_rank_that_waits_in_a_collective_of_unknown_kind_is_named() -> None:
    topology = hub_core.parse_topology("ring:2?bandwidth=50GB/s&latency=500ns")
    columns = {"rank": [0, 1, 1], "kind": [int(NodeKind.COLLECTIVE)] * 3, "bytes": [64] * 3}
    nodes = NodeColumns.from_columns(2, {**columns, "collective": [0, -1, 0]}, ([1], [2]))
    times = simulate.run_workload_layer(
        Workload(nodes), topology, System.of_json(json.dumps(SYSTEM))
    )
    messages = [finding.message for finding in times.diagnostics]
    assert any("rank 1 waits in node 0 (unknown collective of" in text for text in messages)
