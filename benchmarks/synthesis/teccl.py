"""Times that TE-CCL claims for its schedules beside simulated ones.

    python benchmarks/synthesis/teccl.py SCHEDULE.json ...

A schedule does not say its network. It is simulated on the links that it uses, of which each takes
a chunk an epoch and has no latency. So the simulated time is what the order of the schedule needs.
It is below the claim where links are slower than that or have latencies, and above it where fast
links take several chunks in an epoch, which is then the time of a chunk on the slowest link.
"""

from __future__ import annotations

import sys

import numpy as np

import hub_core
from hub_core import Algorithm, Topology
from hub_core.model import StepKind
from hub_core.network import Links


def main() -> None:
    """Print claims and simulated times in epochs."""
    print(f"{'schedule':44}{'ranks':>6}{'claimed epochs':>16}{'simulated':>11}{'ratio':>7}")
    for path in sys.argv[1:]:
        algorithm = hub_core.read(path)
        claims = algorithm.extensions["teccl"]
        # Seconds of an epoch may be picoseconds: a chunk of a second is as good.
        size = algorithm.collective.unit_count * 10**9
        units = _units_of_chunk(algorithm)
        result = hub_core.simulate(algorithm, _network(algorithm), size)
        epochs = result.time_ns / 1e9 / units
        ratio = epochs / claims["epochs"]
        name = path.rsplit("/", 1)[-1]
        ranks = algorithm.num_ranks
        print(f"{name:44}{ranks:6}{claims['epochs']:16}{epochs:11.2f}{ratio:7.3f}", flush=True)


def _units_of_chunk(algorithm: Algorithm) -> int:
    """Units of a chunk of the schedule: one, or parts that fractions are multiples of."""
    collective = algorithm.collective
    return collective.unit_count // collective.num_ranks


def _network(algorithm: Algorithm) -> Topology:
    """The links that are used, each of which takes a unit of a billion bytes in a second."""
    steps = algorithm.steps
    sends = np.flatnonzero(steps.is_kind(StepKind.SEND))
    pairs = np.unique(np.stack([steps.rank[sends], steps.peer[sends]]), axis=1).astype(np.int64)
    rate = np.full(pairs.shape[1], 1e9)
    return Links(pairs[0], pairs[1], rate, np.zeros(pairs.shape[1])).topology(
        "links of the schedule", algorithm.num_ranks, algorithm.num_ranks
    )


if __name__ == "__main__":
    main()
