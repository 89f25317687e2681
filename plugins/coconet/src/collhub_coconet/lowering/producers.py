"""Who makes which chunk of a value, and who waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from collhub_coconet.lowering.grids import Grid
from collhub_coconet.lowering.nodes import NodeList
from hub_core.columns import Int64Array, expanded_ranges

# Up to so many nodes, whoever needs all of a value waits for them without a MARKER.
_MOST_ENDS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """Who makes a value: node `node[i]` makes chunk `chunk[i]` of it on rank `rank[i]` of the job.

    `grid`: None for a whole value, whose chunk is 0. A chunk may have several nodes, and is there
    from the start where it has none.
    """

    region: int
    grid: Grid | None
    rank: Int64Array
    chunk: Int64Array
    node: Int64Array

    def nodes_of(self, rank: Int64Array, chunk: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(index into the asked, node) of all nodes that make these chunks."""
        width = 1 + max(int(self.chunk.max(initial=0)), int(chunk.max(initial=0)))
        key, asked = self.rank * width + self.chunk, rank * width + chunk
        order = np.argsort(key, kind="stable")
        first = np.searchsorted(key[order], asked, side="left")
        counts = np.searchsorted(key[order], asked, side="right") - first
        index = np.repeat(np.arange(len(asked)), counts)
        return index, self.node[order][expanded_ranges(first, counts)]


@dataclass(slots=True)
class Producers:
    """The producers of all values so far; `junction(value, ranks)` adds MARKERs on these ranks.

    Chunks are matched within a region alone: a kernel is over before another one reads it.
    """

    nodes: NodeList
    junction: Callable[[str, Int64Array], Int64Array]
    ready: dict[str, Ready] = field(default_factory=dict)
    wholes: dict[str, Ready] = field(default_factory=dict)

    def wait(
        self,
        value: str,
        region: int,
        grid: Grid | None,
        rank: Int64Array,
        chunk: Int64Array,
        node: Int64Array,
    ) -> None:
        """Let node i wait for chunk i of a value on rank i."""
        index, parents = self.nodes_behind(value, region, grid, rank, chunk)
        self.nodes.data.append((parents, node[index]))

    def nodes_behind(
        self, value: str, region: int, grid: Grid | None, rank: Int64Array, chunk: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """(index into the asked, node that makes a part of it); arguments are there."""
        ready = self.ready.get(value)
        if ready is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        is_near = ready.region == region
        if not is_near or grid is None or ready.grid is None or not grid.is_comparable(ready.grid):
            whole = self._whole(value, ready)
            return whole.nodes_of(rank, np.zeros_like(rank))
        index, wanted = grid.overlaps(chunk, ready.grid)
        inner, node = ready.nodes_of(rank[index], wanted)
        return index[inner], node

    def _whole(self, value: str, ready: Ready) -> Ready:
        """The value as a whole: its nodes, or where they are many a MARKER behind them."""
        if value not in self.wholes:
            rank, node = ready.rank, ready.node
            ranks, counts = np.unique(rank, return_counts=True)
            if counts.max(initial=0) > _MOST_ENDS:
                made = self.junction(value, ranks)
                self.nodes.data.append((node, made[np.searchsorted(ranks, rank)]))
                rank, node = ranks, made
            self.wholes[value] = Ready(ready.region, None, rank, np.zeros_like(rank), node)
        return self.wholes[value]
