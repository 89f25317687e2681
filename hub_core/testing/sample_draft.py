"""Write down the steps of a sample; what they wait for follows from what they read and write."""

from __future__ import annotations

import numpy as np

from hub_core.model.algorithm import Algorithm, Provenance
from hub_core.model.collectives import Collective
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.steps import StepTableBuilder

BufferPlace = tuple[Buffer, int]
"""A buffer of some rank and an offset in it."""

_Unit = tuple[int, Buffer, int]
"""A unit of memory: rank, buffer, offset."""


class SampleDraft:
    """Steps in program order, which wait for the accesses that they conflict with.

    A step waits for the last accesses of its rank to the units that it touches, unless both only
    read. Buffers that share memory in place are taken for different ones.
    """

    def __init__(self, num_ranks: int) -> None:
        """Begin without steps, for the ranks 0 to `num_ranks` - 1."""
        self._builder = StepTableBuilder(num_ranks)
        self._num_ranks = num_ranks
        # The last step that wrote a unit, and those that have read it since.
        self._writer: dict[_Unit, int] = {}
        self._readers: dict[_Unit, list[int]] = {}

    def message(
        self,
        sender: int,
        source: BufferPlace,
        receiver: int,
        target: BufferPlace,
        count: int = 1,
        add: BufferPlace | None = None,
        channel: int = 0,
    ) -> None:
        """A send and its receive, which reduces with `add` where given."""
        self.send(sender, source, receiver, count, channel)
        self.receive(receiver, sender, target, count, channel, add)

    def send(
        self,
        rank: int,
        source: BufferPlace,
        peer: int,
        count: int = 1,
        channel: int = 0,
    ) -> int:
        """A SEND."""
        return self._step(rank, StepKind.SEND, source, None, count, peer=peer, channel=channel)

    def receive(
        self,
        rank: int,
        peer: int,
        target: BufferPlace,
        count: int = 1,
        channel: int = 0,
        add: BufferPlace | None = None,
    ) -> int:
        """A RECV, or a RECV_REDUCE with the local operand `add`."""
        kind = StepKind.RECV if add is None else StepKind.RECV_REDUCE
        return self._step(rank, kind, add, target, count, peer=peer, channel=channel)

    def copy(
        self,
        rank: int,
        source: BufferPlace,
        target: BufferPlace,
        count: int = 1,
        after: BufferPlace | None = None,
    ) -> int:
        """A COPY; it also waits for the accesses to `after`, an alias of `target`."""
        return self._step(rank, StepKind.COPY, source, target, count, after=after)

    def reduce(self, rank: int, source: BufferPlace, target: BufferPlace, count: int = 1) -> int:
        """A REDUCE."""
        return self._step(rank, StepKind.REDUCE, source, target, count)

    def algorithm(
        self,
        collective: Collective,
        provenance: Provenance,
        scratch: int = 0,
    ) -> Algorithm:
        """The algorithm, with `scratch` units of SCRATCH at every rank."""
        units = np.full(self._num_ranks, scratch, np.int64)
        return Algorithm(collective, self._builder.build(), units, provenance)

    def _step(
        self,
        rank: int,
        kind: StepKind,
        source: BufferPlace | None,
        target: BufferPlace | None,
        count: int,
        after: BufferPlace | None = None,
        **values: int,
    ) -> int:
        """Add a step that waits for what it conflicts with; return its row."""
        reads, writes = _units(rank, source, count), _units(rank, target, count)
        parents = self._conflicts(reads, writes + _units(rank, after, count))
        if source is not None:
            values |= {"src_buffer": source[0], "src_offset": source[1]}
        if target is not None:
            values |= {"dst_buffer": target[0], "dst_offset": target[1]}
        step = self._builder.add(rank, kind, data=parents, control=(), count=count, **values)
        self._note(step, reads, writes)
        return step

    def _conflicts(self, reads: list[_Unit], writes: list[_Unit]) -> list[int]:
        """Steps that a step must wait for: who wrote what it touches, who read what it writes."""
        parents = {self._writer[unit] for unit in reads + writes if unit in self._writer}
        for unit in writes:
            parents.update(self._readers.get(unit, ()))
        return sorted(parents)

    def _note(self, step: int, reads: list[_Unit], writes: list[_Unit]) -> None:
        """Keep the accesses of a step for those that follow."""
        for unit in reads:
            readers = self._readers.setdefault(unit, [])
            readers.append(step)
        # Whoever writes next waits for this step, and so for all that came before it.
        for unit in writes:
            self._writer[unit] = step
            self._readers[unit] = []


def _units(rank: int, location: BufferPlace | None, count: int) -> list[_Unit]:
    """The units from a location on, none without one."""
    if location is None:
        return []
    buffer, first = location
    return [(rank, buffer, unit) for unit in range(first, first + count)]
