"""Time the executor `mpi` beside the all-reduce of MPICH itself, at the sizes of small messages.

    python benchmarks/mpi.py [--ranks 2,4] [--launches 7]

A line is one all-reduce of float32: ours and MPICH's own in the same processes on the same data, 51
runs each a launch. The ratio is the median of the ratios of all launches, in brackets the least and
the largest, since other work on the machine slows whole launches; times are medians too. `best` is
the ratio of the fastest launch of each.

mpi4py starts MPI for many threads. What MPICH 5.0 then runs stands in its own table of algorithms:
reduce-scatter and all-gather by halving and doubling (Rabenseifner) for all sizes here. For one
thread (`MPI4PY_RC_THREAD_LEVEL=single`) it is a tree in memory that ranks share, without messages,
whose waits let nobody else run: measured where there are as many cores as ranks, and on a busy
machine only `best` tells something. Of ours all algorithms are shown: `*` marks the best for the
size.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from execution import MIB, checked_result

import hub_core
from hub_core.model import Algorithm, Collective, CollectiveKind
from hub_core.testing import halving_doubling_all_reduce, ring_all_reduce

RUNS = 51
LARGE_RUNS = 5
SIZES = (1 << 10, 16 << 10, 64 << 10, MIB, 64 * MIB)
PEERS = {"multiple": "halving-doubling", "single": "shared memory"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians of each launch in seconds, ours and MPICH's own."""

    algorithm: str
    ours_s: Sequence[float]
    own_s: Sequence[float]

    @property
    def ratios(self) -> Sequence[float]:
        """Ours to MPICH's own, launch by launch."""
        return [ours / own for ours, own in zip(self.ours_s, self.own_s, strict=True)]

    @property
    def best(self) -> float:
        """The fastest launch of ours to the fastest of MPICH's own."""
        return min(self.ours_s) / min(self.own_s)


def algorithms(num_ranks: int) -> Mapping[str, Algorithm]:
    """All-reduces for a power of two of ranks."""
    doubling = hub_core.synthesize(
        Collective(CollectiveKind.ALL_REDUCE, num_ranks, num_ranks, in_place=True),
        f"ring:{num_ranks}",
        MIB,
        name="recursive-doubling",
    )
    return {
        "recursive-doubling": doubling.algorithm,
        "halving-doubling": halving_doubling_all_reduce(num_ranks),
        "ring": ring_all_reduce(num_ranks),
    }


def comparisons(num_ranks: int, size: int, launches: int) -> list[Comparison]:
    """Each algorithm beside MPICH's own."""
    runs = RUNS if size <= MIB else LARGE_RUNS
    made = algorithms(num_ranks)
    ours: dict[str, list[float]] = {name: [] for name in made}
    own: dict[str, list[float]] = {name: [] for name in made}
    # In turn, so that a slow minute of the machine falls on all of them.
    for _ in range(launches):
        for name, algorithm in made.items():
            result = checked_result(algorithm, size, "mpi", runs)
            ours[name].append(median(result.repeat_times_s))
            own[name].append(median(result.native_times_s))
    return [Comparison(name, ours[name], own[name]) for name in made]


def lines(level: str, num_ranks: int, size: int, launches: int) -> Iterator[str]:
    """A line an algorithm."""
    found = comparisons(num_ranks, size, launches)
    best = min(found, key=lambda comparison: median(comparison.ratios))
    for comparison in found:
        ratios = sorted(comparison.ratios)
        mark = "*" if comparison is best else " "
        yield (
            f"{num_ranks:5}{size // 1024:9} KiB  {comparison.algorithm:20}"
            f"{1e6 * median(comparison.ours_s):12.1f} us  {PEERS[level]:18}"
            f"{1e6 * median(comparison.own_s):12.1f} us"
            f"{median(ratios):8.2f}{mark}{comparison.best:7.2f}  "
            f"({ratios[0]:.2f} .. {ratios[-1]:.2f})"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, powers of two")
    parser.add_argument("--launches", type=int, default=7, help="of each line")
    arguments = parser.parse_args()
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("mpi4py", "mpich")]
    python = f"Python {platform.python_version()}, numpy {np.__version__}"
    print(f"{python}, {', '.join(versions)}, {os.cpu_count()} cores")
    ours = f"{'ranks':5}{'size':>13}  {'ours':20}{'median':>15}"
    print(f"{ours}  {'MPICH':18}{'median':>15}{'ratio':>8} {'best':>7}  range")
    for level in PEERS:
        # Inherited by the ranks.
        os.environ["MPI4PY_RC_THREAD_LEVEL"] = level
        print(f"threads: {level}; load {os.getloadavg()[0]:.1f}")
        for num_ranks in map(int, arguments.ranks.split(",")):
            if level == "single" and num_ranks > (os.cpu_count() or 1):
                print(f"{num_ranks:5} ranks: left out, of {os.cpu_count()} cores")
                continue
            for size in SIZES:
                for line in lines(level, num_ranks, size, arguments.launches):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
