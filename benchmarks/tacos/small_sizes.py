"""Small sizes: ours beside the best textbook algorithm and the bound, in one run.

    python benchmarks/tacos/small_sizes.py [--collective C ...]

The textbook forms are those of `classic` that are defined for the case, all of them timed by
the same simulator; the bound is the latency of the farthest pair, or the bytes of the fullest port.
The last column is what prototypes reached, where one was written.
"""

from __future__ import annotations

import argparse
import time

from measuring import versions

import hub_core
from hub_core import Collective, CollectiveKind, HubError, Topology, parse_topology
from hub_core.network import lower_bound_ns

KIB, MIB = 1 << 10, 1 << 20
CLASSICS = (
    "ring", "bidirectional-ring", "rings", "recursive-doubling", "halving-doubling", "bruck",
    "binomial", "k-nomial", "double-binary-tree", "direct", "pairwise", "swing", "torus-rings",
    "hierarchical",
)  # fmt: skip
# By collective: topology, bytes, microseconds of the prototype.
CASES = {
    "all-reduce": [
        ("switch:8", KIB, 1.164), ("switch:16", KIB, 1.328), ("fat-tree:4", KIB, 3.594),
        ("dgx-a100:2", KIB, 3.457), ("hypercube:4", KIB, 2.082), ("fc:8", KIB, 0.520),
        ("dgx1v", KIB, 1.082), ("mesh:8x8", KIB, 7.287), ("ring:8", KIB, 2.082),
        ("torus:4x4", KIB, 2.082), ("fat-tree:4", 64 * KIB, 10.5), ("dgx-a100:2", 64 * KIB, 9.3),
    ],
    "all-gather": [
        ("switch:16", KIB, 1.020), ("switch:16", 64 * KIB, 2.31), ("fat-tree:4", KIB, 3.037),
        ("dgx-a100:2", KIB, 3.029), ("hypercube:4", KIB, 2.005), ("dgx1v", KIB, 1.010),
        ("mesh:8x8", KIB, 7.004), ("torus:4x4", KIB, 2.005),
    ],
    "all-to-all": [
        ("switch:8", KIB, 1.016), ("switch:8", 64 * KIB, 2.304), ("switch:8", MIB, 19.995),
        ("switch:16", KIB, 1.016), ("switch:16", 64 * KIB, 2.296), ("fat-tree:4", KIB, 3.018),
        ("fat-tree:4", 64 * KIB, 4.458), ("fat-tree:4", MIB, 24.3), ("dgx-a100:2", KIB, 3.02),
        ("dgx-a100:2", 64 * KIB, 4.82), ("dgx-a100:2", MIB, 27.6), ("mesh:8x8", KIB, 7.022),
    ],
    "broadcast": [
        ("switch:8", KIB, 1.164), ("switch:16", KIB, 1.328), ("switch:16", 64 * KIB, 3.42),
        ("switch:16", MIB, 24.9), ("switch:16", 16 * MIB, 368.0), ("fat-tree:4", KIB, 3.348),
        ("dgx-a100:2", KIB, 3.215), ("hypercube:4", KIB, 2.021), ("dgx1v", KIB, 1.042),
        ("mesh:8x8", KIB, 7.025), ("torus:4x4", KIB, 2.021),
    ],
}  # fmt: skip


def main() -> None:
    """Print a row a case: times in microseconds, ratios, and our CPU seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collective", nargs="+", choices=list(CASES), default=list(CASES))
    asked = parser.parse_args()
    print(versions())
    print(
        f"{'collective':12}{'topology':13}{'bytes':>9}{'ours':>10}{'form':>11}{'chunks':>7}"
        f"{'textbook':>10}  {'':19}{'ratio':>6}{'bound':>9}{'proto':>9}{'CPU s':>7}"
    )
    for name in asked.collective:
        for text, size, prototype_us in CASES[name]:
            print(_row(CollectiveKind(name), text, size, prototype_us), flush=True)


def _row(kind: CollectiveKind, text: str, size: int, prototype_us: float) -> str:
    topology = parse_topology(text)
    collective = _collective(kind, topology)
    start = time.process_time()
    ours = hub_core.synthesize(collective, topology, size, name="tacos")
    seconds = time.process_time() - start
    textbook_ns, name = _best_classic(collective, topology, size)
    bound_ns = lower_bound_ns(collective, topology, size) or 0.0
    form, chunks = ours.statistics["form"], ours.statistics["chunks"]
    return (
        f"{kind!s:12}{text:13}{size:9}{ours.time_ns / 1e3:10.3f}{form:>11}{chunks:7}"
        f"{textbook_ns / 1e3:10.3f}  {name:19}{ours.time_ns / textbook_ns:6.2f}"
        f"{bound_ns / 1e3:9.3f}{prototype_us:9.3f}{seconds:7.2f}"
    )


def _collective(kind: CollectiveKind, topology: Topology) -> Collective:
    is_whole = kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST)
    ranks = topology.num_npus
    root = 0 if kind is CollectiveKind.BROADCAST else None
    return Collective(kind, ranks, 1 if is_whole else ranks, root, in_place=True)


def _best_classic(collective: Collective, topology: Topology, size: int) -> tuple[int, str]:
    """Time in ns and name of the fastest of the classics that are defined here."""
    found = []
    for name in CLASSICS:
        try:
            result = hub_core.synthesize(collective, topology, size, name=name)
        except HubError:
            continue
        found.append((result.time_ns, name))
    return min(found)


if __name__ == "__main__":
    main()
