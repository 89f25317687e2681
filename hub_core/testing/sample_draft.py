"""Builder for sample algorithms that derives dependencies from the memory accesses of steps."""

from __future__ import annotations

import numpy as np

from hub_core.model.algorithm import Algorithm, Provenance
from hub_core.model.collectives import Collective
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.steps import StepTableBuilder

BufferPlace = tuple[Buffer, int]
"""A buffer and an offset in units."""

_Unit = tuple[int, Buffer, int]
"""A unit of memory: (rank, buffer, offset)."""


class SampleDraft:
    """Builder of an algorithm; steps are added in program order.

    A step depends on the earlier steps of its rank that access the same units, unless both only
    read. Buffers that share memory in in-place mode are treated as distinct.
    """

    def __init__(self, num_ranks: int) -> None:
        """Create an empty draft for `num_ranks` ranks."""
        self._builder = StepTableBuilder(num_ranks)
        self._num_ranks = num_ranks
        # Per unit: the last step that wrote it, and the steps that have read it since.
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
        """Add a SEND and its RECV, or its RECV_REDUCE with the local operand `add`."""
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
        """Add a SEND of `count` units; return its row."""
        return self._add_step(rank, StepKind.SEND, source, None, count, peer=peer, channel=channel)

    def receive(
        self,
        rank: int,
        peer: int,
        target: BufferPlace,
        count: int = 1,
        channel: int = 0,
        add: BufferPlace | None = None,
    ) -> int:
        """Add a RECV, or a RECV_REDUCE with the local operand `add`; return its row."""
        kind = StepKind.RECV if add is None else StepKind.RECV_REDUCE
        return self._add_step(rank, kind, add, target, count, peer=peer, channel=channel)

    def copy(
        self,
        rank: int,
        source: BufferPlace,
        target: BufferPlace,
        count: int = 1,
        after: BufferPlace | None = None,
    ) -> int:
        """Add a COPY; return its row. It also waits for `after`, an alias of `target`."""
        return self._add_step(rank, StepKind.COPY, source, target, count, after=after)

    def reduce(self, rank: int, source: BufferPlace, target: BufferPlace, count: int = 1) -> int:
        """Add a REDUCE of `count` units of `source` into `target`; return its row."""
        return self._add_step(rank, StepKind.REDUCE, source, target, count)

    def algorithm(
        self,
        collective: Collective,
        provenance: Provenance,
        scratch: int = 0,
    ) -> Algorithm:
        """Build the algorithm, with `scratch` units of SCRATCH at every rank."""
        units = np.full(self._num_ranks, scratch, np.int64)
        return Algorithm(collective, self._builder.build(), units, provenance)

    def _add_step(
        self,
        rank: int,
        kind: StepKind,
        source: BufferPlace | None,
        target: BufferPlace | None,
        count: int,
        after: BufferPlace | None = None,
        **values: int,
    ) -> int:
        """Add a step that depends on all conflicting earlier steps; return its row."""
        reads, writes = _list_units(rank, source, count), _list_units(rank, target, count)
        parents = self._find_conflicts(reads, writes + _list_units(rank, after, count))
        if source is not None:
            values |= {"src_buffer": source[0], "src_offset": source[1]}
        if target is not None:
            values |= {"dst_buffer": target[0], "dst_offset": target[1]}
        step = self._builder.add(rank, kind, data=parents, control=(), count=count, **values)
        self._record_accesses(step, reads, writes)
        return step

    def _find_conflicts(self, reads: list[_Unit], writes: list[_Unit]) -> list[int]:
        """Sorted rows of the last writers of accessed units and of the readers of written units."""
        parents = {self._writer[unit] for unit in reads + writes if unit in self._writer}
        for unit in writes:
            parents.update(self._readers.get(unit, ()))
        return sorted(parents)

    def _record_accesses(self, step: int, reads: list[_Unit], writes: list[_Unit]) -> None:
        """Record the accesses of a step for later steps."""
        for unit in reads:
            readers = self._readers.setdefault(unit, [])
            readers.append(step)
        # The next writer depends on this step and thereby on all earlier accesses.
        for unit in writes:
            self._writer[unit] = step
            self._readers[unit] = []


def _list_units(rank: int, location: BufferPlace | None, count: int) -> list[_Unit]:
    """`count` consecutive units from a location on; empty without a location."""
    if location is None:
        return []
    buffer, first = location
    return [(rank, buffer, unit) for unit in range(first, first + count)]
