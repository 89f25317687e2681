"""Decide where the data between two algorithms is stored, and in which modes the pair may be
called.

An algorithm that works only in place is made usable out of place by copies before and after it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from collhub_compose.buffers import (
    BufferUsage,
    Relocation,
    build_contract,
    count_required_units,
    measure_usage,
)
from collhub_compose.inputs import get_display_name
from collhub_compose.joining import join_in_sequence
from hub_core.columns import BoolArray, Int64Array, counted_positions
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CustomContract,
    MemoryLayout,
    StepKind,
    StepTable,
    UsageError,
)

# In order of preference: (in place, out of place). Of the single modes, out of place is used by
# more callers, and can always be composed with a third part.
_MODE_CHOICES = ((True, True), (False, True), (True, False))


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """The claims of an algorithm, and its use of its buffers."""

    collective: Collective
    usage: BufferUsage

    @classmethod
    def of(cls, algorithm: Algorithm) -> PlacedPart:
        """Describe an algorithm by its collective and by the units of the buffers that it uses.

        Raise `InputError` (`too-large`) if its collective has no contract and more than 2^25
        ranks times units.
        """
        contract = build_contract(algorithm.collective)
        return cls(algorithm.collective, measure_usage(algorithm, contract))


@dataclass(frozen=True, slots=True)
class Seam:
    """Where the data between two parts is stored, and the modes that this allows.

    `output_offset`: int64[num_ranks], the unit of OUTPUT at which it starts, or -1 for SCRATCH.
    `size`: number of units, int64[num_ranks].
    """

    output_offset: Int64Array
    size: Int64Array
    in_place: bool
    out_of_place: bool


def place_seam(first: PlacedPart, second: PlacedPart, joint: Collective) -> Seam | None:
    """Choose where each rank stores the data between two parts, and the modes of the result.

    The data is the OUTPUT of `first` and the INPUT of `second`; its size is the larger of the two
    used numbers of units. `joint`: collective of the result. A rank has two choices:

    - OUTPUT, at the unit of `find_input_in_output`: where INPUT lies in OUTPUT if `second` runs in
      place. Only if that unit exists, the data is not empty, and it ends within the units of
      `count_required_units` (results that `joint` must give).
    - SCRATCH (offset -1), separate from all other data.

    Modes are tried in this order: both, only out of place, only in place. A choice is allowed if
    `is_usable` accepts its addresses for both parts in each mode. The first modes in which every
    rank has an allowed choice are taken, with OUTPUT preferred. None if no modes fit. Raises
    `InputError` (`too-large`) if `joint` has no contract and over 2^25 ranks x units.
    """
    # In OUTPUT the data is where `second` has its INPUT when called in place, which saves memory;
    # only ranks with a result have an OUTPUT. Otherwise it is in SCRATCH, separate from all other
    # data. A rank may use either if every claimed mode allows it.
    size = np.maximum(first.usage.output, second.usage.input)
    offset = find_input_in_output(second.collective)
    room = count_required_units(build_contract(joint))
    fits = (offset >= 0) & (offset + size <= room) & (size > 0)
    for claims in _MODE_CHOICES:
        modes = [mode for mode, is_claimed in zip((True, False), claims, strict=True) if is_claimed]
        in_output = fits.copy()
        in_scratch = np.ones(len(size), np.bool_)
        for mode in modes:
            layout = _build_layout(joint, mode)
            output = layout.base[:, Buffer.OUTPUT]
            in_output &= _is_allowed(first, second, layout, output + offset)
            in_scratch &= _is_allowed(first, second, layout, np.full(len(size), layout.total))
        if np.all(in_output | in_scratch):
            return Seam(np.where(in_output, offset, -1), size, *claims)
    return None


def is_usable(part: PlacedPart, inputs: Int64Array, outputs: Int64Array) -> BoolArray:
    """Return for each rank whether a part works with its buffers at these addresses: bool array.

    `inputs`, `outputs`: int64[num_ranks], addresses of unit 0 of INPUT and OUTPUT in one memory.
    Only units that the part uses (`part.usage`) can overlap. A rank is usable in these cases:

    - Its buffers overlap, the part supports in-place calls, and outputs - inputs is the distance
      of the buffers in these calls.
    - Its buffers do not overlap, and the part supports only out-of-place calls, or both kinds.
    - Its buffers do not overlap, and the part supports only in-place calls, in which the buffers
      of this rank do not overlap either. An example is a rank other than the root of a gather.
    """
    are_disjoint = _are_disjoint(part.usage, inputs, outputs)
    if not part.collective.in_place:
        return are_disjoint
    base = _build_layout(part.collective, in_place=True).base
    aliased_inputs, aliased_outputs = base[:, Buffer.INPUT], base[:, Buffer.OUTPUT]
    is_aliased = outputs - inputs == aliased_outputs - aliased_inputs
    # On some ranks, such as all but the root of a gather, in-place buffers are disjoint too.
    disjoint_in_place = _are_disjoint(part.usage, aliased_inputs, aliased_outputs)
    works_if_disjoint = disjoint_in_place | part.collective.out_of_place
    usable: BoolArray = np.where(are_disjoint, works_if_disjoint, is_aliased)
    return usable


def find_input_in_output(collective: Collective) -> Int64Array:
    """Return for each rank the unit of OUTPUT at which INPUT starts in in-place calls: int64.

    It is -1 on ranks where INPUT starts before OUTPUT (also if the two do not overlap, as
    on the other ranks of a gather), and on all ranks if the collective does not support
    in-place calls.
    """
    base = _build_layout(collective, in_place=True).base
    offset = base[:, Buffer.INPUT] - base[:, Buffer.OUTPUT]
    starts_in_output = (offset >= 0) & collective.in_place
    return np.where(starts_in_output, offset, -1)


def _build_layout(collective: Collective, in_place: bool) -> MemoryLayout:
    """Return the layout of INPUT and OUTPUT of all ranks for in-place or out-of-place calls.

    SCRATCH is empty.
    """
    no_scratch = np.zeros(collective.num_ranks, np.int64)
    return collective.memory_layout(in_place, no_scratch)


def _is_allowed(
    first: PlacedPart, second: PlacedPart, layout: MemoryLayout, seam: Int64Array
) -> BoolArray:
    """Return for each rank whether both parts work if the data between them is at `seam`.

    The data is the OUTPUT of `first` and the INPUT of `second`. `seam`: int64[num_ranks],
    address of its unit 0 in the memory of `layout`. The INPUT of `first` and the OUTPUT of
    `second` are at their addresses in `layout`. Both parts must be usable (`is_usable`).
    """
    inputs = layout.base[:, Buffer.INPUT]
    outputs = layout.base[:, Buffer.OUTPUT]
    return is_usable(first, inputs, seam) & is_usable(second, seam, outputs)


def _are_disjoint(usage: BufferUsage, inputs: Int64Array, outputs: Int64Array) -> BoolArray:
    """Return whether the used parts of INPUT and OUTPUT have no unit in common: bool[num_ranks].

    `inputs`, `outputs`: int64[num_ranks], first units of both in one memory. An unused buffer
    overlaps nothing.
    """
    input_ends = inputs + usage.input
    output_ends = outputs + usage.output
    disjoint: BoolArray = (input_ends <= outputs) | (output_ends <= inputs)
    # An unused buffer overlaps no other one.
    disjoint |= (usage.input == 0) | (usage.output == 0)
    return disjoint


UnitsOfRanks = tuple[Int64Array, Int64Array]
"""Units of a buffer as (ranks, units), of equal length."""


def make_out_of_place(algorithm: Algorithm) -> Algorithm:
    """Let an algorithm that supports only in-place calls work out of place, by additional copies.

    An algorithm that supports out-of-place calls is returned itself. Otherwise the new algorithm
    supports only out-of-place calls. A rank works in OUTPUT if the units of INPUT that it uses
    (`measure_usage`) are within those of OUTPUT in in-place calls. Any other rank works in new
    SCRATCH units, behind its present ones. The steps are:

    1. Copies of all units of INPUT to this memory, one step per unit in ascending order; none on
       ranks without defined data.
    2. The old steps, with INPUT and OUTPUT moved to this memory.
    3. On ranks that work in SCRATCH, copies of the units with expected results to OUTPUT, one step
       per unit in ascending order.

    A step waits for the earlier steps that access the same units if one of the two writes
    (`join_in_sequence`). Raises `UsageError` (`no-result`) if a rank works in SCRATCH and the
    contract has no expected results (None). Raises `InputError` (`too-large`) if the collective is
    too large to compose, or for 2^61 units of memory or more.
    """
    if algorithm.collective.out_of_place:
        return algorithm
    contract = build_contract(algorithm.collective)
    usage = measure_usage(algorithm, contract)
    place = find_input_in_output(algorithm.collective)
    in_output = (place >= 0) & (place + usage.input <= usage.output)
    relocation, span = _relocate_buffers(algorithm, usage, in_output, place)
    results = _list_results(algorithm, contract, ~in_output)
    # Ranks without data may have an INPUT, whose content is undefined.
    units = np.where(contract.defined, contract.input_units, 0)
    inputs = np.repeat(np.arange(len(units)), units), counted_positions(units)
    # Copied one by one, so that a step waits only for the units that it accesses.
    copies_in = _build_copies(
        inputs[0],
        (np.full(len(inputs[0]), int(Buffer.INPUT)), inputs[1]),
        _find_new_positions(inputs, relocation, Buffer.INPUT),
        algorithm.num_ranks,
    )
    copies_out = _build_copies(
        results[0],
        _find_new_positions(results, relocation, Buffer.OUTPUT),
        (np.full(len(results[0]), int(Buffer.OUTPUT)), results[1]),
        algorithm.num_ranks,
    )
    parts = [copies_in, relocation.apply(algorithm.steps), copies_out]
    collective = replace(algorithm.collective, in_place=False, out_of_place=True)
    scratch = algorithm.scratch_units + np.where(in_output, 0, span)
    return replace(
        algorithm,
        collective=collective,
        steps=join_in_sequence(parts, collective, scratch),
        scratch_units=scratch,
    )


def _relocate_buffers(
    algorithm: Algorithm, usage: BufferUsage, in_output: BoolArray, place: Int64Array
) -> tuple[Relocation, Int64Array]:
    """Build the relocation with which an in-place algorithm works in OUTPUT or in SCRATCH.

    `in_output`: bool[num_ranks], ranks that work in OUTPUT. `place`: int64[num_ranks], units.

    - Ranks in `in_output`: INPUT moves to unit `place` of OUTPUT. OUTPUT stays.
    - All other ranks: INPUT and OUTPUT move to SCRATCH. Their distance is that of in-place calls.
      The buffer with the lower in-place position starts after the existing SCRATCH units.
    - SCRATCH itself never moves.

    Also returns int64[num_ranks], for all ranks: the units from the lower start of both buffers in
    in-place calls to the last unit that `usage` counts in either.
    """
    no_scratch = np.zeros(algorithm.num_ranks, np.int64)
    layout = algorithm.collective.memory_layout(True, no_scratch).base
    inputs, outputs = layout[:, Buffer.INPUT], layout[:, Buffer.OUTPUT]
    low = np.minimum(inputs, outputs)
    high = np.maximum(inputs + usage.input, outputs + usage.output)
    relocation = Relocation.none(algorithm.num_ranks)
    relocation.move(Buffer.INPUT, in_output, Buffer.OUTPUT, place)
    # In SCRATCH both keep their in-place distance, after the existing units.
    start = algorithm.scratch_units - low
    for buffer in (Buffer.INPUT, Buffer.OUTPUT):
        relocation.move(buffer, ~in_output, Buffer.SCRATCH, start + layout[:, buffer])
    return relocation, high - low


def _list_results(algorithm: Algorithm, contract: CustomContract, where: BoolArray) -> UnitsOfRanks:
    """List the units of OUTPUT with expected results on the selected ranks as (ranks, units).

    Both are int64 arrays, sorted by rank, then unit; each unit is listed once, even if several
    contributions are expected in it. `where`: bool[num_ranks], the selected ranks. If the contract
    has no expected results (`expected` is None), the arrays are empty. In that case, `UsageError`
    (`no-result`) is raised if any rank is selected.
    """
    if contract.expected is not None:
        units = np.stack([contract.expected.rank, contract.expected.offset])
        rank, unit = np.unique(units, axis=1)
        is_chosen = where[rank]
        return rank[is_chosen], unit[is_chosen]
    if where.any():
        problem = "works only in place and declares no result, so none can be copied out"
        raise UsageError(
            f"{get_display_name(algorithm)} {problem}",
            cure="declare the contract of the custom collective",
            code="no-result",
        )
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _find_new_positions(
    cells: UnitsOfRanks, relocation: Relocation, buffer: Buffer
) -> tuple[Int64Array, Int64Array]:
    """Return the buffers and units to which `relocation` moves units of `buffer`: int64 arrays.

    `cells`: (ranks, units), the units in `buffer`. The results are in the same order.
    """
    rank, unit = cells
    moved_unit = relocation.shift[rank, buffer] + unit
    moved_buffer = relocation.buffer[rank, buffer]
    return moved_buffer.astype(np.int64), moved_unit


def _build_copies(
    rank: Int64Array,
    source: tuple[Int64Array, Int64Array],
    target: tuple[Int64Array, Int64Array],
    num_ranks: int,
) -> StepTable:
    """Build a table of `num_ranks` ranks with COPY steps of one unit each, without dependencies.

    `rank`: int64[n], rank of each copy. `source`, `target`: (buffers, offsets in units),
    int64[n] each. Rows are grouped by rank, ascending; the copies of a rank keep their order.
    The table has no rows if n is 0. Raises `InputError` for a rank out of range.
    """
    columns = {
        "rank": rank,
        "kind": np.full(len(rank), int(StepKind.COPY)),
        "src_buffer": source[0],
        "src_offset": source[1],
        "dst_buffer": target[0],
        "dst_offset": target[1],
        "count": np.ones(len(rank), np.int64),
    }
    return StepTable.from_columns(num_ranks, columns)
