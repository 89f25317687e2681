"""Detect deadlocks with bounded buffers.

Every connection buffers a fixed number of transfers; a long step is several transfers. The send of
transfer k + capacity waits until transfer k is received, and the transfers of a step follow each
other: with these additional edges, a deadlock is a cycle. Cost: linear in the number of transfers.
"""

from __future__ import annotations

import numpy as np

from hub_core.columns import (
    Int64Array,
    expanded_ranges,
    first_positions,
    run_mask,
    topological_levels,
)
from hub_core.model.diagnostics import Findings, InputError, UsageError
from hub_core.model.messages import Messages, connection_keys
from hub_core.model.steps import StepTable
from hub_core.verification.step_order import describe_cycle, find_cycle

# Number of nodes of the graph; more would need gigabytes.
MAX_TRANSFERS = 1 << 24
_Edges = tuple[Int64Array, Int64Array]


class FifoBuffers:
    """The messages of an algorithm by connection, to check different buffer sizes for deadlock."""

    def __init__(self, steps: StepTable, messages: Messages) -> None:
        """Sort the messages by connection and FIFO order, and separate fused instructions.

        A connection is a sender, a receiver and a channel. Its messages are in the order of their
        SEND rows. `messages` must have ascending SEND rows. A fused instruction is a receive and
        the following send that are one instruction of the source (`fused_pairs`). The dependency of
        this send on this receive is left out here; `cycle` replaces it by edges between single
        transfers. The arguments are not changed.
        """
        send, receive = messages.send, messages.receive
        # Messages ascend in their send row, which is FIFO order within a connection.
        keys = connection_keys(steps.rank[send], steps.peer[send], steps.channel[send])
        order = np.argsort(keys, kind="stable")
        self._steps = steps
        self._send, self._receive = send[order], receive[order]
        # Consecutive numbers of connections; only equality of numbers is used.
        self._connection = np.cumsum(run_mask(keys[order]), dtype=np.int64)
        self._fused_receive, self._fused_send = fused_pairs(steps, messages)
        parents, children = steps.edges()
        # A fused send starts before its receive is complete: its edge is added per transfer below.
        partner = np.full(len(steps), -1, np.int64)
        partner[self._fused_send] = self._fused_receive
        is_separate = partner[children] != parents
        self._parents, self._children = parents[is_separate], children[is_separate]

    def cycle(self, capacity: int, units: int | None) -> list[int]:
        """Return rows of steps that wait for each other in a cycle, or [] if there is no deadlock.

        Each row is followed by one that waits for it; the last one by the first. A row may occur
        again, but not twice in succession. Only one cycle is returned.

        `capacity`: number of transfers that a connection buffers. Its transfer k + `capacity`
        waits until transfer k is received. `units`: maximum units per transfer. With 4, a message
        of 10 units has 3 transfers, in sequence. With None, it has one. A send that is fused with
        a receive forwards transfer by transfer. Raises `UsageError` if `capacity` or `units` is
        below 1. Raises `InputError` (`too-large`) for more than 2^24 + S transfers of S steps; a
        local step counts as one.
        """
        if capacity < 1 or (units is not None and units < 1):
            fifo = f"a FIFO of {capacity} transfers of {units} units"
            raise UsageError(f"{fifo}: expected 1 or more of each")
        # Local steps and unmatched messages have one transfer. With transfers of the size of the
        # longest step, no step is split.
        size = units or int(np.maximum(self._steps.count, 1).max(initial=1))
        rows = np.concatenate([self._send, self._receive])
        transfers = np.ones(len(self._steps), np.int64)
        transfers[rows] = np.maximum(-(-self._steps.count[rows] // size), 1)
        # As a float, because the sum of large counts could overflow.
        total = float(transfers.sum(dtype=np.float64))
        if total > MAX_TRANSFERS + len(transfers):
            counted = f"{total:.3g} transfers are too many to check for deadlock"
            raise InputError(f"{counted} (limit {MAX_TRANSFERS})", code="too-large")
        first = first_positions(transfers)
        last = first + transfers - 1
        row = np.repeat(np.arange(len(transfers)), transfers)
        inner = np.flatnonzero(row[1:] == row[:-1])
        # Transfer k + capacity of a connection takes the slot of transfer k.
        sent, received = _pair_transfers(self._send, self._receive, transfers, first)
        shorter = np.minimum(transfers[self._send], transfers[self._receive])
        connection = np.repeat(self._connection, shorter)
        is_full = connection[capacity:] == connection[: max(len(connection) - capacity, 0)]
        full = np.flatnonzero(is_full)
        # A fused instruction sends each transfer on before it receives the next one.
        arrived, forwarded = _pair_transfers(
            self._fused_receive, self._fused_send, transfers, first
        )
        same = np.flatnonzero(row[forwarded[1:]] == row[forwarded[:-1]])
        edges = (
            (last[self._parents], first[self._children]),
            (inner, inner + 1),
            (sent, received),
            (received[full], sent[full + capacity]),
            (arrived, forwarded),
            (forwarded[same], arrived[same + 1]),
        )
        parents = np.concatenate([parents for parents, _ in edges])
        children = np.concatenate([children for _, children in edges])
        order = topological_levels(len(row), parents, children)
        if order.is_complete:
            return []
        cycle = row[find_cycle(parents, children, order)].tolist()
        # Adjacent transfers of one step are one entry; the list is cyclic.
        return [step for k, step in enumerate(cycle) if step != cycle[k - 1] or len(cycle) == 1]


def report_fifo_deadlock(
    steps: StepTable, messages: Messages, capacity: int, units: int | None, findings: Findings
) -> None:
    """Add a finding (`fifo-deadlock`) if the algorithm deadlocks with bounded FIFO buffers.

    `capacity`: number of transfers that a connection (sender, receiver, channel) buffers.
    `units`: maximum units per transfer; None makes every step one transfer. The finding
    describes the steps of one cycle, and is located at the first of them. A deadlock that
    occurs with any capacity is also reported. Without a deadlock, no finding is added.
    Raise `UsageError` if `capacity` or `units` is below 1, and `InputError` (`too-large`)
    for more than about 2^24 transfers.
    """
    cycle = FifoBuffers(steps, messages).cycle(capacity, units)
    if not cycle:
        return
    size = f" of {units} units" if units else ""
    room = f"with room for {capacity} transfers{size} a connection"
    message = f"{room} these steps wait for each other: {describe_cycle(steps, cycle)}"
    cure = "use the algorithm for smaller sizes only, or let receives come before further sends"
    findings.add("fifo-deadlock", message, steps.location(cycle[0], findings.file), cure)


def fused_pairs(steps: StepTable, messages: Messages) -> tuple[Int64Array, Int64Array]:
    """Return rows (receives, sends) that form one instruction of the source: two int64 arrays.

    Pair i is the receive `receives[i]` and the send `sends[i]`. Both have a matched message, the
    send is the next step of the same lane of the rank, and source line and count are equal. Steps
    without a lane or a source line (-1) are never fused. Pairs are ordered by rank, lane and row.
    """
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


def _pair_transfers(
    first_row: Int64Array, second_row: Int64Array, transfers: Int64Array, first: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the numbers of the k-th transfers of paired rows as (first, second), both int64.

    Row `first_row[i]` is paired with row `second_row[i]`. There is an entry for each k that
    both rows have, ordered by pair, then by k. `transfers`: number of transfers of every
    row. `first`: number of the first transfer of every row.
    """
    count = np.minimum(transfers[first_row], transfers[second_row])
    return expanded_ranges(first[first_row], count), expanded_ranges(first[second_row], count)
