"""The steps of a collective on arrays; each read has to find the version that it is meant for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from collhub_coconet.equivalence.array_operations import Array, over_ranks
from collhub_coconet.lowering.chunk_order import chunk_numbers
from collhub_coconet.lowering.contents import INITIAL, Contents
from collhub_coconet.lowering.flat_program import Collected
from collhub_coconet.program.operations import Kind, Reduction
from hub_core.model import InputError, StepKind

Payload = list[Array]
"""Arrays of the units of a message."""


@dataclass(slots=True)
class Run:
    """One piece of a collective: what stands at each address, and which row has written it.

    `initial(rank, chunk)`: a chunk of the operand. `deliver(rank, chunk, values)`: takes a chunk of
    the result. `mail`: messages under way, by (source, destination, tag).
    """

    part: Collected
    piece: int
    versions: dict[tuple[int, int], int]
    gives: dict[int, list[tuple[int, int]]]
    initial: Callable[[int, int], Array]
    deliver: Callable[[int, int, Array], None]
    mail: dict[tuple[int, int, int], Payload]
    cells: dict[int, tuple[int, Array]] = field(default_factory=dict)
    received: dict[int, Payload] = field(default_factory=dict)

    def step(self, node: int, rank: int, peer: int, tag: int) -> None:
        """Execute a node, by its number in the template. Raises `InputError` where data lack."""
        contents = self.part.contents
        row = int(np.searchsorted(contents.last, node))
        kind = StepKind(int(contents.algorithm.steps.kind[row]))
        # A delay of an endpoint, which touches no unit: the verifier judges the same steps.
        if kind is StepKind.COMPUTE:
            return
        if kind is StepKind.SEND:
            self.mail[rank, peer, tag] = self._read(row, int(contents.source[row]))
            return
        if node != contents.last[row] or kind is StepKind.RECV:
            message = f"rank {rank} receives from rank {peer} what has not been sent"
            if (peer, rank, tag) not in self.mail:
                raise InputError(message, cure="a dependency is missing", code="not-there")
            self.received[row] = self.mail.pop((peer, rank, tag))
        if node == contents.last[row]:
            self._write(row, self._result(row, kind))
            self._give(node, rank)

    def _result(self, row: int, kind: StepKind) -> Payload:
        """What a step writes."""
        contents = self.part.contents
        if kind is StepKind.RECV:
            return self.received.pop(row)
        local = self._read(row, int(contents.source[row]))
        if kind is StepKind.COPY:
            return local
        if kind is StepKind.REDUCE:
            other = self._read(row, int(contents.destination[row]))
        elif row in self.received:
            other = self.received.pop(row)
        else:
            message = "a reduction has nothing that was received"
            raise InputError(message, cure="a dependency is missing", code="not-there")
        return [self._reduced(one, two) for one, two in zip(other, local, strict=True)]

    def _reduced(self, one: Array, other: Array) -> Array:
        """Two contributions in one."""
        operation = self.part.operation
        reduction = operation.reduction or Reduction.SUM
        if self.part.is_scalar and operation.kind is Kind.MAX:
            reduction = Reduction.MAX
        return over_ranks([one, other], reduction)

    def _read(self, row: int, first: int) -> Payload:
        """The units of a region, in the versions that the step has to see."""
        count = int(self.part.contents.algorithm.steps.count[row])
        return [self._cell(row, address) for address in range(first, first + count)]

    def _cell(self, row: int, address: int) -> Array:
        contents = self.part.contents
        expected = self.versions[row, address]
        version, values = self.cells.get(address, (INITIAL, None))
        if version != expected:
            rank = int(contents.algorithm.steps.rank[row])
            message = f"step {row} of rank {rank} reads a unit that another step has to write first"
            if expected == INITIAL:
                message = f"step {row} of rank {rank} reads a unit that is overwritten already"
            raise InputError(message, cure="a dependency is missing", code="not-there")
        if values is not None:
            return values
        unit = int(contents.input_of[address])
        rank = int(contents.algorithm.steps.rank[row]) + self.part.first_rank
        return self.initial(rank, self._chunk(unit, rank, is_given=False))

    def _write(self, row: int, payload: Payload) -> None:
        first = int(self.part.contents.destination[row])
        for place, values in enumerate(payload):
            self.cells[first + place] = row, values

    def _give(self, node: int, rank: int) -> None:
        """Deliver what is ready behind a node."""
        for unit, address in self.gives.get(node, ()):
            chunk = self._chunk(unit, rank, is_given=True)
            self.deliver(rank, chunk, self.cells[address][1])

    def _chunk(self, unit: int, rank: int, *, is_given: bool) -> int:
        """The chunk of a unit of the full buffer, as a rank needs it or is given it."""
        # Numbers are columns there: one row of each.
        part, units = self.part, np.array([unit])
        position = np.array([rank - part.first_rank])
        found = chunk_numbers(
            part.grid, part.contents, units, self.piece, position, is_given=is_given
        )
        return int(found[0])


def versions_of(contents: Contents) -> dict[tuple[int, int], int]:
    """The version that each read has to see, by (row, address)."""
    reads = contents.reads
    keys = zip(reads.row.tolist(), reads.address.tolist(), strict=True)
    return dict(zip(keys, reads.version.tolist(), strict=True))


def gives_of(contents: Contents) -> dict[int, list[tuple[int, int]]]:
    """(unit, address) of all that is ready behind a node."""
    found: dict[int, list[tuple[int, int]]] = {}
    columns = (contents.give_node, contents.give_unit, contents.give_address)
    for node, unit, address in zip(*(column.tolist() for column in columns), strict=True):
        if node >= 0:
            found.setdefault(node, []).append((unit, address))
    return found
