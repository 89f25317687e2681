"""Times measured with ASTRA-sim 518bd51, reproduced by expanded jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hub_core
from hub_core import Algorithm, InputError
from hub_core.model import NodeColumns, NodeKind, ProcessGroup, Workload
from hub_core.plugin_api import WorkloadTimes

Collhub = Callable[..., Any]
pytest.importorskip("collhub_astra_sim")
RING = "ring:8?bandwidth=50GiB/s&latency=500ns"
NATIVE = "all-reduce=astra-ring:endpoint_delay=1"
DELAY = "simulator.endpoint_delay=1"


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers, 5 us each way, 1 MiB of gradients each, and 5 us after all."""
    rows: list[tuple[int, int, int, list[int]]] = []
    for rank in range(8):
        first, before, reduced = len(rows), [], []
        for layer in range(12):
            rows.append((rank, NodeKind.COMPUTE, 5000, list(before)))
            before = [len(rows) - 1]
            if layer >= 6:
                rows.append((rank, NodeKind.COLLECTIVE, -1, list(before)))
                reduced.append(len(rows) - 1)
        rows.append((rank, NodeKind.COMPUTE, 5000, reduced))
        assert len(rows) - first == 19
    kind = np.array([row[1] for row in rows])
    is_collective = kind == NodeKind.COLLECTIVE
    edges = [(parent, child) for child, row in enumerate(rows) for parent in row[3]]
    columns = {
        "rank": [row[0] for row in rows],
        "kind": kind,
        "duration_ns": [row[2] for row in rows],
        "bytes": np.where(is_collective, 1 << 20, -1),
        "collective": np.where(is_collective, 0, -1),
    }
    parents, children = np.array(edges).T
    workload = Workload(NodeColumns.from_columns(8, columns, (parents, children)))
    out = tmp_path_factory.mktemp("published") / "step"
    hub_core.write(workload, out)
    return out


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "published"),
    [
        (("--slots", "frozen", "-O", DELAY), 287134),
        ((), 246047),
        (("--slots", "frozen", "-O", DELAY, "--split", "4"), 247972),
        (("--split", "4"), 245462),
    ],
)
def test_a_data_parallel_step(
    collhub: Collhub, step: Path, tmp_path: Path, options: tuple[str, ...], published: int
) -> None:
    flat = tmp_path / "flat"
    rule = ("--collective", NATIVE, "--topology", RING)
    assert collhub("expand", step, *rule, *options, "-o", flat).code == 0
    slots = ("-O", "slots=unlimited")
    found = collhub("simulate", flat, "--topology", RING, *slots, "--json").report()
    assert found["time_ns"] == published


def _admit(algorithm: Algorithm, name: str) -> None:
    found = hub_core.verify(algorithm)
    if not found.ok:
        raise InputError(found.diagnostics)


def _flat_times(case: Any) -> tuple[Any, Any]:
    """(finish of every rank as measured, the same of the flat job with frozen slots)."""
    from collhub_astra_sim.workloads.simulate import UNLIMITED_SLOTS, run_workload_layer
    from collhub_astra_sim.workloads.system import System
    from collhub_expansion.expand import expand_workload
    from collhub_expansion.making import Maker
    from collhub_expansion.native import native_system
    from golden_cases import simulated, topology_of, workload_of

    text = json.dumps(case["sys"])
    read = workload_of(case["ranks"], case.get("groups", {}))
    workload = replace(read, extensions={"astra-sim": {"system": text}})
    topology, native = topology_of(case["net"]), simulated(case)
    times = WorkloadTimes(native.rank_finish_ns, native.start_ns, native.end_ns)
    system = native_system(workload)
    maker = Maker(
        topology, system, workload.num_ranks, hub_core.discover(), read=hub_core.read, admit=_admit
    )
    flat = expand_workload(workload, [], maker, system, times=times).workload
    plain = System.of_json(json.dumps({**case["sys"], "roofline-enabled": 0}))
    backend = f"congestion-{case['backend']}"
    found = run_workload_layer(flat, topology, plain, backend=backend, slots=UNLIMITED_SLOTS)
    return case["cycles"], list(found.rank_finish_ns)


_NOT_EXPANDED = ("alg", "mem", "per_node", "rendezvous")


def _is_expandable(case: Any) -> bool:
    """Whether native algorithms, in turn or at once, are all that its ranks run, and they end."""
    is_plain = not any(case.get(key) for key in _NOT_EXPANDED) and None not in case["cycles"]
    is_plain &= case.get("queues", 1) == 1
    has_collectives = any(node["t"] == "COLL" for rank in case["ranks"] for node in rank)
    return is_plain and has_collectives and not case["sys"].get("replay-only")


@pytest.mark.once
def test_pairs_of_the_golden_cases_have_equal_times(corpus: Path) -> None:
    from golden_cases import golden

    cases = {case["name"]: case for case in golden(corpus)}
    pairs = [case for case in cases.values() if "pair" in case]
    assert len(pairs) == 12
    for pair in pairs:
        published, ours = _flat_times(cases[pair["pair"]])
        is_exact = pair["name"].endswith("flat_workload")
        # The other form of the original says of every rank when its last message has arrived.
        assert max(ours) == max(published), pair["name"]
        assert ours == pair["cycles"] or not is_exact, pair["name"]


def test_a_folder_states_network_and_system(collhub: Collhub, corpus: Path, tmp_path: Path) -> None:
    from golden_cases import golden, workload_of

    case = next(case for case in golden(corpus) if case["name"] == "dp8_overlap")
    folder = tmp_path / "folder"
    folder.mkdir()
    hub_core.write(workload_of(case["ranks"], {}), folder / "workload")
    (folder / "system.json").write_text(json.dumps(case["sys"]))
    (folder / "network.yml").write_text(json.dumps(case["net"]))
    flat = tmp_path / "flat"
    assert collhub("expand", folder, "--slots", "frozen", "-o", flat).code == 0
    run = ("simulate", flat, "--topology", RING, "-O", "slots=unlimited", "--json")
    assert collhub(*run).report()["time_ns"] == max(case["cycles"])


@pytest.mark.once
@pytest.mark.parametrize("name", ["custom_dp_overlap", "custom_group4", "custom_per_node"])
def test_custom_algorithms_of_a_folder_have_their_own_sizes(
    collhub: Collhub, corpus: Path, tmp_path: Path, name: str
) -> None:
    from golden_cases import golden
    from golden_folders import golden_folder

    case = next(case for case in golden(corpus) if case["name"] == name)
    folder = tmp_path / "folder"
    folder.mkdir()
    golden_folder(case, folder)
    flat = tmp_path / "flat"
    assert collhub("expand", folder, "--slots", "frozen", "-o", flat).code == 0
    network = ("--topology", folder / "network.yml", "-O", f"network=congestion-{case['backend']}")
    found = collhub("simulate", flat, *network, "-O", "slots=unlimited", "--json").report()
    assert found["rank_finish_ns"] == case["cycles"]


_SEVERAL = ["md_AR_2x4_1", "md_AG_2x2x2_10", "md_A2A_4x2_8", "dp4x2_2d_lbw", "dag_n16_v3"]


@pytest.mark.parametrize("name", _SEVERAL)
def test_streams_go_through_dimensions_in_turn(corpus: Path, name: str) -> None:
    from golden_cases import golden

    (case,) = (case for case in golden(corpus) if case["name"] == name)
    assert case["sys"]["preferred-dataset-splits"] > 1
    published, ours = _flat_times(case)
    assert max(ours) == max(published)


# Direct with fewer messages at once than peers sends in the order of arrivals.
_BY_ARRIVAL = {"dag_n12_v2"}


@pytest.mark.slow
def test_all_golden_cases_have_equal_times(corpus: Path) -> None:
    from golden_cases import golden

    differing, count, equal = set(), 0, 0
    for case in golden(corpus):
        if not _is_expandable(case):
            continue
        published, ours = _flat_times(case)
        count += 1
        equal += published == ours
        if max(published) != max(ours):
            differing.add(case["name"])
    assert differing == _BY_ARRIVAL
    assert (count, equal) == (108, 86)


@pytest.mark.parametrize("group", [-1, 0])
@pytest.mark.parametrize("splits", [1, 4])
def test_trees_alternate_in_every_dimension(splits: int, group: int) -> None:
    from collhub_astra_sim.workloads.simulate import UNLIMITED_SLOTS, run_workload_layer
    from collhub_astra_sim.workloads.system import System
    from collhub_expansion.expand import expand_workload
    from collhub_expansion.making import Maker
    from collhub_expansion.native import native_system

    text = json.dumps({
        "scheduling-policy": "FIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": splits, "collective-optimization": "localBWAware",
        "all-reduce-implementation": ["ring", "doubleBinaryTree"],
    })  # fmt: skip
    columns = {
        "rank": np.arange(8),
        "kind": np.full(8, int(NodeKind.COLLECTIVE)),
        "collective": np.zeros(8),
        "bytes": np.full(8, 1 << 20),
        "group": np.full(8, group),
    }
    # A group of all ranks has the dimensions of the network, whatever the order of its list.
    groups = (ProcessGroup("1", (3, 0, 2, 1, 4, 5, 7, 6)),)
    extensions = {"astra-sim": {"system": text}}
    job = Workload(NodeColumns.from_columns(8, columns), groups=groups, extensions=extensions)
    network = hub_core.parse_topology("torus:2x4?bandwidth=50GiB/s&latency=500ns")
    system = System.of_json(text)
    native = run_workload_layer(job, network, system, backend="congestion-unaware")
    found = native_system(job)
    maker = Maker(network, found, 8, hub_core.discover(), read=hub_core.read, admit=_admit)
    flat = expand_workload(job, [], maker, found).workload
    ours = run_workload_layer(
        flat, network, system, backend="congestion-unaware", slots=UNLIMITED_SLOTS
    )
    assert max(ours.rank_finish_ns) == max(native.rank_finish_ns)
