"""All-to-all on tori: ours beside the bandwidth bound, and beside direct messages.

    python benchmarks/tacos/all_to_all.py [--tori torus:8x8] [--runs 3] [--occupancy alpha-beta]

Direct messages go on shortest paths in the order of dimensions. Both are simulated in the same run
by the hub's simulator; ours is replayed by an independent check, too. One row a torus, in steps of
one message on one link; CPU seconds are those of the process, synthesis first with what numba
compiles or loads, then the median of the other runs. Published for 512 NPUs: 11.68 minutes (PCCL,
arXiv 2606.07019; another machine).
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

import numpy as np
from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.lower_bounds import compute_lower_bounds_ps
from collhub_tacos.routing.routes import route_all
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.replay import replay
from measuring import timed, versions

import hub_core
from hub_core import Collective, CollectiveKind, Topology, parse_topology
from hub_core.columns import Int64Array
from hub_core.network import Occupancy
from hub_core.schedules import Chunks, Transfers, algorithm_of

TORI = ("torus:8x8", "torus:4x4x4", "torus:8x8x8")
CONSTANTS = "?bandwidth=50GiB/s&latency=500ns"
REGISTRY = hub_core.discover()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tori", nargs="+", default=TORI)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--chunk", type=int, default=1 << 20, help="bytes from each NPU to each other"
    )
    parser.add_argument(
        "--occupancy", choices=list(Occupancy), default=Occupancy.ALPHA_BETA, type=Occupancy
    )
    arguments = parser.parse_args()
    setting = f"{arguments.occupancy}, {arguments.chunk} bytes a pair"
    print(f"{versions()}, {setting}")
    ours = f"{'hops':>9}{'bound':>8}{'ours':>8}{'simul.':>8}{'ratio':>7}"
    others = f"{'direct':>8}{'ratio':>7}{'first s':>9}{'next s':>8}"
    print(f"{'network':<14}{ours}{others}")
    for text in arguments.tori:
        task = ExchangeTask.of(text, arguments.chunk, arguments.occupancy)
        _row(text, task, arguments.runs)


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeTask:
    """An all-to-all of chunks of `chunk_bytes` on a topology."""

    topology: Topology
    collective: Collective
    chunks: Chunks
    chunk_bytes: int
    occupancy: Occupancy

    @classmethod
    def of(cls, text: str, chunk_bytes: int, occupancy: Occupancy) -> ExchangeTask:
        topology = parse_topology(text + CONSTANTS)
        npus = topology.num_npus
        collective = Collective(CollectiveKind.ALL_TO_ALL, npus, npus)
        return cls(topology, collective, Chunks.cut(collective, [1]), chunk_bytes, occupancy)

    def bound_ps(self, network: LinkNetwork) -> int:
        """The largest bound for messages of this size."""
        npus: Int64Array = np.arange(self.topology.num_npus)
        bounds = compute_lower_bounds_ps(
            self.collective, network, npus, self.chunk_bytes, self.occupancy
        )
        # That one is for messages of any size.
        return max(time for name, time in bounds.items() if name != "fluid")

    def simulated_ps(self, transfers: Transfers) -> int:
        """What the hub's simulator says of the algorithm of some transfers."""
        algorithm = algorithm_of(self.collective, self.chunks, transfers)
        size = self.chunk_bytes * self.collective.num_ranks
        options = {"occupancy": str(self.occupancy)}
        result = hub_core.simulate(
            algorithm, self.topology, size, options=options, registry=REGISTRY
        )
        assert result.time_ns is not None
        return 1000 * result.time_ns


def _row(text: str, task: ExchangeTask, runs: int) -> None:
    network = LinkNetwork.of(task.topology)
    times = network.link_times(task.chunk_bytes, task.occupancy)
    chunks = task.chunks

    def synthesize() -> LinkSchedule:
        return route_all(network, times, chunks.origin, chunks.target)

    schedule, first_s = timed(synthesize)
    next_s = [timed(synthesize)[1] for _ in range(runs - 1)]
    replay(schedule, times, chunks.origin, (np.arange(len(chunks)), chunks.target))
    step, bound = int(times.busy.max()), task.bound_ps(network)
    simulated = task.simulated_ps(schedule.transfers(times))
    direct = task.simulated_ps(_direct(chunks, task.topology.num_npus))
    in_steps = (bound, schedule.time_ps, simulated)
    ours = "".join(f"{time / step:>8.2f}" for time in in_steps)
    ratio = f"{schedule.time_ps / bound:>7.3f}"
    others = f"{direct / step:>8.2f}{direct / bound:>7.3f}"
    costs = f"{first_s:>9.2f}{statistics.median(next_s or [first_s]):>8.2f}"
    print(f"{text:<14}{len(schedule):>9}{ours}{ratio}{others}{costs}", flush=True)


def _direct(chunks: Chunks, num_npus: int) -> Transfers:
    """One message a pair, all at once, that to the next NPU in the order of numbers first.

    The routes are the simulator's.
    """
    sent = np.flatnonzero(chunks.origin != chunks.target)
    origin, target = chunks.origin[sent], chunks.target[sent]
    turn: Int64Array = (target - origin) % num_npus
    nothing = np.zeros(len(sent), np.bool_)
    return Transfers(
        sent,
        origin,
        target,
        np.arange(len(sent)),
        turn,
        turn + num_npus,
        nothing,
        np.ones(len(sent), np.int64),
    )


if __name__ == "__main__":
    main()
