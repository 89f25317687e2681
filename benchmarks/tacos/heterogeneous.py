"""Measure all-gathers where links differ: the bound, ours, and the public release of TACOS.

    python benchmarks/tacos/heterogeneous.py [--only 4x4] [--seeds 20] [--release-pairs 130]

The release (astra-sim/tacos v1.3.0) reports times of schedules that cannot be, so its causal form
stands beside it. On small networks both are run here (`release.py`, written anew); times marked by
* are measured on the release itself, minimum of 20 (`tacos_networks` in the plugin's tests).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import release
from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.lower_bounds import compute_lower_bounds_ps
from collhub_tacos.schedules.replay import replay
from collhub_tacos.spreading.heterogeneous import all_gather
from collhub_tacos.symmetry import is_duplex, transpose_network
from measuring import median_timed, networks_of_tests, timed, versions

from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy, Topology

if TYPE_CHECKING:
    from tacos_networks import ReleasedCase

T = TypeVar("T")

NODE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SeedTimes:
    """Minimum and mean of a number of seeds in us, and median CPU seconds of one."""

    least_us: float
    mean_us: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.least_us:>10.2f}{self.mean_us:>10.2f}{self.cpu_s * 1e3:>9.2f}"


def main() -> None:
    """Print one row a network, and what all-reduces of 128 and 512 NPUs take to synthesize."""
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
    print(f"{versions()}; {arguments.seeds} seeds; 1 MiB a node")
    print("times in us, CPU in ms a seed (median)")
    forms = ("ours", "reported", "causal")
    head = "".join(f"{name:>10}{'mean':>10}{'CPU ms':>9}" for name in forms)
    ratios = f"{'ours/bound':>11}{'causal/ours':>12}"
    print(f"{'network':<20}{'N':>4}{'c':>3}{'bound':>10}{head}{ratios}")
    networks = networks_of_tests()
    for case in networks.released_cases().values():
        if arguments.only in case.name:
            pairs = case.topology.num_npus * case.chunks
            _row(case, arguments.seeds, pairs <= arguments.release_pairs)
    for groups, paper in ((16, "1.08 s (MICRO 2024)"), (64, "6.09 min (arXiv v2)")):
        _all_reduce(networks.ring_full_switch(groups), paper)


def _row(case: ReleasedCase, seeds: int, runs_release: bool) -> None:
    npus = case.topology.num_npus
    bound_us, ours = _ours(case, seeds)
    if runs_release:
        reported, causal = (_released(case, seeds, causal=causal) for causal in (False, True))
        others, causal_us = f"{reported}{causal}", causal.least_us
    else:
        others, causal_us = _cited(case.reported_us) + _cited(case.causal_us), case.causal_us
    ratios = f"{ours.least_us / bound_us:>11.3f}"
    if causal_us:
        ratios += f"{causal_us / ours.least_us:>12.3f}"
    name = f"{case.name:<20}{npus:>4}{case.chunks:>3}"
    print(f"{name}{bound_us:>10.2f}{ours}{others}{ratios}", flush=True)


def _cited(time_us: float) -> str:
    """Cells of a time that was measured elsewhere; empty for 0."""
    return f"{time_us:>9.2f}*{'':>19}" if time_us else f"{'':>29}"


def _ours(case: ReleasedCase, seeds: int) -> tuple[float, SeedTimes]:
    """The largest bound in us, and what our seeds take; every schedule is replayed."""
    npus, chunk_bytes = case.topology.num_npus, NODE_BYTES // case.chunks
    network = LinkNetwork.of(case.topology)
    origin = np.repeat(np.arange(npus), case.chunks)
    times = network.link_times(chunk_bytes, Occupancy.ALPHA_BETA)
    collective = Collective(CollectiveKind.ALL_GATHER, npus, npus * case.chunks)
    bounds = compute_lower_bounds_ps(
        collective, network, np.arange(npus), chunk_bytes, Occupancy.ALPHA_BETA
    )
    ours = _measured(
        lambda seed: all_gather(network, times, origin, seed),
        lambda schedule: replay(schedule, times, origin) / 1e6,
        seeds,
    )
    return max(bounds.values()) / 1e6, ours


def _released(case: ReleasedCase, seeds: int, *, causal: bool) -> SeedTimes:
    chunk_bytes = NODE_BYTES // case.chunks
    return _measured(
        lambda seed: release.all_gather(
            case.topology, chunk_bytes, case.chunks, seed, causal=causal
        ),
        lambda outcome: outcome.time_us,
        seeds,
    )


def _measured(run: Callable[[int], T], time_us: Callable[[T], float], seeds: int) -> SeedTimes:
    """Run every seed after one that does not count; what it takes to judge them neither."""
    run(0)
    times_us, seconds = [], []
    for seed in range(seeds):
        result, cpu_s = timed(partial(run, seed))
        seconds.append(cpu_s)
        times_us.append(time_us(result))
    return SeedTimes(min(times_us), statistics.mean(times_us), statistics.median(seconds))


def _all_reduce(topology: Topology, paper: str) -> None:
    """An all-reduce in two phases, each synthesized once with one seed."""
    total_us, cpu_s = median_timed(lambda: _two_phases_us(topology), 5)
    cost = f"{cpu_s:.3f} CPU s to synthesize"
    papers = f"TACOS's papers, for a network of this size: {paper}"
    work = f"all-reduce of {topology.num_npus} MiB, {topology.name}"
    print(f"{work}: {total_us:.2f} us, {cost}; {papers}")


def _two_phases_us(topology: Topology) -> float:
    network = LinkNetwork.of(topology)
    times = network.link_times(NODE_BYTES, Occupancy.ALPHA_BETA)
    origin = np.arange(topology.num_npus)
    gather_ps = all_gather(network, times, origin).time_ps
    # Links that are alike both ways: a reduce-scatter is the all-gather, reversed in time.
    if is_duplex(network, times):
        return 2 * gather_ps / 1e6
    back = transpose_network(network)
    back_times = back.link_times(NODE_BYTES, Occupancy.ALPHA_BETA)
    return (gather_ps + all_gather(back, back_times, origin).time_ps) / 1e6


if __name__ == "__main__":
    main()
