"""How the time of lockstep synthesis grows: all-gathers on square meshes, and a fitted exponent.

    python benchmarks/tacos/growth.py [--sides 32 40] [--runs 3]

A line is a mesh: NPUs, steps, their bound, median CPU seconds of one thread, nanoseconds a pair of
a link and a chunk, and the CPU seconds of the public release.
"""

from __future__ import annotations

import argparse

import numpy as np
from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.spreading.homogeneous import all_gather, bound_steps
from measuring import median_timed, versions

from hub_core import parse_topology
from hub_core.columns import Float64Array

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
    # Compiles.
    all_gather(LinkNetwork.of(parse_topology("mesh:8x8")), STEP_PS, np.arange(64))
    work = "all-gather, one chunk an NPU, warm kernel, one thread"
    print(f"{versions()}; {work}, median of {arguments.runs} runs")
    head = f"{'mesh':<10}{'NPUs':>7}{'steps':>7}{'bound':>7}{'CPU s':>9}"
    print(f"{head}{'ns a (link, chunk)':>20}{'release CPU s':>15}")
    rows = [(side * side, _row(side, arguments.runs)) for side in arguments.sides]
    npus, seconds = np.asarray(rows).T
    fitted = _exponent(npus, seconds)
    across = _exponent(npus[[0, -1]], seconds[[0, -1]])
    print(f"exponent in NPUs, all sizes: {fitted:.2f}; release: {PUBLISHED_EXPONENT}")
    print(f"exponent from the smallest to the largest: {across:.2f}")


def _exponent(npus: Float64Array, seconds: Float64Array) -> float:
    """Slope of the line of least squares through the logarithms."""
    return float(np.polyfit(np.log(npus), np.log(seconds), 1)[0])


def _row(side: int, runs: int) -> float:
    """Print a mesh; return the median CPU seconds."""
    network = LinkNetwork.of(parse_topology(f"mesh:{side}x{side}"))
    origin = np.arange(network.num_npus)
    log, median = median_timed(lambda: all_gather(network, STEP_PS, origin), runs)
    each_ns = median / (network.num_links * len(origin)) * 1e9
    steps = f"{log.num_steps:>7}{bound_steps(network, origin):>7}"
    published = PUBLISHED_CPU_S.get(len(origin), "")
    costs = f"{median:>9.3f}{each_ns:>20.1f}{published:>15}"
    print(f"{f'{side}x{side}':<10}{len(origin):>7}{steps}{costs}", flush=True)
    return median


if __name__ == "__main__":
    main()
