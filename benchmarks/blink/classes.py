"""Every allocation of 3 to 8 GPUs on a DGX-1: rates, fewest trees, simulated bandwidth, and the best rings side by side.

    python benchmarks/blink/classes.py [--size 268435456] [--rates-only]

Per class: the broadcast rate and the all-reduce rate in NVLinks, the fewest trees of both (broadcast: over all roots),
whether that is proved, CPU seconds for this (first call of a kernel left out); then what the simulator makes of the
synthesized algorithms, by the certified rate, and the ratio to the best rings. Rings: the exact largest packing of directed
Hamiltonian cycles, at their full rate; where NVLink has none, a ring over PCIe at 10 GB/s.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
from collhub_blink.allocations import AllocationClass, allocation_classes
from collhub_blink.fewest.all_reduce import fewest_all_reduce_trees
from collhub_blink.fewest.broadcast import fewest_broadcast_trees
from collhub_blink.fewest.counting import Fewest
from collhub_blink.fewest.weights import Budget
from collhub_packing import CapacityGraph, broadcast_rate, strength
from scipy.optimize import Bounds, LinearConstraint, milp

import hub_core
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Topology

MACHINES = {"dgx1v": 25e9, "dgx1p": 20e9}
PCIE_BYTES_PER_S = 10e9
BUDGET = 60_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """What was found for one class; rates in links."""

    found: AllocationClass
    broadcast: Fraction
    all_reduce: Fraction
    broadcast_trees: list[Fewest]
    all_reduce_trees: Fewest
    cpu_s: float


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--size", type=int, default=1 << 28, help="bytes of the simulated collectives"
    )
    parser.add_argument("--rates-only", action="store_true", help="leave the simulations out")
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {arguments.size} bytes")
    _row(
        hub_core.read_topology("dgx1p"), AllocationClass((0, 1, 2), 1), 20e9
    )  # compiles or loads the kernels
    for machine, link in MACHINES.items():
        topology = hub_core.read_topology(machine)
        start = time.process_time()
        classes = allocation_classes(topology, range(3, 9))
        print(
            f"\n{machine}: {len(classes)} classes, enumerated in {time.process_time() - start:.2f} s of CPU"
        )
        rows = [_row(topology, found, link) for found in classes]
        _print_rates(rows)
        if not arguments.rates_only:
            _print_simulated(topology, rows, link, arguments.size)


def _row(topology: Topology, found: AllocationClass, link: float) -> Row:
    start = time.process_time()
    graph = CapacityGraph.of(topology.subset(found.npus))
    rates = [broadcast_rate(graph, root).value for root in range(graph.num_compute)]
    trees = [
        fewest_broadcast_trees(graph, root, int(rate), (), Budget(BUDGET))
        for root, rate in enumerate(rates)
    ]
    tau = strength(graph).value
    scaled = replace(graph, capacity=graph.capacity * tau.denominator)
    all_reduce = fewest_all_reduce_trees(scaled, tau.numerator, (), Budget(BUDGET))
    links = graph.unit / Fraction(link)
    return Row(found, rates[0] * links, tau * links, trees, all_reduce, time.process_time() - start)


def _print_rates(rows: list[Row]) -> None:
    print(
        f"{'GPUs':18} {'sets':>4} {'bcast':>5} {'trees':>6} {'AR':>5} {'trees':>5} {'proved':>6} {'CPU s':>6}"
    )
    for row in rows:
        counts = ",".join(map(str, sorted({len(found.trees) for found in row.broadcast_trees})))
        is_proved = all(found.is_proved for found in (*row.broadcast_trees, row.all_reduce_trees))
        print(
            f"{' '.join(map(str, row.found.npus)):18} {row.found.count:4} {row.broadcast!s:>5} {counts:>6} {row.all_reduce!s:>5} "
            f"{len(row.all_reduce_trees.trees):5} {'yes' if is_proved else 'no':>6} {row.cpu_s:6.3f}"
        )
    print(f"all classes, every root: {sum(row.cpu_s for row in rows):.2f} s of CPU")


def _print_simulated(topology: Topology, rows: list[Row], link: float, size: int) -> None:
    compared = f"{'of rate':>7} {'by ring':>7}"
    print(
        f"\nsimulated\n{'GPUs':18} {'rings':>5} | {'broadcast GB/s':>14} {compared} | {'all-reduce GB/s':>15} {compared}"
    )
    ratios: dict[CollectiveKind, list[float]] = {
        CollectiveKind.BROADCAST: [],
        CollectiveKind.ALL_REDUCE: [],
    }
    parts: list[float] = []
    for row in rows:
        network = topology.subset(row.found.npus)
        rings = _most_rings(network, link)
        cells = []
        for kind, rate in (
            (CollectiveKind.BROADCAST, row.broadcast),
            (CollectiveKind.ALL_REDUCE, row.all_reduce),
        ):
            reached = size / _simulated_s(kind, network, size)
            ratio = reached / _ring_bytes_per_s(kind, len(row.found.npus), rings, link)
            part = reached / (float(rate) * link)
            ratios[kind].append(ratio)
            parts.append(part)
            cells.append(
                f"{reached / 1e9:{14 + (kind is CollectiveKind.ALL_REDUCE)}.2f} {part:7.1%} {ratio:7.2f}"
            )
        print(f"{' '.join(map(str, row.found.npus)):18} {rings:5} | {' | '.join(cells)}")
    print(f"least part of the certified rate: {min(parts):.1%}")
    for kind, found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(
            f"{kind} by the best rings: up to {max(found):.2f}, geometric mean {mean:.2f}, least {min(found):.2f}"
        )


def _simulated_s(kind: CollectiveKind, network: Topology, size: int) -> float:
    root = 0 if kind is CollectiveKind.BROADCAST else None
    collective = Collective(kind, network.num_npus, 1, root=root, in_place=True)
    made = hub_core.synthesize(collective, network, size, name="blink")
    time_ns = hub_core.simulate(made.algorithm, network, size).time_ns
    assert time_ns is not None
    return time_ns / 1e9


def _ring_bytes_per_s(kind: CollectiveKind, gpus: int, rings: int, link: float) -> float:
    rate = rings * link if rings else PCIE_BYTES_PER_S
    return rate * gpus / (2 * (gpus - 1)) if kind is CollectiveKind.ALL_REDUCE else rate


def _most_rings(network: Topology, link: float) -> int:
    """Most directed Hamiltonian cycles that fit on the links, each taking one lane of a link."""
    lanes = {
        (int(tail), int(head)): round(rate / link)
        for tail, head, rate in zip(
            network.source, network.destination, network.bandwidth_bytes_per_s, strict=True
        )
    }
    cycles = [(0, *order, 0) for order in permutations(range(1, network.num_npus))]
    fitting = [cycle for cycle in cycles if all(pair in lanes for pair in pairwise(cycle))]
    if not fitting:
        return 0
    place = {pair: row for row, pair in enumerate(lanes)}
    uses = np.zeros((len(lanes), len(fitting)))
    for column, cycle in enumerate(fitting):
        for pair in pairwise(cycle):
            uses[place[pair], column] += 1
    limits = LinearConstraint(uses, ub=np.asarray(list(lanes.values()), np.float64))
    found = milp(
        -np.ones(len(fitting)),
        constraints=limits,
        integrality=np.ones(len(fitting)),
        bounds=Bounds(0, np.inf),
    )
    return round(-found.fun)


if __name__ == "__main__":
    main()
