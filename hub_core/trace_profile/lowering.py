"""Lower the steps of an algorithm to trace nodes; foreign traces keep their ids, order and tags.

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

from hub_core.chakra import NodeTable, NodeType, UInt64Array
from hub_core.columns import (
    Int64Array,
    counted_positions,
    csr,
    distinct,
    first_positions,
    gather,
    group_of_entry,
    inverse,
    row_pointer,
    run_lengths,
    run_starts,
    stable_order_by,
)
from hub_core.model import Algorithm, InputError, JsonValue, StepKind, StepTable, message_bytes

_TYPE_OF_KIND = np.full(len(StepKind), NodeType.COMP, np.uint8)

_TYPE_OF_KIND[StepKind.SEND] = NodeType.COMM_SEND

_TYPE_OF_KIND[[StepKind.RECV, StepKind.RECV_REDUCE]] = NodeType.COMM_RECV

EXTENSION = "chakra"

CHANNEL_TAGS = "channel"


def chakra_nodes(algorithm: Algorithm, collective_bytes: int) -> NodeTable:
    """Convert the steps of an algorithm to nodes of profile v1, with message sizes in bytes.

    `collective_bytes`: size of the full buffer. A RECV_REDUCE becomes a COMM_RECV and a
    COMP that depends on it; every other step becomes one node; a rank without steps gets
    one COMP. Nodes are in the order of the steps, with ids from 0 in every rank. The
    dependencies of a step belong to its first node, and its dependants depend on its last
    node. Tags are those of `message_tags`.

    If `algorithm.extensions["chakra"]` records ids, order and tags of a foreign trace, the
    nodes get these. Raise `InputError` if they do not fit the steps (`invalid-extension`),
    or if all messages together have about 2^63 bytes or more (`size-range`). Takes O(n log
    n).
    """
    nodes = _lower_plain(algorithm, collective_bytes)
    if EXTENSION not in algorithm.extensions:
        return nodes
    # The placeholder of a rank without steps belongs to step -1.
    channel = np.append(algorithm.steps.channel, np.int32(-1))
    return restore(nodes, algorithm.extensions[EXTENSION], channel[nodes.step])


def message_tags(steps: StepTable) -> npt.NDArray[np.int32]:
    """Return the tag of every message: int32[rows], -1 for local steps.

    A SEND and its RECV (or RECV_REDUCE) have the same tag. The k-th message, from 0, of a
    (source, destination, channel) in row order has the tag base + k. For each (source,
    destination) the base is 0 for its lowest channel; for the next channel it is the number of
    messages on all lower channels. Example: 2 messages on channel 0 have the tags 0 and 1, and
    the first one on channel 3 has the tag 2. A tag is thus unique only within a pair of ranks.

    If the numbers of sends and receives of a channel differ (an invalid algorithm), the larger
    number counts. Without messages all tags are -1.
    """
    tags = np.full(len(steps), -1, np.int32)
    rows = np.flatnonzero(steps.sends | steps.receives)
    is_send = steps.sends[rows]
    source, destination = steps.ends(rows)
    # The peer may be -1 in invalid algorithms.
    pair = source.astype(np.int64) * (steps.num_ranks + 1) + destination
    channel = steps.channel[rows]
    # The sort is stable: messages of a side keep program order.
    order = stable_order_by(pair, 2 * channel.astype(np.int64) + is_send)
    pair, channel, is_send = pair[order], channel[order], is_send[order]
    side_lengths = run_lengths(run_starts(pair, channel, is_send), len(rows))
    ordinal = counted_positions(side_lengths)
    connection_starts = run_starts(pair, channel)
    connection_lengths = run_lengths(connection_starts, len(rows))
    # The number of tags is that of the longer side, so that no tag is repeated in invalid
    # algorithms.
    tag_counts = np.maximum.reduceat(ordinal, connection_starts) + 1 if len(rows) else ordinal
    base = first_positions(tag_counts)
    pair_of_connection = pair[connection_starts]
    base -= base[np.searchsorted(pair_of_connection, pair_of_connection)]
    tags[rows[order]] = np.repeat(base, connection_lengths) + ordinal
    return tags


def restore(nodes: NodeTable, extension: JsonValue, channel: npt.NDArray[np.int32]) -> NodeTable:
    """Return the nodes with the tags, order, ids and parent lists that `extension` records.

    `extension`: an object with the optional members `tags` and `ranks`. `channel`: int32,
    the channel of the step of every node. `nodes` is not modified.

    - `tags` is "channel": every message of the job gets its step's channel as tag. Any other
      value has no effect.
    - `ranks`: an object by rank with the optional members below. Ranks without an entry keep
      their ids, order and lists.
    - `order` of a rank: its entry i is the position, in the rank, of the node that becomes
      node i. Missing or null: the order is kept.
    - `ids` of a rank: in the new order. Missing or null: 0, 1, 2, ....
    - `data`, `control` of a rank: pairs (node, parents), which set the order of the parents.
      A value that is no list is ignored.

    Raises `InputError` (`invalid-extension`) if:

    - `extension` is no object or has other members, or `ranks` is no object of objects
    - a rank is unknown
    - an order, ids or a pair has another form, or does not fit the nodes, for example
      because the steps were changed
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
    # All ranks are reordered together, so that the table is copied once. Node i of the result is
    # node `order[i]`; dependencies are row numbers, which follow their nodes.
    ids, order = nodes.node_id.copy(), np.arange(len(nodes))
    for entry in entries:
        order[entry.rows] = entry.start + entry.permutation()
        ids[entry.rows] = entry.ids()
    position = inverse(order)
    columns: dict[str, Any] = {"node_id": ids}
    for name in ("type", "peer", "tag", "size", "duration_ns", "step"):
        columns[name] = getattr(nodes, name)[order]
    for name in ("data", "control"):
        indptr, indices = getattr(nodes, f"{name}_indptr"), getattr(nodes, f"{name}_indices")
        columns[f"{name}_indptr"] = row_pointer(np.diff(indptr)[order])
        columns[f"{name}_indices"] = position[gather(indptr, indices, order)]
    moved = replace(nodes, **columns)
    for entry in entries:
        entry.relist("data", moved.data_indptr, moved.data_indices)
        entry.relist("control", moved.control_indptr, moved.control_indices)
    return moved


def _lower_plain(algorithm: Algorithm, collective_bytes: int) -> NodeTable:
    """Return the nodes with ids, order and tags of profile v1: by rank, then in the order of steps.

    A RECV_REDUCE becomes a COMM_RECV and then a COMP; every other step is one node. A rank without
    steps gets one COMP without dependencies, because simulators need a node per rank. Ids count
    from 0 in each rank. `_build_columns` gives type, peer, tag, size, duration and step.

    Data and control dependencies of a step belong to its first node, in their order. They refer to
    the last nodes of other steps. The COMP of a RECV_REDUCE has only a data dependency on its
    COMM_RECV. A receive does not depend on its send.

    `collective_bytes`: size of the full buffer. Raises `InputError` (`size-range`) if all messages
    together have about 2^63 bytes or more.
    """
    steps = algorithm.steps
    is_pair = steps.kind == StepKind.RECV_REDUCE
    # Number of nodes of all earlier steps.
    before = row_pointer(1 + is_pair)
    nodes_of_rank = np.maximum(np.diff(before[steps.rank_indptr]), 1)
    rank_indptr = row_pointer(nodes_of_rank)
    # Placeholders of ranks without steps shift later nodes.
    shift = rank_indptr - before[steps.rank_indptr]
    first = before[:-1] + shift[steps.rank]
    # Equal to `first` for steps of one node.
    last = first + is_pair
    nodes = int(rank_indptr[-1])
    # A data dependency connects both nodes of a step; it follows the dependencies of the step.
    behind_own = steps.data_indptr[1:][is_pair]
    data_indices = np.insert(last[steps.data_indices], behind_own, first[is_pair])
    waits = np.bincount(last[is_pair], minlength=nodes)
    waits[first] += np.diff(steps.data_indptr)
    children, parents = first[group_of_entry(steps.control_indptr)], last[steps.control_indices]
    control_indptr, control_indices = csr(children, parents, nodes)
    return NodeTable(
        counted_positions(nodes_of_rank).astype(np.uint64),
        **_build_columns(algorithm, first, last, nodes, collective_bytes),
        rank_indptr=rank_indptr,
        data_indptr=row_pointer(waits),
        data_indices=data_indices,
        control_indptr=control_indptr,
        control_indices=control_indices,
    )


def _build_columns(
    algorithm: Algorithm, first: Int64Array, last: Int64Array, nodes: int, collective_bytes: int
) -> dict[str, Any]:
    """Return the columns of `NodeTable` that describe single nodes: arrays by name.

    `first`, `last`: first and last node of each step. They differ only for a RECV_REDUCE, which
    has a COMM_RECV and a COMP. `nodes`: number of all nodes, the length of every array. The
    columns:

    - `type` (uint8): COMM_SEND for a SEND, COMM_RECV for the first node of a RECV or
      RECV_REDUCE, otherwise COMP
    - `peer` (int32): peer of a message, otherwise -1
    - `tag` (int32): that of `message_tags` for a message, otherwise 0
    - `size` (int64): bytes of a message, otherwise 0; units of the step * `collective_bytes` /
      units of the full buffer, rounded up
    - `duration_ns` (int64): duration of the step at its last node; -1 at the COMM_RECV of a
      RECV_REDUCE
    - `step` (int64): row of the step, at both of its nodes

    A node without a step (a placeholder) is a COMP with peer, duration and step -1, and tag and
    size 0. Raises `InputError` (`size-range`) if all messages together have about 2^63 bytes or
    more.
    """
    steps, unit_count = algorithm.steps, algorithm.collective.unit_count
    columns: dict[str, Any] = {
        "type": np.full(nodes, NodeType.COMP, np.uint8),
        "peer": np.full(nodes, -1, np.int32),
        "tag": np.zeros(nodes, np.int32),
        "size": np.zeros(nodes, np.int64),
        "duration_ns": np.full(nodes, -1, np.int64),
        "step": np.full(nodes, -1, np.int64),
    }
    columns["type"][first] = _TYPE_OF_KIND[steps.kind]
    messages = steps.sends | steps.receives
    at = first[messages]
    columns["peer"][at] = steps.peer[messages]
    columns["tag"][at] = message_tags(steps)[messages]
    columns["size"][at] = message_bytes(collective_bytes, unit_count, steps.count[messages])
    # A receive-reduce takes its time after both operands are available.
    columns["duration_ns"][last] = steps.duration_ns
    columns["step"][first] = columns["step"][last] = np.arange(len(steps))
    return columns


def _create_misfit(reason: str) -> InputError:
    return InputError(
        f"extensions['chakra'] does not fit the steps: {reason}",
        code="invalid-extension",
        cure="remove this extension after changing the steps of an algorithm",
    )


class _RankEntry:
    """Recorded numbering of one rank, checked against its nodes."""

    def __init__(self, nodes: NodeTable, rank: str, entry: JsonValue) -> None:
        """Select the nodes of one rank, to which `entry` of an extension applies.

        `rank`: the key of the entry, the rank in 1 to 9 ASCII digits; leading zeros are accepted.
        `rows` becomes the slice of the rows of this rank in `nodes`, `start` its first row. An
        `entry` that is no object counts as an empty one.

        Raises `InputError` for any other key, and for a number that is not below `nodes.num_ranks`.
        A rank without nodes is accepted.
        """
        is_number = rank.isascii() and rank.isdigit() and len(rank) < 10
        if not is_number or int(rank) >= nodes.num_ranks:
            raise _create_misfit(f"{rank[:20]!r} is not a rank")
        self._entry = entry if isinstance(entry, dict) else {}
        self.start, stop = nodes.rank_indptr[int(rank) : int(rank) + 2].tolist()
        self._count = stop - self.start
        self.rows = slice(self.start, stop)

    def permutation(self) -> Int64Array:
        """Return, for every node in file order, its position in the order of profile v1: int64.

        The positions count from 0 within the rank. They are the list `order` of the entry. If it is
        missing or null, they are 0..n-1, with n the number of nodes of the rank. Raises
        `InputError` unless `order` is a list of integers with each of 0..n-1 once. Booleans count
        as 0 and 1.
        """
        plain = np.arange(self._count)
        if self._entry.get("order") is None:
            return plain
        order = _check_integers(self._entry["order"], self._count, "order").astype(np.int64)
        if not np.array_equal(np.sort(order), plain):
            raise _create_misfit("order is not a permutation")
        return order

    def ids(self) -> UInt64Array:
        """Return the id of every node of the rank in file order: uint64.

        The ids are the list `ids` of the entry. If it is missing or null, they are 0..n-1, with n
        the number of nodes of the rank. Raises `InputError` unless `ids` is a list of n different
        integers of 0..2^64-1. Booleans count as 0 and 1.
        """
        if self._entry.get("ids") is None:
            # Ids that count from 0 are not recorded.
            return np.arange(self._count).astype(np.uint64)
        ids = _check_integers(self._entry["ids"], self._count, "ids")
        if len(distinct(ids)) != self._count:
            raise _create_misfit("ids are not unique")
        return ids

    def relist(self, name: str, indptr: Int64Array, indices: Int64Array) -> None:
        """Put the parents of every node with a recorded list into the order of this list.

        `name`: member with the lists, `data` or `control`. Its value is a list of pairs (node,
        parents). Nodes and parents are positions in the file within the rank, from 0. `indptr`,
        `indices`: parents of the nodes of all ranks (CSR), nodes in the order of the file.
        `indices` is changed in place. Nothing changes if the member is missing or no list.

        Raises `InputError` (`invalid-extension`) at the first pair of another form, with an unknown
        node, or whose list does not have exactly the parents of the node. Earlier pairs are then
        already applied.
        """
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
    """Convert a list of `count` integers of 0..2^64-1 to uint64[count].

    Booleans are accepted as 0 and 1. Raises `InputError` for any other value; `name` is the name of
    the list in the message.
    """
    if not isinstance(value, list) or len(value) != count:
        raise _create_misfit(f"{name} has not {count} entries")
    if not all(isinstance(entry, int) and 0 <= entry < 1 << 64 for entry in value):
        raise _create_misfit(f"{name} contains other values than numbers")
    return np.asarray(value, np.uint64)
