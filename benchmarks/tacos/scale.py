"""One large all-gather: CPU seconds and peak memory of its synthesis, and of the replay of all.

python benchmarks/tacos/scale.py [--topology mesh:100x100] [--chunks 1]
"""

from __future__ import annotations

import argparse
import os
import resource

import numpy as np
from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.schedules.replay import replay_log
from collhub_tacos.spreading.homogeneous import all_gather, bound_steps, estimate_memory_bytes
from measuring import timed, versions

from hub_core import parse_topology
from hub_core.network import Occupancy

PUBLISHED = (
    "40 000 NPUs: the paper states 2.52 h; by its growth, the released code would take "
    "60 to 200 days and 210 GB"
)


def main() -> None:
    """Print what synthesis and replay took, beside the bound and the estimate of memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", default="mesh:200x200?bandwidth=50GiB/s&latency=500ns")
    parser.add_argument("--chunks", type=int, default=1, help="chunks an NPU, of 1 MiB together")
    arguments = parser.parse_args()
    # Compiles.
    _lines("mesh:4x4?bandwidth=50GiB/s&latency=500ns", 1)
    print(f"{versions()}, {os.cpu_count()} cores, one used")
    print(*_lines(arguments.topology, arguments.chunks), PUBLISHED, sep="\n")


def _lines(text: str, chunks: int) -> list[str]:
    """What is told of one all-gather."""
    network = LinkNetwork.of(parse_topology(text))
    times = network.link_times((1 << 20) // chunks, Occupancy.ALPHA_BETA)
    origin = np.tile(np.arange(network.num_npus), chunks)
    log, synthesis_s = timed(lambda: all_gather(network, int(times.busy[0]), origin))
    # Before the replay, which has memory of its own.
    peak_gb = _peak_gb()
    time_ps, replay_s = timed(lambda: replay_log(log, times, origin))
    steps = f"{log.num_steps} steps, bound {bound_steps(network, origin)}"
    memory = f"peak {peak_gb:.2f} GB of the process"
    estimate_gb = estimate_memory_bytes(network, len(origin)) / 1e9
    replayed = f"replay of all {log.num_transfers} transfers"
    return [
        f"{text}, {chunks} chunks an NPU: {steps}, {time_ps / 1e6:.2f} us",
        f"synthesis {synthesis_s:.1f} CPU s, {memory}, {estimate_gb:.2f} GB estimated for arrays",
        f"{replayed} {replay_s:.1f} CPU s, peak {_peak_gb():.2f} GB",
    ]


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
