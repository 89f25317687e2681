"""Collectives in SCCL's form, and the conversion of algorithms to sends in steps.

A collective defines which ranks have each chunk before and after it, and the address of each chunk;
a send has the address of its message's data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hub_core.columns import Int64Array, topological_levels
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

NAMES: Mapping[CollectiveKind, str] = {
    CollectiveKind.BROADCAST: "Broadcast",
    CollectiveKind.SCATTER: "Scatter",
    CollectiveKind.GATHER: "Gather",
    CollectiveKind.ALL_GATHER: "Allgather",
    CollectiveKind.ALL_TO_ALL: "Alltoall",
    CollectiveKind.REDUCE: "Reduce",
    CollectiveKind.ALL_REDUCE: "Allreduce",
    CollectiveKind.REDUCE_SCATTER: "ReduceScatter",
}
RUNTIME_NAMES: Mapping[CollectiveKind, str] = {
    CollectiveKind.ALL_GATHER: "allgather",
    CollectiveKind.ALL_TO_ALL: "alltoall",
    CollectiveKind.ALL_REDUCE: "allreduce",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
    CollectiveKind.BROADCAST: "broadcast",
    CollectiveKind.REDUCE: "reduce",
}


@dataclass(frozen=True, slots=True)
class ScclChunk:
    """Ranks that have a chunk before, ranks that need it after, and its address."""

    before: frozenset[int]
    after: frozenset[int]
    address: int


def count_addresses(kind: CollectiveKind, ranks: int) -> int:
    """Number of addresses of an undivided collective."""
    traits = kind.traits
    if traits.split_by_source and traits.split_by_target:
        return ranks * ranks
    return ranks if traits.split_by_source or traits.split_by_target else 1


def find_share(kind: CollectiveKind, address: int, ranks: int) -> int:
    """Number of the share at an address, in the order of `hub_core.schedules.Chunks.cut`."""
    if kind is CollectiveKind.ALL_TO_ALL:
        # Addresses are ordered by target, shares by source.
        target, source = divmod(address, ranks)
        return source * ranks + target
    return address


def iterate_chunks(
    kind: CollectiveKind, ranks: int, root: int | None, parts: int
) -> Iterator[ScclChunk]:
    """Yield all chunks of a collective, each address divided into `parts`.

    Part i of address a has the address a * parts + i. A reducing collective has one chunk per
    contributing rank.
    """
    # Compared as sets: files list ranks in any order.
    all_ranks = frozenset(range(ranks))
    traits = kind.traits
    for address in range(count_addresses(kind, ranks)):
        share = find_share(kind, address, ranks)
        source, target = (
            divmod(share, ranks) if kind is CollectiveKind.ALL_TO_ALL else (share, share)
        )
        owner = root if traits.from_root else source
        after = all_ranks
        if traits.to_root:
            after = frozenset({root if root is not None else 0})
        elif traits.split_by_target:
            after = frozenset({target})
        # Every contribution is a separate chunk at the same address.
        contributors = range(ranks) if traits.reduces else [owner if owner is not None else 0]
        for part in range(parts):
            for contributor in contributors:
                yield ScclChunk(frozenset({contributor}), after, address * parts + part)


_NO_ADDRESS = -1


@dataclass(frozen=True, slots=True)
class StepSend:
    """In a step, `source` sends its value of an address to `destination`.

    `reduces`: whether the value is added at the destination.
    """

    step: int
    address: int
    source: int
    destination: int
    reduces: bool


def find_sends(algorithm: Algorithm) -> list[StepSend]:
    """All sends, sorted by step, one per unit. Raises `InputError` for unmatched messages."""
    findings = Findings(algorithm.provenance.source_name or None)
    messages = match_messages(algorithm.steps, findings)
    if errors := [*findings]:
        raise InputError(errors)
    parents, children = algorithm.steps.edges()
    # Senders before receivers, so that a message's data is known when it arrives.
    order = topological_levels(
        len(algorithm.steps),
        np.concatenate([parents, messages.send]),
        np.concatenate([children, messages.receive]),
    )
    sender = dict(zip(messages.receive.tolist(), messages.send.tolist(), strict=True))
    tracing = _AddressTracing(algorithm, sender)
    for row in order.nodes.tolist():
        tracing.execute_step(row)
    # The order within a step is free: sorted for a deterministic file.
    return sorted(tracing.sends, key=lambda send: (send.step, send.source, send.address))


class _AddressTracing:
    """Address of the value in every unit of memory, and the step after which it is available.

    Copies and sums keep the address: both operands of a sum are parts of one element.
    """

    def __init__(self, algorithm: Algorithm, sender: dict[int, int]) -> None:
        collective = algorithm.collective
        # Out of place no input is overwritten; use in-place memory only if the algorithm claims no
        # other mode.
        in_place = not collective.out_of_place
        self._layout = collective.memory_layout(in_place, algorithm.scratch_units)
        self._address = np.full(self._layout.total, _NO_ADDRESS, np.int64)
        self._level = np.zeros(self._layout.total, np.int64)
        self._steps = algorithm.steps
        self._sender = sender
        self._sent: dict[int, tuple[Int64Array, int]] = {}
        self.sends: list[StepSend] = []
        for rank in np.flatnonzero(collective.defined_inputs()).tolist():
            first = int(self._layout.base[rank, Buffer.INPUT])
            addresses = _list_input_addresses(collective, rank)
            self._address[first : first + len(addresses)] = addresses

    def execute_step(self, row: int) -> None:
        """Execute a step, whose predecessors have been executed."""
        kind = StepKind(int(self._steps.kind[row]))
        read, written = self._get_memory_range(row, "src"), self._get_memory_range(row, "dst")
        if kind is StepKind.SEND:
            self._sent[row] = self._address[read].copy(), int(self._level[read].max(initial=0))
        elif kind in (StepKind.RECV, StepKind.RECV_REDUCE):
            self._receive(row, read, written, is_sum=kind is StepKind.RECV_REDUCE)
        elif kind is StepKind.COPY:
            self._address[written] = self._address[read]
            self._level[written] = self._level[read]
        elif kind is StepKind.REDUCE:
            # A local sum takes no step: it is available when both operands are.
            self._level[written] = np.maximum(self._level[written], self._level[read])

    def _receive(self, row: int, read: slice, written: slice, *, is_sum: bool) -> None:
        """Execute a receive, and append its sends."""
        moved, step = self._sent[self._sender[row]]
        level = step + 1
        # The local operand may have arrived in a later step than the one in which the message was
        # sent.
        if is_sum:
            level = max(level, int(self._level[read].max(initial=0)))
        self._address[written] = moved
        self._level[written] = level
        source, destination = int(self._steps.peer[row]), int(self._steps.rank[row])
        # SCCL's sends have no counts: one send per unit.
        for address in moved.tolist():
            self.sends.append(StepSend(step, address, source, destination, is_sum))

    def _get_memory_range(self, row: int, side: str) -> slice:
        """Range of memory units that a step reads (`src`) or writes (`dst`).

        Empty without such an operand.
        """
        buffer = int(getattr(self._steps, f"{side}_buffer")[row])
        # A receive reads no local memory, a send writes none.
        if buffer == Buffer.UNKNOWN:
            return slice(0, 0)
        base = int(self._layout.base[int(self._steps.rank[row]), buffer])
        first = base + int(getattr(self._steps, f"{side}_offset")[row])
        return slice(first, first + int(self._steps.count[row]))


def _list_input_addresses(collective: Collective, rank: int) -> Int64Array:
    """Address of every unit of a rank's INPUT."""
    kind, ranks = collective.kind, collective.num_ranks
    parts = collective.units_per_rank
    units = np.arange(int(collective.input_units()[rank]))
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
        addresses: Int64Array = rank * parts + units
        return addresses
    if kind is CollectiveKind.ALL_TO_ALL:
        target, part = np.divmod(units, parts)
        pairs = [
            find_share(kind, rank * ranks + target_rank, ranks) for target_rank in target.tolist()
        ]
        return np.asarray(pairs, np.int64) * parts + part
    return units
