"""Templates: the nodes of an algorithm at one size, shared by all collectives that use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core import InputError
from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Int64Array,
    csr,
    distinct,
    expanded_ranges,
    group_of_entry,
    group_pointer,
    inverse,
    positions_in,
    row_pointer,
    sorted_ordinals,
)
from hub_core.model import Algorithm, NodeKind, StepKind, StepTable, connection_keys, message_bytes

Edges = tuple[Int64Array, Int64Array]
"""(parent rows, child rows)."""
Lists = tuple[Int64Array, Int64Array]
"""Lists of numbers, one a row: (row pointer, numbers)."""


@dataclass(frozen=True, slots=True, eq=False)
class Template(ColumnTable):
    """Nodes by position in the group, in the order of the algorithm's steps.

    Columns, one entry a node: `kind` uint8 (`NodeKind`); int64: `peer`: a position, -1 of no
    message; `bytes`, `duration_ns`: -1 where they mean nothing; `message`: number among those of
    its source and destination. `first` int64[positions + 1]: first node of each position. `data`,
    `control`: dependencies, ascending in children. `starts`: by position, the nodes that wait for
    none; `ends`: those after which the collective is over. `tags`: messages of one pair at most.
    """

    kind: npt.NDArray[np.uint8]
    peer: Int64Array
    bytes: Int64Array
    duration_ns: Int64Array
    message: Int64Array
    first: Int64Array
    data: Edges
    control: Edges
    starts: Lists
    ends: Lists
    tags: int


def template_of(algorithm: Algorithm, members: Sequence[int], size: int) -> Template:
    """Build the nodes that execute an algorithm in a group, with a full buffer of `size` bytes.

    `members[p]` is the rank of the algorithm at position p of the group. Nodes are sorted by
    position, then in the order of steps. The nodes of a step are:

    - Send or receive: one node. Its bytes are `size` x units of the step / units of the full
      buffer, rounded up.
    - Receive that reduces: the receive, then a computation that waits for it.
    - Local step: one computation.

    A computation has the recorded duration of its step in ns, 0 without a record. If the record is
    0, the computation is omitted, and nodes that wait for it wait for its predecessors. A node
    waits for the last nodes of the steps on which its step depends. Both ends of a message have
    the same number, from 0 for each pair of ranks; all messages must match. The collective ends on
    a rank after its receives and computations, on a rank that only sends after the sends.

    Raises `InputError` for the first of: a step is on a rank that is no member (`relay-outside`),
    all steps together have about 2^63 bytes or more (`size-range`), a message is empty
    (`size-too-small`).
    """
    steps, position = algorithm.steps, positions_in(np.asarray(members), algorithm.num_ranks)
    # A relay would be a rank of another group.
    strangers = np.flatnonzero(position[steps.rank] < 0)
    if len(strangers):
        rank = int(steps.rank[strangers[0]])
        message = f"its algorithm has steps on rank {rank}, which is not in the group"
        cure = "choose another algorithm for this group"
        raise InputError(message, cure=cure, code="relay-outside")
    is_message = steps.sends | steps.receives
    is_work = ~is_message | steps.is_kind(StepKind.RECV_REDUCE)
    count = is_message.astype(np.int64) + (is_work & (steps.duration_ns != 0))
    node = row_pointer(count)
    step = np.repeat(np.arange(len(steps)), count)
    is_local = ~is_message[step] | (np.arange(len(step)) > node[:-1][step])
    kind = np.where(steps.sends[step], NodeKind.SEND, NodeKind.RECV)
    kind[is_local] = NodeKind.COMPUTE
    sizes = message_bytes(size, algorithm.collective.unit_count, steps.count)
    if sizes[is_message].min(initial=1) < 1:
        # Some unit would have no byte.
        units = algorithm.collective.unit_count
        message = f"too few bytes for an algorithm that cuts the buffer in {units} units"
        raise InputError(message, cure="choose another algorithm for it", code="size-too-small")
    order = np.argsort(position[steps.rank[step]], kind="stable")
    data_edges = steps.data_indices, group_of_entry(steps.data_indptr)
    control_edges = steps.control_indices, group_of_entry(steps.control_indptr)
    data = _between_nodes(steps, data_edges, node, count)
    control = _between_nodes(steps, control_edges, node, count)
    pairs = node[:-1][count == 2]
    data = np.concatenate([data[0], pairs]), np.concatenate([data[1], pairs + 1])
    position_of_node = inverse(order)
    numbers = np.where(is_local, -1, _numbers(steps, is_message)[step])
    return built(
        kind[order].astype(np.uint8),
        np.where(is_local, -1, position[steps.peer[step]])[order],
        np.where(is_local, -1, sizes[step])[order],
        np.where(is_local, np.maximum(steps.duration_ns[step], 0), -1)[order],
        numbers[order],
        group_pointer(position[steps.rank[step]][order], len(members)),
        (position_of_node[data[0]], position_of_node[data[1]]),
        (position_of_node[control[0]], position_of_node[control[1]]),
    )


def marker(positions: int) -> Template:
    """Build a template with one MARKER node per position of a group, which takes no time.

    The nodes have no duration, bytes, peer (all -1), dependencies or messages; each is both
    start and end of its position.
    """
    nothing = np.full(positions, -1, np.int64)
    kind = np.full(positions, NodeKind.MARKER, np.uint8)
    none = np.zeros(0, np.int64), np.zeros(0, np.int64)
    first = np.arange(positions + 1)
    return built(kind, nothing, nothing, nothing, nothing, first, none, none)


def built(
    kind: npt.NDArray[np.uint8],
    peer: Int64Array,
    sizes: Int64Array,
    duration_ns: Int64Array,
    message: Int64Array,
    first: Int64Array,
    data: Edges,
    control: Edges,
) -> Template:
    """Build a template from columns, and derive its starts, ends and number of tags.

    Rows are grouped by position in the group: `first` is the row pointer, int64[positions + 1]. The
    columns are used as they are. `data` and `control` are (parents, children); the result has them
    sorted by child, and parents of one child keep their order.

    Starts and ends are lists of rows by position, ascending:

    - Starts: rows that are no child in `data` or `control`.
    - Ends: rows that are no sends and have no children, or only sends as children, in both kinds of
      dependencies. For a position without such a row: its rows without any children.

    The number of tags is the largest message number + 1, 0 without messages (-1). The columns are
    not checked.
    """
    rows, positions = len(kind), len(first) - 1
    parents, children = (np.concatenate(side) for side in zip(data, control, strict=True))
    position = group_of_entry(first)
    is_start = np.bincount(children, minlength=rows) == 0
    is_send = kind == NodeKind.SEND
    has_work_behind = np.zeros(rows, np.bool_)
    has_work_behind[parents[~is_send[children]]] = True
    is_end = ~is_send & ~has_work_behind
    has_end = np.bincount(position[is_end], minlength=positions) > 0
    is_parent = np.zeros(rows, np.bool_)
    is_parent[parents] = True
    is_end |= ~has_end[position] & ~is_parent
    return Template(
        kind,
        peer,
        sizes,
        duration_ns,
        message,
        first,
        _by_child(data),
        _by_child(control),
        _lists(is_start, position, positions),
        _lists(is_end, position, positions),
        int(message.max(initial=-1)) + 1,
    )


def _lists(is_listed: BoolArray, position: Int64Array, positions: int) -> Lists:
    rows = np.flatnonzero(is_listed)
    return csr(position[rows], rows, positions)


def _by_child(edges: Edges) -> Edges:
    order = np.argsort(edges[1], kind="stable")
    return edges[0][order], edges[1][order]


def _between_nodes(steps: StepTable, edges: Edges, node: Int64Array, count: Int64Array) -> Edges:
    """Convert dependencies between steps to dependencies between the nodes that represent them.

    `edges` and the result are (parents, children). Step s is represented by a chain of `count[s]`
    nodes, numbered from `node[s]`; `node` has one more entry, the number of nodes. The rules are:

    1. A parent without nodes is replaced by all steps on which it depends, by data and by control.
       This is repeated until all parents have nodes; a step that depends on none adds nothing.
    2. Dependencies of children without nodes are removed: by rule 1 they pass to the steps that
       depend on these children.
    3. The last node of the parent precedes the first node of the child. The dependencies inside a
       chain are not in the result.

    If rule 1 replaced a parent, the result is sorted by parent, then child, without duplicates.
    Otherwise it has the order of `edges`.
    """
    all_parents, all_children = steps.edges()
    indptr, before = csr(all_children, all_parents, len(steps))
    parents, children = edges
    while len(jumped := np.flatnonzero(count[parents] == 0)):
        has_nodes = count[parents] > 0
        step, waiting = parents[jumped], children[jumped]
        times = np.diff(indptr)[step]
        further = before[expanded_ranges(indptr[step], times)]
        parents = np.concatenate([parents[has_nodes], further])
        children = np.concatenate([children[has_nodes], np.repeat(waiting, times)])
        parents, children = np.divmod(distinct(parents * len(steps) + children), len(steps))
    is_kept = count[children] > 0
    parents, children = parents[is_kept], children[is_kept]
    return node[1:][parents] - 1, node[:-1][children]


def _numbers(steps: StepTable, is_message: BoolArray) -> Int64Array:
    """Number the messages between two ranks; both ends of a message have the same number.

    Returns int64[steps], -1 for steps without a message. Numbers count from 0 for each (sender,
    receiver), ordered by channel, then by step. So the k-th send of a channel has the number of its
    k-th receive; sends and receives must match.
    """
    rows = np.flatnonzero(is_message)
    rank_columns = steps.ends(rows)
    keys = connection_keys(*rank_columns, steps.channel[rows])
    pairs = rank_columns[0].astype(np.int64) * steps.num_ranks + rank_columns[1]
    numbers = np.full(len(steps), -1, np.int64)
    is_sent = steps.sends[rows]
    for side in (np.flatnonzero(is_sent), np.flatnonzero(~is_sent)):
        # The k-th of a connection meets the k-th: in order of connections both ends count alike.
        order = side[np.argsort(keys[side], kind="stable")]
        numbers[rows[order]] = sorted_ordinals(pairs[order])
    return numbers
