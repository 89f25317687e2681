"""Run algorithms in sequence, each on the output of the previous one, without a barrier."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collhub_compose.buffers import BufferUsage, Relocation, build_contract
from collhub_compose.contracts import compose_contracts, find_collective
from collhub_compose.inputs import (
    build_provenance,
    check_composable,
    check_rank_counts,
    check_seam,
    find_common_bytes,
    find_common_op,
    have_one_source,
)
from collhub_compose.joining import join_in_sequence
from collhub_compose.placement import PlacedPart, Seam, make_out_of_place, place_seam
from collhub_compose.replication import rescale
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Buffer, CustomContract, ReduceOp, StepTable, UsageError


def _keep_unchanged(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm itself; stands for an adaptation that is not needed."""
    return algorithm


# Variants of the two parts, fewest copies first. Copies make a part that only works in place usable
# out of place; two parts that are both out of place fit around data in SCRATCH, so the last variant
# always works.
_VARIANTS = (
    (_keep_unchanged, _keep_unchanged),
    (make_out_of_place, _keep_unchanged),
    (_keep_unchanged, make_out_of_place),
    (make_out_of_place, make_out_of_place),
)


def sequential(algorithms: Sequence[Algorithm]) -> Algorithm:
    """Combine the algorithms to one that executes each on the OUTPUT of the previous one.

    For example, a reduce-scatter and an all-gather make an all-reduce. The result is a
    standard collective if one has the same contract, otherwise a custom one. A single
    algorithm is returned itself after its check.

    - There is no barrier: a step waits only for the earlier steps of its rank that access
      the same units.
    - Units are divided to a common size.
    - The parts have separate channels and lanes, and share SCRATCH.
    - The result supports every mode (in place, out of place) that follows from the modes of
      the parts. If there is none, copies are added.
    - Extensions are dropped; source lines too, if the parts come from several files.

    The results of the parts are not verified here. Raise `UsageError` without algorithms, if
    the numbers of ranks differ (`rank-count`), if an algorithm needs units or bytes that the
    previous one does not produce (`seam`), if operators do not fit (`reduce-op`), or if
    copies are needed but there are no expected results (`no-result`). Raise `InputError` for
    timing-only and malformed algorithms (`check_composable`), for contracts of more than
    2^24 contributions, and for other results that are too large (`too-large`).
    """
    if not algorithms:
        raise UsageError("nothing to compose", cure="give at least one algorithm")
    for algorithm in algorithms:
        check_composable(algorithm)
    check_rank_counts(algorithms)
    return functools.reduce(_compose_pair, algorithms)


def _compose_pair(first: Algorithm, second: Algorithm) -> Algorithm:
    """Compose two algorithms so that the second one starts from the result of the first.

    The units of both are divided until OUTPUT of the first and INPUT of the second have equally
    many. Then both are joined (`_join_pair`). Of four variants, the first that some mode of calls
    (in place, out of place) permits is returned: unchanged; with copies that make the first
    algorithm, the second, or both work out of place (`make_out_of_place`). The last one always
    works. The provenance is `sequential`. The arguments are not changed.

    Raises `UsageError` for too many units (`too-large`), missing or unlike data between the two
    (`seam`), different operators or two averages (`reduce-op`), copies without expected results
    (`no-result`), and sizes in bytes that do not fit (`seam`). Raises `InputError` (`too-large`)
    for contracts or memory beyond the limits.
    """
    # All errors first, then the joint contract, then the placement of the data in between.
    first, second = _rescale_to_common_units(first, second)
    check_seam(first, second)
    op = find_common_op(first, second)
    contract = compose_contracts(
        build_contract(first.collective),
        build_contract(second.collective),
    )
    pair = None
    for modify_first, modify_second in _VARIANTS:
        pair = _join_pair(modify_first(first), modify_second(second), contract, op)
        if pair is not None:
            break
    assert pair is not None, "two algorithms out of place fit around a seam in scratch"
    return replace(
        pair,
        provenance=build_provenance("sequential", [first, second]),
        collective_bytes=find_common_bytes(first, second, pair.collective.unit_count),
    )


def _join_pair(
    first: Algorithm, second: Algorithm, contract: CustomContract, op: ReduceOp
) -> Algorithm | None:
    """Join two algorithms to one with the given contract; None if no mode of calls is possible.

    The steps of the second follow those of the first on every rank. There is no barrier: steps of
    the second wait only for conflicting accesses of the first (`join_in_sequence`). Each part gets
    separate channels and lanes. The data between the two is stored in OUTPUT, or in SCRATCH after
    that of the parts, as `place_seam` decides for each rank. The parts share their scratch: each
    rank has the larger of both sizes, plus the data between them if that is in SCRATCH. The
    collective is a standard one if the contract permits it (`find_collective`), with the modes that
    `place_seam` finds. Source lines are kept only if both parts come from one source.

    Raises `InputError` (`too-large`) if ranks times units of a collective without a contract exceed
    2^25, and for 2^61 units of memory or more.
    """
    first_part, second_part = PlacedPart.of(first), PlacedPart.of(second)
    outer = BufferUsage(
        first_part.usage.input,
        second_part.usage.output,
        first_part.usage.reached_input,
        second_part.usage.reached_output,
    )
    joint = find_collective(contract, outer, op)
    seam = place_seam(first_part, second_part, joint)
    if seam is None:
        return None
    joint = replace(joint, in_place=seam.in_place, out_of_place=seam.out_of_place)
    shared = np.maximum(first.scratch_units, second.scratch_units)
    parts = [
        _move_to_seam(first.steps, Buffer.OUTPUT, seam, shared),
        _move_to_seam(second.steps, Buffer.INPUT, seam, shared),
    ]
    if not have_one_source([first, second]):
        # Lines of several files would look like lines of one file.
        parts = [replace(part, source_line=np.full(len(part), -1, np.int32)) for part in parts]
    seam_units = np.where(seam.output_offset < 0, seam.size, 0)
    scratch = shared + seam_units
    return Algorithm(joint, join_in_sequence(parts, joint, scratch), scratch)


def _move_to_seam(steps: StepTable, buffer: Buffer, seam: Seam, scratch: Int64Array) -> StepTable:
    """Move `buffer` in all steps to where the data between two parts is stored; return a copy.

    On a rank with `seam.output_offset` of at least 0, this is OUTPUT at that offset. On other ranks
    (-1) it is SCRATCH after `scratch` units. `scratch`: int64[num_ranks]. Other buffers are
    unchanged.
    """
    relocation = Relocation.none(steps.num_ranks)
    in_scratch = seam.output_offset < 0
    relocation.move(buffer, in_scratch, Buffer.SCRATCH, scratch)
    relocation.move(buffer, ~in_scratch, Buffer.OUTPUT, seam.output_offset)
    return relocation.apply(steps)


def _rescale_to_common_units(first: Algorithm, second: Algorithm) -> tuple[Algorithm, Algorithm]:
    """Divide the units of two algorithms so that the data between them has equally many units.

    The data is the OUTPUT of `first`, and the INPUT of `second` on ranks where it is
    defined. The lowest rank on which both have units determines the number: the least
    common multiple of both sizes. Return both algorithms in their order, unchanged if there
    is no such rank or if the sizes are equal. Differences on other ranks are found later by
    `check_seam`. Raise `UsageError` (`too-large`) as `rescale`, and `InputError`
    (`too-large`) as `build_contract`.
    """
    needs = build_contract(second.collective)
    output_units = build_contract(first.collective).output_units
    needed = np.where(needs.defined, needs.input_units, 0)
    ranks = np.flatnonzero((needed > 0) & (output_units > 0))
    if not len(ranks):
        # No rank has data on both sides of the seam; `check_seam` reports where.
        return first, second
    rank = ranks[0]
    first_units, second_units = int(output_units[rank]), int(needed[rank])
    common = math.lcm(first_units, second_units)
    return rescale(first, common // first_units), rescale(second, common // second_units)
