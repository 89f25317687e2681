"""Decide where the data between two algorithms lie, and in which modes the pair may be called."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array

from collhub_compose.buffers.usage import BufferUsage, contract_of, required_units, usage_of
from hub_core.model import Algorithm, Buffer, Collective, MemoryLayout

# In the order of preference: (in place, out of place). Of one mode alone, out of place is what more
# callers use, and what a sequence with a third part can always be joined to.
_CLAIMS = ((True, True), (False, True), (True, False))


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """An algorithm for this purpose: what it claims, and how far it uses its buffers."""

    collective: Collective
    usage: BufferUsage

    @classmethod
    def of(cls, algorithm: Algorithm) -> PlacedPart:
        """An algorithm on its own ranks. Raises `InputError` where it is too large to compose."""
        contract = contract_of(algorithm.collective)
        return cls(algorithm.collective, usage_of(algorithm, contract))


@dataclass(frozen=True, slots=True)
class Seam:
    """Where the data between two parts lie, and the modes of calling that this allows.

    `output_offset`: int64[num_ranks], the unit of OUTPUT at which they start, or -1 for SCRATCH.
    `size`: their units, int64[num_ranks].
    """

    output_offset: Int64Array
    size: Int64Array
    in_place: bool
    out_of_place: bool


def place_seam(first: PlacedPart, second: PlacedPart, joint: Collective) -> Seam | None:
    """Choose the place rank by rank; None where `joint` could then be called in no mode."""
    # In OUTPUT the data stand where `second` has its INPUT when called in place, which saves
    # memory; only ranks that get a result have an OUTPUT to use. Elsewhere they stand in SCRATCH,
    # apart from all other data. A rank may do either, as long as every claimed mode allows it.
    size = np.maximum(first.usage.output, second.usage.input)
    offset = input_in_output(second.collective)
    room = required_units(contract_of(joint))
    fits = (offset >= 0) & (offset + size <= room) & (size > 0)
    for claims in _CLAIMS:
        modes = [mode for mode, is_claimed in zip((True, False), claims, strict=True) if is_claimed]
        in_output = fits.copy()
        in_scratch = np.ones(len(size), np.bool_)
        for mode in modes:
            layout = _layout(joint, mode)
            output = layout.base[:, Buffer.OUTPUT]
            in_output &= _allows(first, second, layout, output + offset)
            in_scratch &= _allows(first, second, layout, np.full(len(size), layout.total))
        if np.all(in_output | in_scratch):
            return Seam(np.where(in_output, offset, -1), size, *claims)
    return None


def is_usable(part: PlacedPart, inputs: Int64Array, outputs: Int64Array) -> BoolArray:
    """Whether `part` claims to work with INPUT and OUTPUT at these addresses: bool[num_ranks].

    It does where it claims to be out of place and the used parts of the buffers are disjoint, and
    where it claims to be in place and they lie as in-place calls have them.
    """
    is_apart = _are_disjoint(part.usage, inputs, outputs)
    if not part.collective.in_place:
        return is_apart
    aliases = _layout(part.collective, in_place=True).base
    own_inputs, own_outputs = aliases[:, Buffer.INPUT], aliases[:, Buffer.OUTPUT]
    is_aliased = outputs - inputs == own_outputs - own_inputs
    # On some ranks, such as the others of a gather, buffers are apart in place, too.
    is_apart_in_place = _are_disjoint(part.usage, own_inputs, own_outputs)
    works_apart = is_apart_in_place | part.collective.out_of_place
    usable: BoolArray = np.where(is_apart, works_apart, is_aliased)
    return usable


def input_in_output(collective: Collective) -> Int64Array:
    """Unit of OUTPUT at which INPUT starts in calls in place: int64[num_ranks].

    -1 where it does not start there, and everywhere for algorithms that cannot be called so.
    """
    base = _layout(collective, in_place=True).base
    offset = base[:, Buffer.INPUT] - base[:, Buffer.OUTPUT]
    starts_there = (offset >= 0) & collective.in_place
    return np.where(starts_there, offset, -1)


def _layout(collective: Collective, in_place: bool) -> MemoryLayout:
    """INPUT and OUTPUT of all ranks, without SCRATCH."""
    # Addresses behind `total` are those of nothing else.
    no_scratch = np.zeros(collective.num_ranks, np.int64)
    return collective.memory_layout(in_place, no_scratch)


def _allows(
    first: PlacedPart, second: PlacedPart, layout: MemoryLayout, seam: Int64Array
) -> BoolArray:
    """Whether both parts work with the data between them at the addresses `seam`, per rank."""
    inputs = layout.base[:, Buffer.INPUT]
    outputs = layout.base[:, Buffer.OUTPUT]
    return is_usable(first, inputs, seam) & is_usable(second, seam, outputs)


def _are_disjoint(usage: BufferUsage, inputs: Int64Array, outputs: Int64Array) -> BoolArray:
    """Whether the used parts of INPUT and OUTPUT have no unit in common: bool[num_ranks]."""
    input_ends = inputs + usage.input
    output_ends = outputs + usage.output
    apart: BoolArray = (input_ends <= outputs) | (output_ends <= inputs)
    # What is not used is nowhere.
    apart |= (usage.input == 0) | (usage.output == 0)
    return apart
