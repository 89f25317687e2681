"""Measure all-gathers where links differ: the bound, ours, and the public release of TACOS, which it is held to.

The release (astra-sim/tacos v1.3.0) reports times of schedules that cannot be, so its causal form stands beside it. On small
networks both are run here (`release.py`, written anew); times marked by * are measured on the release itself, minimum of 20.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numba
import numpy as np
from collhub_tacos.bounds.lower_bounds import lower_bounds_ps
from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.networks.transposition import is_duplex, transposed
from collhub_tacos.schedules.replay import replay
from collhub_tacos.spreading.heterogeneous import all_gather

from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy, Topology
from hub_core.version import __version__

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
NODE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """A network, chunks a node, and what the release itself gives in us: as reported, and causal (0: not measured)."""

    name: str
    topology: Topology
    chunks: int
    reported_us: float
    causal_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Times:
    """Minimum and mean of a number of seeds in us, and median CPU seconds of one."""

    least_us: float
    mean_us: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.least_us:>10.2f}{self.mean_us:>10.2f}{self.cpu_s * 1e3:>9.2f}"


def main() -> None:
    """Print one row a network: bound, ours, release; and what all-reduces of 128 and 512 NPUs take to synthesize."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="", help="only networks whose name has this text")
    parser.add_argument(
        "--release-pairs",
        type=int,
        default=130,
        help="run the release where NPUs x chunks are at most this many",
    )
    arguments = parser.parse_args()
    versions = f"collhub {__version__}, numba {numba.__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    print(
        f"{versions}; {arguments.seeds} seeds; 1 MiB a node; times in us, CPU in ms a seed (median)"
    )
    networks, release = (
        _module("plugins/tacos/tests/tacos_networks.py"),
        _module("benchmarks/tacos/release.py"),
    )
    head = "".join(
        f"{name:>10}{'mean':>10}{'CPU ms':>9}" for name in ("ours", "reported", "causal")
    )
    print(
        f"{'network':<20}{'N':>4}{'c':>3}{'bound':>10}{head}{'ours/bound':>11}{'causal/ours':>12}"
    )
    for case in _cases(networks):
        if arguments.only in case.name:
            _row(
                case,
                arguments.seeds,
                release
                if case.topology.num_npus * case.chunks <= arguments.release_pairs
                else None,
            )
    for groups, paper in ((16, "1.08 s (MICRO 2024)"), (64, "6.09 min (arXiv v2)")):
        _all_reduce(networks.ring_full_switch(groups), paper)


def _module(place: str) -> ModuleType:
    path = ROOT / place
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    return module


def _cases(networks: ModuleType) -> Iterator[Case]:
    for width, height, x_gib, y_gib, chunks, reported_us, causal_us in _MESHES:
        name = f"mesh {width}x{height} {x_gib}/{y_gib}"
        yield Case(name, networks.mesh(width, height, x_gib, y_gib), chunks, reported_us, causal_us)
    for groups, degree, chunks, reported_us, causal_us in _RING_FULL_SWITCH:
        name = f"3D-RFS 2x4x{groups}{f' g={degree}' if degree > 1 else ''}"
        yield Case(name, networks.ring_full_switch(groups, degree), chunks, reported_us, causal_us)


# Width, height, GiB/s of x and y links, chunks; the release in us, 12x12 and larger: the best of 1 to 3 runs.
_MESHES = (
    (4, 4, 50, 75, 1, 121.69, 133.71),
    (4, 4, 16, 73, 1, 279.90, 232.24),
    (5, 5, 50, 75, 1, 200.31, 200.31),
    (5, 5, 16, 73, 1, 375.21, 372.19),
    (8, 8, 50, 75, 1, 513.79, 513.79),
    (8, 8, 16, 73, 1, 824.81, 875.49),
    (7, 10, 16, 73, 1, 833.14, 848.02),
    (12, 12, 16, 73, 1, 1725.80, 1725.80),
    (12, 12, 50, 75, 1, 1161.81, 0.0),
    (16, 16, 16, 73, 1, 3064.78, 0.0),
    (16, 16, 50, 75, 1, 2063.22, 0.0),
    (4, 4, 16, 73, 4, 249.16, 244.31),
    (5, 5, 16, 73, 4, 363.33, 363.33),
    (4, 4, 50, 75, 4, 134.57, 134.57),
    (5, 5, 50, 75, 4, 214.05, 214.05),
    (8, 8, 50, 75, 4, 559.53, 559.53),
    (12, 12, 50, 75, 4, 1265.51, 0.0),
    (8, 8, 16, 73, 4, 949.50, 949.50),
    (12, 12, 16, 73, 4, 2150.91, 0.0),
)
# Groups, degree of the unwound switch, chunks; the release in us, 2x4x16 with 4 chunks: the best of 10 runs.
_RING_FULL_SWITCH = (
    (4, 1, 1, 145.60, 148.99),
    (8, 1, 1, 303.35, 365.45),
    (16, 1, 1, 626.74, 781.22),
    (16, 3, 1, 590.94, 684.83),
    (4, 1, 4, 125.97, 133.35),
    (8, 1, 4, 260.92, 279.23),
    (16, 1, 4, 536.30, 565.20),
    (16, 3, 4, 479.15, 492.93),
)


def _row(case: Case, seeds: int, release: ModuleType | None) -> None:
    npus, chunk_bytes = case.topology.num_npus, NODE_BYTES // case.chunks
    network, origin = LinkNetwork.of(case.topology), np.repeat(np.arange(npus), case.chunks)
    times = network.link_times(chunk_bytes, Occupancy.ALPHA_BETA)
    collective = Collective(CollectiveKind.ALL_GATHER, npus, npus * case.chunks)
    bounds = lower_bounds_ps(
        collective, network, np.arange(npus), chunk_bytes, Occupancy.ALPHA_BETA
    )
    ours = _measured(
        lambda seed: all_gather(network, times, origin, seed),
        lambda schedule: replay(schedule, times, origin) / 1e6,
        seeds,
    )
    others = "".join(
        f"{us:>9.2f}*{'':>19}" if us else f"{'':>29}" for us in (case.reported_us, case.causal_us)
    )
    causal_us = case.causal_us
    if release is not None:
        reported, causal = (
            _released(release, case, chunk_bytes, seeds, is_causal) for is_causal in (False, True)
        )
        others, causal_us = f"{reported}{causal}", causal.least_us
    bound_us = max(bounds.values()) / 1e6
    ratios = f"{ours.least_us / bound_us:>11.3f}" + (
        f"{causal_us / ours.least_us:>12.3f}" if causal_us else ""
    )
    print(
        f"{case.name:<20}{npus:>4}{case.chunks:>3}{bound_us:>10.2f}{ours}{others}{ratios}",
        flush=True,
    )


def _released(
    release: ModuleType, case: Case, chunk_bytes: int, seeds: int, is_causal: bool
) -> Times:
    def run(seed: int) -> float:
        time_us: float = release.all_gather(
            case.topology, chunk_bytes, case.chunks, seed, causal=is_causal
        ).time_us
        return time_us

    return _measured(run, lambda time_us: time_us, seeds)


def _measured(run: Callable[[int], T], time_us: Callable[[T], float], seeds: int) -> Times:
    run(0)
    times_us, seconds = [], []
    for seed in range(seeds):
        start = time.process_time()
        result = run(seed)
        seconds.append(time.process_time() - start)
        times_us.append(time_us(result))
    return Times(min(times_us), statistics.mean(times_us), statistics.median(seconds))


def _all_reduce(topology: Topology, paper: str) -> None:
    """An all-reduce in two phases, each synthesized once with one seed."""
    seconds, total_us = [], 0.0
    for _ in range(5):
        start = time.process_time()
        network = LinkNetwork.of(topology)
        times = network.link_times(NODE_BYTES, Occupancy.ALPHA_BETA)
        phases = [network] if is_duplex(network, times) else [network, transposed(network)]
        origin = np.arange(topology.num_npus)
        found = [
            all_gather(phase, phase.link_times(NODE_BYTES, Occupancy.ALPHA_BETA), origin).time_ps
            for phase in phases
        ]
        seconds.append(time.process_time() - start)
        total_us = sum(found) / 1e6 * (2 / len(phases))
    cost = f"{statistics.median(seconds):.3f} CPU s to synthesize; TACOS's papers, for a network of this size: {paper}"
    print(f"all-reduce of {topology.num_npus} MiB, {topology.name}: {total_us:.2f} us, {cost}")


if __name__ == "__main__":
    main()
