"""Measure broadcasts, and all-gathers of groups whose other NPUs relay.

    python benchmarks/tacos/spreading.py [--seeds 4] [--only corners]

By events, by trees on loaded links, and the bound; every schedule is replayed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.lower_bounds import compute_lower_bounds_ps
from collhub_tacos.routing.routes import spread
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.replay import replay
from collhub_tacos.spreading.heterogeneous import find_all_gather
from measuring import timed_warm, versions

from hub_core import parse_topology
from hub_core.columns import Int64Array
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy

NETWORKS = ("mesh:4x4", "mesh:8x8", "torus:4x4x4")
BROADCAST_BYTES, NODE_BYTES = 64 << 20, 1 << 20
CHUNKS = (1, 16, 64, 256)
GROUPS = {
    "row": ("mesh:8x8", tuple(range(8))),
    "every other": ("mesh:8x8", tuple(range(0, 64, 2))),
    "corners": ("mesh:8x8", (0, 7, 56, 63)),
    "middle": ("mesh:8x8", (27, 28, 35, 36)),
    "plane": ("torus:4x4x4", tuple(range(16))),
    "pair": ("torus:4x4x4", (0, 21)),
}


@dataclass(frozen=True, slots=True)
class SpreadCase:
    """What is spread on which network.

    `collective` of `members`, chunk x from `origin[x]`, each of `chunk_bytes`.
    """

    name: str
    text: str
    collective: Collective
    members: Int64Array
    origin: Int64Array
    chunk_bytes: int


def main() -> None:
    """Print one row a case: bound, and per kernel the time, transfers and CPU seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", default="", help="only cases whose name has this text")
    arguments = parser.parse_args()
    setting = f"best of {arguments.seeds} seeds, 50 GB/s, 500 ns, alpha-beta; times in us"
    print(f"{versions()}; {setting}")
    kernels = "".join(f"{name:>10}{'transfers':>11}{'CPU s':>8}" for name in ("events", "trees"))
    print(f"{'case':<40}{'bound':>10}{kernels}{'trees/events':>14}")
    for case in (*_broadcasts(), *_groups()):
        if arguments.only in case.name:
            _row(case, arguments.seeds)


def _broadcasts() -> Iterator[SpreadCase]:
    for text in NETWORKS:
        npus = parse_topology(text).num_npus
        for chunks in CHUNKS:
            yield SpreadCase(
                f"broadcast on {text}, {chunks} chunks",
                text,
                Collective(CollectiveKind.BROADCAST, npus, chunks, root=0),
                np.arange(npus),
                np.zeros(chunks, np.int64),
                BROADCAST_BYTES // chunks,
            )


def _groups() -> Iterator[SpreadCase]:
    for group, (text, members) in GROUPS.items():
        for chunks in (1, 4):
            yield SpreadCase(
                f"{group} of {text}, {chunks} chunks a node",
                text,
                Collective(CollectiveKind.ALL_GATHER, len(members), len(members) * chunks),
                np.asarray(members),
                np.repeat(members, chunks),
                NODE_BYTES // chunks,
            )


def _row(case: SpreadCase, seeds: int) -> None:
    network = LinkNetwork.of(parse_topology(f"{case.text}?bandwidth=50GB/s&latency=500ns"))
    times = network.link_times(case.chunk_bytes, Occupancy.ALPHA_BETA)
    needed = np.isin(np.arange(network.num_nodes), case.members)
    # Every chunk at every member.
    num_chunks, num_members = len(case.origin), len(case.members)
    wanted = (np.repeat(np.arange(num_chunks), num_members), np.tile(case.members, num_chunks))

    def by_events() -> LinkSchedule:
        return find_all_gather(network, times, case.origin, seeds, needed=needed).result

    def by_trees() -> LinkSchedule:
        found = [spread(network, times, case.origin, needed, seed) for seed in range(seeds)]
        return min(found, key=lambda schedule: schedule.time_ps)

    times_us = []
    cells = ""
    for synthesize in (by_events, by_trees):
        schedule, seconds = timed_warm(synthesize)
        times_us.append(replay(schedule, times, case.origin, wanted) / 1e6)
        cells += f"{times_us[-1]:>10.2f}{len(schedule):>11}{seconds:>8.3f}"
    ratio = times_us[1] / times_us[0]
    print(f"{case.name:<40}{_bound_us(case, network):>10.2f}{cells}{ratio:>14.3f}", flush=True)


def _bound_us(case: SpreadCase, network: LinkNetwork) -> float:
    bounds = compute_lower_bounds_ps(
        case.collective, network, case.members, case.chunk_bytes, Occupancy.ALPHA_BETA
    )
    return max(bounds.values()) / 1e6


if __name__ == "__main__":
    main()
