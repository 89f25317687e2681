"""How the time of lockstep synthesis grows: all-gather on square meshes, and the exponent of a least-squares fit."""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.spreading.homogeneous import all_gather, fewest_steps

from hub_core import parse_topology

STEP_PS = 1000
# Measured with TACOS v1.3.0 on a shared 2-core machine: CPU seconds, one chunk a node.
PUBLISHED_CPU_S = {1024: 69.5, 2025: 682.0}
PUBLISHED_EXPONENT = "3.2-3.6"


def main() -> None:
    """Print CPU seconds a size, and the exponents of growth in the number of NPUs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=[32, 40, 45, 50, 64, 80, 100])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    _measure(8, 1)
    print(f"all-gather, one chunk an NPU, median of {arguments.runs} runs, warm kernel, one thread")
    print(
        f"{'mesh':<10}{'NPUs':>7}{'steps':>7}{'bound':>7}{'CPU s':>9}{'ns a (link, chunk)':>20}{'release CPU s':>15}"
    )
    rows = [(side * side, _measure(side, arguments.runs)) for side in arguments.sides]
    npus, seconds = np.asarray(rows).T
    print(
        f"exponent in NPUs, all sizes: {_exponent(npus, seconds):.2f}; release: {PUBLISHED_EXPONENT}"
    )
    print(
        f"exponent from the smallest to the largest: {_exponent(npus[[0, -1]], seconds[[0, -1]]):.2f}"
    )


def _exponent(npus: np.ndarray, seconds: np.ndarray) -> float:
    return float(np.polyfit(np.log(npus), np.log(seconds), 1)[0])


def _measure(side: int, runs: int) -> float:
    network = LinkNetwork.of(parse_topology(f"mesh:{side}x{side}"))
    origin = np.arange(network.num_npus)
    seconds = []
    for _ in range(runs):
        begin = time.process_time()
        log = all_gather(network, STEP_PS, origin)
        seconds.append(time.process_time() - begin)
    median = statistics.median(seconds)
    if side > 8:
        each = median / (network.num_links * len(origin)) * 1e9
        steps = f"{log.num_steps:>7}{fewest_steps(network, origin):>7}"
        published = PUBLISHED_CPU_S.get(len(origin), "")
        print(
            f"{f'{side}x{side}':<10}{len(origin):>7}{steps}{median:>9.3f}{each:>20.1f}{published:>15}",
            flush=True,
        )
    return median


if __name__ == "__main__":
    main()
