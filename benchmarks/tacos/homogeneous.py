"""All-gathers where all links are alike: ours, the bound, the release's algorithm, the release.

    python benchmarks/tacos/homogeneous.py [--only mesh:8x8] [--runs 3] [--release-runs 20]

Every schedule of ours is replayed. `release.py` runs in the same process where it does not take
long; its CPU time is a run's, ours is that of the whole search. Published: TACOS v1.3.0 on a shared
2-core machine, best of up to 20 runs.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

import numpy as np
from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.lower_bounds import compute_lower_bounds_ps
from collhub_tacos.schedules.replay import replay_log
from collhub_tacos.spreading.homogeneous import find_best_all_gather
from measuring import median_timed, timed, versions
from release import all_gather as release_all_gather

from hub_core import Collective, CollectiveKind, parse_topology
from hub_core.columns import Int64Array
from hub_core.network import Occupancy, Topology

GIB, MIB = 1 << 30, 1 << 20
USUAL = "bandwidth=50GiB/s&latency=500ns"


@dataclass(frozen=True, slots=True)
class HomogeneousCase:
    """A network, chunks a node, bytes of the whole output, and what the release reached.

    That is its time in us, and its CPU seconds a run.
    """

    topology: str
    chunks: int
    total: int
    published_us: float
    published_cpu_s: float | None = None


def _table(text: str) -> list[HomogeneousCase]:
    """Rows of network, chunks, us and CPU s, at 1 MiB a node."""
    rows = [line.split() for line in text.strip().splitlines()]
    npus = [parse_topology(network).num_npus for network, *_ in rows]
    return [
        HomogeneousCase(f"{network}?{USUAL}", int(chunks), n * MIB, float(us), float(cpu))
        for n, (network, chunks, us, cpu) in zip(npus, rows, strict=True)
    ]


TESTS_OF_THE_RELEASE = [
    HomogeneousCase(f"mesh:5x5?{USUAL}", 1, GIB, 9606.00),
    HomogeneousCase("mesh:10x10?bandwidth=100GiB/s&latency=1us", 2, GIB, 5049.00),
    HomogeneousCase("mesh:7x12?bandwidth=100GiB/s&latency=1us", 3, 4 * GIB, 19966.27),
    HomogeneousCase(f"mesh:3x3x3?{USUAL}", 1, GIB, 6671.17),
    HomogeneousCase(f"mesh:3x4x5?{USUAL}", 2, 2 * GIB, 13353.33),
    HomogeneousCase(f"mesh:4x2x3?{USUAL}", 3, 3 * GIB, 19178.17),
    HomogeneousCase(f"torus:3x3x3?{USUAL}", 1, GIB, 3706.20),
    HomogeneousCase(f"torus:3x4x5?{USUAL}", 2, 2 * GIB, 6676.67),
    HomogeneousCase(f"torus:4x2x3?{USUAL}", 3, 3 * GIB, 11673.67),
]
MEASURED = _table("""
mesh:8x8 1 641.0 0.0074
mesh:16x16 1 2564.0 0.573
mesh:32x32 1 10256.0 69.5
mesh:45x45 1 20271.6 682
mesh:8x8 4 678.2 0.107
mesh:16x16 4 2745.2 15.3
torus:8x8 1 340.5 0.0019
torus:16x16 1 1302.0 0.428
torus:32x32 1 5168.1 57.7
torus:8x8 4 344.5 0.072
torus:16x16 4 1378.0 13.9
torus:4x4x4 1 220.3 0.0041
torus:6x6x6 1 721.1 0.184
torus:8x8x8 1 1722.7 3.88
torus:10x10x10 1 3345.2 56.5
torus:4x4x4 4 226.1 0.057
torus:6x6x6 4 775.1 7.22
torus:8x8x8 4 1835.5 133
mesh:4x4x4 1 420.7 0.0073
mesh:6x6x6 1 1442.2 0.306
mesh:8x8x8 1 3425.3 6.38
mesh:10x10x10 1 6670.4 53.1
mesh:4x4x4 4 452.2 0.058
mesh:6x6x6 4 1544.9 4.28
""")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only networks whose text has this")
    parser.add_argument(
        "--runs", type=int, default=3, help="runs of ours, of which the median CPU time is shown"
    )
    parser.add_argument(
        "--release-runs", type=int, default=20, help="seeds of the release's algorithm"
    )
    parser.add_argument(
        "--release-work", type=float, default=2e7, help="most chunks x nodes^2 that it is run on"
    )
    arguments = parser.parse_args()
    print(versions())
    _compile()
    _print_table("Expected by the release's own tests", TESTS_OF_THE_RELEASE, arguments)
    _print_table("1 MiB a node", MEASURED, arguments)


def _compile() -> None:
    """Compile, or load, both kernels, the replay and the peer before anything is measured."""
    for text in ("line:3", "ring:3"):
        network = LinkNetwork.of(parse_topology(text))
        find_best_all_gather(network, 1, np.arange(3)).log.schedule()
    release_all_gather(parse_topology("ring:3"), 1, 1, 0, causal=True)


def _print_table(title: str, cases: list[HomogeneousCase], arguments: argparse.Namespace) -> None:
    print(f"\n{title}, {Occupancy.ALPHA_BETA}; bound = largest of all bounds; times in us")
    ours = f"{'bound':>10}{'ours':>10}{'/bound':>8}{'kernel':>10}{'CPU s':>9}"
    release = f"{'release':>10}{'mean':>10}{'CPU s':>9}{'/ours':>7}"
    published = f"{'published':>10}{'CPU s':>8}{'/ours':>7}"
    print(f"{'network':<16}{'c':>2}{ours} |{release} |{published}")
    for case in cases:
        if arguments.only in case.topology:
            _row(case, arguments.runs, arguments.release_runs, arguments.release_work)


def _row(case: HomogeneousCase, runs: int, release_runs: int, release_work: float) -> None:
    topology = parse_topology(case.topology)
    npus = topology.num_npus
    chunk_bytes = case.add_total // (npus * case.chunks)
    ours, cpu_s = _ours(topology, case.chunks, chunk_bytes, runs)
    peer = f"{'':>36}"
    # Chunks of all nodes times pairs of nodes: what an event of the release looks at.
    if npus * npus * npus * case.chunks <= release_work:
        peer = _release(topology, case.chunks, chunk_bytes, release_runs, cpu_s)
    published = f"{case.published_us:>10.2f}"
    if case.published_cpu_s is not None:
        published += f"{case.published_cpu_s:>8.3g}{case.published_cpu_s / cpu_s:>7.0f}"
    print(f"{ours} |{peer} |{published}", flush=True)


def _ours(topology: Topology, chunks: int, chunk_bytes: int, runs: int) -> tuple[str, float]:
    """Cells of our synthesis, and the median CPU seconds of the search."""
    network, npus = LinkNetwork.of(topology), topology.num_npus
    times = network.link_times(chunk_bytes, Occupancy.ALPHA_BETA)
    origin = np.tile(np.arange(npus), chunks)
    step_ps = int(times.busy[0])
    found, cpu_s = median_timed(lambda: find_best_all_gather(network, step_ps, origin), runs)
    time_us = replay_log(found.log, times, origin) / 1e6
    bound_us = _bound_us(network, chunks, chunk_bytes)
    name = topology.name.partition("?")[0]
    kernel = "symmetric" if found.is_symmetric else "lockstep"
    reached = f"{bound_us:>10.2f}{time_us:>10.2f}{time_us / bound_us:>8.4f}"
    return f"{name:<16}{chunks:>2}{reached}{kernel:>10}{cpu_s:>9.4f}", cpu_s


def _bound_us(network: LinkNetwork, chunks: int, chunk_bytes: int) -> float:
    npus: Int64Array = np.arange(network.num_npus)
    collective = Collective(CollectiveKind.ALL_GATHER, len(npus), len(npus) * chunks)
    bounds = compute_lower_bounds_ps(collective, network, npus, chunk_bytes, Occupancy.ALPHA_BETA)
    return max(bounds.values()) / 1e6


def _release(topology: Topology, chunks: int, chunk_bytes: int, runs: int, ours_s: float) -> str:
    """Cells of the release's algorithm in its causal form."""

    def every_seed() -> list[float]:
        outcomes = [
            release_all_gather(topology, chunk_bytes, chunks, seed, causal=True)
            for seed in range(runs)
        ]
        return [outcome.time_us for outcome in outcomes]

    times_us, seconds = timed(every_seed)
    cpu_s = seconds / runs
    mean_us = statistics.mean(times_us)
    return f"{min(times_us):>10.2f}{mean_us:>10.2f}{cpu_s:>9.4f}{cpu_s / ours_s:>7.0f}"


if __name__ == "__main__":
    main()
