"""Work, dependencies and durations of a file's steps, and their order by list scheduling.

Time is counted in units that cross a link. A message crosses two links, that of its sender and that
of its receiver, each completely; its receive begins on the second link, and the sending step lasts
until the message has arrived. A fused step sends after it has received. Local work takes the time
of its units.

Of the ready steps, the one that can begin first is scheduled; on a tie, the one with the longest
chain of successors, then the one that sends to the next rank: if all ranks sent to the same rank in
turn, they would wait for its link. The messages of a rank share its outgoing link one after the
other, and those to a rank its incoming link. The messages of a connection are received in the order
in which they were sent. The result is an order of execution, so thread blocks cannot wait for each
other in a cycle. Cost: n log n in steps and waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.writing.draft import Arrangement, StepDraft
from collhub_msccl.writing.list_kernels import (
    NONE,
    Nodes,
    Resources,
    as_array,
    compute_spans,
    create_state,
    order_nodes,
    run,
)
from hub_core.columns import BoolArray, Int64Array, inverse
from hub_core.model import StepKind, connection_keys


@dataclass(frozen=True, slots=True)
class WorkGraph:
    """Nodes are future steps, numbered in a possible order of execution.

    `node_of_row`: int64 per row of the draft. All other columns are int64 per node: `nodes`;
    `recv`, `send`: peers or -1; `channel`: of its messages, 0 for none; `start`: earliest beginning
    without contention; `tail`: from its beginning to the end of all its successors.
    """

    num_ranks: int
    node_of_row: Int64Array
    nodes: Nodes
    recv: Int64Array
    send: Int64Array
    channel: Int64Array
    start: Int64Array
    tail: Int64Array

    def __len__(self) -> int:
        return len(self.recv)


def build_work_graph(draft: StepDraft, arrangement: Arrangement, latency: int) -> WorkGraph:
    """Build the graph of arranged rows, with one node per step of the file.

    Nodes are numbered in the order of execution; fused rows have the node of the row into which
    they are fused. Times are in units of data; `latency` is the latency of a link.

    - units: the largest count of the rows of the node, or the total count of its reductions
    - crossing: units plus `latency`
    - duration: units for local work, one crossing for a receive, two for a send, three for a
      receive that also sends
    - transit: time from the begin of a node until the sent data has arrived; one crossing less than
      the duration for nodes that send, otherwise 0
    - start: earliest begin without limits of blocks and links
    - tail: longest time from the begin to the end of everything that depends on the node

    Missing peers are NONE.
    """
    position, fused_into = arrangement.position, arrangement.fused_into
    heads = np.flatnonzero(fused_into < 0)
    heads = heads[np.argsort(position[heads], kind="stable")]
    node_of_row = np.empty(len(draft), np.int64)
    node_of_row[heads] = np.arange(len(heads))
    fused = np.flatnonzero(fused_into >= 0)
    node_of_row[fused] = node_of_row[fused_into[fused]]
    size = len(heads)
    sends = np.flatnonzero(draft.sends)
    sender, receiver = node_of_row[sends], node_of_row[draft.partner[sends]]
    target, source = np.full(size, NONE), np.full(size, NONE)
    target[sender], source[receiver] = receiver, sender
    # A chain of reductions moves the total of its units.
    units = np.zeros(size, np.int64)
    np.maximum.at(units, node_of_row, draft.count)
    reductions = np.flatnonzero(draft.is_kind(StepKind.REDUCE))
    units[node_of_row[reductions]] = 0
    np.add.at(units, node_of_row[reductions], draft.count[reductions])
    crossing = units + latency
    receives, transmits = source >= 0, target >= 0
    receive_time = np.where(receives & transmits, crossing, 0)
    transit = np.where(transmits, crossing + receive_time, 0)
    duration = np.where(transmits, transit + crossing, np.where(receives, crossing, units))
    nodes = Nodes(
        draft.rank[heads].astype(np.int64),
        source,
        target,
        units,
        transit,
        duration,
        receive_time,
        *_collect_waits(draft, node_of_row, size),
    )
    start, tail = run(compute_spans, size, nodes)
    return WorkGraph(
        draft.num_ranks,
        node_of_row,
        nodes,
        _collect_column(draft.peer, draft.receives, node_of_row, size, NONE),
        _collect_column(draft.peer, draft.sends, node_of_row, size, NONE),
        _collect_column(draft.channel, draft.partner >= 0, node_of_row, size, 0),
        as_array(start),
        as_array(tail),
    )


def _collect_column(
    values: Int64Array,
    is_selected: BoolArray,
    node_of_row: Int64Array,
    size: int,
    default: int,
) -> Int64Array:
    """Return for every node (step) the value of its selected row, or `default` without one.

    If a node has several selected rows, the last one counts. `values`, `is_selected`,
    `node_of_row`: by row. `size`: number of nodes.
    """
    result = np.full(size, default, np.int64)
    rows = np.flatnonzero(is_selected)
    result[node_of_row[rows]] = values[rows]
    return result


def _collect_waits(
    draft: StepDraft, node_of_row: Int64Array, size: int
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Return the children and the parents of every node, each listed once in ascending order.

    The results are the start of the children of each node (one entry more than nodes), the
    children, and the same of the parents. A node is a child of another if one of its rows depends
    on a row of the other. Dependencies within a node are dropped. `size`: number of nodes.
    """
    from_node, to_node = node_of_row[draft.parents], node_of_row[draft.children]
    is_crossing = from_node != to_node
    pairs: Edges = np.divmod(
        np.unique(from_node[is_crossing] * size + to_node[is_crossing]), max(size, 1)
    )
    order = np.argsort(pairs[1], kind="stable")
    starts = [np.concatenate([[0], np.cumsum(np.bincount(one, minlength=size))]) for one in pairs]
    return starts[0], pairs[1], starts[1], pairs[0][order]


def schedule_nodes(
    graph: WorkGraph, block: Int64Array, blocks: int, capacity: int
) -> tuple[Int64Array, Int64Array] | None:
    """Order all nodes by list scheduling; return (nodes in order of begin, begin of every node).

    `block`: thread block of every node, below `blocks`. `capacity`: messages that a connection
    holds until they are received. A full connection delays its sender. Of the nodes whose
    predecessors have finished, the next one is chosen by these criteria, in this order:

    1. the earliest possible begin
    2. the longest remaining work (`graph.tail`)
    3. the smallest (receiver - rank) modulo the number of ranks; 0 for nodes that send nothing
    4. the lowest number

    Both results are int64, begins in the time unit of `graph`. Returns None if full connections
    block all remaining nodes. The arguments are not changed.
    """
    size, nodes = len(graph), graph.nodes
    sends, receives = nodes.target >= 0, nodes.source >= 0
    distance = np.where(sends, (graph.send - nodes.rank) % max(graph.num_ranks, 1), 0)
    node_of_priority = np.lexsort((distance, -graph.tail))
    # Connections of the incoming and of the outgoing messages.
    keys = connection_keys(
        np.concatenate([graph.recv[receives], nodes.rank[sends]]),
        np.concatenate([nodes.rank[receives], graph.send[sends]]),
        np.concatenate([graph.channel[receives], graph.channel[sends]]),
    )
    known, number = np.unique(keys, return_inverse=True)
    incoming, outgoing = np.full(size, NONE), np.full(size, NONE)
    incoming[receives], outgoing[sends] = np.split(number, [np.count_nonzero(receives)])
    # A node that receives first needs the link out of its rank later.
    width = int(nodes.receive_time.max(initial=0)) + 1
    links, number = np.unique(
        nodes.rank[sends] * width + nodes.receive_time[sends], return_inverse=True
    )
    out_of_node = np.full(size, NONE)
    out_of_node[sends] = number
    resources = Resources(
        block,
        incoming,
        outgoing,
        inverse(node_of_priority),
        node_of_priority,
        out_of_node,
        links // width,
        links % width,
        blocks,
        int(nodes.rank.max(initial=-1)) + 1,
        len(known),
    )
    state = create_state(size, resources)
    number, order, begin = run(order_nodes, size, nodes, resources, state, capacity)
    return (as_array(order), as_array(begin)) if number == size else None


def find_first_senders(graph: WorkGraph) -> Int64Array:
    """Return for every node the first node of its chain of forwarded messages, or itself."""
    first = np.where(graph.nodes.source >= 0, graph.nodes.source, np.arange(len(graph)))
    # Each round doubles the length of the chains that are followed.
    while not np.array_equal(first[first], first):
        first = first[first]
    return first
