"""Cells of the buffers of all ranks, and their contents before and after a plan.

A cell is the finest part into which operations split chunks. Every rank has an input and an output,
which share cells in place, and two forms of its scratch: plain and packets. Each form exists twice
if the plan alternates between halves of the scratch. Contents are sums of random words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collhub_mscclpp.plan_records import Plan
from hub_core.columns import (
    BoolArray,
    Int64Array,
    UInt8Array,
    UInt64Array,
    counted_positions,
    group_of_entry,
    group_pointer,
    row_pointer,
)
from hub_core.model import (
    ALL_RANKS,
    Buffer,
    Collective,
    CollectiveKind,
    Contributions,
    CustomContract,
    InputError,
    Location,
    MemoryLayout,
)

_KINDS: Mapping[str, CollectiveKind] = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
}
# Limit for memory and a run time of a minute; plans in practice have thousands of cells.
_MOST_CELLS = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class PlanMemory:
    """Buffers in cells.

    `collective`: the contract with cells as units. `cells_per_chunk`: minimum number for which all
    parts of ranges are integer numbers of cells. `layout`: of all buffers; SCRATCH contains both
    forms and all halves. `half`: int64[ranks], cells of one form of one half of the scratch.
    `is_double`: whether launches alternate between two halves.
    """

    collective: Collective
    cells_per_chunk: int
    layout: MemoryLayout
    half: Int64Array
    is_double: bool

    @property
    def halves(self) -> int:
        """Number of copies of each form of the scratch."""
        return 2 if self.is_double else 1


def plan_memory(plan: Plan) -> PlanMemory:
    """Compute the memory layout of a plan in cells, i.e. equal parts of a chunk.

    A chunk has the fewest cells with which every part of a divided range is a whole number of
    cells (`cells_per_chunk`). The layout has INPUT, OUTPUT and SCRATCH of each rank, in the order
    of ranks; in place, INPUT and OUTPUT share cells. SCRATCH contains a plain form and a packet
    form, each as large as the plan's scratch, so it has twice that size. With double scratch it
    has four times that size. `half` is the plan's scratch of each rank in cells, counted once.

    Raises `InputError` (`plan-size`) if all ranks together have more than 2^24 cells. This sum
    counts input and output separately, also in place, and SCRATCH with all its forms.
    """
    cells = cells_per_chunk(plan)
    halves = 2 if plan.header.double_scratch else 1
    sizes = [gpu.input_chunks + gpu.output_chunks + 2 * halves * gpu.scratch_chunks
             for gpu in plan.gpus]  # fmt: skip
    if sum(sizes) * cells > _MOST_CELLS:
        message = f"the buffers have {sum(sizes) * cells} parts, more than can be followed"
        cure = f"state chunk counts with at most {_MOST_CELLS} parts over all ranks"
        raise InputError(message, location=Location(plan.file), cure=cure, code="plan-size")
    # All counts below fit into 64 bits.
    scratch = np.asarray([gpu.scratch_chunks * cells for gpu in plan.gpus], np.int64)
    collective = collective_of(plan, cells)
    layout = collective.memory_layout(plan.header.in_place, 2 * halves * scratch)
    return PlanMemory(collective, cells, layout, scratch, plan.header.double_scratch)


def cells_per_chunk(plan: Plan) -> int:
    """Return the smallest number of cells per chunk for which no part of a range splits a cell.

    If an operation is divided among `parts` thread blocks, each of its ranges is divided
    into `parts` equal parts. A range of `size` chunks then needs parts / gcd(parts, size)
    cells per chunk. The result is the least common multiple over all ranges; 1 if none is
    divided.
    """
    operands = plan.operands
    parts = plan.operations.parts[operands.operation]
    # A range of `size` chunks in `parts` parts needs parts / gcd(parts, size) cells per chunk.
    needed = np.unique(parts // np.gcd(parts, operands.size))
    return math.lcm(*needed.tolist())


def collective_of(plan: Plan, cells: int) -> Collective:
    """Build the collective that a plan declares, with cells as units.

    `cells`: cells per chunk. The collective supports only the mode of the plan, in place or out of
    place. The names `allreduce`, `allgather`, `reducescatter`, `reduce_scatter` and `alltoall` give
    the collective of this kind. Its unit count is the larger of input and output chunks of rank 0,
    times `cells`.

    Other names, and these names with contradictory chunk counts (`counts_defect`), give a custom
    collective with the buffer sizes of each rank. It has no expected result, except for `sendrecv`
    without a defect: there every rank gets the input of the previous rank.
    """
    header, num_ranks = plan.header, plan.num_ranks
    kind = _KINDS.get(header.collective)
    if kind is None or counts_defect(plan):
        return _custom(plan, cells)
    first = plan.gpus[0]
    return Collective(
        kind,
        num_ranks,
        max(first.input_chunks, first.output_chunks) * cells,
        in_place=header.in_place,
        out_of_place=not header.in_place,
    )


def has_contract(plan: Plan) -> bool:
    """Whether the collective has an expected result; fragments and custom collectives have none."""
    return plan.header.collective in _KINDS or plan.header.collective == "sendrecv"


def counts_defect(plan: Plan) -> str:
    """Return a text about a defect of the chunk counts of a collective; "" if there is none.

    Only `allreduce`, `allgather`, `reducescatter`, `reduce_scatter`, `alltoall` and `sendrecv` are
    examined; any other name gives "". The first defect that applies is returned:

    - The pair (input chunks, output chunks) differs between ranks.
    - A count is 0.
    - The number of output chunks is not the expected one. That is the number of input chunks; times
      the ranks for an all-gather; divided by the ranks, rounded down, for a reduce-scatter.
    - The input chunks of an all-to-all are not a multiple of the ranks.

    The text has the name of the collective, and in all cases but the first the counts of both.
    """
    kind = _KINDS.get(plan.header.collective)
    counts = {(gpu.input_chunks, gpu.output_chunks) for gpu in plan.gpus}
    if not has_contract(plan):
        return ""
    name = plan.header.collective
    if len(counts) > 1:
        return f"{name} with different chunk counts on different ranks"
    input_chunks, output_chunks = next(iter(counts))
    if not input_chunks or not output_chunks:
        return f"{name} with {input_chunks} input chunks and {output_chunks} output chunks"
    expected_chunks = input_chunks
    if kind is CollectiveKind.ALL_GATHER:
        expected_chunks = input_chunks * plan.num_ranks
    if kind is CollectiveKind.REDUCE_SCATTER:
        expected_chunks = input_chunks // plan.num_ranks
    if output_chunks != expected_chunks or (
        kind is CollectiveKind.ALL_TO_ALL and input_chunks % plan.num_ranks
    ):
        return (
            f"{name} of {plan.num_ranks} ranks with {input_chunks} input and {output_chunks} output"
            " chunks"
        )
    return ""


def _custom(
    plan: Plan,
    cells: int,
) -> Collective:
    """Build a custom collective with the plan's buffer sizes in cells; all inputs are defined.

    `cells`: cells (units of the result) per chunk of the plan. Each rank has its own number of
    input and output cells. The unit count is the largest of all these numbers, at least 1. The
    collective supports only the mode of the plan, in place or out of place.

    There is no expected result, except for `sendrecv` without a defect (`counts_defect`). Then
    output cell i of rank r is input cell i of rank r - 1. For rank 0, it is input cell i of the
    last rank.
    """
    input_cells = np.asarray([gpu.input_chunks * cells for gpu in plan.gpus], np.int64)
    output_cells = np.asarray([gpu.output_chunks * cells for gpu in plan.gpus], np.int64)
    expected = None
    if plan.header.collective == "sendrecv" and not counts_defect(plan):
        rank = group_of_entry(row_pointer(output_cells))
        offset = counted_positions(output_cells)
        expected = Contributions(rank, offset, (rank - 1) % len(output_cells), offset)
    defined = np.ones(plan.num_ranks, np.bool_)
    contract = CustomContract(input_cells, output_cells, defined, expected)
    max_cells = max(1, int(input_cells.max()), int(output_cells.max()))
    return Collective(
        CollectiveKind.CUSTOM,
        plan.num_ranks,
        max_cells,
        in_place=plan.header.in_place,
        out_of_place=not plan.header.in_place,
        contract=contract,
    )


def buffer_cells(
    memory: PlanMemory,
    buffer: Buffer,
) -> tuple[Int64Array, Int64Array]:
    """Return the rank and the cell number of every cell of a buffer, over all ranks.

    `buffer`: INPUT or OUTPUT. Both arrays are ordered by rank, then by offset.
    """
    size = memory.layout.size[:, buffer]
    rank = np.repeat(np.arange(len(size)), size)
    return rank, memory.layout.base[rank, buffer] + counted_positions(size)


_SEED = 0x6D736363


@dataclass(frozen=True, slots=True, eq=False)
class CellContents:
    """Initial and expected contents of cells.

    `inputs`: cells of INPUT of all ranks; `input_rank`: their ranks; `words`: uint64, the random
    word of the contribution in each. `outputs`: cells with an expected value, their `rank` and
    `offset` in OUTPUT, and `expected`, uint64; empty if the collective has no expected result.
    """

    inputs: Int64Array
    input_rank: Int64Array
    words: UInt64Array
    outputs: Int64Array
    rank: Int64Array
    offset: Int64Array
    expected: UInt64Array

    def wrong(
        self,
        value: UInt64Array,
        is_defined: UInt8Array,
    ) -> BoolArray:
        """Return which outputs are undefined or differ from the expected value: bool[outputs].

        `value`, `is_defined`: contents of all cells. The order is that of `outputs`, which has only
        cells that the collective defines.
        """
        actual = value[self.outputs]
        is_wrong: BoolArray = (is_defined[self.outputs] == 0) | (actual != self.expected)
        return is_wrong

    def describe(
        self,
        row: int,
        value: UInt64Array,
        is_defined: UInt8Array,
    ) -> str:
        """Return a text about the defect of an output, as the end of a sentence.

        `row`: row of `outputs`, which must be wrong. `value`, `is_defined`: contents of all cells.
        The first case that applies is reported, with differences modulo 2^64:

        1. The cell is undefined.
        2. Expected minus actual value is the word of an input: the contribution of this input is
           missing.
        3. Actual minus expected value is the word of an input: it was added once too often.
        4. The actual value is the word of an input: the cell has exactly this input.
        5. Otherwise the cell has other contributions.

        An input is named such as `rank 1, part 0`; the part is its cell in the input of the rank,
        from 0. Words are random, so a wrong recognition is improbable.
        """
        cell = self.outputs[row]
        if not is_defined[cell]:
            return "holds nothing, or what nobody wrote"
        # Arrays of length 1, because overflow of numpy scalars causes a warning.
        expected, actual = self.expected[row : row + 1], value[cell : cell + 1]
        lack = self._owner((expected - actual)[0])
        excess = self._owner((actual - expected)[0])
        if lack:
            return f"lacks the contribution of {lack}"
        if excess:
            return f"has a contribution of {excess} too many"
        owner = self._owner(actual[0])
        return f"holds the input of {owner}" if owner else "holds other contributions"

    def _owner(
        self,
        word: np.uint64,
    ) -> str:
        """Return a text for the input with this word, such as `rank 1, part 0`; "" if none has it.

        The part is the number of the cell in the input of the rank, from 0. If several inputs have
        the word, the first is returned.
        """
        matches = np.flatnonzero(self.words == word)
        if not len(matches):
            return ""
        rank = self.input_rank[matches[0]]
        first = int(np.searchsorted(self.input_rank, rank))
        return f"rank {rank}, part {int(matches[0]) - first}"


def contents_of(memory: PlanMemory) -> CellContents:
    """Choose a random word for every input cell, and compute the expected output words.

    A cell is one unit of a buffer of one rank. `words` has one uint64 per INPUT cell, ordered
    by rank, then by cell. The seed is fixed, so calls with equal sizes get equal words.

    The outputs are the cells of the collective's postcondition, in its order. An output from
    one rank has the word of that input cell. An output that adds all ranks has the sum,
    modulo 2^64, of the words at the same position of every rank. Without a postcondition
    there are no outputs. Raises `InputError` (`too-large`) if the postcondition is too large.
    """
    input_rank, inputs = buffer_cells(memory, Buffer.INPUT)
    words = np.random.default_rng(_SEED).integers(0, 2**64, len(inputs), np.uint64)
    promised = memory.collective.postcondition()
    nothing = np.zeros(0, np.int64)
    if promised is None:
        empty = np.zeros(0, np.uint64)
        return CellContents(inputs, input_rank, words, nothing, nothing, nothing, empty)
    first = group_pointer(input_rank, memory.collective.num_ranks)
    is_of_all = promised.source_rank == ALL_RANKS
    expected = np.zeros(len(promised), np.uint64)
    single = ~is_of_all
    from_one = first[promised.source_rank[single]] + promised.source_unit[single]
    expected[single] = words[from_one]
    if is_of_all.any():
        # Inputs have equal lengths if contributions of all ranks are added.
        sums = words.reshape(memory.collective.num_ranks, -1).sum(axis=0, dtype=np.uint64)
        expected[is_of_all] = sums[promised.source_unit[is_of_all]]
    base = memory.layout.base[promised.rank, Buffer.OUTPUT]
    cells = base + promised.offset
    return CellContents(inputs, input_rank, words, cells, promised.rank, promised.offset, expected)
