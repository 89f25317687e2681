"""Let one algorithm follow another, on what the first leaves; no step waits without need."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from collhub_columns import Int64Array

from collhub_compose.buffers.relocation import Relocation
from collhub_compose.buffers.usage import BufferUsage, contract_of
from collhub_compose.naming import composed_provenance, have_one_source
from collhub_compose.seams.fitting import check_rank_counts, check_seam, common_bytes, common_op
from collhub_compose.seams.joining import join
from collhub_compose.seams.placement import PlacedPart, Seam, place_seam
from collhub_compose.seams.promises import followed_by, promise
from collhub_compose.seams.staging import out_of_place
from collhub_compose.soundness import require_sound
from collhub_compose.units import rescale
from hub_core.model import Algorithm, Buffer, CustomContract, ReduceOp, StepTable, UsageError


def _as_it_is(algorithm: Algorithm) -> Algorithm:
    return algorithm


# How to take the two parts, the fewest copies first. Copies make a part that works in place alone
# usable out of place; two parts that both are fit around data in SCRATCH, so the last way works.
_WAYS = (
    (_as_it_is, _as_it_is),
    (out_of_place, _as_it_is),
    (_as_it_is, out_of_place),
    (out_of_place, out_of_place),
)


def sequential(algorithms: Sequence[Algorithm]) -> Algorithm:
    """Run the algorithms one after another, each on what the one before leaves in OUTPUT.

    So a reduce-scatter and an all-gather make an all-reduce. Units are cut to a common size. Steps
    of the next algorithm wait for just those earlier steps of their rank that touch the same units;
    there is no barrier. The result is the collective of the field that promises the same, else a
    custom one with its contract, and claims every mode that follows from the claims of the parts;
    copies are added where no mode does. Channels and lanes of the parts stay apart, SCRATCH is
    shared. Vendor extensions are dropped, and source lines where the parts come from several files.
    The claims of the parts are trusted: `verify` judges.

    Raises `UsageError` where ranks, sizes or operators do not fit or the next one needs a unit that
    the one before does not produce, `InputError` for timing-only and malformed algorithms and for
    contracts of more than 2^24 contributions.
    """
    if not algorithms:
        raise UsageError("nothing to compose", cure="give at least one algorithm")
    for algorithm in algorithms:
        require_sound(algorithm)
    check_rank_counts(algorithms)
    return functools.reduce(_followed, algorithms)


def _followed(first: Algorithm, second: Algorithm) -> Algorithm:
    """Two algorithms in sequence."""
    # First everything that can be refused, then the promise, then the place of what lies between.
    first, second = _in_common_units(first, second)
    check_seam(first, second)
    op = common_op(first, second)
    contract = followed_by(
        contract_of(first.collective),
        contract_of(second.collective),
    )
    found = None
    for first_way, second_way in _WAYS:
        found = _joined(first_way(first), second_way(second), contract, op)
        if found is not None:
            break
    assert found is not None, "two algorithms out of place fit around a seam in scratch"
    return replace(
        found,
        provenance=composed_provenance("sequential", [first, second]),
        collective_bytes=common_bytes(first, second, found.collective.unit_count),
    )


def _joined(
    first: Algorithm, second: Algorithm, contract: CustomContract, op: ReduceOp
) -> Algorithm | None:
    """The pair with this contract; None where it could be called in no mode."""
    one, two = PlacedPart.of(first), PlacedPart.of(second)
    outer = BufferUsage(
        one.usage.input,
        two.usage.output,
        one.usage.reached_input,
        two.usage.reached_output,
    )
    joint = promise(contract, outer, op)
    seam = place_seam(one, two, joint)
    if seam is None:
        return None
    joint = replace(joint, in_place=seam.in_place, out_of_place=seam.out_of_place)
    shared = np.maximum(first.scratch_units, second.scratch_units)
    parts = [
        _at_seam(first.steps, Buffer.OUTPUT, seam, shared),
        _at_seam(second.steps, Buffer.INPUT, seam, shared),
    ]
    if not have_one_source([first, second]):
        parts = [_without_lines(part) for part in parts]
    of_seam = np.where(seam.output_offset < 0, seam.size, 0)
    scratch = shared + of_seam
    return Algorithm(joint, join(parts, joint, scratch), scratch)


def _at_seam(steps: StepTable, buffer: Buffer, seam: Seam, scratch: Int64Array) -> StepTable:
    """The steps of one part with its `buffer` at the seam; in SCRATCH behind `scratch` units."""
    relocation = Relocation.none(steps.num_ranks)
    in_scratch = seam.output_offset < 0
    relocation.move(buffer, in_scratch, Buffer.SCRATCH, scratch)
    relocation.move(buffer, ~in_scratch, Buffer.OUTPUT, seam.output_offset)
    return relocation.apply(steps)


def _without_lines(steps: StepTable) -> StepTable:
    """The steps of a part among parts of other files."""
    # Lines of several files would look like lines of one.
    unknown = np.full(len(steps), -1, np.int32)
    return replace(steps, source_line=unknown)


def _in_common_units(first: Algorithm, second: Algorithm) -> tuple[Algorithm, Algorithm]:
    """Cut the units of both so that they agree at the seam.

    Measured at the first rank with data there; what differs elsewhere is refused later.
    """
    needs = contract_of(second.collective)
    left = contract_of(first.collective).output_units
    needed = np.where(needs.defined, needs.input_units, 0)
    ranks = np.flatnonzero((needed > 0) & (left > 0))
    if not len(ranks):
        # Nothing fits: the check of the seam says where.
        return first, second
    rank = ranks[0]
    have, want = int(left[rank]), int(needed[rank])
    common = math.lcm(have, want)
    return rescale(first, common // have), rescale(second, common // want)
