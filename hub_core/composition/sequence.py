"""Let one algorithm follow another: the OUTPUT of the first is the INPUT of the next, and no step waits without need."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hub_core.composition.contracts import followed_by, promise
from hub_core.composition.joining import join
from hub_core.composition.memory import Relocation, Usage, contract_of, usage_of
from hub_core.composition.naming import composed_provenance, display_name, have_one_source
from hub_core.composition.placement import Part, Seam, place_seam
from hub_core.composition.soundness import require_sound
from hub_core.composition.staging import out_of_place
from hub_core.composition.units import rescale
from hub_core.model.algorithm import Algorithm, message_bytes
from hub_core.model.collectives import CustomContract
from hub_core.model.diagnostics import Location, UsageError
from hub_core.model.kinds import Buffer, ReduceOp, StepKind
from hub_core.model.steps import StepTable

Int64Array = npt.NDArray[np.int64]


def _as_it_is(algorithm: Algorithm) -> Algorithm:
    return algorithm


# How to take the two parts, the fewest copies first.
_WAYS = (
    (_as_it_is, _as_it_is),
    (out_of_place, _as_it_is),
    (_as_it_is, out_of_place),
    (out_of_place, out_of_place),
)


def sequential(algorithms: Sequence[Algorithm]) -> Algorithm:
    """Run the algorithms one after another, each on what the one before leaves: reduce-scatter, all-gather = all-reduce.

    Units are cut to a common size. Steps of the next algorithm wait for just those earlier steps of their rank that
    touch the same units; there is no barrier. The result is the collective of the field that promises the same, else a
    custom one with its contract, and claims every mode that follows from the claims of the parts; copies are added where
    no mode does. Channels and lanes of the parts stay apart, SCRATCH is shared. Vendor extensions are dropped, and
    source lines where the parts come from several files. The claims of the parts are trusted: `verify` judges.

    Raises `UsageError` where ranks, sizes or operators do not fit or the next one needs a unit that the one before does
    not produce, `InputError` for timing-only and malformed algorithms and for contracts of more than 2^24 contributions.
    """
    if not algorithms:
        raise UsageError("nothing to compose", cure="give at least one algorithm")
    for algorithm in algorithms:
        require_sound(algorithm)
    _check_rank_counts(algorithms)
    return functools.reduce(_followed, algorithms)


def _followed(first: Algorithm, second: Algorithm) -> Algorithm:
    first, second = _in_common_units(first, second)
    _check_seam(first, second)
    op = _common_op(first, second)
    contract = followed_by(contract_of(first.collective), contract_of(second.collective))
    for first_way, second_way in _WAYS:
        found = _joined(first_way(first), second_way(second), contract, op)
        if found is not None:
            break
    assert found is not None, "two algorithms out of place fit around a seam in scratch"
    return replace(
        found,
        provenance=composed_provenance("sequential", [first, second]),
        collective_bytes=_common_bytes(first, second, found.collective.unit_count),
    )


def _joined(
    first: Algorithm, second: Algorithm, contract: CustomContract, op: ReduceOp
) -> Algorithm | None:
    usages = [usage_of(part, contract_of(part.collective)) for part in (first, second)]
    outer = Usage(
        usages[0].input, usages[1].output, usages[0].reached_input, usages[1].reached_output
    )
    joint = promise(contract, outer, op)
    seam = place_seam(Part(first.collective, usages[0]), Part(second.collective, usages[1]), joint)
    if seam is None:
        return None
    joint = replace(joint, in_place=seam.in_place, out_of_place=seam.out_of_place)
    scratch = np.maximum(first.scratch_units, second.scratch_units)
    parts = [
        _at_seam(part.steps, buffer, seam, scratch)
        for part, buffer in ((first, Buffer.OUTPUT), (second, Buffer.INPUT))
    ]
    if not have_one_source([first, second]):
        parts = [replace(part, source_line=np.full(len(part), -1, np.int32)) for part in parts]
    scratch = scratch + np.where(seam.output_offset < 0, seam.size, 0)
    return Algorithm(joint, join(parts, joint, scratch), scratch)


def _at_seam(steps: StepTable, buffer: Buffer, seam: Seam, scratch: Int64Array) -> StepTable:
    """The steps of one part with its `buffer` at the seam; in SCRATCH that lies behind the parts' own."""
    relocation = Relocation.none(steps.num_ranks)
    in_scratch = seam.output_offset < 0
    relocation.move(buffer, in_scratch, Buffer.SCRATCH, scratch)
    relocation.move(buffer, ~in_scratch, Buffer.OUTPUT, seam.output_offset)
    return relocation.apply(steps)


def _check_rank_counts(algorithms: Sequence[Algorithm]) -> None:
    first = algorithms[0]
    for other in algorithms[1:]:
        if other.num_ranks != first.num_ranks:
            message = f"{display_name(first)} has {first.num_ranks} ranks, {display_name(other)} has {other.num_ranks}"
            raise UsageError(
                message, cure="embed the smaller one in the ranks of the larger", code="rank-count"
            )


def _in_common_units(first: Algorithm, second: Algorithm) -> tuple[Algorithm, Algorithm]:
    """Cut the units of both so that the first rank with data at the seam has equally many on both sides."""
    needs = contract_of(second.collective)
    left = contract_of(first.collective).output_units
    needed = np.where(needs.defined, needs.input_units, 0)
    ranks = np.flatnonzero((needed > 0) & (left > 0))
    if not len(ranks):
        return first, second
    have, want = int(left[ranks[0]]), int(needed[ranks[0]])
    common = math.lcm(have, want)
    return rescale(first, common // have), rescale(second, common // want)


def _check_seam(first: Algorithm, second: Algorithm) -> None:
    """Every unit that the second finds in INPUT must be one that the first leaves in OUTPUT."""
    left, needs = contract_of(first.collective), contract_of(second.collective)
    needed = np.where(needs.defined, needs.input_units, 0)
    unequal = np.flatnonzero((needed > 0) & (left.output_units != needed))
    if len(unequal):
        rank = int(unequal[0])
        sizes = f"leaves {left.output_units[rank]} units in OUTPUT and {display_name(second)} expects {needed[rank]} in INPUT"
        raise _misfit(f"{display_name(first)} {sizes}", rank)
    if left.expected is None:
        return
    starts = np.cumsum(needed) - needed
    is_left = np.zeros(int(needed.sum()), np.bool_)
    inside = left.expected.offset < needed[left.expected.rank]
    is_left[starts[left.expected.rank[inside]] + left.expected.offset[inside]] = True
    missing = np.flatnonzero(~is_left)
    if len(missing):
        rank = int(np.searchsorted(starts + needed, missing[0], side="right"))
        unit = int(missing[0] - starts[rank])
        what = f"{display_name(second)} needs INPUT[{unit}], but {display_name(first)} leaves nothing in OUTPUT[{unit}]"
        raise _misfit(what, rank)


def _misfit(message: str, rank: int) -> UsageError:
    cure = "choose parts whose results and inputs are equally large, at the same ranks"
    return UsageError(message, location=Location(rank=rank), cure=cure, code="seam")


def _common_op(first: Algorithm, second: Algorithm) -> ReduceOp:
    reducing = [
        part
        for part in (first, second)
        if part.steps.is_kind(StepKind.RECV_REDUCE, StepKind.REDUCE).any()
    ]
    ops = {part.collective.reduce_op for part in reducing or [first]}
    if len(ops) > 1:
        names = " and ".join(
            f"{display_name(part)} ({part.collective.reduce_op})" for part in (first, second)
        )
        raise UsageError(
            f"{names} reduce with different operators",
            cure="compose parts of one operator",
            code="reduce-op",
        )
    if len(reducing) > 1 and ReduceOp.AVG in ops:
        message = f"{display_name(first)} and {display_name(second)} both average, and no operator means that"
        raise UsageError(message, cure="let one of them sum", code="reduce-op")
    return ops.pop()


def _common_bytes(first: Algorithm, second: Algorithm, unit_count: int) -> int | None:
    """The stated size of the whole in bytes, from parts in common units."""
    stated = [part for part in (first, second) if part.collective_bytes is not None]
    if not stated:
        return None
    longest = int(contract_of(first.collective).output_units.max(initial=0))
    at_seam = [_bytes_of(part, longest) for part in stated]
    if len(set(at_seam)) > 1:
        sizes = f"{display_name(first)} leaves {at_seam[0]} bytes, {display_name(second)} takes {at_seam[1]}"
        raise UsageError(
            f"the stated sizes do not fit: {sizes}",
            cure="write both for the same size",
            code="seam",
        )
    return _bytes_of(stated[0], unit_count)


def _bytes_of(part: Algorithm, units: int) -> int:
    assert part.collective_bytes is not None
    return int(
        message_bytes(part.collective_bytes, part.collective.unit_count, np.asarray([units]))[0]
    )
