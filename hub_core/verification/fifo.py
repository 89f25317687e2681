"""Deadlock with bounded buffers.

Every connection holds a fixed number of transfers, and long steps take several. A send of transfer
k + capacity waits until transfer k was received: with these edges, and the transfers of a step one
behind the other, a deadlock is a cycle. Cost: linear in transfers, for every way to split.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hub_core.model.algorithm import Algorithm
from hub_core.model.columns import Int64Array, expanded_ranges, first_positions, run_mask
from hub_core.model.diagnostics import InputError, UsageError
from hub_core.model.findings import Findings
from hub_core.model.levels import Order, topological_levels
from hub_core.model.messages import Messages, connection_keys, match_messages
from hub_core.model.steps import StepTable
from hub_core.verification.step_order import describe_cycle, find_cycle

# Nodes of a graph of gigabytes.
MAX_TRANSFERS = 1 << 24
_Edges = tuple[Int64Array, Int64Array]


@dataclass(frozen=True, slots=True)
class FifoSafety:
    """For which sizes bounded buffers cannot deadlock.

    `min_units`: no deadlock where every transfer takes this many units or more (1: safe at every
    size), None where there is a deadlock even if each step is one transfer. `capacity`: transfers
    that a connection holds. `is_exact`: False where the search ended after `MAX_TRANSFERS`
    transfers; `min_units` is then safe, but maybe not the least.
    """

    min_units: int | None
    capacity: int
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class _Connections:
    """What bounded buffers act on, in rows of the step table; int64 columns.

    `send`, `receive`, `connection`: messages sorted by connection, FIFO order within.
    `fused_receive`, `fused_send`: steps of one instruction, which passes each transfer on as it
    comes. `parents`, `children`: the dependencies, but for those between fused steps.
    """

    send: Int64Array
    receive: Int64Array
    connection: Int64Array
    fused_receive: Int64Array
    fused_send: Int64Array
    parents: Int64Array
    children: Int64Array


def fifo_safety(algorithm: Algorithm, capacity: int) -> FifoSafety:
    """The least number of units a transfer such that no number from it on deadlocks.

    Every way in which the counts can split is tried once, from the largest transfers down. A step
    of c units in transfers of u is ceil(c / u) transfers. Raises `InputError` for algorithms whose
    messages do not match, `UsageError` for a capacity below 1.
    """
    _check_capacity(capacity, None)
    steps, findings = algorithm.steps, Findings()
    messages = match_messages(steps, findings)
    if findings.has_errors():
        raise InputError(list(findings))
    connections = _connections(steps, messages)
    safe: int | None = None
    examined = 0
    counts = np.maximum(steps.count[messages.send], 1)
    for units in _distinct_splits(counts):
        examined += int((-(-counts // units)).sum())
        # The first way is always tried, so that there is an answer.
        if safe is not None and examined > MAX_TRANSFERS:
            return FifoSafety(safe, capacity, is_exact=False)
        if not _transfer_graph(steps, connections, capacity, units).order.is_complete:
            return FifoSafety(safe, capacity)
        safe = units
    return FifoSafety(1 if safe is None else safe, capacity)


def report_fifo_deadlock(
    steps: StepTable, messages: Messages, capacity: int, units: int | None, findings: Findings
) -> None:
    """Name the steps of a cycle with `capacity` transfers a connection.

    `units`: those of a transfer; None: a step is one. Raises `InputError` for too many transfers,
    `UsageError` for numbers below 1.
    """
    _check_capacity(capacity, units)
    # As long as the longest step, a transfer is never split.
    longest = int(np.maximum(steps.count, 1).max(initial=1))
    graph = _transfer_graph(steps, _connections(steps, messages), capacity, units or longest)
    if graph.order.is_complete:
        return
    nodes = find_cycle(graph.parents, graph.children, graph.order)
    rows = graph.row[nodes].tolist()
    # Several transfers of one step are named once; the row before the first one is the last.
    cycle = [row for k, row in enumerate(rows) if row != rows[k - 1] or len(rows) == 1]
    size = f" of {units} units" if units else ""
    room = f"with room for {capacity} transfers{size} a connection"
    message = f"{room} these steps wait for each other: {describe_cycle(steps, cycle)}"
    cure = "use the algorithm for smaller sizes only, or let receives come before further sends"
    findings.add("fifo-deadlock", message, steps.location(cycle[0], findings.file), cure)


@dataclass(frozen=True, slots=True)
class _TransferGraph:
    """Transfers as nodes (`row`: the step of each), edges, and the order of what can run."""

    row: Int64Array
    parents: Int64Array
    children: Int64Array
    order: Order


def _transfer_graph(
    steps: StepTable, connections: _Connections, capacity: int, units: int
) -> _TransferGraph:
    """Split steps to transfers of at most `units` and join them by every reason to wait."""
    pieces = _pieces(steps, connections, units)
    nodes = int(pieces.sum())
    first = first_positions(pieces)
    last = first + pieces - 1
    row = np.repeat(np.arange(len(steps)), pieces)
    inner = np.flatnonzero(row[1:] == row[:-1])
    edges = (
        (last[connections.parents], first[connections.children]),
        (inner, inner + 1),
        *_buffer_edges(connections, pieces, first, capacity),
        *_fused_edges(connections, pieces, first, row),
    )
    parents = np.concatenate([parents for parents, _ in edges])
    children = np.concatenate([children for _, children in edges])
    return _TransferGraph(row, parents, children, topological_levels(nodes, parents, children))


def _buffer_edges(
    connections: _Connections, pieces: Int64Array, first: Int64Array, capacity: int
) -> list[_Edges]:
    """Transfers wait for their send, and sends for room in the buffer of the connection."""
    sent, received = _aligned(connections.send, connections.receive, pieces, first)
    shorter = np.minimum(pieces[connections.send], pieces[connections.receive])
    fifo = np.repeat(connections.connection, shorter)
    # Transfer k + capacity of a connection finds room when transfer k was taken out.
    full = np.flatnonzero(fifo[capacity:] == fifo[: max(len(fifo) - capacity, 0)])
    return [(sent, received), (received[full], sent[full + capacity])]


def _fused_edges(
    connections: _Connections, pieces: Int64Array, first: Int64Array, row: Int64Array
) -> list[_Edges]:
    """An instruction forwards each transfer as it comes, and before it takes the next one."""
    receives, sends = _aligned(connections.fused_receive, connections.fused_send, pieces, first)
    same = np.flatnonzero(row[sends[1:]] == row[sends[:-1]])
    return [(receives, sends), (sends[same], receives[same + 1])]


def _pieces(steps: StepTable, connections: _Connections, units: int) -> Int64Array:
    """Number of transfers of every step. Raises `InputError` where they are too many in all."""
    pieces = np.ones(len(steps), np.int64)
    rows = np.concatenate([connections.send, connections.receive])
    pieces[rows] = np.maximum(-(-steps.count[rows] // units), 1)
    # As a float, since huge counts would wrap around.
    total = float(pieces.sum(dtype=np.float64))
    if total > MAX_TRANSFERS + len(steps):
        counted = f"{total:.3g} transfers are too many to check for deadlock"
        raise InputError(f"{counted} (limit {MAX_TRANSFERS})", code="too-large")
    return pieces


def _connections(steps: StepTable, messages: Messages) -> _Connections:
    """What bounded buffers act on, from the messages and the dependencies."""
    send, receive = messages.send, messages.receive
    # Messages ascend in their send row, which is FIFO order within a connection.
    keys = connection_keys(steps.rank[send], steps.peer[send], steps.channel[send])
    order = np.argsort(keys, kind="stable")
    # A number for each connection: which one does not matter, only which messages share it.
    connection = np.cumsum(run_mask(keys[order]), dtype=np.int64)
    fused_receive, fused_send = fused_pairs(steps, messages)
    parents, children = steps.edges()
    # A fused send starts before its receive has all: that edge holds per transfer instead.
    partner = np.full(len(steps), -1, np.int64)
    partner[fused_send] = fused_receive
    apart = partner[children] != parents
    return _Connections(
        send[order],
        receive[order],
        connection,
        fused_receive,
        fused_send,
        parents[apart],
        children[apart],
    )


def fused_pairs(steps: StepTable, messages: Messages) -> tuple[Int64Array, Int64Array]:
    """(receive, send) rows of one instruction: neighbours in a lane, of one line and count."""
    by_lane = np.lexsort((steps.lane, steps.rank))
    receive, send = by_lane[:-1], by_lane[1:]
    is_matched = np.zeros(len(steps), np.bool_)
    is_matched[messages.send] = True
    is_matched[messages.receive] = True
    fused = (steps.receives & is_matched)[receive] & (steps.sends & is_matched)[send]
    # MSCCL writes a receive and the send of the same data as one instruction (rcs, rrs, rrcs).
    for column in (steps.rank, steps.lane, steps.source_line, steps.count):
        fused &= column[receive] == column[send]
    fused &= (steps.lane[send] >= 0) & (steps.source_line[send] >= 0)
    return receive[fused], send[fused]


def _aligned(
    one: Int64Array, other: Int64Array, pieces: Int64Array, first: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Nodes of the k-th pieces of paired rows; what one has more than the other has no partner."""
    count = np.minimum(pieces[one], pieces[other])
    return expanded_ranges(first[one], count), expanded_ranges(first[other], count)


def _distinct_splits(counts: Int64Array) -> Iterator[int]:
    """The least units a transfer of every different way to split, largest transfers first.

    Made as they are asked for, since a count near 2^62 has 2^32 of them.
    """
    latest = 0
    ways = [_splits(count) for count in np.unique(counts).tolist()]
    for units in heapq.merge(*ways, reverse=True):
        if units != latest:
            latest = units
            yield units


def _splits(count: int) -> Iterator[int]:
    """The least u of every value of ceil(count / u), descending from count to 1."""
    units = count
    while units >= 1:
        pieces = -(-count // units)
        units = -(-count // pieces)
        yield units
        units -= 1


def _check_capacity(capacity: int, units: int | None) -> None:
    """Raise `UsageError` for numbers below 1."""
    if capacity < 1 or (units is not None and units < 1):
        message = f"a FIFO of {capacity} transfers of {units} units: expected 1 or more of each"
        raise UsageError(message)
