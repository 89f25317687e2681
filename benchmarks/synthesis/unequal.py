"""All-gathers on links that differ: events, deadlines and bounds, and equal links by cuts in time.

    python benchmarks/synthesis/unequal.py [--chunks 1 4] [--graphs SEED ...]

Groups whose links inside are faster than those between them, 1 MiB an NPU, alpha-beta: times in
microseconds, and CPU seconds of the last two columns. `bounds`: the largest of those that look at
one node, slab, group or path; `time-cut`: the latest of `bounds.time_cuts`, which its certificate
proves. Every schedule is replayed. `--graphs`: how often cuts in time are as late as the evacuation
bound on the 44 networks of equal links drawn from each seed, with 1, 2 and 4 chunks a node.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.lower_bounds import compute_lower_bounds_ps
from collhub_tacos.schedules.replay import replay
from collhub_tacos.search.seeds import ignore_fraction
from collhub_tacos.spreading.heterogeneous import find_all_gather
from collhub_tacos.spreading.matching import search_with_deadlines
from collhub_tacos.synthesize import compute_exact_times
from collhub_tacos.time_cuts import evacuation_bound, find_tightest_cut
from graphs import networks

from hub_core import Collective, CollectiveKind, Topology
from hub_core.network import Occupancy

TESTS = Path(__file__).resolve().parents[2] / "plugins/tacos/tests"
SHARE_BYTES = 1 << 20
PS_PER_US = 1e6
# Groups, their size, GiB/s inside and between.
CROWDS = ((4, 8, 200, 50), (9, 4, 100, 25), (9, 4, 200, 25), (6, 6, 100, 25), (12, 3, 100, 25))
MOST_CELLS = 1 << 24


def main() -> None:
    """Print a row a network, then the comparison on equal links."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--graphs", type=int, nargs="+", default=[])
    asked = parser.parse_args()
    # The networks are those of the tests.
    sys.path.insert(0, str(TESTS))
    from tacos_networks import crowds

    # Kernels are compiled before the clock runs.
    _row(crowds(3, 2, 100, 25), 1)
    heads = ("network", "chunks", "events", "deadlines", "bounds", "time-cut", "CPU s", "CPU s")
    print(f"{heads[0]:22}{heads[1]:>7}" + "".join(f"{head:>11}" for head in heads[2:]))
    for groups, size, near_gib, far_gib in CROWDS:
        name = f"{groups}x{size}, {near_gib} and {far_gib}"
        for chunks in asked.chunks:
            cells = _row(crowds(groups, size, near_gib, far_gib), chunks)
            print(f"{name:22}{chunks:7}" + "".join(f"{cell:11.3f}" for cell in cells))
    if asked.graphs:
        _print_equal_links(asked.graphs)


def _row(topology: Topology, chunks: int) -> tuple[float, ...]:
    """Microseconds of events, deadlines and both bounds; seconds of deadlines and of the cuts."""
    network = LinkNetwork.of(topology)
    npus, size = np.arange(network.num_npus), SHARE_BYTES // chunks
    times = compute_exact_times(network, size, Occupancy.ALPHA_BETA)
    gather = Collective(CollectiveKind.ALL_GATHER, len(npus), chunks * len(npus))
    origin = np.repeat(npus, chunks)
    plain = compute_lower_bounds_ps(gather, network, npus, size, Occupancy.ALPHA_BETA)
    begun = find_all_gather(network, times, origin)
    before = time.process_time()
    bound_ps = find_tightest_cut(gather, network, times, npus).time_ps
    cut_s, before = time.process_time() - before, time.process_time()
    found = search_with_deadlines(
        network, times, origin, begun, goal_ps=bound_ps, first_seed=0, report=ignore_fraction
    )
    found_s = time.process_time() - before
    wanted = np.repeat(np.arange(len(origin)), len(npus)), np.tile(npus, len(origin))
    replayed_ps = replay(found.result, times, origin, wanted)
    found_ps = (begun.result.time_ps, replayed_ps, max(plain.values()), bound_ps)
    return (*(time_ps / PS_PER_US for time_ps in found_ps), found_s, cut_s)


def _print_equal_links(seeds: list[int]) -> None:
    """How often cuts in time are as late as evacuations, which look at every cut in steps."""
    equal, cut_s, evacuation_s, count = 0, 0.0, 0.0, 0
    for seed in seeds:
        for _, topology in networks(seed):
            network = LinkNetwork.of(topology)
            npus, step = np.arange(network.num_npus), np.full(network.num_links, 1000)
            times = LinkTimes(step, step)
            for chunks in (1, 2, 4):
                gather = Collective(CollectiveKind.ALL_GATHER, len(npus), chunks * len(npus))
                before = time.process_time()
                cut_ps = find_tightest_cut(gather, network, times, npus).time_ps
                cut_s, before = cut_s + time.process_time() - before, time.process_time()
                origin = np.repeat(npus, chunks)
                # From the start, since a bound to begin with would hide one that is too late.
                bound = evacuation_bound(network, times, origin, max_cells=MOST_CELLS)
                evacuation_s += time.process_time() - before
                assert bound is not None
                assert cut_ps <= bound.time_ps
                equal, count = equal + (cut_ps == bound.time_ps), count + 1
    print(f"equal links: cuts in time are the evacuation bound in {equal} of {count} cases, in")
    print(f"{cut_s:.1f} s of CPU instead of {evacuation_s:.1f}")


if __name__ == "__main__":
    main()
