"""Steps of a collective on arrays; each read must see the version that it depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from collhub_coconet.equivalence.array_operations import Array, reduce_over_ranks
from collhub_coconet.lowering.chunk_order import number_chunks
from collhub_coconet.lowering.contents import INITIAL, Contents
from collhub_coconet.lowering.flat_program import CollectiveRuns
from collhub_coconet.program.operations import Kind, Reduction
from hub_core.model import InputError, StepKind

Payload = list[Array]
"""Arrays of the units of a message."""


@dataclass(slots=True)
class CollectiveRun:
    """Execution of one piece of a collective.

    `versions`, `results`: from `collect_versions` and `collect_results`. `cells`: by address, the
    row that wrote it last and its values. `initial(rank, chunk)`: returns a chunk of the operand.
    `deliver(rank, chunk, values)`: accepts a chunk of the result. `mail`: messages in flight, by
    (source, destination, tag). `received`: messages by row, until their step is complete.
    """

    part: CollectiveRuns
    piece: int
    versions: dict[tuple[int, int], int]
    results: dict[int, list[tuple[int, int]]]
    initial: Callable[[int, int], Array]
    deliver: Callable[[int, int, Array], None]
    mail: dict[tuple[int, int, int], Payload]
    cells: dict[int, tuple[int, Array]] = field(default_factory=dict)
    received: dict[int, Payload] = field(default_factory=dict)

    def step(self, node: int, rank: int, peer: int, tag: int) -> None:
        """Execute a node, by its number in the template.

        Raises `InputError` if data are missing.
        """
        contents = self.part.contents
        row = int(np.searchsorted(contents.last, node))
        kind = StepKind(int(contents.algorithm.steps.kind[row]))
        # A delay, which accesses no unit.
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
            first = int(contents.destination[row])
            for offset, values in enumerate(self._compute(row, kind)):
                self.cells[first + offset] = row, values
            for unit, address in self.results.get(node, ()):
                chunk = self._find_chunk(unit, rank, is_given=True)
                self.deliver(rank, chunk, self.cells[address][1])

    def _compute(self, row: int, kind: StepKind) -> Payload:
        """Compute the values that a step writes."""
        contents = self.part.contents
        if kind is StepKind.RECV:
            return self.received.pop(row)
        local = self._read(row, int(contents.source[row]))
        if kind is StepKind.COPY:
            return local
        if kind is StepKind.REDUCE:
            addend = self._read(row, int(contents.destination[row]))
        elif row in self.received:
            addend = self.received.pop(row)
        else:
            message = "a reduction has nothing that was received"
            raise InputError(message, cure="a dependency is missing", code="not-there")
        operation = self.part.operation
        reduction = operation.reduction or Reduction.SUM
        if self.part.is_scalar and operation.kind is Kind.MAX:
            reduction = Reduction.MAX
        return [reduce_over_ranks([*pair], reduction) for pair in zip(addend, local, strict=True)]

    def _read(self, row: int, first: int) -> Payload:
        """Read the units of a region, in the versions that the step depends on."""
        count = int(self.part.contents.algorithm.steps.count[row])
        return [self._read_unit(row, address) for address in range(first, first + count)]

    def _read_unit(self, row: int, address: int) -> Array:
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
        return self.initial(rank, self._find_chunk(unit, rank, is_given=False))

    def _find_chunk(self, unit: int, rank: int, *, is_given: bool) -> int:
        """Find the chunk of a unit of the full buffer that a rank needs or receives."""
        # `number_chunks` expects columns.
        part, units = self.part, np.array([unit])
        position = np.array([rank - part.first_rank])
        chunks = number_chunks(
            part.grid, part.contents, units, self.piece, position, is_given=is_given
        )
        return int(chunks[0])


def collect_versions(contents: Contents) -> dict[tuple[int, int], int]:
    """Collect the version that each read must see, by (row, address)."""
    reads = contents.reads
    keys = zip(reads.row.tolist(), reads.address.tolist(), strict=True)
    return dict(zip(keys, reads.version.tolist(), strict=True))


def collect_results(contents: Contents) -> dict[int, list[tuple[int, int]]]:
    """Collect the (unit, address) pairs that are ready after each node."""
    results: dict[int, list[tuple[int, int]]] = {}
    columns = (contents.give_node, contents.give_unit, contents.give_address)
    for node, unit, address in zip(*(column.tolist() for column in columns), strict=True):
        if node >= 0:
            results.setdefault(node, []).append((unit, address))
    return results
