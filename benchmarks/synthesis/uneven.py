"""All-to-all-v for random tables of counts, next to the bound of the optimal flow.

    python benchmarks/synthesis/uneven.py [--tables 200] [--seed 1] [--name auto] [--most-npus 64]
        [--mib-per-npu 64]

The size is 64 MiB per NPU on average, as in `flows.py`; smaller ones are dominated by latencies.

Each table is drawn for one of the networks of `graphs.py` or a switched one: Zipf's law, tokens of
experts, or sparse counts. Prints time by bound and CPU seconds of every table, then the geometric
mean, the maximum, and the number of tables above 1.05.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator

import numpy as np
from graphs import networks

import hub_core
from hub_core.model import Collective, CollectiveKind, UnitCounts
from hub_core.model.count_sources import parse_counts
from hub_core.network import Topology
from hub_core.verification import verify

_MIB = 1 << 20
_SWITCHED = ("switch:16", "switch:64", "fat-tree:4", "leaf-spine:4,4,4", "dgx-h100:2", "dgx-h100:8")
_GOAL = 1.05


def draw_tables(
    count: int, seed: int, most_npus: int
) -> Iterator[tuple[str, Topology, UnitCounts]]:
    """Yield (description, network, counts), networks in turn and three kinds of tables in turn."""
    draw = np.random.default_rng(seed)
    known = [*networks(seed), *((text, hub_core.parse_topology(text)) for text in _SWITCHED)]
    known = [(name, network) for name, network in known if network.num_npus <= most_npus]
    for index in range(count):
        name, network = known[int(draw.integers(len(known)))]
        ranks, table_seed = network.num_npus, int(draw.integers(1 << 30))
        kind = ("zipf", "experts", "sparse")[index % 3]
        if kind == "sparse":
            density = float(draw.uniform(0.05, 0.5))
            table = draw.integers(1, 100, (ranks, ranks)) * (draw.random((ranks, ranks)) < density)
            table[0, 1] += 1
            counts: UnitCounts | None = UnitCounts.from_table(table, is_per_pair=True)
        else:
            skew = round(float(draw.uniform(0.2, 1.5)), 2)
            text = f"zipf:{skew},seed={table_seed}"
            if kind == "experts":
                text = f"experts:{2 * ranks},top=4,tokens=512,skew={skew},seed={table_seed}"
            counts = parse_counts(text, CollectiveKind.ALL_TO_ALL_V, ranks)
        assert counts is not None
        yield f"{name}, {kind}", network, counts


def main() -> None:
    """Measure all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--name", default="auto")
    parser.add_argument("--most-npus", type=int, default=64)
    parser.add_argument("--mib-per-npu", type=int, default=64)
    arguments = parser.parse_args()
    ratios = []
    for label, network, counts in draw_tables(
        arguments.tables, arguments.seed, arguments.most_npus
    ):
        collective = Collective(
            CollectiveKind.ALL_TO_ALL_V, network.num_npus, counts.total, counts=counts
        )
        begin = time.process_time()
        size = network.num_npus * arguments.mib_per_npu * _MIB
        result = hub_core.synthesize(collective, network, size, name=arguments.name)
        cpu_s = time.process_time() - begin
        ratio = result.time_ns / max(result.bounds_ns.values())
        ratios.append(ratio)
        state = "correct" if verify(result.algorithm).ok else "WRONG"
        winner = result.statistics.get("winner", "")
        print(f"{label:32} {ratio:8.4f} {cpu_s:8.2f} s  {state}  {winner}", flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    above = sum(ratio > _GOAL for ratio in ratios)
    print(f"geometric mean {mean:.4f}, maximum {max(ratios):.4f}, {above} above {_GOAL}")


if __name__ == "__main__":
    main()
