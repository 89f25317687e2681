"""Decide where the data between two algorithms lie, so that the pair may be called in place, out of place or both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.composition.memory import Usage, contract_of, required_units
from hub_core.model.collectives import Collective, MemoryLayout
from hub_core.model.kinds import Buffer

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# In the order of preference: (in place, out of place).
_CLAIMS = ((True, True), (False, True), (True, False))


@dataclass(frozen=True, slots=True)
class Part:
    """An algorithm for this purpose: what it claims, and how far it uses its buffers."""

    collective: Collective
    usage: Usage


@dataclass(frozen=True, slots=True)
class Seam:
    """Per rank, the unit of OUTPUT at which the data between the parts start, or -1 for SCRATCH; and the modes this allows."""

    output_offset: Int64Array
    size: Int64Array
    in_place: bool
    out_of_place: bool


def place_seam(first: Part, second: Part, joint: Collective) -> Seam | None:
    """Choose the place rank by rank; None where `joint` could then be called in no mode.

    In OUTPUT the data stand where `second` has its INPUT when called in place, which saves memory; only ranks that get
    a result have an OUTPUT to use. Elsewhere they stand in SCRATCH, apart from all other data.
    """
    size = np.maximum(first.usage.output, second.usage.input)
    offset = input_in_output(second.collective)
    fits = (offset >= 0) & (offset + size <= required_units(contract_of(joint))) & (size > 0)
    for claims in _CLAIMS:
        modes = [mode for mode, is_claimed in zip((True, False), claims, strict=True) if is_claimed]
        in_output, in_scratch = fits.copy(), np.ones(len(size), np.bool_)
        for mode in modes:
            layout = joint.memory_layout(mode, np.zeros(len(size), np.int64))
            in_output &= _allows(first, second, layout, layout.base[:, Buffer.OUTPUT] + offset)
            in_scratch &= _allows(first, second, layout, np.full(len(size), layout.total))
        if bool(np.all(in_output | in_scratch)):
            return Seam(np.where(in_output, offset, -1), size, *claims)
    return None


def is_usable(part: Part, inputs: Int64Array, outputs: Int64Array) -> BoolArray:
    """Whether `part` claims to work with INPUT and OUTPUT at these addresses: bool[num_ranks].

    It does where it claims to be out of place and the used parts of the buffers are disjoint, and where it claims to
    be in place and they lie as in-place calls have them.
    """
    collective = part.collective
    aliases = collective.memory_layout(True, np.zeros(collective.num_ranks, np.int64)).base
    is_apart = _are_disjoint(part.usage, inputs, outputs)
    is_apart_in_place = _are_disjoint(
        part.usage, aliases[:, Buffer.INPUT], aliases[:, Buffer.OUTPUT]
    )
    is_aliased = outputs - inputs == aliases[:, Buffer.OUTPUT] - aliases[:, Buffer.INPUT]
    if not collective.in_place:
        return is_apart
    usable: BoolArray = np.where(is_apart, is_apart_in_place | collective.out_of_place, is_aliased)
    return usable


def input_in_output(collective: Collective) -> Int64Array:
    """Unit of OUTPUT at which INPUT starts in calls in place: int64[num_ranks]; -1 where it does not start there.

    Also -1 everywhere for algorithms that cannot be called so.
    """
    base = collective.memory_layout(True, np.zeros(collective.num_ranks, np.int64)).base
    offset = base[:, Buffer.INPUT] - base[:, Buffer.OUTPUT]
    return np.where((offset >= 0) & collective.in_place, offset, -1)


def _allows(first: Part, second: Part, layout: MemoryLayout, seam: Int64Array) -> BoolArray:
    inputs, outputs = layout.base[:, Buffer.INPUT], layout.base[:, Buffer.OUTPUT]
    return is_usable(first, inputs, seam) & is_usable(second, seam, outputs)


def _are_disjoint(usage: Usage, inputs: Int64Array, outputs: Int64Array) -> BoolArray:
    apart: BoolArray = (inputs + usage.input <= outputs) | (outputs + usage.output <= inputs)
    apart |= (usage.input == 0) | (usage.output == 0)
    return apart
