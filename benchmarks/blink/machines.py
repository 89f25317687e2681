"""Packings on machines with switches and on several of them, beside ForestColl's.

    python benchmarks/blink/machines.py [--simulate 268435456] [--chunks 128]
        [--collective reduce ...] [MACHINE ...]

Per machine and collective: the rate of the packing with the fewest trees among those at the
optimal rate, whether the certificate's check confirms that it is the best, trees and depth, and
CPU seconds of all packings together (kernels are loaded before). `forestcoll`: trees of its public
code (arXiv 2402.06787; measured 2026-11, all-gather). With --simulate also the fastest algorithm
for that size: by which packing, and its part of the best rate in simulation; with --chunks by so
many on the widest tree.
"""

from __future__ import annotations

import argparse
import platform
import time

import numpy as np
from collhub_blink.certificate import build_certificate
from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.plugin import BlinkOptions
from collhub_blink.synthesize import find_packings
from collhub_certificates import check_certificate

import hub_core
from hub_core.model import ROOTED, Collective, CollectiveKind
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import SynthesisRequest

# Trees of ForestColl's public code for an all-gather.
MACHINES = {
    "dgx1v": 22,
    "dgx1p": 15,
    "mi250": 30,
    "dgx2": 16,
    "dgx-a100": 8,
    "dgx-a100:2": 43,
    "dgx-a100:4": 32,
    "mi250:2": 141,
    "dgx-h100": 8,
    "rail:2x8": 24,
    "dgx-h100:2": 29,
    "dgx-h100:4": 91,
    "dgx-h100:8": 64,
}
KINDS = (CollectiveKind.BROADCAST, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE)
OPTIONS = BlinkOptions(seeds=4, time_limit=2.0)
# Rates do not depend on the size; the certificates state one.
PACKED_BYTES = 1 << 28


def main() -> None:
    """Print the table."""
    arguments = _arguments()
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {OPTIONS}")
    _load_kernels()
    print(_head(bool(arguments.simulate)))
    for machine in arguments.machines:
        topology = hub_core.read_topology(machine)
        for name in arguments.collective:
            kind = CollectiveKind(name)
            line = _line(machine, topology, kind)
            if arguments.simulate:
                line += _simulated(topology, kind, arguments.simulate, arguments.chunks)
            print(line, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("machines", nargs="*", default=list(MACHINES))
    size_help = "also synthesize for this size and simulate"
    parser.add_argument("--simulate", type=int, metavar="BYTES", help=size_help)
    packed = (*KINDS, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)
    parser.add_argument(
        "--collective",
        nargs="+",
        choices=[str(kind) for kind in packed],
        default=[str(kind) for kind in KINDS],
        help="which ones (default: %(default)s)",
    )
    parser.add_argument("--chunks", default="auto", help="of the widest tree (default: searched)")
    return parser.parse_args()


def _load_kernels() -> None:
    """Compile or load all kernels, so that no line of the table pays for it."""
    for kind in KINDS:
        for machine in ("dgx1p", "rail:2x2"):
            _packed(hub_core.read_topology(machine), kind)


def _head(is_simulated: bool) -> str:
    what = f"{'machine':12} {'ranks':>5} {'collective':12} {'rate GB/s':>12}"
    trees = f"{'proved':>6} {'trees':>5} {'at least':>8} {'forestcoll':>10}"
    simulated = "  simulated" if is_simulated else ""
    return f"{what} {trees} {'depth':>5} {'CPU s':>6}{simulated}"


def _line(machine: str, topology: Topology, kind: CollectiveKind) -> str:
    start = time.process_time()
    task, packings = _packed(topology, kind)
    seconds = time.process_time() - start
    optimal = [packing for packing in packings if packing.is_optimal]
    best = min(optimal, key=lambda packing: len(packing.trees))
    report = check_certificate(build_certificate(task, best), None, topology)
    proved = "yes" if report.is_optimal else "no"
    # ForestColl's numbers are those of all-gathers.
    peer = str(MACHINES.get(machine, "")) if kind is CollectiveKind.ALL_GATHER else ""
    what = f"{machine:12} {topology.num_npus:5} {kind!s:12} {float(best.rate) / 1e9:12.2f}"
    trees = f"{proved:>6} {len(best.trees):5} {best.at_least:8} {peer:>10}"
    return f"{what} {trees} {best.depth:5} {seconds:6.2f}"


def _packed(topology: Topology, kind: CollectiveKind) -> tuple[PackingTask, list[PlacedPacking]]:
    """All packings for a collective of all NPUs."""
    request = SynthesisRequest(
        _collective(topology, kind),
        topology,
        PACKED_BYTES,
        tuple(range(topology.num_npus)),
        Occupancy.SERIALIZATION,
    )
    task = PackingTask.of(request, OPTIONS)
    return task, find_packings(task)


def _collective(topology: Topology, kind: CollectiveKind) -> Collective:
    root = 0 if kind in ROOTED else None
    units = kind.traits.parts(topology.num_npus)
    return Collective(kind, topology.num_npus, units, root=root, in_place=True)


def _simulated(topology: Topology, kind: CollectiveKind, size: int, chunks: str) -> str:
    """The fastest algorithm for a size, as the simulator sees it."""
    start = time.process_time()
    collective, options = _collective(topology, kind), {"chunks": chunks}
    made = hub_core.synthesize(collective, topology, size, name="blink", options=options)
    seconds = time.process_time() - start
    time_ns = hub_core.simulate(made.algorithm, topology, size).time_ns
    assert time_ns is not None
    # Bytes in a nanosecond are GB in a second.
    reached = size / time_ns
    part = reached / float(str(made.statistics["best rate GB/s"]))
    method = made.statistics["method"]
    return f"  {reached:8.2f} GB/s, {part:6.1%} of the best, {method}, {seconds:.1f} CPU s"


if __name__ == "__main__":
    main()
