"""Measure the simulator `analytical` on ring all-reduces, beside plain Python and ASTRA-sim.

    python benchmarks/simulate.py [--ranks 128 256] [--plain-ranks 32] [--whole 256] [--runs 3]

The last lines are whole processes, `collhub simulate` on traces on disk: start, reading, verifying,
simulating. A line is a measurement: what, ranks, nodes, median CPU seconds, microseconds a node,
the simulated time. Where ASTRA_SIM_BIN names the real simulator, it is run on the fewest ranks.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numba
import numpy as np
from collhub_astra_sim.options import AnalyticalOptions
from collhub_astra_sim.simulating.analytical import simulate, simulate_nodes

import hub_core
from hub_core import parse_topology
from hub_core.plugin_api import SimulationRequest
from hub_core.testing.samples import ring_all_reduce
from hub_core.version import __version__

BYTES = 64 << 20
CONSTANTS = "bandwidth=50GiB/s&latency=500ns"
REGISTRY = hub_core.discover()
# Cycles and CPU seconds (user + system) of the public release of ASTRA-sim of March 2026, on a
# 2-core x86 machine.
MEASURED = {128: (2607437, 1.9), 256: (2745075, 9.4), 512: (3006213, 38.8), 1024: (3520143, 119.8)}
TESTS = Path(__file__).resolve().parents[1] / "plugins" / "astra_sim" / "tests"


def main() -> None:
    """Print one row a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=sorted(MEASURED))
    parser.add_argument(
        "--plain-ranks", type=int, default=32, help="ranks of the comparison with plain Python"
    )
    parser.add_argument(
        "--whole", type=int, nargs="*", default=[256, 1024], help="ranks of whole processes"
    )
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    libraries = f"numba {numba.__version__}, numpy {np.__version__}"
    versions = f"collhub {__version__}, {libraries}, Python {platform.python_version()}"
    work = "ring all-reduce of 64 MiB, congestion-aware"
    print(f"{versions}, median of {arguments.runs} runs, {work}")
    start = time.process_time()
    first = SimulationRequest(ring_all_reduce(4), parse_topology("ring:4"), BYTES)
    simulate(first, AnalyticalOptions())
    print(
        f"first call, which loads or compiles the kernel: {time.process_time() - start:.1f} CPU s"
    )
    print(f"{'what':<28}{'ranks':>7}{'nodes':>10}{'CPU s':>9}{'us/node':>9}{'time ns':>12}")
    _compare_with_plain(arguments.plain_ranks, arguments.runs)
    for ranks in arguments.ranks:
        _measure_ring(ranks, arguments.runs)
    _run_binary(min(arguments.ranks))
    for ranks in arguments.whole:
        _measure_process(ranks, arguments.runs)


def _row(
    what: str, ranks: int, run: Callable[[], int | None], runs: int
) -> tuple[float, int | None]:
    """Print a measurement; return its median CPU seconds and the simulated time."""
    seconds = []
    for _ in range(runs):
        start = time.process_time()
        time_ns = run()
        seconds.append(time.process_time() - start)
    median = statistics.median(seconds)
    _print_row(what, ranks, median, time_ns)
    return median, time_ns


def _print_row(what: str, ranks: int, cpu_s: float, time_ns: int | None) -> None:
    # A send, a receive and, in the first half, a reduction in each turn of each rank.
    nodes = 5 * ranks * (ranks - 1)
    each_us = cpu_s / nodes * 1e6
    print(f"{what:<28}{ranks:>7}{nodes:>10}{cpu_s:>9.3f}{each_us:>9.2f}{time_ns!s:>12}", flush=True)


def _measure_ring(ranks: int, runs: int) -> None:
    algorithm = ring_all_reduce(ranks)
    topology = parse_topology(f"ring:{ranks}?{CONSTANTS}")
    request = SimulationRequest(algorithm, topology, BYTES)
    options = AnalyticalOptions()
    median, time_ns = _row("analytical", ranks, lambda: simulate(request, options).time_ns, runs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    expected, seconds = MEASURED.get(ranks, (time_ns, None))
    if time_ns != expected:
        raise SystemExit(f"ASTRA-sim printed {expected} for {ranks} ranks")
    if seconds is not None:
        ratio = f"{seconds} CPU s ({seconds / median:.0f} times ours)"
        print(f"  equal to ASTRA-sim, measured elsewhere at {ratio}; peak {peak:.2f} GB so far")


def _measure_process(ranks: int, runs: int) -> None:
    """`collhub simulate` on traces on disk: CPU seconds in all and in the system, peak memory."""
    topology = f"ring:{ranks}?{CONSTANTS}"
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder, "ring")
        hub_core.write(ring_all_reduce(ranks), prefix, options={"size": f"{BYTES}B"})
        command = [sys.executable, "-P", "-m", "hub_core.cli.main", "simulate", str(prefix)]
        command += ["--topology", topology, "--json"]
        used = [_process_seconds(command, ranks) for _ in range(runs)]
    user = statistics.median(each[0] for each in used)
    system = statistics.median(each[1] for each in used)
    _print_row("collhub simulate, process", ranks, user + system, used[0][2])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    print(f"  {user:.2f} s user, {system:.2f} s system; peak {peak:.2f} GB so far")


def _process_seconds(command: list[str], ranks: int) -> tuple[float, float, int]:
    """(user seconds, system seconds, simulated time) of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    time_ns = json.loads(done.stdout)["time_ns"]
    if ranks in MEASURED and time_ns != MEASURED[ranks][0]:
        raise SystemExit(f"ASTRA-sim printed {MEASURED[ranks][0]} for {ranks} ranks")
    return after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime, time_ns


def _compare_with_plain(ranks: int, runs: int) -> None:
    """The tests' plain implementation on the same graph of nodes."""
    graphs, plain = _test_module("trace_graphs"), _test_module("spec_simulator")
    graph = graphs.ring_all_reduce(ranks, BYTES)
    table, topology = graph.table(), parse_topology(f"ring:{ranks}?{CONSTANTS}")
    links = {
        (link.source, link.destination): (link.bandwidth_bytes_per_s / 1e9, 500.0)
        for link in topology.links()
    }
    ours = _row(
        "analytical",
        ranks,
        lambda: max(filter(None, simulate_nodes(table, topology).rank_finish_ns)),
        runs,
    )
    simulator = plain.SpecSimulator
    theirs = _row(
        "plain Python, same model",
        ranks,
        lambda: max(simulator(graph, links, lambda a, b: [a, b]).run()),
        runs,
    )
    if ours[1] != theirs[1]:
        raise SystemExit("the two disagree")
    print(f"  equal; plain Python takes {theirs[0] / ours[0]:.0f} times as long")


def _test_module(name: str) -> ModuleType:
    """A module of the plugin's tests, which are no installed package."""
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    return importlib.import_module(name)


def _run_binary(ranks: int) -> None:
    """The real simulator, where ASTRA_SIM_BIN names it: CPU seconds of the program alone."""
    binary = os.environ.get("ASTRA_SIM_BIN")
    if not binary:
        print("ASTRA_SIM_BIN is not set: the real simulator is not timed")
        return
    topology = parse_topology(f"ring:{ranks}?{CONSTANTS}")
    algorithm = ring_all_reduce(ranks)
    options = {"binary": binary}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = hub_core.simulate(
        algorithm, topology, BYTES, backend="astra-sim", options=options, registry=REGISTRY
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    _print_row("ASTRA-sim, this machine", ranks, seconds, result.time_ns)


if __name__ == "__main__":
    main()
