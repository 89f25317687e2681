"""Measure broadcasts, and all-gathers of groups whose other NPUs relay: by events, by trees on loaded links, and the bound."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt
from collhub_tacos.bounds.lower_bounds import lower_bounds_ps
from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.routing.multicast import spread
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.replay import replay
from collhub_tacos.spreading.heterogeneous import find_all_gather

from hub_core import parse_topology
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy
from hub_core.version import __version__

Int64Array = npt.NDArray[np.int64]

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
class Case:
    """What is spread on which network: `collective` of `members`, chunk x from `origin[x]`, each of `chunk_bytes`."""

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
    seeds = parser.parse_args().seeds
    versions = f"collhub {__version__}, numba {numba.__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    print(f"{versions}; best of {seeds} seeds, 50 GB/s, 500 ns, alpha-beta; times in us")
    kernels = "".join(f"{name:>10}{'transfers':>11}{'CPU s':>8}" for name in ("events", "trees"))
    print(f"{'case':<40}{'bound':>10}{kernels}{'trees/events':>14}")
    for case in _cases():
        _row(case, seeds)


def _cases() -> Iterator[Case]:
    for text in NETWORKS:
        npus = parse_topology(text).num_npus
        for chunks in CHUNKS:
            collective = Collective(CollectiveKind.BROADCAST, npus, chunks, root=0)
            name = f"broadcast on {text}, {chunks} chunks"
            yield Case(
                name,
                text,
                collective,
                np.arange(npus),
                np.zeros(chunks, np.int64),
                BROADCAST_BYTES // chunks,
            )
    for group, (text, members) in GROUPS.items():
        for chunks in (1, 4):
            collective = Collective(CollectiveKind.ALL_GATHER, len(members), len(members) * chunks)
            name = f"{group} of {text}, {chunks} chunks a node"
            yield Case(
                name,
                text,
                collective,
                np.asarray(members),
                np.repeat(members, chunks),
                NODE_BYTES // chunks,
            )


def _row(case: Case, seeds: int) -> None:
    network = LinkNetwork.of(parse_topology(f"{case.text}?bandwidth=50GB/s&latency=500ns"))
    times = network.link_times(case.chunk_bytes, Occupancy.ALPHA_BETA)
    needed = np.isin(np.arange(network.num_nodes), case.members)
    wanted = (
        np.repeat(np.arange(len(case.origin)), len(case.members)),
        np.tile(case.members, len(case.origin)),
    )

    def by_trees() -> LinkSchedule:
        found = [spread(network, times, case.origin, needed, seed) for seed in range(seeds)]
        return min(found, key=lambda schedule: schedule.time_ps)

    found, cells = [], ""
    for synthesize in (
        lambda: find_all_gather(network, times, case.origin, seeds, needed=needed).result,
        by_trees,
    ):
        schedule, seconds = _timed(synthesize)
        found.append(replay(schedule, times, case.origin, wanted) / 1e6)
        cells += f"{found[-1]:>10.2f}{len(schedule):>11}{seconds:>8.3f}"
    bounds = lower_bounds_ps(
        case.collective, network, case.members, case.chunk_bytes, Occupancy.ALPHA_BETA
    )
    print(
        f"{case.name:<40}{max(bounds.values()) / 1e6:>10.2f}{cells}{found[1] / found[0]:>14.3f}",
        flush=True,
    )


def _timed(synthesize: Callable[[], LinkSchedule]) -> tuple[LinkSchedule, float]:
    synthesize()
    start = time.process_time()
    return synthesize(), time.process_time() - start


if __name__ == "__main__":
    main()
