"""Restore ids, order and tags of a foreign trace in plain nodes.

Simulators break ties by ids and file order, so a foreign trace must be simulated with its original
ones. They are stored in `Algorithm.extensions["chakra"]`, an object with these optional members:

- `tags`: the text "channel" if the tag of every message is the channel of its step.
- `ranks`: by rank (as text) an object of `ids`, node ids in file order; `order`, for every node in
  file order its position in the plain order, which is that of the steps; `data` and `control`,
  pairs of a position in the file and the positions of its parents as listed, for nodes whose
  parents are not listed in the plain order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.chakra import NodeTable, UInt64Array
from hub_core.columns import Int64Array, distinct, gather, inverse, row_pointer
from hub_core.model import InputError, JsonValue

EXTENSION = "chakra"
CHANNEL_TAGS = "channel"


def restore(nodes: NodeTable, extension: JsonValue, channel: npt.NDArray[np.int32]) -> NodeTable:
    """Restore the recorded numbering of plain nodes. `channel`: of the step of every node.

    Raises `InputError` if the extension does not fit the nodes, for example after a change of the
    steps.
    """
    if not isinstance(extension, dict) or not set(extension) <= {"tags", "ranks"}:
        raise _create_misfit("it is not an object of tags and ranks")
    if extension.get("tags") == CHANNEL_TAGS:
        nodes = replace(nodes, tag=np.where(nodes.peer >= 0, channel, nodes.tag))
    ranks = extension.get("ranks", {})
    if not isinstance(ranks, dict) or not all(isinstance(entry, dict) for entry in ranks.values()):
        raise _create_misfit("ranks is not an object of objects")
    if not ranks:
        return nodes
    entries = [_RankEntry(nodes, rank, entry) for rank, entry in ranks.items()]
    # All ranks are reordered together, so that the table is copied once.
    ids, order = nodes.node_id.copy(), np.arange(len(nodes))
    for entry in entries:
        order[entry.rows] = entry.start + entry.permutation()
        ids[entry.rows] = entry.ids()
    moved = _reorder(nodes, ids, order)
    for entry in entries:
        entry.relist("data", moved.data_indptr, moved.data_indices)
        entry.relist("control", moved.control_indptr, moved.control_indices)
    return moved


def _create_misfit(reason: str) -> InputError:
    return InputError(
        f"extensions['chakra'] does not fit the steps: {reason}",
        code="invalid-extension",
        cure="remove this extension after changing the steps of an algorithm",
    )


def _reorder(nodes: NodeTable, ids: UInt64Array, order: Int64Array) -> NodeTable:
    """Return the nodes in the order of the file, with their dependencies."""
    position = inverse(order)
    columns: dict[str, Any] = {"node_id": ids}
    for name in ("type", "peer", "tag", "size", "duration_ns", "step"):
        columns[name] = getattr(nodes, name)[order]
    for name in ("data", "control"):
        indptr, indices = getattr(nodes, f"{name}_indptr"), getattr(nodes, f"{name}_indices")
        columns[f"{name}_indptr"] = row_pointer(np.diff(indptr)[order])
        columns[f"{name}_indices"] = position[gather(indptr, indices, order)]
    return replace(nodes, **columns)


class _RankEntry:
    """Recorded numbering of one rank, checked against its nodes."""

    def __init__(self, nodes: NodeTable, rank: str, entry: JsonValue) -> None:
        """`rank`: key of the entry. Raises `InputError` for an invalid rank."""
        is_number = rank.isascii() and rank.isdigit() and len(rank) < 10
        if not is_number or int(rank) >= nodes.num_ranks:
            raise _create_misfit(f"{rank[:20]!r} is not a rank")
        self._entry = entry if isinstance(entry, dict) else {}
        self.start, stop = nodes.rank_indptr[int(rank) : int(rank) + 2].tolist()
        self._count = stop - self.start
        self.rows = slice(self.start, stop)

    def permutation(self) -> Int64Array:
        """Return the plain position of every node in file order."""
        plain = np.arange(self._count)
        if self._entry.get("order") is None:
            return plain
        order = _check_integers(self._entry["order"], self._count, "order").astype(np.int64)
        if not np.array_equal(np.sort(order), plain):
            raise _create_misfit("order is not a permutation")
        return order

    def ids(self) -> UInt64Array:
        """Return the id of every node in file order."""
        if self._entry.get("ids") is None:
            # Ids that count from 0 are not recorded.
            return np.arange(self._count).astype(np.uint64)
        ids = _check_integers(self._entry["ids"], self._count, "ids")
        if len(distinct(ids)) != self._count:
            raise _create_misfit("ids are not unique")
        return ids

    def relist(self, name: str, indptr: Int64Array, indices: Int64Array) -> None:
        """Put parents into the order of the file."""
        # Lists that are not recorded are in plain order.
        lists = self._entry.get(name)
        for pair in lists if isinstance(lists, list) else []:
            node, parents = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
            if not isinstance(node, int) or not 0 <= node < self._count:
                raise _create_misfit(
                    "a list of dependencies is not a pair of a node and its parents"
                )
            low, high = indptr[self.start + node : self.start + node + 2].tolist()
            listed = _check_integers(parents, high - low, "a list of dependencies").astype(np.int64)
            listed += self.start
            # They must be the same parents; otherwise the steps were changed.
            if not np.array_equal(np.sort(listed), np.sort(indices[low:high])):
                raise _create_misfit(f"node {node} has other dependencies")
            indices[low:high] = listed


def _check_integers(value: JsonValue, count: int, name: str) -> UInt64Array:
    """Check a list of `count` numbers of 64 bits. Raises `InputError`."""
    if not isinstance(value, list) or len(value) != count:
        raise _create_misfit(f"{name} has not {count} entries")
    if not all(isinstance(entry, int) and 0 <= entry < 1 << 64 for entry in value):
        raise _create_misfit(f"{name} holds something else than numbers")
    return np.asarray(value, np.uint64)
