"""Order between thread blocks of one rank: which step releases and acquires which semaphore."""

from __future__ import annotations

from dataclasses import dataclass, field

from collhub_mscclpp.writing.work import PlanWork
from hub_core.columns import Int64Array


@dataclass(slots=True)
class Semaphores:
    """`count`: semaphores of every rank. `released`, `acquired`: their numbers by row of steps."""

    count: list[int]
    released: dict[int, list[int]] = field(default_factory=dict)
    acquired: dict[int, list[int]] = field(default_factory=dict)

    def another(self, rank: int) -> int:
        """The number of a further semaphore of a rank."""
        self.count[rank] += 1
        return self.count[rank] - 1


def semaphores_of(work: PlanWork, block: Int64Array) -> Semaphores:
    """One semaphore for every wait between blocks that no earlier wait of the block covers."""
    steps, position = work.steps, work.position
    found = Semaphores([0] * steps.num_ranks)
    parents, children = work.edges()
    crosses = block[parents] != block[children]
    parents, children = parents[crosses], children[crosses]
    # Later parents first: waiting for one covers all before it in its block.
    order = sorted(
        range(len(parents)), key=lambda edge: (position[children[edge]], -position[parents[edge]])
    )
    covered: dict[tuple[int, int, int], int] = {}
    for edge in order:
        parent, child = int(parents[edge]), int(children[edge])
        rank = int(steps.rank[child])
        pair = (rank, int(block[parent]), int(block[child]))
        if position[parent] <= covered.get(pair, -1):
            continue
        covered[pair] = int(position[parent])
        semaphore = found.another(rank)
        found.released.setdefault(parent, []).append(semaphore)
        found.acquired.setdefault(child, []).append(semaphore)
    return found
