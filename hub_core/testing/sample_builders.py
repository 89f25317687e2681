"""Builders of sample algorithms, which derive dependencies from the memory accesses of steps.

Samples of custom collectives have equal buffers on all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from hub_core.model.algorithm import Algorithm, Provenance
from hub_core.model.collectives import Collective, Contributions, CustomContract
from hub_core.model.kinds import Buffer, CollectiveKind, StepKind
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
        """Create a draft without steps for ranks 0 to `num_ranks` - 1.

        Steps that are added later get dependencies on earlier ones that access the same units.
        """
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
        """Add a SEND of `count` units at `source` to the draft, and the receive into `target`.

        With `add`, the receive is a RECV_REDUCE that adds the units at `add` of the receiver to
        the message; otherwise it is a RECV. `source`, `target` and `add` are (buffer, offset in
        units). Each of the two steps depends on the earlier steps of its rank that access the
        same units, unless both only read. Raise `InputError` for a rank outside the draft.
        """
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
        """Add a SEND of `count` units at `source` to rank `peer`; return its handle.

        The handle is the number of steps that were added before. The receive is not added. The step
        depends on all earlier steps of its rank with conflicting accesses.
        """
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
        """Add a RECV into `target`, or a RECV_REDUCE with the operand `add`; return its handle.

        RECV_REDUCE writes the sum of the message and of the units at `add` to `target`. The
        handle is the number of steps that were added to the draft before, of all ranks. The
        step depends on the earlier steps of its rank that access the same units, unless both
        only read. Raise `InputError` if `rank` is not in 0..`num_ranks` - 1, or `peer` not in
        -1..`num_ranks` - 1.
        """
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
        """Add a COPY of `count` units within a rank; return its handle.

        It depends on all earlier steps of the rank with conflicting accesses. For `after`, which is
        the place of `target` under another name, it waits as if it wrote there.
        """
        return self._add_step(rank, StepKind.COPY, source, target, count, after=after)

    def reduce(self, rank: int, source: BufferPlace, target: BufferPlace, count: int = 1) -> int:
        """Add a REDUCE, which adds `count` units of `source` to `target`; return its handle.

        It depends on all earlier steps of the rank that write `source` or access `target`.
        """
        return self._add_step(rank, StepKind.REDUCE, source, target, count)

    def algorithm(
        self,
        collective: Collective,
        provenance: Provenance,
        scratch: int = 0,
    ) -> Algorithm:
        """Build the algorithm from the steps of the draft, which remains usable.

        Steps are grouped by rank, in the order in which they were added. `scratch`: size of
        SCRATCH at every rank in units. The algorithm has no size in bytes and no extensions.
        The steps are not verified. Raise `InputError` if the collective has another number of
        ranks than the draft.
        """
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
        """Add a step that depends on all earlier steps of its rank with conflicting accesses.

        Accesses conflict if they concern the same unit and at least one is a write. Return the
        handle of the step, which is the number of steps added before. `source`, `target`: first
        of `count` units that the step reads or writes; None for no access. `after`: a location
        for which it waits as if it wrote there, without being recorded as a writer. `values`:
        other columns, such as `peer`.
        """
        reads, writes = _list_units(rank, source, count), _list_units(rank, target, count)
        conflicting_writes = writes + _list_units(rank, after, count)
        # For every unit the last step that wrote it, and for a write all that have read it since.
        units = reads + conflicting_writes
        parents = {self._writer[unit] for unit in units if unit in self._writer}
        for unit in conflicting_writes:
            parents.update(self._readers.get(unit, ()))
        if source is not None:
            values |= {"src_buffer": source[0], "src_offset": source[1]}
        if target is not None:
            values |= {"dst_buffer": target[0], "dst_offset": target[1]}
        step = self._builder.add(
            rank, kind, data=sorted(parents), control=(), count=count, **values
        )
        for unit in reads:
            self._readers.setdefault(unit, []).append(step)
        # The next writer depends on this step and thereby on all earlier accesses.
        for unit in writes:
            self._writer[unit] = step
            self._readers[unit] = []
        return step


def _list_units(rank: int, location: BufferPlace | None, count: int) -> list[_Unit]:
    """Return `count` consecutive units from a location on, as (rank, buffer, unit).

    `location`: buffer and first unit; [] for None.
    """
    if location is None:
        return []
    buffer, first = location
    return [(rank, buffer, unit) for unit in range(first, first + count)]


Contents = Mapping[tuple[int, Buffer, int], Counter[tuple[int, int]]]
"""Per (rank, buffer, unit): number of times that it contains each contribution (rank, unit)."""


def promise_of(contents: Contents, num_ranks: int, unit_count: int) -> Collective:
    """Build an out-of-place custom collective that requires these contents of OUTPUT.

    `contents`: by (rank, buffer, unit), the required contributions (rank, unit of its
    INPUT) and their numbers. Contents of other buffers are ignored. A unit of OUTPUT that
    is missing or has an empty counter has no condition. INPUT and OUTPUT have `unit_count`
    units per rank, and all of INPUT is defined. Raises `InputError` (`invalid-collective`)
    for less than one rank or unit; ranks and units of `contents` are not checked.
    """
    rows = [
        (rank, unit, *contribution)
        for (rank, buffer, unit), counts in sorted(contents.items())
        if buffer is Buffer.OUTPUT
        for contribution in sorted(counts.elements())
    ]
    expected = Contributions(*np.asarray(rows, np.int64).reshape(-1, 4).T)
    return custom_collective(num_ranks, unit_count, expected)


def custom_collective(
    num_ranks: int,
    unit_count: int,
    expected: Contributions | None = None,
    *,
    in_place: bool = False,
    out_of_place: bool = True,
) -> Collective:
    """Build a custom collective whose INPUT and OUTPUT have `unit_count` units per rank.

    All of INPUT is defined. `expected`: required contents of OUTPUT; None if they are not
    defined, so that they cannot be verified. `in_place`, `out_of_place`: the supported
    modes. Raise `InputError` if no mode is supported, and for less than one rank or unit.
    """
    sizes = np.full(num_ranks, unit_count, np.int64)
    return Collective(
        CollectiveKind.CUSTOM,
        num_ranks,
        unit_count,
        in_place=in_place,
        out_of_place=out_of_place,
        contract=CustomContract(sizes, sizes, np.ones(num_ranks, np.bool_), expected),
    )


class CustomSteps(StepTableBuilder):
    """Builder of a custom algorithm whose buffers have `unit_count` units at every rank.

    Steps wait only for the steps that are given as their dependencies. `expected`: required content
    of OUTPUT; by default there is no requirement.
    """

    def __init__(
        self,
        num_ranks: int = 2,
        unit_count: int = 4,
        expected: Contributions | None = None,
        *,
        in_place: bool = False,
        out_of_place: bool = True,
    ) -> None:
        super().__init__(num_ranks)
        self.collective = custom_collective(
            num_ranks, unit_count, expected, in_place=in_place, out_of_place=out_of_place
        )

    def send(self, rank: int, peer: int, unit: int = 0, count: int = 1, **columns: Any) -> int:
        """Append a SEND of `count` units from `unit` of INPUT to rank `peer`; return its handle.

        `columns` are passed to `StepTableBuilder.add`: values of other columns, and the
        dependencies `data` and `control`. A `src_buffer` or `src_offset` in them is ignored.
        Raise `InputError` (`rank-range`) if a rank does not exist. The range of units is not
        checked.
        """
        columns |= {"src_buffer": Buffer.INPUT, "src_offset": unit}
        return self.add(rank, StepKind.SEND, peer=peer, count=count, **columns)

    def receive(self, rank: int, peer: int, unit: int = 0, count: int = 1, **columns: Any) -> int:
        """Append a RECV of `count` units from rank `peer` to `unit` of OUTPUT; return its handle.

        `columns`: as for `send`, but here `dst_buffer` and `dst_offset` are ignored. Errors are
        those of `send`.
        """
        columns |= {"dst_buffer": Buffer.OUTPUT, "dst_offset": unit}
        return self.add(rank, StepKind.RECV, peer=peer, count=count, **columns)

    def algorithm(self, scratch_units: int | None = None) -> Algorithm:
        """Build the algorithm of all steps that were added, without provenance and size.

        `scratch_units`: size of SCRATCH at each rank in units; None means the collective's
        `unit_count`, 0 means no SCRATCH. Raise `InputError` if the step table is not valid.
        Whether the algorithm is correct is not checked.
        """
        units = self.collective.unit_count if scratch_units is None else scratch_units
        sizes = np.full(self.collective.num_ranks, units, np.int64)
        return Algorithm(self.collective, self.build(), sizes)
