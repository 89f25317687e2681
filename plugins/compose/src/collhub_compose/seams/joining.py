"""Put step tables behind each other, with a dependency for every conflict between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from collhub_columns import BoolArray, Int64Array, first_positions, group_of_entry

from hub_core.model import (
    COLUMN_DTYPES,
    Algorithm,
    Collective,
    Findings,
    InputError,
    StepTable,
    match_messages,
)
from hub_core.verification import adjacent_conflicts, find_regions, happens_before

StepPairs = tuple[Int64Array, Int64Array]
StepColumns = dict[str, npt.NDArray[np.generic]]

# Addresses of units are int64, and the distance between two of them is, too.
_MOST_ADDRESSES = 2.0**61


def join(
    parts: Sequence[StepTable], collective: Collective, scratch_units: Int64Array
) -> StepTable:
    """All steps of `parts`, whose regions lie in the buffers of `collective`.

    Each part runs as if the ones before were done. Messages of different parts never share a
    channel, nor steps a lane. `scratch_units`: int64[num_ranks].
    """
    # There is no barrier: a step waits for just those steps of earlier parts that touch the same
    # units, one of the two writing, in a mode that the collective claims. Such pairs are found on
    # the concatenated table, as the verifier finds races: per unit, accesses in a linear extension
    # of what orders each part, part after part. Only neighbours in it need an edge, as the order
    # is transitive. Cost: that of the verifier's search for conflicts, once a claimed mode.
    columns, data, control = _concatenated(parts)
    order = np.argsort(columns["rank"], kind="stable")
    position = _positions(parts)[order]
    sizes = [len(part) for part in parts]
    part_of = np.repeat(np.arange(len(parts)), sizes)[order]
    table = StepTable.from_columns(collective.num_ranks, columns, data, control)
    whole = Algorithm(collective, table, scratch_units)
    earlier, later = _conflicts(whole, position, part_of)

    # Rows of `table` in terms of the given rows, in which all other dependencies are stated.
    parents = np.concatenate([data[0], order[earlier]])
    children = np.concatenate([data[1], order[later]])
    return StepTable.from_columns(
        collective.num_ranks,
        columns,
        (parents, children),
        control,
    )


def side_by_side(parts: Sequence[StepTable]) -> StepTable:
    """All steps of `parts`, which touch no common units: no dependencies between them."""
    columns, data, control = _concatenated(parts)
    return StepTable.from_columns(parts[0].num_ranks, columns, data, control)


def _concatenated(parts: Sequence[StepTable]) -> tuple[StepColumns, StepPairs, StepPairs]:
    """Columns, data and control dependencies of all parts, with channels and lanes of their own."""
    columns: StepColumns = {}
    for name in COLUMN_DTYPES:
        of_parts = [getattr(part, name) for part in parts]
        columns[name] = np.concatenate(of_parts)
    columns["channel"] = np.concatenate(_own_channels(parts))
    columns["lane"] = np.concatenate(_own_lanes(parts))
    return columns, _stated_pairs(parts, "data"), _stated_pairs(parts, "control")


# One message of a channel overtaking another would be taken for it, and steps of a lane run one
# after another: so parts share neither.


def _own_channels(parts: Sequence[StepTable]) -> list[Int64Array]:
    """Channels of the messages, counted on from part to part."""
    shifted: list[Int64Array] = []
    first = 0
    for part in parts:
        is_message = part.sends | part.receives
        channel = part.channel.astype(np.int64)
        shifted.append(np.where(is_message, channel + first, channel))
        last = int(shifted[-1][is_message].max(initial=-1))
        # A part without messages takes no channel.
        first = max(first, last + 1)
    return shifted


def _own_lanes(parts: Sequence[StepTable]) -> list[Int64Array]:
    """Lanes, counted on from part to part in every rank; no opinion stays no opinion."""
    shifted: list[Int64Array] = []
    first = np.zeros(parts[0].num_ranks, np.int64)
    for part in parts:
        lane = part.lane.astype(np.int64)
        shifted.append(np.where(lane >= 0, lane + first[part.rank], lane))
        np.maximum.at(first, part.rank, shifted[-1] + 1)
    return shifted


def _stated_pairs(parts: Sequence[StepTable], name: str) -> StepPairs:
    """The `data` or `control` dependencies of all parts, in rows of the concatenated table."""
    parents, children = [], []
    starts = first_positions([len(part) for part in parts])
    for part, first in zip(parts, starts.tolist(), strict=True):
        indptr = getattr(part, f"{name}_indptr")
        parents.append(getattr(part, f"{name}_indices") + first)
        children.append(group_of_entry(indptr) + first)
    return np.concatenate(parents), np.concatenate(children)


def _positions(parts: Sequence[StepTable]) -> Int64Array:
    """A linear extension of what orders the steps of each part, part after part, int64.

    -1 for steps that never run.
    """
    found = []
    done = 0
    for part in parts:
        # The parts are sound: nothing is found that has not been refused before.
        messages = match_messages(part, Findings())
        order = happens_before(part, messages).order
        runs = order.position >= 0
        found.append(np.where(runs, order.position + done, -1))
        done += len(order.nodes)
    return np.concatenate(found)


def _conflicts(algorithm: Algorithm, position: Int64Array, part_of: Int64Array) -> StepPairs:
    """Rows (earlier, later) of different parts whose order matters in a claimed mode.

    `position`, `part_of`: int64 per row.
    """
    collective = algorithm.collective
    _refuse_too_much_memory(algorithm)
    earlier, later = [], []
    claims = ((True, collective.in_place), (False, collective.out_of_place))
    for in_place, is_claimed in claims:
        if is_claimed:
            pairs = _conflicts_in_mode(algorithm, position, in_place)
            earlier.append(pairs[0])
            later.append(pairs[1])
    before, after = np.concatenate(earlier), np.concatenate(later)
    is_between = part_of[before] < part_of[after]
    return before[is_between], after[is_between]


def _conflicts_in_mode(algorithm: Algorithm, position: Int64Array, in_place: bool) -> StepPairs:
    """Rows of steps that touch a common unit, one of the two writing, in this mode of calling.

    Where INPUT and OUTPUT alias, steps meet that are apart otherwise.
    """
    everywhere: BoolArray = np.ones(len(algorithm.steps), np.bool_)
    layout = algorithm.collective.memory_layout(in_place, algorithm.scratch_units)
    regions = find_regions(algorithm, layout, everywhere, 1)
    return adjacent_conflicts(regions, position)


def _refuse_too_much_memory(algorithm: Algorithm) -> None:
    """Raise `InputError` where addresses would not be exact any more."""
    collective = algorithm.collective
    sizes = (
        collective.input_units(),
        collective.output_units(),
        algorithm.scratch_units,
    )
    # As floats: the sum of large integers would wrap around.
    units = sum(float(size.astype(np.float64).sum()) for size in sizes)
    if units >= _MOST_ADDRESSES:
        message = "too large to compose: more than 2^61 units of memory"
        raise InputError(message, code="too-large")
