"""Nodes of a flat job under construction: columns, and dependencies between them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array, distinct
from hub_core.model import NODE_DEFAULTS

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
