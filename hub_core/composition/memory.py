"""What parts of its buffers an algorithm uses, and where its steps go when the buffers move."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective, CustomContract
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import READING, WRITING, Buffer, StepKind
from hub_core.model.steps import StepTable

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MOST_UNITS = 1 << 25


@dataclass(frozen=True, slots=True)
class Side:
    """The columns of what steps read, or of what they write, and the kinds of steps that do."""

    buffer: str
    offset: str
    kinds: tuple[StepKind, ...]

    def regions(self, steps: StepTable) -> tuple[Int64Array, npt.NDArray[np.uint8], Int64Array]:
        """(row, buffer, offset) of every region on this side; what stands on unused sides is none."""
        rows = np.flatnonzero(steps.is_kind(*self.kinds))
        return rows, getattr(steps, self.buffer)[rows], getattr(steps, self.offset)[rows]


SIDES = (Side("src_buffer", "src_offset", READING), Side("dst_buffer", "dst_offset", WRITING))


@dataclass(frozen=True, slots=True)
class Usage:
    """How far each rank's INPUT and OUTPUT are used, int64[num_ranks] each: by data that must be there, and by steps.

    `reached_input`, `reached_output`: by steps alone.
    """

    input: Int64Array
    output: Int64Array
    reached_input: Int64Array
    reached_output: Int64Array


@dataclass(frozen=True, slots=True)
class Relocation:
    """New places of whole buffers: unit k of a rank's buffer goes to unit `shift + k` of `buffer`.

    `buffer` uint8 and `shift` int64: [num_ranks, 3], indexed by rank and old `Buffer`. Change them freely before use.
    """

    buffer: npt.NDArray[np.uint8]
    shift: Int64Array

    @classmethod
    def none(cls, num_ranks: int) -> Relocation:
        """Everything stays."""
        return cls(
            np.tile(np.arange(3, dtype=np.uint8), (num_ranks, 1)),
            np.zeros((num_ranks, 3), np.int64),
        )

    def move(self, old: Buffer, where: BoolArray, new: Buffer, shift: Int64Array) -> None:
        """Let buffer `old` of the ranks `where` start at unit `shift[rank]` of buffer `new`."""
        self.buffer[where, old] = new
        self.shift[where, old] = shift[where]

    def apply(self, steps: StepTable) -> StepTable:
        """The steps with their regions in the new places."""
        moved = {}
        for side in SIDES:
            rows, buffer, offset = side.regions(steps)
            moved[side.buffer], moved[side.offset] = (
                getattr(steps, side.buffer).copy(),
                getattr(steps, side.offset).copy(),
            )
            moved[side.buffer][rows] = self.buffer[steps.rank[rows], buffer]
            moved[side.offset][rows] = offset + self.shift[steps.rank[rows], buffer]
        return replace(steps, **moved)


def contract_of(collective: Collective) -> CustomContract:
    """What a collective promises, as a table; `expected` is None only for a custom one that states nothing.

    Raises `InputError` where the table would be too large.
    """
    if collective.contract is not None:
        return collective.contract
    sizes = collective.input_units(), collective.output_units()
    units = float(collective.num_ranks) * collective.unit_count
    if units > MOST_UNITS:
        message = f"too large to compose: {collective.num_ranks} ranks with {collective.unit_count} units (limit {MOST_UNITS} in all)"
        raise InputError(message, cure="compose a smaller instance", code="too-large")
    return CustomContract(*sizes, collective.defined_inputs(), collective.postcondition())


def usage_of(algorithm: Algorithm, contract: CustomContract) -> Usage:
    """How far the buffers are used; `contract` is that of the algorithm's collective."""
    reached = _reach(algorithm.steps, Buffer.INPUT), _reach(algorithm.steps, Buffer.OUTPUT)
    needed = np.where(contract.defined, contract.input_units, reached[0])
    return Usage(needed, np.maximum(reached[1], required_units(contract)), *reached)


def required_units(contract: CustomContract) -> Int64Array:
    """Where the results of each rank end in OUTPUT: int64[num_ranks]; the whole buffers where nothing is stated."""
    if contract.expected is None:
        return contract.output_units
    ends = np.zeros(len(contract.output_units), np.int64)
    np.maximum.at(ends, contract.expected.rank, contract.expected.offset + 1)
    return ends


def _reach(steps: StepTable, buffer: Buffer) -> Int64Array:
    ends = np.zeros(steps.num_ranks, np.int64)
    for side in SIDES:
        rows, used, offset = side.regions(steps)
        here = used == buffer
        np.maximum.at(ends, steps.rank[rows[here]], offset[here] + steps.count[rows[here]])
    return ends
