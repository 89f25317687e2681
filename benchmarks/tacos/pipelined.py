"""Measure all-gathers where a link is free before its message has arrived: two kernels, the bound.

    python benchmarks/tacos/pipelined.py [--seeds 20] [--networks mesh:8x8]

All links are alike, and busy for size/bandwidth while messages arrive later by the latency. Steps
of one length fit no time exactly then; events do. Both times are those of the simulator on the
finished algorithm, and by the kernels' own account.
"""

from __future__ import annotations

import argparse

import numpy as np
from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.spreading.heterogeneous import bound_ingress_ps
from collhub_tacos.spreading.heterogeneous import find_all_gather as by_events
from collhub_tacos.spreading.homogeneous import find_best_all_gather as in_lockstep
from measuring import timed_warm, versions

import hub_core
from hub_core import parse_topology
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy
from hub_core.schedules import Chunks, algorithm_of

NETWORKS = ("mesh:8x8", "torus:8x8", "mesh:4x4x4", "torus:4x4x4", "hypercube:6", "ring:16")
NODE_KIB = (1, 16, 256, 4096)
REGISTRY = hub_core.discover()


def main() -> None:
    """Print one row a network and size.

    The bound, and per kernel its own time, the simulated one and CPU seconds.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    arguments = parser.parse_args()
    setting = f"{arguments.seeds} seeds, 50 GB/s, 500 ns, serialization; times in us"
    print(f"{versions()}; {setting}")
    kernels = "".join(f"{name:>10}{'simulated':>11}{'CPU s':>8}" for name in ("lockstep", "events"))
    print(f"{'network':<12}{'KiB':>6}{'bound':>10}{kernels}{'lockstep/events':>17}")
    for text in arguments.networks:
        for kib in NODE_KIB:
            _row(text, kib, arguments.seeds)


def _row(text: str, kib: int, seeds: int) -> None:
    network = LinkNetwork.of(parse_topology(f"{text}?bandwidth=50GB/s&latency=500ns"))
    times = network.link_times(kib << 10, Occupancy.SERIALIZATION)
    origin = np.arange(network.num_npus)

    def lockstep() -> LinkSchedule:
        step, arrival = int(times.busy[0]), int(times.arrival[0])
        best = in_lockstep(network, step, origin, arrival_ps=arrival, seeds=seeds)
        return best.log.schedule()

    def events() -> LinkSchedule:
        return by_events(network, times, origin, seeds).result

    cells = ""
    simulated_us = []
    for synthesize in (lockstep, events):
        schedule, seconds = timed_warm(synthesize)
        simulated_us.append(_simulated_us(schedule, times, kib << 10))
        cells += f"{schedule.time_ps / 1e6:>10.2f}{simulated_us[-1]:>11.2f}{seconds:>8.3f}"
    bound_us = bound_ingress_ps(network, times, origin) / 1e6
    ratio = simulated_us[0] / simulated_us[1]
    print(f"{text:<12}{kib:>6}{bound_us:>10.2f}{cells}{ratio:>17.3f}", flush=True)


def _simulated_us(schedule: LinkSchedule, times: LinkTimes, node_bytes: int) -> float:
    npus = schedule.network.num_npus
    collective = Collective(CollectiveKind.ALL_GATHER, npus, npus)
    chunks = Chunks.cut(collective, [1])
    algorithm = algorithm_of(collective, chunks, schedule.transfers(times))
    topology = schedule.network.topology
    result = hub_core.simulate(algorithm, topology, node_bytes * npus, registry=REGISTRY)
    assert result.time_ns is not None
    return result.time_ns / 1e3


if __name__ == "__main__":
    main()
