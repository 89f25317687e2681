"""Deadlock with bounded buffers.

Every connection holds a fixed number of transfers, and long steps take several. A send of transfer
k + capacity waits until transfer k was received: with these edges, and the transfers of a step one
behind the other, a deadlock is a cycle. Cost: linear in transfers.
"""

from __future__ import annotations

import numpy as np
from collhub_columns import (
    Int64Array,
    expanded_ranges,
    first_positions,
    run_mask,
    topological_levels,
)

from hub_core.model.diagnostics import InputError, UsageError
from hub_core.model.findings import Findings
from hub_core.model.messages import Messages, connection_keys
from hub_core.model.steps import StepTable
from hub_core.verification.step_order import describe_cycle, find_cycle

# Nodes of a graph of gigabytes.
MAX_TRANSFERS = 1 << 24
_Edges = tuple[Int64Array, Int64Array]


class FifoBuffers:
    """The messages of an algorithm in the bounded buffers of their connections."""

    def __init__(self, steps: StepTable, messages: Messages) -> None:
        """Sort the messages by connection, in FIFO order within."""
        send, receive = messages.send, messages.receive
        # Messages ascend in their send row, which is FIFO order within a connection.
        keys = connection_keys(steps.rank[send], steps.peer[send], steps.channel[send])
        order = np.argsort(keys, kind="stable")
        self._steps = steps
        self._send, self._receive = send[order], receive[order]
        # A number for each connection: which one does not matter, only which messages share it.
        self._connection = np.cumsum(run_mask(keys[order]), dtype=np.int64)
        self._fused_receive, self._fused_send = fused_pairs(steps, messages)
        parents, children = steps.edges()
        # A fused send starts before its receive has all: that edge holds per transfer instead.
        partner = np.full(len(steps), -1, np.int64)
        partner[self._fused_send] = self._fused_receive
        apart = partner[children] != parents
        self._parents, self._children = parents[apart], children[apart]

    def cycle(self, capacity: int, units: int | None) -> list[int]:
        """Rows that wait for each other with `capacity` transfers a connection; else none.

        `units`: those of a transfer; None: a step is one. Raises `InputError` for too many
        transfers, `UsageError` for numbers below 1.
        """
        if capacity < 1 or (units is not None and units < 1):
            fifo = f"a FIFO of {capacity} transfers of {units} units"
            raise UsageError(f"{fifo}: expected 1 or more of each")
        # As long as the longest step, a transfer is never split.
        pieces = self._pieces(units or int(np.maximum(self._steps.count, 1).max(initial=1)))
        first = first_positions(pieces)
        last = first + pieces - 1
        row = np.repeat(np.arange(len(pieces)), pieces)
        inner = np.flatnonzero(row[1:] == row[:-1])
        edges = (
            (last[self._parents], first[self._children]),
            (inner, inner + 1),
            *self._buffer_edges(pieces, first, capacity),
            *self._fused_edges(pieces, first, row),
        )
        parents = np.concatenate([parents for parents, _ in edges])
        children = np.concatenate([children for _, children in edges])
        order = topological_levels(len(row), parents, children)
        if order.is_complete:
            return []
        rows = row[find_cycle(parents, children, order)].tolist()
        # Several transfers of one step are named once; the row before the first one is the last.
        return [row for k, row in enumerate(rows) if row != rows[k - 1] or len(rows) == 1]

    def _pieces(self, units: int) -> Int64Array:
        """Number of transfers of every step. Raises `InputError` where they are too many in all."""
        pieces = np.ones(len(self._steps), np.int64)
        rows = np.concatenate([self._send, self._receive])
        pieces[rows] = np.maximum(-(-self._steps.count[rows] // units), 1)
        # As a float, since huge counts would wrap around.
        total = float(pieces.sum(dtype=np.float64))
        if total > MAX_TRANSFERS + len(pieces):
            counted = f"{total:.3g} transfers are too many to check for deadlock"
            raise InputError(f"{counted} (limit {MAX_TRANSFERS})", code="too-large")
        return pieces

    def _buffer_edges(self, pieces: Int64Array, first: Int64Array, capacity: int) -> list[_Edges]:
        """Transfers wait for their send, and sends for room in the buffer of the connection."""
        sent, received = _aligned(self._send, self._receive, pieces, first)
        shorter = np.minimum(pieces[self._send], pieces[self._receive])
        fifo = np.repeat(self._connection, shorter)
        # Transfer k + capacity of a connection finds room when transfer k was taken out.
        full = np.flatnonzero(fifo[capacity:] == fifo[: max(len(fifo) - capacity, 0)])
        return [(sent, received), (received[full], sent[full + capacity])]

    def _fused_edges(self, pieces: Int64Array, first: Int64Array, row: Int64Array) -> list[_Edges]:
        """An instruction forwards each transfer as it comes, and before it takes the next one."""
        receives, sends = _aligned(self._fused_receive, self._fused_send, pieces, first)
        same = np.flatnonzero(row[sends[1:]] == row[sends[:-1]])
        return [(receives, sends), (sends[same], receives[same + 1])]


def report_fifo_deadlock(
    steps: StepTable, messages: Messages, capacity: int, units: int | None, findings: Findings
) -> None:
    """Name the steps of a cycle, if there is one. Raises as `FifoBuffers.cycle`."""
    cycle = FifoBuffers(steps, messages).cycle(capacity, units)
    if not cycle:
        return
    size = f" of {units} units" if units else ""
    room = f"with room for {capacity} transfers{size} a connection"
    message = f"{room} these steps wait for each other: {describe_cycle(steps, cycle)}"
    cure = "use the algorithm for smaller sizes only, or let receives come before further sends"
    findings.add("fifo-deadlock", message, steps.location(cycle[0], findings.file), cure)


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
