"""Measure all-gathers where a link is free before its message has arrived: in lockstep, by events, and the bound.

All links are alike, and busy for size/bandwidth while messages arrive later by the latency. Steps of one length fit no time
exactly then; events do. Both times are those of the simulator on the finished algorithm, and by the kernels' own account.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable

import numba
import numpy as np
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.spreading.heterogeneous import fewest_ps
from collhub_tacos.spreading.heterogeneous import find_all_gather as by_events
from collhub_tacos.spreading.homogeneous import best_all_gather as in_lockstep

import hub_core
from hub_core import parse_topology
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy
from hub_core.transfers import Chunks, algorithm_of
from hub_core.version import __version__

NETWORKS = ("mesh:8x8", "torus:8x8", "mesh:4x4x4", "torus:4x4x4", "hypercube:6", "ring:16")
NODE_KIB = (1, 16, 256, 4096)


def main() -> None:
    """Print one row a network and size: bound, and per kernel its own time, the simulated one and CPU seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    versions = f"collhub {__version__}, numba {numba.__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    print(f"{versions}; {seeds} seeds, 50 GB/s, 500 ns, serialization; times in us")
    kernels = "".join(f"{name:>10}{'simulated':>11}{'CPU s':>8}" for name in ("lockstep", "events"))
    print(f"{'network':<12}{'KiB':>6}{'bound':>10}{kernels}{'lockstep/events':>17}")
    for text in NETWORKS:
        for kib in NODE_KIB:
            _row(text, kib, seeds)


def _row(text: str, kib: int, seeds: int) -> None:
    network = LinkNetwork.of(parse_topology(f"{text}?bandwidth=50GB/s&latency=500ns"))
    times, origin = (
        network.link_times(kib << 10, Occupancy.SERIALIZATION),
        np.arange(network.num_npus),
    )
    step, arrival = int(times.busy[0]), int(times.arrival[0])
    cells, simulated = "", []
    for synthesize in (
        lambda: in_lockstep(network, step, origin, arrival_ps=arrival, seeds=seeds).log.schedule(),
        lambda: by_events(network, times, origin, seeds).result,
    ):
        schedule, seconds = _timed(synthesize)
        simulated.append(_simulated_us(schedule, times, kib << 10))
        cells += f"{schedule.time_ps / 1e6:>10.2f}{simulated[-1]:>11.2f}{seconds:>8.3f}"
    bound_us = fewest_ps(network, times, origin) / 1e6
    print(
        f"{text:<12}{kib:>6}{bound_us:>10.2f}{cells}{simulated[0] / simulated[1]:>17.3f}",
        flush=True,
    )


def _timed(synthesize: Callable[[], LinkSchedule]) -> tuple[LinkSchedule, float]:
    synthesize()
    start = time.process_time()
    return synthesize(), time.process_time() - start


def _simulated_us(schedule: LinkSchedule, times: LinkTimes, node_bytes: int) -> float:
    npus = schedule.network.num_npus
    collective = Collective(CollectiveKind.ALL_GATHER, npus, npus)
    algorithm = algorithm_of(collective, Chunks.cut(collective, [1]), schedule.transfers(times))
    time_ns = hub_core.simulate(algorithm, schedule.network.topology, node_bytes * npus).time_ns
    assert time_ns is not None
    return time_ns / 1e3


if __name__ == "__main__":
    main()
