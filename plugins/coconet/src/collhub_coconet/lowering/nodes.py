"""Nodes of a flat program under construction: columns, dependencies, streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from collhub_templates import Lists, Template

from collhub_coconet.lowering.grids import Grid
from collhub_coconet.program.program import Stage
from hub_core.columns import Int64Array, distinct, expanded_ranges
from hub_core.model import NODE_DEFAULTS, NodeKind

_STATED = ("rank", "kind", "name", "operations", "bytes", "peer", "tag", "duration_ns", "group")


@dataclass(slots=True)
class NodeList:
    """Blocks of nodes one behind the other, and dependencies between them.

    `part`, `item`: by node, the part of the program that it is of, and which of its items.
    """

    count: int = 0
    blocks: list[dict[str, Int64Array]] = field(default_factory=list)
    data: list[tuple[Int64Array, Int64Array]] = field(default_factory=list)
    control: list[tuple[Int64Array, Int64Array]] = field(default_factory=list)

    def add(self, rank: Int64Array, part: int, item: Int64Array, **columns: object) -> Int64Array:
        """Add nodes; columns are arrays, or one value for all. Returns their numbers."""
        rows = len(rank)
        block = {"rank": rank, "part": np.full(rows, part), "item": item}
        for name in _STATED[1:]:
            stated = columns.get(name, NODE_DEFAULTS[name])
            block[name] = np.broadcast_to(np.asarray(stated, np.int64), rows)
        self.blocks.append(block)
        self.count += rows
        return np.arange(self.count - rows, self.count)

    def column(self, name: str) -> Int64Array:
        """A column of all nodes."""
        found = [block[name] for block in self.blocks]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def columns(self) -> dict[str, npt.ArrayLike]:
        """The columns of the model that are stated."""
        # What is not stated has its default.
        return {name: self.column(name) for name in _STATED}

    def chain(self, nodes: Int64Array, rank: Int64Array) -> None:
        """Let the nodes of each rank run one after the other, as they stand."""
        order = np.argsort(rank, kind="stable")
        ordered, owner = nodes[order], rank[order]
        is_next = owner[1:] == owner[:-1]
        self.control.append((ordered[:-1][is_next], ordered[1:][is_next]))

    def edges(self, kind: str) -> tuple[Int64Array, Int64Array]:
        """All dependencies of a kind, `data` or `control`, each one once."""
        pairs = getattr(self, kind)
        if not pairs:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        parents, children = (np.concatenate(side) for side in zip(*pairs, strict=True))
        keys = distinct(children * (self.count + 1) + parents)
        children, parents = np.divmod(keys, self.count + 1)
        return parents, children


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


class Streams:
    """The last computation of every rank, behind which the next kernel runs."""

    def __init__(self, ranks: int) -> None:
        # Nothing has run on any rank.
        self._last = np.full(ranks, -1, np.int64)

    def put(self, nodes: NodeList, made: Int64Array, rank: Int64Array, stage: Stage | None) -> None:
        """Order computations of a rank: those of kernels one by one, of fused ones on their own.

        A kernel that communicates runs beside the others, as overlapping needs it.
        """
        nodes.chain(made, rank)
        if stage is not None and stage.family != "pointwise":
            return
        order = np.argsort(rank, kind="stable")
        ranks, first, counts = np.unique(rank[order], return_index=True, return_counts=True)
        before = self._last[ranks]
        is_behind = before >= 0
        nodes.control.append((before[is_behind], made[order][first][is_behind]))
        self._last[ranks] = made[order][first + counts - 1]


def take_turns(
    nodes: NodeList, template: Template, made: Int64Array, pieces: int, most: int
) -> None:
    """Let a piece begin on a rank when the one `most` before it is over there.

    All at once would share the links, and end together: whoever waits for the first chunk would
    wait for nearly all of them. Receives need no turn, their sends have one.
    """
    count = len(template)
    is_receive = template.kind == NodeKind.RECV
    ends = _listed(template.ends)
    for position, listed in enumerate(_listed(template.starts)):
        starts = listed[~is_receive[listed]]
        # Every end before every start.
        before = np.repeat(ends[position], len(starts))
        behind = np.tile(starts, len(ends[position]))
        for piece in range(most, pieces):
            earlier = made[(piece - most) * count]
            later = made[piece * count]
            nodes.control.append((before + earlier, behind + later))


def _listed(lists: Lists) -> list[Int64Array]:
    """Lists of numbers as arrays."""
    # The ends of the first and the last list are those of all numbers.
    pointer, numbers = lists
    return np.split(numbers, pointer[1:-1])
