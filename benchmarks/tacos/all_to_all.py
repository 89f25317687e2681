"""All-to-all on tori: ours beside the bandwidth bound and beside direct messages on dimension-ordered shortest paths.

Both are simulated in the same run by the hub's simulator; ours is replayed by an independent check, too. One row a torus, in
steps of one message on one link; CPU seconds are those of the process, synthesis first with what numba compiles or
loads, then the median of the other runs. Published for 512 NPUs: 11.68 minutes (PCCL, arXiv 2606.07019; another machine).
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from importlib.metadata import version

import numba
import numpy as np
import numpy.typing as npt
from collhub_tacos.bounds.lower_bounds import lower_bounds_ps
from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.routing.routes import route_all
from collhub_tacos.schedules.replay import replay

from hub_core import Collective, CollectiveKind, Topology, parse_topology, simulate
from hub_core.network import Occupancy
from hub_core.transfers import Chunks, Transfers, algorithm_of

TORI = ("torus:8x8", "torus:4x4x4", "torus:8x8x8")
_WIDTHS = (9, 8, 8, 8, 7, 8, 7, 9, 8)
CONSTANTS = "?bandwidth=50GiB/s&latency=500ns"


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
    versions = f"collhub-tacos {version('collhub-tacos')}, numpy {np.__version__}, numba {numba.__version__}"
    print(
        f"{versions}, Python {platform.python_version()}, {arguments.occupancy}, {arguments.chunk} bytes a pair"
    )
    titles = zip(
        ("hops", "bound", "ours", "simul.", "ratio", "direct", "ratio", "first s", "next s"),
        _WIDTHS,
        strict=True,
    )
    print(f"{'network':<14}{''.join(title.rjust(width) for title, width in titles)}")
    for text in arguments.tori:
        _row(
            parse_topology(text + CONSTANTS),
            text,
            arguments.chunk,
            arguments.occupancy,
            arguments.runs,
        )


def _row(topology: Topology, text: str, chunk_bytes: int, occupancy: Occupancy, runs: int) -> None:
    n = topology.num_npus
    collective = Collective(CollectiveKind.ALL_TO_ALL, n, n)
    chunks = Chunks.cut(collective, [1])
    network = LinkNetwork.of(topology)
    times = network.link_times(chunk_bytes, occupancy)
    bounds = lower_bounds_ps(collective, network, np.arange(n), chunk_bytes, occupancy)
    cpu: list[float] = []
    for _ in range(runs):
        start = time.process_time()
        schedule = route_all(network, times, chunks.origin, chunks.target)
        cpu.append(time.process_time() - start)
    replay(schedule, times, chunks.origin, (np.arange(len(chunks)), chunks.target))
    step, bound = (
        int(times.busy.max()),
        max(time for name, time in bounds.items() if name != "fluid"),
    )
    simulated = _simulated_ps(
        collective, chunks, schedule.transfers(times), topology, chunk_bytes, occupancy
    )
    direct = _simulated_ps(collective, chunks, _direct(chunks, n), topology, chunk_bytes, occupancy)
    ours = [f"{time / step:>8.2f}" for time in (bound, schedule.time_ps, simulated)]
    others = f"{schedule.time_ps / bound:>7.3f}{direct / step:>8.2f}{direct / bound:>7.3f}"
    again = statistics.median(cpu[1:]) if runs > 1 else cpu[0]
    print(
        f"{text:<14}{len(schedule):>9}{''.join(ours)}{others}{cpu[0]:>9.2f}{again:>8.2f}",
        flush=True,
    )


def _simulated_ps(
    collective: Collective,
    chunks: Chunks,
    transfers: Transfers,
    topology: Topology,
    chunk_bytes: int,
    occupancy: Occupancy,
) -> int:
    algorithm = algorithm_of(collective, chunks, transfers)
    size = chunk_bytes * collective.num_ranks
    time_ns = simulate(algorithm, topology, size, options={"occupancy": str(occupancy)}).time_ns
    assert time_ns is not None
    return 1000 * time_ns


def _direct(chunks: Chunks, num_npus: int) -> Transfers:
    """One message a pair, all at once, that to the next NPU in the order of numbers first; routes are the simulator's."""
    sent = np.flatnonzero(chunks.origin != chunks.target)
    origin, target = chunks.origin[sent], chunks.target[sent]
    turn: npt.NDArray[np.int64] = (target - origin) % num_npus
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
