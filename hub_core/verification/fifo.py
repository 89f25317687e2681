"""Deadlock with bounded buffers: every connection holds a fixed number of transfers, and long steps take several."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import InputError, UsageError
from hub_core.model.findings import Findings
from hub_core.model.levels import Order, topological_levels
from hub_core.model.messages import Messages, match_messages
from hub_core.model.steps import StepTable
from hub_core.model.wording import describe
from hub_core.verification.happens_before import find_cycle

Int64Array = npt.NDArray[np.int64]

MAX_TRANSFERS = 1 << 24
_NAMED_STEPS = 8


@dataclass(frozen=True, slots=True)
class FifoSafety:
    """For which sizes bounded buffers cannot deadlock.

    `min_units`: no deadlock where every transfer takes this many units or more (1: safe at every size), None
    where there is a deadlock even if each step is one transfer. `capacity`: transfers that a connection holds.
    `is_exact`: False where the search ended after `MAX_TRANSFERS` transfers; `min_units` is then safe, but maybe not the
    least.
    """

    min_units: int | None
    capacity: int
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class _Connections:
    """Messages sorted by connection, FIFO order within: rows and index of the connection; `fused`: SEND row -> RECV row."""

    send: Int64Array
    receive: Int64Array
    connection: Int64Array
    fused_send: Int64Array
    fused_receive: Int64Array
    parents: Int64Array
    children: Int64Array


def fifo_safety(algorithm: Algorithm, capacity: int) -> FifoSafety:
    """Find the least number of units a transfer such that no number from it on deadlocks with `capacity`.

    Every way in which the counts can split is tried once, from the largest transfers down. A step of c units in
    transfers of u is ceil(c / u) transfers. Raises `InputError` for algorithms whose messages do not match.
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
        if safe is not None and examined > MAX_TRANSFERS:
            return FifoSafety(safe, capacity, is_exact=False)
        if not _transfer_graph(steps, connections, capacity, units).order.is_complete:
            return FifoSafety(safe, capacity)
        safe = units
    return FifoSafety(1 if safe is None else safe, capacity)


def report_fifo_deadlock(
    steps: StepTable, messages: Messages, capacity: int, units: int | None, findings: Findings
) -> None:
    """Name the steps of a cycle with `capacity` transfers a connection and `units` a transfer (None: a step is one)."""
    _check_capacity(capacity, units)
    longest = int(np.maximum(steps.count, 1).max(initial=1))
    graph = _transfer_graph(steps, _connections(steps, messages), capacity, units or longest)
    if graph.order.is_complete:
        return
    rows = [int(graph.row[node]) for node in find_cycle(graph.parents, graph.children, graph.order)]
    cycle = [row for k, row in enumerate(rows) if row != rows[k - 1] or len(rows) == 1]
    named = " -> ".join(describe(steps, row) for row in cycle[:_NAMED_STEPS])
    more = f" -> ... ({len(cycle) - _NAMED_STEPS} more)" if len(cycle) > _NAMED_STEPS else ""
    size = f" of {units} units" if units else ""
    message = f"with room for {capacity} transfers{size} a connection these steps wait for each other: {named}{more} -> the first"
    cure = "use the algorithm for smaller sizes only, or let receives come before further sends"
    findings.add("fifo-deadlock", message, steps.location(cycle[0], findings.file), cure)


@dataclass(frozen=True, slots=True)
class _TransferGraph:
    """Transfers as nodes (`row`: the step that each belongs to), edges, and the order of what can run."""

    row: Int64Array
    parents: Int64Array
    children: Int64Array
    order: Order


def _transfer_graph(
    steps: StepTable, connections: _Connections, capacity: int, units: int
) -> _TransferGraph:
    """Split steps to transfers of at most `units` and join them by every reason to wait."""
    pieces = np.ones(len(steps), np.int64)
    is_message = np.concatenate([connections.send, connections.receive])
    pieces[is_message] = np.maximum(-(-steps.count[is_message] // units), 1)
    # As a float first, since huge counts would wrap around.
    if (total := float(pieces.sum(dtype=np.float64))) > MAX_TRANSFERS + len(steps):
        raise InputError(
            f"{total:.3g} transfers are too many to check for deadlock (limit {MAX_TRANSFERS})",
            code="too-large",
        )
    nodes = int(pieces.sum())
    first = np.cumsum(pieces) - pieces
    last = first + pieces - 1
    row = np.repeat(np.arange(len(steps)), pieces)
    sent, received, group = _transfers_in_order(connections, pieces, first)
    full = np.flatnonzero(group[capacity:] == group[: max(len(group) - capacity, 0)])
    forwards, fused_sends = _aligned(
        connections.fused_receive, connections.fused_send, pieces, first
    )
    next_piece = fused_sends[:-1][row[fused_sends[1:]] == row[fused_sends[:-1]]]
    next_receive = forwards[1:][row[fused_sends[1:]] == row[fused_sends[:-1]]]
    inner = np.flatnonzero(row[1:] == row[:-1])
    parents = [last[connections.parents], inner, sent, received[full], forwards, next_piece]
    children = [
        first[connections.children],
        inner + 1,
        received,
        sent[full + capacity],
        fused_sends,
        next_receive,
    ]
    edges = np.concatenate(parents), np.concatenate(children)
    return _TransferGraph(row, *edges, topological_levels(nodes, *edges))


def _connections(steps: StepTable, messages: Messages) -> _Connections:
    send, receive = messages.send, messages.receive
    order = np.lexsort((send, steps.channel[send], steps.peer[send], steps.rank[send]))
    send, receive = send[order], receive[order]
    columns = np.stack([steps.rank[send], steps.peer[send], steps.channel[send]])
    new = np.concatenate([[False], np.any(columns[:, 1:] != columns[:, :-1], axis=0)])[: len(send)]
    fused_receive, fused_send = _fused(steps, messages)
    parents, children = steps.edges()
    partner = np.full(len(steps), -1, np.int64)
    partner[fused_send] = fused_receive
    apart = partner[children] != parents
    return _Connections(
        send, receive, np.cumsum(new), fused_send, fused_receive, parents[apart], children[apart]
    )


def _fused(steps: StepTable, messages: Messages) -> tuple[Int64Array, Int64Array]:
    """(receive, send) rows of one instruction: neighbours in a lane, from one source line, of equal count."""
    by_lane = np.lexsort((np.arange(len(steps)), steps.lane, steps.rank))
    receive, send = by_lane[:-1], by_lane[1:]
    matched = np.zeros(len(steps), np.bool_)
    matched[messages.send] = True
    matched[messages.receive] = True
    fused = steps.receives[receive] & steps.sends[send] & matched[receive] & matched[send]
    for column in (steps.rank, steps.lane, steps.source_line, steps.count):
        fused &= column[receive] == column[send]
    fused &= (steps.lane[send] >= 0) & (steps.source_line[send] >= 0)
    return receive[fused], send[fused]


def _transfers_in_order(
    connections: _Connections, pieces: Int64Array, first: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Send and receive node of every transfer in FIFO order of its connection, and the connection."""
    sent, received = _aligned(connections.send, connections.receive, pieces, first)
    return (
        sent,
        received,
        np.repeat(
            connections.connection,
            np.minimum(pieces[connections.send], pieces[connections.receive]),
        ),
    )


def _aligned(
    one: Int64Array, other: Int64Array, pieces: Int64Array, first: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Nodes of the k-th pieces of two equally long lists of rows, pair by pair."""
    count = np.minimum(pieces[one], pieces[other])
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(first[one], count) + within, np.repeat(first[other], count) + within


def _distinct_splits(counts: Int64Array) -> Iterator[int]:
    """The least units a transfer of every different way to split, largest transfers first, made as they are asked for."""
    latest = 0
    for units in heapq.merge(
        *(_splits(count) for count in np.unique(counts).tolist()), reverse=True
    ):
        if units != latest:
            latest = units
            yield units


def _splits(count: int) -> Iterator[int]:
    """The least u of every value of ceil(count / u), descending from count to 1."""
    units = count
    while units >= 1:
        units = -(-count // -(-count // units))
        yield units
        units -= 1


def _check_capacity(capacity: int, units: int | None) -> None:
    if capacity < 1 or (units is not None and units < 1):
        raise UsageError(
            f"a FIFO of {capacity} transfers of {units} units: expected 1 or more of each"
        )
