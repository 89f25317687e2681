"""Compare the calls of one operation on several ranks: operation, sizes, types, and who deviates.

The majority is right; without a majority all ranks are named. Which sides of a call must agree
depends on the operation: only the root of a gather has an output, for example.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from collhub_waits.records import RecordedCall, Shapes
from hub_core.columns import BoolArray

MAX_SIZES = 8
"""Maximum number of different sizes of one operation that a report lists."""


class RankSizes(NamedTuple):
    """Ranks that give the same sizes, and the shapes of their tensors."""

    ranks: tuple[int, ...]
    input_shapes: Shapes
    output_shapes: Shapes


@dataclass(frozen=True)
class CallDifference:
    """Calls of one operation that differ between ranks, or that contradict themselves."""

    kind: str
    culprits: tuple[int, ...]
    detail: str
    sizes: tuple[RankSizes, ...] = ()


@dataclass(frozen=True)
class Mismatch:
    """A difference of recorded operations. `rows` are those of the culprits first."""

    difference: CallDifference
    rows: tuple[int, ...]
    is_completed: bool


Calls = Mapping[int, tuple[RecordedCall, ...]]
"""The calls of one operation by rank; more than one call in a batch."""


def compare_calls(
    calls: Calls, group: Sequence[int] | None, *, is_completed: bool
) -> CallDifference | None:
    """Return the first difference between the calls of the ranks in one operation, or None.

    `calls`: not empty. `group`: all ranks of the operation in order, None if unknown. Culprits
    are the ranks to blame. The checks, in this order:

    1. Names (kind `type`), then sizes (`size`), then dtypes (`dtype`) agree between ranks;
       unknown values agree with all. Culprits: the minority (`find_minority`), all ranks on a
       tie, and nobody if calls of further ranks of `group` could change the majority.
    2. No call contradicts itself (`find_contradiction`). Culprits: the ranks with such a call;
       kind and text are those of the first one. If all ranks have such a call and
       `is_completed`, the check passes.
    3. If `group` is known and all calls are all-to-alls, each rank sends the data that the
       receivers expect (`all-to-all`): first by segment (`_compare_segments`), then in total
       (`_compare_totals`). Culprits: see there.
    """
    for kind, signature in _SIGNATURES:
        minority = find_minority(
            {rank: signature(rank_calls) for rank, rank_calls in calls.items()}
        )
        if minority:
            # Calls that are not recorded may make the minority the majority.
            missing_count = max(len(group or ()) - len(calls), 0)
            is_tie = len(minority) == len(calls)
            is_open = missing_count > (0 if is_tie else len(calls) - 2 * len(minority))
            sizes = _list_sizes(calls) if kind == "size" else ()
            text = _describe_values(kind, signature, calls)
            return CallDifference(kind, () if is_open else minority, text, sizes)
    size = None if group is None else len(group)
    contradictions = {
        rank: difference
        for rank, rank_calls in calls.items()
        if (difference := find_contradiction(rank_calls, size))
    }
    if contradictions and not (len(contradictions) == len(calls) and is_completed):
        kind, detail = next(iter(contradictions.values()))
        sizes = _list_sizes(calls) if kind == "size" else ()
        return CallDifference(kind, tuple(contradictions), detail, sizes)
    if group is None or not all(
        is_all_to_all(call) for rank_calls in calls.values() for call in rank_calls
    ):
        return None
    return _compare_segments(calls, group) or _compare_totals(calls, group)


def compare_message(
    source: int, destination: int, send: RecordedCall, receive: RecordedCall
) -> CallDifference | None:
    """Return how a send and its receive differ in size or dtype; None if they do not.

    The input of the send is compared with the output of the receive. The first case applies:

    1. Both numbers of elements are known and differ: a `size` difference, with the shapes of
       both ranks. The shapes themselves may differ. A number is unknown without any recorded
       tensor.
    2. Both sets of dtypes are recorded and differ: a `dtype` difference, without shapes. Order
       and repetition do not matter.
    3. Otherwise None.

    Its ranks are `source` and `destination`, ascending.
    """
    ranks = tuple(sorted((source, destination)))
    sent, received = count_elements(send.input_shapes), count_elements(receive.output_shapes)
    if sent is not None and received is not None and sent != received:
        detail = f"rank {source} sends {sent} elements, rank {destination} receives {received}"
        sizes = (
            RankSizes((source,), send.input_shapes, send.output_shapes),
            RankSizes((destination,), receive.input_shapes, receive.output_shapes),
        )
        return CallDifference("size", ranks, detail, sizes)
    types = set(send.input_dtypes), set(receive.output_dtypes)
    if all(types) and types[0] != types[1]:
        names = [", ".join(sorted(dtypes)) for dtypes in types]
        detail = f"rank {source} sends {names[0]}, rank {destination} receives {names[1]}"
        return CallDifference("dtype", ranks, detail)
    return None


def find_contradiction(
    calls: Sequence[RecordedCall], group_size: int | None
) -> tuple[str, str] | None:
    """Return (kind, text) of the first call whose output does not fit its input, or None.

    Calls are checked in order; per call first `size`, then `dtype`. The operation is recognized by
    the beginning of its name, without case and underscores.

    - `size`: elements of all output tensors. An all-reduce has as many as its input, an all-gather
      `group_size` times as many, a reduce-scatter input / `group_size`, without a remainder.
    - `dtype`: the sets of input and output dtypes are equal. Not checked if one set is empty.

    Skipped are other collectives, names that end in `gatherv`, `scatterv`, `vsingle` or `barrier`
    (without underscores), calls without input or output shapes, and all-gathers and
    reduce-scatters if `group_size` is None. The text names the operation and both sizes or dtypes.
    """
    for call in calls:
        name = _normalize(call.operation)
        sent, received = count_elements(call.input_shapes), count_elements(call.output_shapes)
        if sent is None or received is None or _is_uneven(call) or name.endswith("barrier"):
            continue
        factors = (1, 1) if name.startswith("allreduce") else None
        if group_size is not None and name.startswith("allgather"):
            factors = (group_size, 1)
        elif group_size is not None and name.startswith("reducescatter"):
            factors = (1, group_size)
        if factors is None:
            continue
        if sent * factors[0] != received * factors[1]:
            text = f"{call.operation} of {sent} elements has an output of {received}"
            where = "" if group_size is None else f" in a group of {group_size} ranks"
            return "size", text + where
        types = set(call.input_dtypes), set(call.output_dtypes)
        if all(types) and types[0] != types[1]:
            names = [", ".join(sorted(dtypes)) for dtypes in types]
            return "dtype", f"{call.operation} has input {names[0]} and output {names[1]}"
    return None


def count_elements(shapes: Shapes) -> int | None:
    """Return the elements of all tensors, None without a tensor. A scalar has one element."""
    return sum(math.prod(shape) for shape in shapes) if shapes else None


def is_all_to_all(call: RecordedCall) -> bool:
    """Whether a call is an all-to-all, whose sizes may differ between ranks."""
    return _normalize(call.operation).startswith(("alltoall", "all2all"))


def find_minority(values: Mapping[int, Hashable]) -> tuple[int, ...]:
    """Return the sorted ranks whose value does not agree with the most frequent value.

    Values agree if they are equal or one is None (not comparable); tuples agree if all
    their parts do. For the frequency, only equal values count as one; of equally frequent
    values, the first in `values` is the most frequent. The first rule that applies:

    1. All values agree with the most frequent one, or there are none: ().
    2. The two most frequent values are equally frequent: all ranks, also those of rarer
       values.
    3. Otherwise the ranks whose value does not agree with the most frequent one.
    """
    if len(set(values.values())) < 2:
        return ()
    counts = Counter(values.values()).most_common()
    if all(_agree(counts[0][0], value) for value, _ in counts[1:]):
        return ()
    if counts[0][1] == counts[1][1]:
        return tuple(sorted(values))
    return tuple(sorted(r for r, value in values.items() if not _agree(counts[0][0], value)))


def _compare_segments(calls: Calls, group: Sequence[int]) -> CallDifference | None:
    """Compare each segment that a rank sends in an all-to-all with the one its receiver expects.

    Numbers of elements are compared, between ranks in `calls` only. Returns None if all agree, or
    unless each rank has one call with one tensor per rank of the group on both sides. The text has
    the first difference, by sender, then receiver, and the number of further ones.

    Rules add culprits, until each difference has one as sender or receiver. Culprits are ascending:

    1. ranks whose segment for themselves differs from the one they expect
    2. ranks that differ from at least two ranks, and from more than half of the others in `calls`
    3. all ranks with a difference

    If `calls` lacks ranks of the group, there are no culprits, unless rule 1 gives one.
    """
    if any(
        len(rank_calls) != 1
        or not len(rank_calls[0].input_shapes) == len(rank_calls[0].output_shapes) == len(group)
        for rank_calls in calls.values()
    ):
        return None
    positions = [position for position, rank in enumerate(group) if rank in calls]
    ranks = [group[position] for position in positions]
    sent, received = (
        np.array([[math.prod(shape) for shape in side(calls[rank][0])] for rank in ranks], float)
        for side in (operator.attrgetter("input_shapes"), operator.attrgetter("output_shapes"))
    )
    differs = sent[:, positions] != received[:, positions].T
    if not differs.any():
        return None
    either = differs | differs.T
    is_culprit = either.diagonal()
    if _is_unexplained(either, is_culprit):
        is_culprit = is_culprit | (2 * either.sum(axis=1) > max(len(ranks) - 1, 2))
    if _is_unexplained(either, is_culprit):
        is_culprit = either.any(axis=1)
    if len(ranks) < len(group) and not either.diagonal().any():
        # The calls that are not recorded decide who deviates.
        is_culprit = np.zeros(len(ranks), bool)
    sources, destinations = np.nonzero(differs)
    source, destination = int(sources[0]), int(destinations[0])
    detail = (
        f"rank {ranks[source]} sends {sent[source, positions[destination]]:.0f} elements to rank "
        f"{ranks[destination]}, which receives {received[destination, positions[source]]:.0f}"
    )
    more = f"; {len(sources) - 1} more segments differ" if len(sources) > 1 else ""
    culprits = tuple(sorted(ranks[position] for position in np.flatnonzero(is_culprit)))
    return CallDifference("all-to-all", culprits, detail + more, _list_sizes(calls))


def _is_unexplained(differs: BoolArray, is_culprit: BoolArray) -> bool:
    """Whether two ranks differ of which neither is a culprit: bool[ranks, ranks], bool[ranks]."""
    return bool((differs & ~is_culprit[:, None] & ~is_culprit).any())


def _compare_totals(calls: Calls, group: Sequence[int]) -> CallDifference | None:
    """Return a difference if all-to-alls send in total more or less than they receive, else None.

    The sums of elements over all ranks and their calls are compared. None if the sums are equal, if
    `calls` lacks a rank of `group`, or if a call has no recorded input or output shapes. The
    culprits, by the first rule that applies, ascending:

    1. If more than half of the ranks send n and receive n elements with the same n: all other ranks
    2. If there are two ranks: both
    3. Otherwise none
    """
    if len(calls) != len(group):
        return None
    totals: dict[int, tuple[int, int]] = {}
    for rank, rank_calls in calls.items():
        sides = [
            (count_elements(call.input_shapes), count_elements(call.output_shapes))
            for call in rank_calls
        ]
        if any(None in side for side in sides):
            return None
        totals[rank] = sum(side[0] or 0 for side in sides), sum(side[1] or 0 for side in sides)
    sent, received = (sum(side) for side in zip(*totals.values(), strict=True))
    if sent == received:
        return None
    (common, count), *_ = Counter(totals.values()).most_common(1)
    culprits: Iterable[int] = ()
    if common[0] == common[1] and 2 * count > len(totals):
        culprits = (rank for rank, total in totals.items() if total != common)
    elif len(totals) == 2:
        culprits = totals
    detail = f"all ranks send {sent} elements and receive {received}"
    return CallDifference("all-to-all", tuple(sorted(culprits)), detail, _list_sizes(calls))


def _list_sizes(calls: Calls) -> tuple[RankSizes, ...]:
    """Return the ranks by the shapes of their first call: at most `MAX_SIZES` different shapes.

    `calls`: calls by rank, at least one each. An entry has the ascending ranks, and the
    input and output shapes. Entries ascend by number of ranks, then by ranks; if there are
    too many, those with the fewest ranks are omitted.
    """
    ranks_by_size: dict[tuple[Shapes, Shapes], list[int]] = {}
    for rank in sorted(calls):
        call = calls[rank][0]
        ranks_by_size.setdefault((call.input_shapes, call.output_shapes), []).append(rank)
    ordered = sorted(ranks_by_size.items(), key=lambda item: (len(item[1]), item[1]))
    return tuple(RankSizes(tuple(ranks), *shapes) for shapes, ranks in ordered[-MAX_SIZES:])


def _normalize(operation: str) -> str:
    """Return the name of an operation in lower case and without underscores."""
    return operation.lower().replace("_", "")


def _is_uneven(call: RecordedCall) -> bool:
    """Whether the sizes of a collective may differ between ranks: names with `v` or `_v_single`."""
    return _normalize(call.operation).endswith(("gatherv", "scatterv", "vsingle"))


def _operation_names(calls: Sequence[RecordedCall]) -> Hashable:
    """Return the names of the operations of all calls of a batch."""
    return tuple(call.operation for call in calls)


def _sizes(calls: Sequence[RecordedCall]) -> Hashable:
    """Return a tuple with (input elements, output elements) of each call, to compare ranks.

    A number is None if ranks may differ: both for all-to-alls, uneven collectives and messages, the
    input of a scatter, and the output of a gather. It is also None if unknown.
    """
    sizes = []
    for call in calls:
        name = _normalize(call.operation)
        sent, received = count_elements(call.input_shapes), count_elements(call.output_shapes)
        if is_all_to_all(call) or _is_uneven(call) or call.is_message:
            sent = received = None
        # Only the root of a scatter has an input, only the root of a gather an output.
        if name == "scatter":
            sent = None
        elif name == "gather":
            received = None
        sizes.append((sent, received))
    return tuple(sizes)


def _dtypes(calls: Sequence[RecordedCall]) -> Hashable:
    """Return the set of dtypes of input and output by call; None for a side without dtypes."""
    return tuple(
        tuple(frozenset(names) or None for names in (call.input_dtypes, call.output_dtypes))
        for call in calls
    )


_SIGNATURES: tuple[tuple[str, Callable[[Sequence[RecordedCall]], Hashable]], ...] = (
    ("type", _operation_names),
    ("size", _sizes),
    ("dtype", _dtypes),
)


def _describe_sizes(calls: Sequence[RecordedCall]) -> str:
    """Describe the input and output shapes of the first two calls, separated by a comma.

    Each call is `input [[4, 2]] output [[8]]`, a list of tensors on each side; a side is
    cut after 200 characters. Further calls are ignored. Return "" without calls.
    """
    texts = []
    for call in calls[:2]:
        sides = [
            str([list(shape) for shape in side]) for side in (call.input_shapes, call.output_shapes)
        ]
        texts.append(f"input {sides[0]:.200} output {sides[1]:.200}")
    return ", ".join(texts)


def _describe_dtypes(calls: Sequence[RecordedCall]) -> str:
    """Describe the dtypes of at most two calls."""
    return ", ".join(
        "/".join(sorted({*call.input_dtypes, *call.output_dtypes})) or "none" for call in calls[:2]
    )


_DESCRIPTIONS: Mapping[str, Callable[[Sequence[RecordedCall]], str]] = {
    "type": lambda calls: ", ".join(call.operation for call in calls[:4]),
    "size": _describe_sizes,
    "dtype": _describe_dtypes,
}


def _describe_values(
    kind: str, signature: Callable[[Sequence[RecordedCall]], Hashable], calls: Calls
) -> str:
    """Describe the values of a signature, such as `ranks 0, 1: float32; rank 2: int8`.

    `kind`: `type`, `size` or `dtype`, which selects the description of a value; `calls`:
    the calls of each rank. Values are in the order of their lowest rank. A value is
    described by the calls of its highest rank. At most 8 of its ranks are listed, ascending; the
    others are counted (`and 2 more`). Return "" without ranks.
    """
    ranks_by_value: dict[Hashable, list[int]] = {}
    for rank in sorted(calls):
        ranks_by_value.setdefault(signature(calls[rank]), []).append(rank)
    parts: list[str] = []
    for ranks in ranks_by_value.values():
        word = "rank" if len(ranks) == 1 else "ranks"
        more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
        numbers = ", ".join(map(str, ranks[:8]))
        parts.append(f"{word} {numbers}{more}: {_DESCRIPTIONS[kind](calls[ranks[-1]])}")
    return "; ".join(parts)


def _agree(first: Hashable, second: Hashable) -> bool:
    """Check whether two values agree: they are equal, or one of them is None (unknown).

    Tuples agree if they are equally long and all of their parts agree, by the same rule.
    """
    if first is None or second is None:
        return True
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_agree, first, second))
    return first == second
