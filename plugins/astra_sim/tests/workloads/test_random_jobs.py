"""Random jobs: interpreted kernels and machine code give equal times, and so do small commands."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_kernels import compile_at_once, kernels
from golden_cases import Json, simulated, topology_of

# Imports of `collhub simulate FOLDER` today: 430 modules, of which numpy has 90.
# numpy's own modules are not counted: their number depends on its version (107 in 1.26, 86 in 2.4).
_MOST_MODULES = 434
_HEAVY = ("numba", "llvmlite", "highspy", "google.protobuf", "yaml", "jsonschema", "numpy.ma")
_SCRIPT = """
import sys
from hub_core.cli.main import main
code = main(["simulate", *sys.argv[1:]])
heavy = [name for name in {heavy!r} if name in sys.modules]
counted = [name for name in sys.modules if name.split(".")[0] != "numpy"]
print(code, heavy, len(counted), file=sys.stderr)
"""
_KINDS = ("ring", "direct", "halvingDoubling", "doubleBinaryTree")


def random_case(seed: int) -> Json:
    """A job of 2 to 8 ranks: computation, memory, messages, and collectives in groups."""
    random_number = random.Random(seed)
    size = random_number.choice((2, 4, 4, 8))
    is_aware = random_number.random() < 0.5
    ranks: list[list[dict[str, Any]]] = [[] for _ in range(size)]
    groups = {"1": list(range(size)), "2": list(range(0, size, 2)) if size > 2 else [0, 1]}

    def append(rank: int, **node: Any) -> None:
        nodes = ranks[rank]
        node["id"] = len(nodes)
        count = random_number.randrange(min(len(nodes), 3) + 1)
        node["deps"] = sorted(random_number.sample(range(len(nodes)), count))
        nodes.append(node)

    for tag in range(random_number.randrange(4, 14)):
        what = random_number.choice(("COMP", "COLL", "COLL", "SEND", "MEM"))
        if what == "COMP":
            cycles = random_number.randrange(1, 30)
            append(random_number.randrange(size), t="COMP", us=cycles, cpu=tag % 2)
        elif what == "MEM":
            append(random_number.randrange(size), t="LOAD", ts=random_number.randrange(1, 1 << 20))
        elif what == "SEND":
            source, destination = random_number.sample(range(size), 2)
            length = random_number.randrange(1, 1 << 18)
            append(source, t="SEND", dst=destination, size=length, tag=tag)
            append(destination, t="RECV", src=source, size=length, tag=tag)
        else:
            group = random_number.choice(("", "1", "2"))
            kind = random_number.choice(("AR", "AG", "RS", "A2A"))
            length = random_number.choice((size * 64, 1 << 16, 1 << 20))
            for rank in groups.get(group, range(size)):
                append(rank, t="COLL", ct=kind, size=length, pg=group)
    for rank in range(size):
        append(rank, t="COMP", us=1)
    system: dict[str, Any] = {
        "scheduling-policy": "LIFO" if seed % 2 else "FIFO",
        "endpoint-delay": random_number.choice((0, 10)),
        "active-chunks-per-dimension": 1 + seed % 2,
        "preferred-dataset-splits": random_number.choice((1, 2, 4)),
        "collective-optimization": "localBWAware",
        "local-mem-bw": 1600,
        "all-to-all-implementation": ["direct"],
    }
    for key in ("all-reduce", "all-gather", "reduce-scatter"):
        system[f"{key}-implementation"] = [
            random_number.choice(_KINDS[: 3 if key != "all-reduce" else 4])
        ]
    shape = random_number.choice(("Ring", "FullyConnected", "Switch"))
    # ASTRA-sim aborts on a shared ring of two NPUs.
    net = {
        "topology": ["Switch" if size == 2 else shape],
        "npus_count": [size],
        "bandwidth": [50.0],
        "latency": [500.0],
    }
    memory = {
        "memory-type": "PER_NPU_MEMORY_EXPANSION",
        "remote-mem-latency": 1000,
        "remote-mem-bw": 100,
    }
    backend = "aware" if is_aware else "unaware"
    return {
        "ranks": ranks, "groups": groups, "net": net, "sys": system, "backend": backend,
        "mem": memory, "rendezvous": seed % 5 == 0, "queues": 1 + seed % 3,
    }  # fmt: skip


@pytest.mark.parametrize("slots", ["astra-sim", "unlimited"])
def test_interpreted_jobs_equal_machine_code(monkeypatch: pytest.MonkeyPatch, slots: str) -> None:
    monkeypatch.setattr(kernels, "MAX_EVENTS_BEFORE_LOADING", 1 << 60)
    finished = 0
    for seed in range(40):
        case = random_case(seed)
        plain = simulated(case, slots=slots)
        with compile_at_once():
            native = simulated(case, slots=slots)
        assert plain.rank_finish_ns == native.rank_finish_ns, seed
        assert plain.rank_exposed_ns == native.rank_exposed_ns, seed
        assert plain.start_ns.tolist() == native.start_ns.tolist(), seed
        assert plain.end_ns.tolist() == native.end_ns.tolist(), seed
        assert plain.link_loads == native.link_loads, seed
        assert plain.events == native.events > 0, seed
        finished += None not in plain.rank_finish_ns
    # Others wait for one another for ever, which is compared as well.
    assert finished >= 10


def test_transfers_explain_the_load_of_every_link() -> None:
    total = 0
    for seed in range(40):
        case = random_case(seed) | {"backend": "aware", "rendezvous": False}
        times = simulated(case, wants_transfers=True)
        assert times.start_ns.tolist() == simulated(case).start_ns.tolist(), seed
        topology, transfers = topology_of(case["net"]), times.transfers
        assert transfers is not None
        busy = np.bincount(transfers.link, transfers.busy_ns, topology.num_links)
        ends = zip(topology.source.tolist(), topology.destination.tolist(), strict=True)
        loads = {(load.source, load.destination): load.busy_ns for load in times.link_loads}
        assert busy.tolist() == [loads.get(link, 0) for link in ends], seed
        assert (transfers.ready_ns <= transfers.start_ns).all(), seed
        order = np.lexsort((transfers.start_ns, transfers.link))
        link, start = transfers.link[order], transfers.start_ns[order]
        stop = start + transfers.busy_ns[order]
        assert (start[1:] >= stop[:-1])[link[1:] == link[:-1]].all(), seed
        begun = times.start_ns[transfers.row]
        assert ((begun >= 0) & (begun <= transfers.ready_ns)).all(), seed
        total += len(link)
    assert total > 1000


def test_a_small_job_imports_little(corpus: Path) -> None:
    folder = corpus / "strangers" / "workload" / "host_memory_and_collective"
    # numpy before version 2 imports numpy.ma itself.
    heavy_modules = _HEAVY if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else _HEAVY[:-1]
    script = _SCRIPT.format(heavy=heavy_modules)
    command = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, heavy, modules = done.stderr.splitlines()[-1].split(maxsplit=2)
    assert (code, heavy) == ("0", "[]")
    assert int(modules) <= _MOST_MODULES
