"""Remember and restore the node ids, the order and the tags of a trace that is not in the plain form.

Simulators break ties by ids and file order, so a foreign trace must be simulated with its own. They are kept in
`Algorithm.extensions["chakra"]`, an object with these optional members:

- `tags`: the text "channel" where the tag of every message is the channel of its step.
- `ranks`: by rank (as text) an object of `ids`, node ids in file order; `order`, for every node in file order its
  position in the plain order, in which nodes stand as their steps do; `data` and `control`, pairs of a position in
  the file and the positions of its parents as listed, for nodes whose parents are not listed in the plain order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hub_core.chakra.wire import ranges
from hub_core.model.algorithm import JsonValue
from hub_core.model.diagnostics import InputError

if TYPE_CHECKING:
    from hub_core.chakra.nodes import NodeTable


Int64Array = npt.NDArray[np.int64]
EXTENSION = "chakra"
CHANNEL_TAGS = "channel"


@dataclass(frozen=True, slots=True)
class RankNodes:
    """The nodes of one rank in file order: ids, the row of the step that each belongs to, and where it stands.

    `data`, `control`: (parents, children) as positions in the file, ordered by child, as listed. `file`: name of
    the file; `byte`: where each node starts in it.
    """

    ids: npt.NDArray[np.uint64]
    row: Int64Array
    data: tuple[Int64Array, Int64Array]
    control: tuple[Int64Array, Int64Array]
    file: str
    byte: Int64Array


def describe_rank(nodes: RankNodes, position_of_row: Int64Array) -> dict[str, JsonValue]:
    """The entry of one rank; empty for a rank in the plain form. `position_of_row`: where each row came to stand."""
    count = len(nodes.ids)
    by_plain = np.lexsort((np.arange(count), position_of_row[nodes.row]))
    plain = np.empty(count, np.int64)
    plain[by_plain] = np.arange(count)
    entry: dict[str, JsonValue] = {}
    if not np.array_equal(nodes.ids, np.arange(count).astype(np.uint64)):
        entry["ids"] = list[JsonValue](nodes.ids.tolist())
    if not np.array_equal(plain, np.arange(count)):
        entry["order"] = list[JsonValue](plain.tolist())
    for name, (parents, children) in (("data", nodes.data), ("control", nodes.control)):
        if lists := _unusual_lists(parents, children, plain):
            entry[name] = lists
    return entry


def restore(nodes: NodeTable, extension: JsonValue, channel: npt.NDArray[np.int32]) -> NodeTable:
    """Give plain nodes the ids, order and tags that `extension` remembers. `channel`: of the step of every node.

    Raises `InputError` where the extension does not fit the nodes, as after a change of the steps.
    """
    if not isinstance(extension, dict) or not set(extension) <= {"tags", "ranks"}:
        raise _misfit("it is not an object of tags and ranks")
    if extension.get("tags") == CHANNEL_TAGS:
        nodes = replace(nodes, tag=np.where(nodes.peer >= 0, channel, nodes.tag))
    ranks = extension.get("ranks", {})
    if not isinstance(ranks, dict) or not all(isinstance(entry, dict) for entry in ranks.values()):
        raise _misfit("ranks is not an object of objects")
    if not ranks:
        return nodes
    ids, order = nodes.node_id.copy(), np.arange(len(nodes))
    entries = [
        (_rank_start(nodes, rank), entry)
        for rank, entry in ranks.items()
        if isinstance(entry, dict)
    ]
    for (start, count), entry in entries:
        order[start : start + count] = start + _permutation(entry.get("order"), count)
        ids[start : start + count] = _ids(entry.get("ids"), count)
    moved = _reordered(nodes, ids, order)
    for (start, count), entry in entries:
        _relist(moved.data_indptr, moved.data_indices, entry.get("data"), start, count)
        _relist(moved.control_indptr, moved.control_indices, entry.get("control"), start, count)
    return moved


def _misfit(reason: str) -> InputError:
    return InputError(
        f"extensions['chakra'] does not fit the steps: {reason}",
        code="invalid-extension",
        cure="remove this extension after changing the steps of an algorithm",
    )


def _rank_start(nodes: NodeTable, rank: str) -> tuple[int, int]:
    if not (rank.isascii() and rank.isdigit() and len(rank) < 10 and int(rank) < nodes.num_ranks):
        raise _misfit(f"{rank[:20]!r} is not a rank")
    start, stop = nodes.rank_indptr[int(rank) : int(rank) + 2].tolist()
    return start, stop - start


def _integers(value: JsonValue, count: int, what: str) -> list[int]:
    if not isinstance(value, list) or len(value) != count:
        raise _misfit(f"{what} has not {count} entries")
    found = [entry for entry in value if isinstance(entry, int) and 0 <= entry < 1 << 64]
    if len(found) != count:
        raise _misfit(f"{what} holds something else than numbers")
    return found


def _permutation(value: JsonValue, count: int) -> Int64Array:
    if value is None:
        return np.arange(count)
    order = _integers(value, count, "order")
    if sorted(order) != list(range(count)):
        raise _misfit("order is not a permutation")
    return np.asarray(order, np.int64)


def _ids(value: JsonValue, count: int) -> npt.NDArray[np.uint64]:
    if value is None:
        return np.arange(count).astype(np.uint64)
    ids = _integers(value, count, "ids")
    if len(set(ids)) != count:
        raise _misfit("ids are not unique")
    return np.asarray(ids, np.uint64)


def _reordered(nodes: NodeTable, ids: npt.NDArray[np.uint64], order: Int64Array) -> NodeTable:
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    moved = {}
    for name in ("data", "control"):
        indptr, indices = getattr(nodes, f"{name}_indptr"), getattr(nodes, f"{name}_indices")
        lengths = np.diff(indptr)[order]
        moved[f"{name}_indptr"] = np.concatenate([[0], np.cumsum(lengths)])
        moved[f"{name}_indices"] = position[indices[ranges(indptr[:-1][order], lengths)]]
    columns = {
        name: getattr(nodes, name)[order]
        for name in ("type", "peer", "tag", "size", "duration_ns", "step")
    }
    return replace(nodes, node_id=ids, **columns, **moved)


def _relist(
    indptr: Int64Array, indices: Int64Array, lists: JsonValue, start: int, count: int
) -> None:
    """Put parents in the order in which the file listed them."""
    for entry in lists if isinstance(lists, list) else []:
        if (
            not isinstance(entry, list)
            or len(entry) != 2
            or not isinstance(entry[0], int)
            or not 0 <= entry[0] < count
        ):
            raise _misfit("a list of dependencies is not a pair of a node and its parents")
        low, high = indptr[start + entry[0] : start + entry[0] + 2].tolist()
        listed = start + np.asarray(
            _integers(entry[1], high - low, "a list of dependencies"), np.uint64
        ).astype(np.int64)
        if not np.array_equal(np.sort(listed), np.sort(indices[low:high])):
            raise _misfit(f"node {entry[0]} has other dependencies")
        indices[low:high] = listed


def _unusual_lists(parents: Int64Array, children: Int64Array, plain: Int64Array) -> list[JsonValue]:
    """Lists of parents that are not in ascending plain order, without repetitions."""
    cuts = (
        np.flatnonzero(np.diff(children, prepend=-1, append=-1))
        if len(children)
        else np.zeros(0, np.int64)
    )
    unusual: list[JsonValue] = []
    for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        listed = list(dict.fromkeys(parents[low:high].tolist()))
        if listed != sorted(listed, key=plain.__getitem__):
            unusual.append([int(children[low]), list[JsonValue](listed)])
    return unusual
