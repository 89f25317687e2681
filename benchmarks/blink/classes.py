"""Every allocation of 3 to 8 GPUs on a DGX-1: rates, fewest trees, bandwidth, and the best rings.

    python benchmarks/blink/classes.py [--size 268435456] [--rates-only]

Per class: the broadcast rate and the all-reduce rate in NVLinks, the fewest trees of both
(broadcast: over all roots), whether that is proved, CPU seconds for this (first call of a kernel
left out); then what the simulator makes of the synthesized algorithms, by the certified rate, and
the ratio to the best rings. Rings: the exact largest packing of directed Hamiltonian cycles, at
their full rate; where NVLink has none, a ring over PCIe at 10 GB/s.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
from collhub_blink.allocations import AllocationClass, find_allocation_classes
from collhub_blink.packing.fewest_all_reduce_trees import find_fewest_all_reduce_trees
from collhub_blink.packing.fewest_broadcast_trees import find_fewest_broadcast_trees
from collhub_blink.packing.weight_search import Budget, TreeSearchResult
from collhub_linear_programs import LinearProgram, Matrix, solve
from collhub_packing import CapacityGraph, broadcast_rate, strength

import hub_core
from hub_core.columns import Float64Array
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Topology

# Bandwidth of one NVLink in bytes/s.
MACHINES = {"dgx1v": 25e9, "dgx1p": 20e9}
PCIE_BYTES_PER_S = 10e9
# Steps of search: about a minute.
BUDGET = 60_000_000

GPU_COLUMN = 18

Lanes = dict[tuple[int, int], int]
"""Lanes of every link by its ends."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was found for one class; rates in links."""

    found: AllocationClass
    broadcast: Fraction
    all_reduce: Fraction
    broadcast_trees: list[TreeSearchResult]
    all_reduce_trees: TreeSearchResult
    cpu_s: float

    @property
    def gpus(self) -> str:
        """The GPUs of the class as the first column of a table."""
        listed = " ".join(map(str, self.found.npus))
        return f"{listed:{GPU_COLUMN}}"

    @property
    def is_proved(self) -> bool:
        """Whether no packing of fewer trees exists, for any root and for the all-reduce."""
        packings = (*self.broadcast_trees, self.all_reduce_trees)
        return all(found.is_proved for found in packings)

    def rate(self, kind: CollectiveKind) -> Fraction:
        """The certified rate of a collective in links."""
        return self.broadcast if kind is CollectiveKind.BROADCAST else self.all_reduce


@dataclass(frozen=True, slots=True)
class Reached:
    """What the simulator makes of one collective on one class."""

    bytes_per_s: float
    part_of_rate: float
    ratio_to_rings: float


def main() -> None:
    """Print the tables."""
    arguments = _arguments()
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {arguments.size} bytes")
    # Compiles or loads the kernels.
    _row(hub_core.read_topology("dgx1p"), AllocationClass((0, 1, 2), 1), MACHINES["dgx1p"])
    for machine, link in MACHINES.items():
        topology = hub_core.read_topology(machine)
        start = time.process_time()
        classes = find_allocation_classes(topology, range(3, 9))
        seconds = time.process_time() - start
        print(f"\n{machine}: {len(classes)} classes, enumerated in {seconds:.2f} s of CPU")
        rows = [_row(topology, found, link) for found in classes]
        _print_rates(rows)
        if not arguments.rates_only:
            _print_simulated(topology, rows, link, arguments.size)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    size_help = "bytes of the simulated collectives"
    parser.add_argument("--size", type=int, default=1 << 28, help=size_help)
    parser.add_argument("--rates-only", action="store_true", help="leave the simulations out")
    return parser.parse_args()


# --- rates and fewest trees ---


def _row(topology: Topology, found: AllocationClass, link: float) -> Row:
    """Rates and fewest trees of one class."""
    start = time.process_time()
    graph = CapacityGraph.of(topology.subset(found.npus))
    rates = [broadcast_rate(graph, root).value for root in range(graph.num_compute)]
    # Without known trees, so that the search alone has to find them.
    broadcast_trees = [
        find_fewest_broadcast_trees(graph, root, int(rate), (), Budget(BUDGET))
        for root, rate in enumerate(rates)
    ]
    tau = strength(graph).value
    # In units in which the strength is whole.
    scaled = replace(graph, capacity=graph.capacity * tau.denominator)
    all_reduce_trees = find_fewest_all_reduce_trees(scaled, tau.numerator, (), Budget(BUDGET))
    links = graph.unit / Fraction(link)
    return Row(
        found=found,
        broadcast=rates[0] * links,
        all_reduce=tau * links,
        broadcast_trees=broadcast_trees,
        all_reduce_trees=all_reduce_trees,
        cpu_s=time.process_time() - start,
    )


def _print_rates(rows: Sequence[Row]) -> None:
    gpus = f"{'GPUs':{GPU_COLUMN}} {'sets':>4}"
    rates = f"{'bcast':>5} {'trees':>6} {'AR':>5} {'trees':>5}"
    print(f"{gpus} {rates} {'proved':>6} {'CPU s':>6}")
    for row in rows:
        print(_rates_line(row))
    seconds = sum(row.cpu_s for row in rows)
    print(f"all classes, every root: {seconds:.2f} s of CPU")


def _rates_line(row: Row) -> str:
    # The number of trees may differ by root.
    counts = sorted({len(found.trees) for found in row.broadcast_trees})
    listed = ",".join(map(str, counts))
    all_reduce = f"{row.all_reduce!s:>5} {len(row.all_reduce_trees.trees):5}"
    proved = "yes" if row.is_proved else "no"
    return (
        f"{row.gpus} {row.found.count:4} {row.broadcast!s:>5} {listed:>6} "
        f"{all_reduce} {proved:>6} {row.cpu_s:6.3f}"
    )


# --- simulated bandwidth ---

# Width of a collective's column of bandwidths: that of its title.
WIDTHS = {CollectiveKind.BROADCAST: 14, CollectiveKind.ALL_REDUCE: 15}


def _print_simulated(topology: Topology, rows: Sequence[Row], link: float, size: int) -> None:
    compared = f"{'of rate':>7} {'by ring':>7}"
    titles = [f"{f'{kind} GB/s':>{width}} {compared}" for kind, width in WIDTHS.items()]
    print(f"\nsimulated\n{'GPUs':{GPU_COLUMN}} {'rings':>5} | {' | '.join(titles)}")
    found: dict[CollectiveKind, list[Reached]] = {kind: [] for kind in WIDTHS}
    for row in rows:
        network = topology.subset(row.found.npus)
        rings = _most_rings(network, link)
        for kind, reached in found.items():
            reached.append(_reached(kind, row, network, rings, link, size))
        cells = [_cell(reached[-1], WIDTHS[kind]) for kind, reached in found.items()]
        print(f"{row.gpus} {rings:5} | {' | '.join(cells)}")
    _print_summary(found)


def _reached(
    kind: CollectiveKind,
    row: Row,
    network: Topology,
    rings: int,
    link: float,
    size: int,
) -> Reached:
    """The simulated bandwidth by the certified rate, and by that of the rings."""
    bytes_per_s = size / _simulated_s(kind, network, size)
    certified = float(row.rate(kind)) * link
    ring = _ring_bytes_per_s(kind, network.num_npus, rings, link)
    return Reached(bytes_per_s, bytes_per_s / certified, bytes_per_s / ring)


def _cell(reached: Reached, width: int) -> str:
    compared = f"{reached.part_of_rate:7.1%} {reached.ratio_to_rings:7.2f}"
    return f"{reached.bytes_per_s / 1e9:{width}.2f} {compared}"


def _print_summary(found: dict[CollectiveKind, list[Reached]]) -> None:
    parts = [each.part_of_rate for reached in found.values() for each in reached]
    print(f"least part of the certified rate: {min(parts):.1%}")
    for kind, reached in found.items():
        ratios = [each.ratio_to_rings for each in reached]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        extremes = f"up to {max(ratios):.2f}, geometric mean {mean:.2f}, least {min(ratios):.2f}"
        print(f"{kind} by the best rings: {extremes}")


def _simulated_s(kind: CollectiveKind, network: Topology, size: int) -> float:
    """Seconds of what is synthesized for a collective."""
    root = 0 if kind is CollectiveKind.BROADCAST else None
    collective = Collective(kind, network.num_npus, 1, root=root, in_place=True)
    made = hub_core.synthesize(collective, network, size, name="blink")
    time_ns = hub_core.simulate(made.algorithm, network, size).time_ns
    assert time_ns is not None
    return time_ns / 1e9


# --- rings, to compare with ---


def _ring_bytes_per_s(kind: CollectiveKind, gpus: int, rings: int, link: float) -> float:
    """Algorithm bandwidth of rings without latencies."""
    rate = rings * link if rings else PCIE_BYTES_PER_S
    if kind is not CollectiveKind.ALL_REDUCE:
        return rate
    # Every ring carries (gpus - 1) / gpus of its data twice.
    return rate * gpus / (2 * (gpus - 1))


def _most_rings(network: Topology, link: float) -> int:
    """Most directed Hamiltonian cycles that fit on the links, each taking one lane of a link."""
    lanes = _lanes(network, link)
    cycles = list(_cycles(network.num_npus, lanes))
    if not cycles:
        return 0
    room = np.asarray(list(lanes.values()), np.float64)
    uses = _uses(cycles, lanes)
    rows, columns = np.nonzero(uses)
    program = LinearProgram(
        -np.ones(len(cycles)),
        Matrix(rows, columns, uses[rows, columns], *uses.shape),
        row_lower=np.full(len(room), -np.inf),
        row_upper=room,
        upper=np.full(len(cycles), np.inf),
        is_integer=np.ones(len(cycles), np.bool_),
    )
    solution = solve(program)
    assert solution is not None, "no cycle at all is a solution"
    return round(float(solution.values.sum()))


def _lanes(network: Topology, link: float) -> Lanes:
    ends = zip(network.source.tolist(), network.destination.tolist(), strict=True)
    counts = [round(rate / link) for rate in network.bandwidth_bytes_per_s.tolist()]
    return dict(zip(ends, counts, strict=True))


def _cycles(gpus: int, lanes: Lanes) -> Iterator[tuple[int, ...]]:
    """Cycles through all GPUs along links."""
    # All begin at GPU 0, so that each comes once.
    for order in permutations(range(1, gpus)):
        cycle = (0, *order, 0)
        if all(pair in lanes for pair in pairwise(cycle)):
            yield cycle


def _uses(cycles: Sequence[tuple[int, ...]], lanes: Lanes) -> Float64Array:
    """How often each cycle passes each link: float64[links, cycles]."""
    place = {pair: row for row, pair in enumerate(lanes)}
    uses = np.zeros((len(lanes), len(cycles)))
    for column, cycle in enumerate(cycles):
        for pair in pairwise(cycle):
            uses[place[pair], column] += 1
    return uses


if __name__ == "__main__":
    main()
