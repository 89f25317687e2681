"""Whether two algorithms fit behind each other: ranks, units, operators and sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from collhub_columns import Int64Array, first_positions

from collhub_compose.buffers.usage import contract_of
from collhub_compose.naming import display_name
from hub_core.model import (
    Algorithm,
    Contributions,
    Location,
    ReduceOp,
    StepKind,
    UsageError,
    message_bytes,
)


def check_rank_counts(algorithms: Sequence[Algorithm]) -> None:
    """Raise `UsageError` where not all have the same number of ranks."""
    first = algorithms[0]
    for other in algorithms[1:]:
        if other.num_ranks == first.num_ranks:
            continue
        one = f"{display_name(first)} has {first.num_ranks} ranks"
        two = f"{display_name(other)} has {other.num_ranks}"
        raise UsageError(
            f"{one}, {two}",
            cure="embed the smaller one in the ranks of the larger",
            code="rank-count",
        )


def check_seam(first: Algorithm, second: Algorithm) -> None:
    """Raise `UsageError` unless the first leaves in OUTPUT what the second finds in INPUT."""
    left, needs = contract_of(first.collective), contract_of(second.collective)
    needed = np.where(needs.defined, needs.input_units, 0)
    one, two = display_name(first), display_name(second)
    unequal = np.flatnonzero((needed > 0) & (left.output_units != needed))
    if len(unequal):
        rank = int(unequal[0])
        leaves = f"{one} leaves {left.output_units[rank]} units in OUTPUT"
        expects = f"{two} expects {needed[rank]} in INPUT"
        raise _misfit(f"{leaves} and {expects}", rank)
    if left.expected is None:
        return
    found = _first_missing(left.expected, needed)
    if found is not None:
        rank, unit = found
        leaves = f"{one} leaves nothing in OUTPUT[{unit}]"
        raise _misfit(f"{two} needs INPUT[{unit}], but {leaves}", rank)


def common_op(first: Algorithm, second: Algorithm) -> ReduceOp:
    """The operator of the pair: that of the part that reduces.

    Raises `UsageError` where both do, with different operators or so that none means the outcome.
    """
    reducing = [part for part in (first, second) if _reduces(part)]
    # A part that moves data alone goes with any operator, whatever it names.
    ops = {part.collective.reduce_op for part in reducing or [first]}
    if len(ops) > 1:
        names = [f"{display_name(part)} ({part.collective.reduce_op})" for part in (first, second)]
        raise UsageError(
            f"{' and '.join(names)} reduce with different operators",
            cure="compose parts of one operator",
            code="reduce-op",
        )
    if len(reducing) > 1 and ReduceOp.AVG in ops:
        # The mean of sums over n ranks, divided twice, is no mean of the contributions.
        names = [display_name(first), display_name(second)]
        raise UsageError(
            f"{' and '.join(names)} both average, and no operator means that",
            cure="let one of them sum",
            code="reduce-op",
        )
    return ops.pop()


def common_bytes(first: Algorithm, second: Algorithm, unit_count: int) -> int | None:
    """The stated size of the whole in bytes, from parts in common units; None where none is stated.

    Raises `UsageError` where the parts state different sizes of what lies between them.
    """
    stated = [part for part in (first, second) if part.collective_bytes is not None]
    if not stated:
        return None
    left = contract_of(first.collective).output_units
    longest = int(left.max(initial=0))
    # The seam is what both have in common; the rest of their buffers may be of other sizes.
    at_seam = [_bytes_of(part, longest) for part in stated]
    if len(set(at_seam)) > 1:
        leaves = f"{display_name(first)} leaves {at_seam[0]} bytes"
        takes = f"{display_name(second)} takes {at_seam[1]}"
        raise UsageError(
            f"the stated sizes do not fit: {leaves}, {takes}",
            cure="write both for the same size",
            code="seam",
        )
    return _bytes_of(stated[0], unit_count)


def _first_missing(expected: Contributions, needed: Int64Array) -> tuple[int, int] | None:
    """(rank, unit) of the first unit that is needed and that nothing is left in.

    `needed`: units from 0 on, int64[num_ranks].
    """
    starts = first_positions(needed)
    is_left = np.zeros(int(needed.sum()), np.bool_)
    is_needed = expected.offset < needed[expected.rank]
    filled = starts[expected.rank] + expected.offset
    is_left[filled[is_needed]] = True
    missing = np.flatnonzero(~is_left)
    if not len(missing):
        return None
    position = int(missing[0])
    rank = int(np.searchsorted(starts + needed, position, side="right"))
    return rank, position - int(starts[rank])


def _misfit(message: str, rank: int) -> UsageError:
    """The refusal of a pair of parts, at the first rank where they do not fit."""
    cure = "choose parts whose results and inputs are equally large, at the same ranks"
    return UsageError(message, location=Location(rank=rank), cure=cure, code="seam")


def _reduces(part: Algorithm) -> bool:
    """Whether any of its steps applies the operator."""
    adds = part.steps.is_kind(StepKind.RECV_REDUCE, StepKind.REDUCE)
    return bool(adds.any())


def _bytes_of(part: Algorithm, units: int) -> int:
    """The bytes of so many units, by the size that the part states."""
    # Callers ask only parts that state one.
    assert part.collective_bytes is not None
    unit_count = part.collective.unit_count
    sizes = message_bytes(part.collective_bytes, unit_count, np.asarray([units]))
    return int(sizes[0])
