"""All-gathers on equal links against the evacuation bound: matching, and TACOS's own rule.

    python benchmarks/synthesis/spreading.py [--seeds 20] [--graphs SEED ...] [--lag STEPS]

44 networks a seed of graphs, with 1, 2 and 4 chunks a node. Prints a row where something is not at
the bound, and in the end how often each is, the mean and worst ratio to the bound, which was better
how often, and the CPU seconds of each. Every schedule is replayed. `--lag`: steps until a message
arrives, 1 where a link is busy until then. The matching of TACOS (Won et al., MICRO 2024) is the
kernel of `collhub_tacos.spreading.homogeneous`, best of the same number of seeds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from collhub_tacos.link_network import UNCAPPED, LinkNetwork, LinkTimes
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.replay import replay
from collhub_tacos.schedules.retiming import retime
from collhub_tacos.spreading.homogeneous import bound_steps, find_best_all_gather
from collhub_tacos.spreading.matching import find_best_matched_all_gather
from collhub_tacos.time_cuts import evacuation_bound
from graphs import networks

STEP_PS = 1000
CHUNKS = (1, 2, 4)
# All bounds are wanted, though one may take seconds.
MOST_CELLS = 1 << 24
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class _Row:
    """Steps of the bound, of the matching and of TACOS's rule, and CPU seconds of each."""

    name: str
    steps: tuple[int, int, int]
    cpu_s: tuple[float, float, float]


def main() -> None:
    """Print the rows that are not at the bound, then the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--graphs", type=int, nargs="+", default=[0])
    parser.add_argument("--lag", type=int, default=1)
    asked = parser.parse_args()
    rows = []
    for seed in asked.graphs:
        for name, topology in networks(seed):
            network = LinkNetwork.of(topology)
            for chunks in CHUNKS:
                row = _row(f"{name}, {chunks}", network, chunks, asked.seeds, asked.lag)
                rows.append(row)
                if row.steps[0] != row.steps[1]:
                    print(f"{row.name:28} bound {row.steps[0]:4} matching {row.steps[1]:4}")
    _print_sums(rows)


def _row(name: str, network: LinkNetwork, chunks: int, seeds: int, lag: int) -> _Row:
    origin = np.repeat(np.arange(network.num_npus), chunks)
    busy = np.full(network.num_links, STEP_PS)
    times = LinkTimes(busy, lag * busy, rule=UNCAPPED)
    ingress_ps = (bound_steps(network, origin) - 1 + lag) * STEP_PS
    bound, bound_s = _timed(
        lambda: evacuation_bound(network, times, origin, ingress_ps, max_cells=MOST_CELLS)
    )
    # These networks are small enough, and their links alike.
    assert bound is not None
    goal_ps = bound.time_ps
    matched, matched_s = _timed(
        lambda: (
            find_best_matched_all_gather(
                network, times, origin, seeds=seeds, goal_ps=goal_ps
            ).result
        )
    )
    lockstep, lockstep_s = _timed(
        lambda: find_best_all_gather(
            network, STEP_PS, origin, arrival_ps=lag * STEP_PS, seeds=seeds
        )
    )
    plain = retime(lockstep.log.schedule(), times)
    for schedule in (matched, plain):
        _check(schedule, times, origin)
    steps = (bound.time_ps, matched.time_ps, plain.time_ps)
    return _Row(name, tuple(time // STEP_PS for time in steps), (bound_s, matched_s, lockstep_s))


def _timed(work: Callable[[], Found]) -> tuple[Found, float]:
    before = time.process_time()
    return work(), time.process_time() - before


def _check(schedule: LinkSchedule, times: LinkTimes, origin: np.ndarray) -> None:
    """Raise `InputError` where a chunk is sent before it is there, or does not get everywhere."""
    chunk, node = np.arange(len(origin)), np.arange(schedule.network.num_npus)
    wanted = np.repeat(chunk, len(node)), np.tile(node, len(chunk))
    replay(schedule, times, origin, wanted)


def _print_sums(rows: list[_Row]) -> None:
    bound, matched, plain = np.asarray([row.steps for row in rows], np.float64).T
    cpu_s = np.asarray([row.cpu_s for row in rows]).sum(axis=0)
    print(f"{'':12}{'at bound':>12}{'mean / bound':>14}{'worst':>8}{'CPU s':>8}")
    for name, steps, taken in (("matching", matched, cpu_s[1]), ("TACOS", plain, cpu_s[2])):
        ratio = steps / bound
        at_bound = f"{int(np.sum(steps == bound))} of {len(rows)}"
        print(f"{name:12}{at_bound:>12}{ratio.mean():14.4f}{ratio.max():8.3f}{taken:8.1f}")
    better, worse = int(np.sum(matched < plain)), int(np.sum(matched > plain))
    print(f"matching is better {better} times and worse {worse} times; bounds {cpu_s[0]:.1f} s")


if __name__ == "__main__":
    main()
