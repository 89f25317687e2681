"""Concatenate step tables, with a dependency for every conflict between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, Int64Array, first_positions, group_of_entry
from hub_core.model import (
    COLUMN_DTYPES,
    Algorithm,
    Collective,
    InputError,
    StepTable,
    matched_order,
)
from hub_core.verification import adjacent_conflicts, find_regions

StepPairs = tuple[Int64Array, Int64Array]
StepColumns = dict[str, npt.NDArray[np.generic]]

# Addresses of units and their differences are int64.
_MAX_ADDRESSES = 2.0**61


def join_in_sequence(
    parts: Sequence[StepTable], collective: Collective, scratch_units: Int64Array
) -> StepTable:
    """Concatenate the steps of algorithms that run one after another, without a barrier.

    `parts`: at least one, with regions in the buffers of `collective`. `scratch_units`:
    int64[ranks], for all parts together. On each rank, a part's steps precede those of the next.
    Message channels are renumbered above those of all earlier parts, lanes above those of earlier
    parts on the rank. Channels of local steps and the lane -1 (no lane) do not change.

    All dependencies within parts remain. A step gets a data dependency on a step of an earlier part
    if both access the same unit and at least one writes it, unless other steps that access this
    unit already order both. This applies to each mode (in place, out of place) that the collective
    supports. Steps that a deadlock prevents get none.

    Raises `InputError` (`too-large`) for 2^61 units of memory or more, or for more than
    `MAX_ACCESSES` overlapping accesses.
    """
    # There is no barrier: a step waits only for those steps of earlier parts that touch the same
    # units, one of the two writing, in a mode that the collective claims. Such pairs are found on
    # the concatenated table, as the verifier finds races: per unit, accesses in a linear extension
    # of the order of each part, part after part. Only adjacent accesses need an edge, as the order
    # is transitive. Cost: that of the verifier's search for conflicts, once per claimed mode.
    columns, data, control = _concatenate(parts)
    order = np.argsort(columns["rank"], kind="stable")
    # Positions in one execution order of each part, part after part; -1 if a step can never run.
    positions = []
    done = 0
    for part in parts:
        part_order = matched_order(part)
        runs = part_order.position >= 0
        positions.append(np.where(runs, part_order.position + done, -1))
        done += len(part_order.nodes)
    position = np.concatenate(positions)[order]
    sizes = [len(part) for part in parts]
    part_of = np.repeat(np.arange(len(parts)), sizes)[order]
    table = StepTable.from_columns(collective.num_ranks, columns, data, control)
    joined = Algorithm(collective, table, scratch_units)
    earlier, later = _find_conflicts(joined, position, part_of)

    # Convert rows of `table` to the original rows, as in all other dependencies.
    parents = np.concatenate([data[0], order[earlier]])
    children = np.concatenate([data[1], order[later]])
    return StepTable.from_columns(
        collective.num_ranks,
        columns,
        (parents, children),
        control,
    )


def concatenate_independent(parts: Sequence[StepTable]) -> StepTable:
    """Concatenate the steps of parts that access no common units; return one table.

    On each rank, the steps of a part precede those of the next part. Dependencies within the
    parts are kept, and none is added between parts. Each part gets separate channels and
    lanes. Raise `ValueError` without parts.
    """
    columns, data, control = _concatenate(parts)
    return StepTable.from_columns(parts[0].num_ranks, columns, data, control)


def concatenate_pieces(parts: Sequence[StepTable]) -> StepTable:
    """Concatenate the steps of parts that differ only in the positions of their units.

    Dependencies within the parts are kept, and none is added between parts. All parts use
    the same channels and lanes; on each of these, the steps of a part precede those of the
    next part. Raise `ValueError` without parts.
    """
    columns, data, control = _concatenate(parts, is_shared=True)
    return StepTable.from_columns(parts[0].num_ranks, columns, data, control)


def _concatenate(
    parts: Sequence[StepTable], *, is_shared: bool = False
) -> tuple[StepColumns, StepPairs, StepPairs]:
    """Concatenate the rows of the parts; return (columns, data and control dependencies).

    Columns are arrays by name, one entry per row, part after part. Dependencies are (parent
    rows, child rows) of the concatenated table. With `is_shared`, channels and lanes are not
    changed. Otherwise every part gets separate ones: the channels of its messages increase by 1 +
    the largest one of all previous parts after their renumbering, and the lanes of a rank by 1 +
    the largest one on this rank (0 if there is none). Channels of local steps, and -1 (no lane),
    are not changed. There must be at least one part, and all have the same ranks.
    """
    columns: StepColumns = {}
    for name in COLUMN_DTYPES:
        columns[name] = np.concatenate([getattr(part, name) for part in parts])
    if not is_shared:
        # Parts share neither channels nor lanes: a message that overtakes another one of its
        # channel would be mistaken for it, and steps of a lane run one after another.
        channels, lanes = [], []
        first_channel = 0
        first_lane = np.zeros(parts[0].num_ranks, np.int64)
        for part in parts:
            is_message = part.sends | part.receives
            channel = part.channel.astype(np.int64)
            channel[is_message] += first_channel
            first_channel = max(first_channel, int(channel[is_message].max(initial=-1)) + 1)
            channels.append(channel)
            lane = part.lane.astype(np.int64)
            lane = np.where(lane >= 0, lane + first_lane[part.rank], lane)
            np.maximum.at(first_lane, part.rank, lane + 1)
            lanes.append(lane)
        columns["channel"], columns["lane"] = np.concatenate(channels), np.concatenate(lanes)
    return columns, _collect_dependencies(parts, "data"), _collect_dependencies(parts, "control")


def _collect_dependencies(parts: Sequence[StepTable], name: str) -> StepPairs:
    """Return the dependencies of all parts as (parent rows, child rows) of the concatenated table.

    Both arrays are int64, ordered by part, then by child. The rows of a part follow those of
    the previous parts. `name`: `data` or `control`. There must be at least one part.
    """
    parents, children = [], []
    starts = first_positions([len(part) for part in parts])
    for part, first in zip(parts, starts.tolist(), strict=True):
        indptr = getattr(part, f"{name}_indptr")
        parents.append(getattr(part, f"{name}_indices") + first)
        children.append(group_of_entry(indptr) + first)
    return np.concatenate(parents), np.concatenate(children)


def _find_conflicts(algorithm: Algorithm, position: Int64Array, part_of: Int64Array) -> StepPairs:
    """Find pairs of steps of different parts that must keep their order: (earlier, later rows).

    Two steps form a pair if both access the same unit of memory, at least one of them writes, and
    no conflicting access is between them. The part (`part_of`) of the earlier row must be lower;
    other pairs are dropped. `position`: position of each row in an execution order, -1 for rows
    that never run, which are in no pair.

    Each mode that the collective supports is examined: in place first, then out of place. The pairs
    of a mode are in the order of `adjacent_conflicts`. A pair may occur several times. Raises
    `InputError` (`too-large`) for 2^61 units of memory or more, and for more than `MAX_ACCESSES`
    overlapping accesses.
    """
    collective = algorithm.collective
    sizes = (
        collective.input_units(),
        collective.output_units(),
        algorithm.scratch_units,
    )
    # As floats: the sum of large integers would overflow.
    units = sum(float(size.astype(np.float64).sum()) for size in sizes)
    if units >= _MAX_ADDRESSES:
        message = "too large to compose: more than 2^61 units of memory"
        raise InputError(message, code="too-large")
    earlier, later = [], []
    claims = ((True, collective.in_place), (False, collective.out_of_place))
    for in_place, is_claimed in claims:
        if is_claimed:
            # If INPUT and OUTPUT overlap in place, more steps are in conflict.
            all_rows: BoolArray = np.ones(len(algorithm.steps), np.bool_)
            layout = algorithm.collective.memory_layout(in_place, algorithm.scratch_units)
            regions = find_regions(algorithm, layout, all_rows, 1)
            pairs = adjacent_conflicts(regions, position)
            earlier.append(pairs[0])
            later.append(pairs[1])
    before, after = np.concatenate(earlier), np.concatenate(later)
    is_between = part_of[before] < part_of[after]
    return before[is_between], after[is_between]
