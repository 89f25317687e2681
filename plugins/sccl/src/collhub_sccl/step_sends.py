"""Sends of an algorithm in steps: what every message moves, by the address of its data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import Int64Array, topological_levels

from collhub_sccl.collectives import share_of
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    Findings,
    InputError,
    StepKind,
    match_messages,
)

_NOTHING = -1


@dataclass(frozen=True, slots=True)
class StepSend:
    """In a step, `source` sends what it has at an address to `destination`.

    `reduces`: whether it is added there.
    """

    step: int
    address: int
    source: int
    destination: int
    reduces: bool


def sends_of(algorithm: Algorithm) -> list[StepSend]:
    """All sends by step, one a unit. Raises `InputError` for messages that do not match."""
    findings = Findings(algorithm.provenance.source_name or None)
    messages = match_messages(algorithm.steps, findings)
    if errors := [*findings]:
        raise InputError(errors)
    parents, children = algorithm.steps.edges()
    # Senders before receivers: a message is known when it arrives.
    order = topological_levels(
        len(algorithm.steps),
        np.concatenate([parents, messages.send]),
        np.concatenate([children, messages.receive]),
    )
    sender = dict(zip(messages.receive.tolist(), messages.send.tolist(), strict=True))
    tracing = _Tracing(algorithm, sender)
    for row in order.nodes.tolist():
        tracing.follow(row)
    # Within a step the order is free: one of them is written always.
    return sorted(tracing.sends, key=lambda send: (send.step, send.source, send.address))


class _Tracing:
    """Which address every unit of memory holds, and after which step it does.

    Copies and sums keep the address: both operands of a sum are parts of one element.
    """

    def __init__(self, algorithm: Algorithm, sender: dict[int, int]) -> None:
        collective = algorithm.collective
        # Out of place nothing of the input is lost; an algorithm may claim no more than in place.
        in_place = not collective.out_of_place
        self._layout = collective.memory_layout(in_place, algorithm.scratch_units)
        self._address = np.full(self._layout.total, _NOTHING, np.int64)
        self._level = np.zeros(self._layout.total, np.int64)
        self._steps = algorithm.steps
        self._sender = sender
        self._sent: dict[int, tuple[Int64Array, int]] = {}
        self.sends: list[StepSend] = []
        for rank in np.flatnonzero(collective.defined_inputs()).tolist():
            first = int(self._layout.base[rank, Buffer.INPUT])
            held = _addresses_of_input(collective, rank)
            self._address[first : first + len(held)] = held

    def follow(self, row: int) -> None:
        """Do a step; parents have been done."""
        kind = StepKind(int(self._steps.kind[row]))
        read, written = self._cells(row, "src"), self._cells(row, "dst")
        if kind is StepKind.SEND:
            self._sent[row] = self._address[read].copy(), int(self._level[read].max(initial=0))
        elif kind in (StepKind.RECV, StepKind.RECV_REDUCE):
            self._receive(row, read, written, is_sum=kind is StepKind.RECV_REDUCE)
        elif kind is StepKind.COPY:
            self._address[written] = self._address[read]
            self._level[written] = self._level[read]
        elif kind is StepKind.REDUCE:
            # A local sum takes no step: it is there when both operands are.
            self._level[written] = np.maximum(self._level[written], self._level[read])

    def _receive(self, row: int, read: slice, written: slice, *, is_sum: bool) -> None:
        moved, step = self._sent[self._sender[row]]
        level = step + 1
        # The local operand may have come in a later step than the message was sent in.
        if is_sum:
            level = max(level, int(self._level[read].max(initial=0)))
        self._address[written] = moved
        self._level[written] = level
        source, here = int(self._steps.peer[row]), int(self._steps.rank[row])
        # A send of several units is one of SCCL for each: it has no counts.
        for address in moved.tolist():
            self.sends.append(StepSend(step, address, source, here, is_sum))

    def _cells(self, row: int, side: str) -> slice:
        """Units of memory that a step reads, or writes; none where it does not."""
        buffer = int(getattr(self._steps, f"{side}_buffer")[row])
        # A receive reads no memory of its own, a send writes none.
        if buffer == Buffer.UNKNOWN:
            return slice(0, 0)
        base = int(self._layout.base[int(self._steps.rank[row]), buffer])
        first = base + int(getattr(self._steps, f"{side}_offset")[row])
        return slice(first, first + int(self._steps.count[row]))


def _addresses_of_input(collective: Collective, rank: int) -> Int64Array:
    """The address of every unit of a rank's INPUT."""
    kind, ranks = collective.kind, collective.num_ranks
    parts = collective.units_per_rank
    units = np.arange(int(collective.input_units()[rank]))
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
        found: Int64Array = rank * parts + units
        return found
    if kind is CollectiveKind.ALL_TO_ALL:
        target, part = np.divmod(units, parts)
        pairs = [share_of(kind, rank * ranks + one, ranks) for one in target.tolist()]
        return np.asarray(pairs, np.int64) * parts + part
    return units
