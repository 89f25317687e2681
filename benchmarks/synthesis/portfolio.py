"""What `auto` makes on 60 topologies: time by bound, CPU seconds, and the best by name.

    python benchmarks/synthesis/portfolio.py [--topology NAME ...] [--collective C ...]
        [--size S ...] [--jobs N] [--peers]

Prints one row a topology and collective, then geometric means by kind of network. With `--peers`
also whether `auto` was behind any single synthesizer, each asked alone, and behind the matching of
TACOS's release (`../tacos/release.py`, all-gathers of equal links under alpha-beta). Names that
are not topologies of the hub are networks of `graphs.py`.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from graphs import networks

import hub_core
from hub_core import HubError, Topology, parse_topology
from hub_core.model import STANDARD_KINDS, Collective, CollectiveKind, parse_size
from hub_core.network import Occupancy
from hub_core.plugin_api import Synthesizer

DIRECT = (
    *("ring:4", "ring:8", "ring:16", "line:8", "mesh:4x4", "mesh:5x7", "mesh:8x8", "mesh:3x3x3"),
    *("torus:4x4", "torus:4x8", "torus:8x8", "torus:3x4x5", "torus:4x4x4", "hypercube:3"),
    *("hypercube:4", "hypercube:6", "fully-connected:4", "fully-connected:8"),
    *("fully-connected:16", "dgx1p", "dgx1v", "dgx1v-smi", "mi250", "mi300x"),
    *("barbell 5+5, 1", "barbell 8+8, 2", "3-regular 16", "4-regular 16", "4-regular 30"),
    *("4-regular 64", "clusters 4x4, 1", "clusters 4x8, 1", "clusters 6x5, 1", "dragonfly 5x4"),
    *("dragonfly 9x4", "cavemen 4x5", "de Bruijn 2,4", "de Bruijn 3,3", "one-way 12, 2"),
    "one-way 20, 3",
)
SWITCHED = (
    *("switch:4", "switch:8", "switch:16", "switch:64", "fat-tree:4", "fat-tree:6"),
    *("leaf-spine:4,4,4", "leaf-spine:8,8,8", "leaf-spine:8,8,4", "leaf-spine:4,8,2", "rail:4x8"),
    *("dragonfly:2,2,2", "dragonfly:4,2,2", "dgx2", "dgx-a100:2", "dgx-a100:4", "dgx-h100"),
    *("dgx-h100:2", "dgx-h100:4", "dgx-h100:8"),
)
SIZES = ("1KiB", "64KiB", "1MiB", "64MiB", "1GiB")
LARGE = parse_size("64MiB")
# What links of other times than these would do, the release does not say.
_RELEASE_NPUS, _RELEASE_CHUNKS, _RELEASE_SEEDS = 32, (1, 2, 4), 5


@dataclass(frozen=True)
class _Row:
    """One answer of `auto`; `ahead`: of the release by so many times, `behind`: of whom."""

    topology: str
    collective: str
    size: int
    time_us: float
    ratio: float
    winner: str
    made: str
    cpu_s: float
    behind: str


def main() -> None:
    """Print rows as they come, then the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", nargs="+", default=[*DIRECT, *SWITCHED])
    parser.add_argument("--collective", nargs="+", default=[kind.value for kind in _KINDS])
    parser.add_argument("--size", nargs="+", default=SIZES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--peers", action="store_true")
    asked = parser.parse_args()
    questions = [
        (topology, collective, parse_size(size), asked.peers)
        for topology, collective, size in product(asked.topology, asked.collective, asked.size)
    ]
    print("| topology | collective | size | us | by bound | winner | made | CPU s | behind |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows: list[_Row] = []
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        for row in pool.map(_answer, questions):
            rows.append(row)
            print(
                f"| {row.topology} | {row.collective} | {_text(row.size)} | "
                f"{row.time_us:.2f} | {row.ratio:.3f} | {row.winner} | {row.made} | "
                f"{row.cpu_s:.1f} | {row.behind} |",
                flush=True,
            )
    _print_means(rows)


_KINDS = STANDARD_KINDS


def _answer(question: tuple[str, str, int, bool]) -> _Row:
    name, kind, size, has_peers = question
    topology = _topology(name)
    collective = _collective(CollectiveKind(kind), topology.num_npus)
    start = time.process_time()
    result = hub_core.synthesize(collective, topology, size, name="auto")
    cpu_s = time.process_time() - start
    behind: list[str] = []
    if has_peers:
        # As others are timed, fractions of nanoseconds dropped.
        time_ns = hub_core.simulate(result.algorithm, topology, size).time_ns
        behind += _ahead(collective, topology, size, time_ns or result.time_ns)
    return _Row(
        name,
        kind,
        size,
        result.time_ns / 1000,
        result.ratio_to_bound or math.nan,
        str(result.statistics["winner"]),
        str(result.statistics["candidates"]).partition(" fit")[0],
        cpu_s,
        ", ".join(behind),
    )


def _text(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"


def _topology(name: str) -> Topology:
    drawn = dict(networks())
    return drawn[name] if name in drawn else parse_topology(name)


def _collective(kind: CollectiveKind, ranks: int) -> Collective:
    root = 0 if kind.traits.is_rooted else None
    return Collective(kind, ranks, kind.traits.parts(ranks), root)


def _ahead(collective: Collective, topology: Topology, size: int, time_ns: int) -> Iterator[str]:
    """Who is faster than `auto`, and by how much."""
    for provided in hub_core.discover().all(Synthesizer):
        if provided.name == "auto":
            continue
        try:
            made = hub_core.synthesize(collective, topology, size, name=provided.name)
        except HubError:
            continue
        timing = hub_core.simulate(made.algorithm, topology, size)
        if timing.time_ns is not None and timing.time_ns < time_ns:
            yield f"{provided.name} {100 * (1 - timing.time_ns / time_ns):.1f} %"
    release_us = _release_us(collective, topology, size)
    if release_us is None:
        return
    ours = hub_core.synthesize(
        collective, topology, size, name="auto", occupancy=Occupancy.ALPHA_BETA
    )
    # Ours is told in whole nanoseconds.
    if release_us < (ours.time_ns - 1) / 1000:
        yield f"TACOS's release {100 * (1 - 1000 * release_us / ours.time_ns):.1f} %"


def _release_us(collective: Collective, topology: Topology, size: int) -> float | None:
    """The least time of the release's matching, None where it was not made for the network."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tacos"))
    from release import all_gather

    is_direct = topology.num_nodes == topology.num_npus
    is_fit = is_direct and topology.num_npus <= _RELEASE_NPUS
    if collective.kind is not CollectiveKind.ALL_GATHER or not is_fit:
        return None
    share = size // topology.num_npus
    return min(
        all_gather(topology, share // chunks, chunks, seed, causal=True).time_us
        for chunks in _RELEASE_CHUNKS
        for seed in range(_RELEASE_SEEDS)
    )


def _print_means(rows: Sequence[_Row]) -> None:
    print("\n| networks | sizes | answers | geometric mean by bound | worst | most CPU s |")
    print("|---|---|---|---|---|---|")
    for title, has_switches in (("direct", False), ("with switches", True)):
        for sizes, is_large in (("below 64 MiB", False), ("64 MiB and above", True)):
            chosen = [
                row
                for row in rows
                if (row.topology in SWITCHED) is has_switches
                and (row.size >= LARGE) is is_large
                and not math.isnan(row.ratio)
            ]
            if not chosen:
                continue
            mean = math.exp(sum(math.log(row.ratio) for row in chosen) / len(chosen))
            worst = max(chosen, key=lambda row: row.ratio)
            most = max(row.cpu_s for row in chosen)
            print(
                f"| {title} | {sizes} | {len(chosen)} | {mean:.3f} | {worst.ratio:.3f} "
                f"{worst.topology} {worst.collective} | {most:.1f} |"
            )
    print(f"\nbehind anybody: {sum(bool(row.behind) for row in rows)} of {len(rows)}")


if __name__ == "__main__":
    main()
