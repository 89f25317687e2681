"""Measure synthesized all-reduces: forms side by side with their bounds and published peers, all simulated in this run."""

from __future__ import annotations

import argparse
import platform
import time
from dataclasses import dataclass
from fractions import Fraction

import numba
import numpy as np
from collhub_packing import CapacityGraph, strength

import hub_core
from hub_core import Collective, CollectiveKind, Topology, parse_topology
from hub_core.network import Occupancy
from hub_core.version import __version__

CONSTANTS = "?bandwidth=50GB/s&latency=200ns"
GIGABYTE = 10**9
LARGE = ("mesh:4x4", "mesh:5x5", "mesh:6x6", "mesh:8x8", "mesh:5x5x5", "torus:8x8", "torus:4x4x4")
SMALL = ("mesh:8x8", "torus:8x8", "mesh:5x5x5")
SIZES = (1000, 10_000, 100_000, 1_000_000, 10_000_000)
FORMS = ("two-phase", "fused", "latency")
# GB/s at 1 GB, links of 50 GB/s and 0.2 us, as published for PipeComm: its solver, TE-CCL, TACCL.
PUBLISHED = {
    "mesh:4x4": (73.4, 50.4, 34.6),
    "mesh:5x5": (73.1, 52.0, 29.7),
    "mesh:6x6": (73.0, 44.4, 29.0),
}
# GB/s that the project asks for; times the bound of two phases for the last.
BARS = {"mesh:4x4": 77.0, "mesh:5x5": 79.0, "mesh:6x6": 79.5, "mesh:8x8": 82.0}
CUBE, CUBE_RATIO = "mesh:5x5x5", 1.45
# Makespan in steps that the reference computed for a number of chunks on trees of the same rate.
FILL = (
    ("mesh:4x4", 128, 93),
    ("mesh:4x4", 256, 173),
    ("mesh:5x5", 160, 112),
    ("mesh:5x5", 640, 400),
    ("mesh:6x6", 384, 251),
    ("mesh:6x6", 768, 475),
    ("mesh:8x8", 64, 72),
    ("mesh:8x8", 128, 108),
    ("mesh:8x8", 256, 180),
    ("mesh:8x8", 1024, 612),
    ("mesh:5x5x5", 300, 187),
    ("mesh:5x5x5", 600, 311),
    ("mesh:5x5x5", 2400, 1055),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One synthesized all-reduce: the form, chunks of the whole, simulated time in ns, CPU seconds of the synthesis."""

    form: str
    chunks: int
    simulated_ns: int
    cpu_s: float


def main() -> None:
    """Print three tables: 1 GB, small sizes, and how fast the pipelines fill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=LARGE)
    parser.add_argument(
        "--occupancies", nargs="+", default=[str(occupancy) for occupancy in Occupancy]
    )
    arguments = parser.parse_args()
    versions = f"collhub {__version__}, numba {numba.__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    print(f"{versions}; links of 50 GB/s and 0.2 us; all times simulated by `analytical`")
    measure("mesh:2x2", 1000, Occupancy.ALPHA_BETA, "fused")  # compiles
    for text in arguments.occupancies:
        print_large(arguments.networks, Occupancy(text))
    for text in arguments.occupancies:
        print_small(
            [network for network in SMALL if network in arguments.networks], Occupancy(text)
        )
    print_fill([row for row in FILL if row[0] in arguments.networks])


def measure(
    network: str, size: int, occupancy: Occupancy, method: str, **options: object
) -> Measured:
    """Synthesize and simulate."""
    topology = parse_topology(network + CONSTANTS)
    collective = Collective(CollectiveKind.ALL_REDUCE, topology.num_npus, 1, in_place=True)
    given = {"method": method, **{name: str(value) for name, value in options.items()}}
    start = time.process_time()
    result = hub_core.synthesize(
        collective, topology, size, name="tacos", options=given, occupancy=occupancy
    )
    spent = time.process_time() - start
    simulated = hub_core.simulate(
        result.algorithm, topology, size, options={"occupancy": str(occupancy)}
    ).time_ns
    assert simulated is not None
    return Measured(
        str(result.statistics["form"]), result.algorithm.collective.unit_count, simulated, spent
    )


def bounds(topology: Topology) -> tuple[float, float]:
    """GB/s that no two phases and no trees exceed: by the weakest NPU, and by the strength."""
    graph = CapacityGraph.of(topology)
    weakest = int(np.bincount(graph.destination, graph.capacity, graph.num_nodes).min())
    two_phases = Fraction(topology.num_npus * weakest, 2 * (topology.num_npus - 1))
    return float(two_phases * graph.unit) / 1e9, float(strength(graph).value * graph.unit) / 1e9


def print_large(networks: list[str], occupancy: Occupancy) -> None:
    """1 GB: every form, the bounds, the bar, and what others published."""
    print(f"\nall-reduce of 1 GB, {occupancy}, GB/s (chunks, CPU s)")
    titles = f"{'network':<13}{'two-phase':>22}{'fused':>22}{'RS;AG bound':>13}{'tree bound':>12}{'bar':>8}"
    print(f"{titles}  published: Pipe-Sol, TE-CCL, TACCL")
    for network in networks:
        two_phases, trees = bounds(parse_topology(network + CONSTANTS))
        found = [measure(network, GIGABYTE, occupancy, method) for method in ("two-phase", "fused")]
        cells = "".join(
            f"{f'{GIGABYTE / one.simulated_ns:.1f} ({one.chunks}, {one.cpu_s:.1f})':>22}"
            for one in found
        )
        bar = BARS.get(network, CUBE_RATIO * two_phases if network == CUBE else 0.0)
        best = max(GIGABYTE / one.simulated_ns for one in found)
        verdict = f"{bar:>8.1f}" if bar else f"{'-':>8}"
        peers = ", ".join(f"{value:.1f}" for value in PUBLISHED.get(network, ())) or "-"
        missed = "  BELOW THE BAR" if best < bar else ""
        print(
            f"{network:<13}{cells}{two_phases:>13.1f}{trees:>12.1f}{verdict}  {peers}{missed}",
            flush=True,
        )


def print_small(networks: list[str], occupancy: Occupancy) -> None:
    """Time of every form by size, in microseconds, and what `auto` takes."""
    print(f"\nall-reduce by size, {occupancy}, us; chosen by -O method=auto")
    print(
        f"{'network':<13}{'bytes':>10}"
        + "".join(f"{form:>12}" for form in FORMS)
        + f"{'chosen':>12}"
    )
    for network in networks:
        for size in SIZES:
            found = [measure(network, size, occupancy, method) for method in FORMS]
            chosen = measure(network, size, occupancy, "auto").form
            cells = "".join(f"{one.simulated_ns / 1000:>12.2f}" for one in found)
            print(f"{network:<13}{size:>10}{cells}{chosen:>12}", flush=True)


def print_fill(rows: list[tuple[str, int, int]]) -> None:
    """Steps of about so many chunks, against the least possible and what the reference computed for so many."""
    print("\nmakespan of fused all-reduces in steps, alpha-beta, simulated")
    print(f"{'network':<13}{'chunks':>8}{'steps':>9}{'at rate':>9}{'computed':>10}{'ratio':>8}")
    for network, chunks, computed in rows:
        topology = parse_topology(network + CONSTANTS)
        rate = strength(CapacityGraph.of(topology)).value
        repeats = chunks // rate.numerator
        pieces = round(chunks / topology.num_npus) or 1
        found = measure(network, GIGABYTE, Occupancy.ALPHA_BETA, "fused", chunks=pieces)
        steps = found.simulated_ns / (200 + GIGABYTE / found.chunks / 50)
        least = found.chunks / rate.numerator * rate.denominator
        # Another number of chunks than the reference's shifts the makespan by whole rounds.
        expected = computed + least - repeats * rate.denominator
        print(
            f"{network:<13}{found.chunks:>8}{steps:>9.1f}{least:>9.0f}{expected:>10.0f}{steps / expected:>8.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
