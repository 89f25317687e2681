"""Put step tables behind each other: own channels and lanes, and a dependency for every conflict between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import InputError
from hub_core.model.findings import Findings
from hub_core.model.messages import match_messages
from hub_core.model.steps import COLUMN_DTYPES, StepTable
from hub_core.verification.conflicts import adjacent_conflicts
from hub_core.verification.regions import find_regions
from hub_core.verification.step_order import happens_before

Int64Array = npt.NDArray[np.int64]
Edges = tuple[Int64Array, Int64Array]

_MOST_ADDRESSES = 2.0**61


def join(
    parts: Sequence[StepTable], collective: Collective, scratch_units: Int64Array
) -> StepTable:
    """All steps of `parts`, whose regions lie in the buffers of `collective`; each part as if the ones before were done.

    A step waits for just those steps of earlier parts that touch the same units, one of the two writing, in a mode that
    the collective claims: there is no barrier. Messages of different parts never share a channel, nor steps a lane.
    """
    columns, data, control = _concatenated(parts)
    order = np.argsort(columns["rank"], kind="stable")
    position = _positions(parts)[order]
    part_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])[order]
    table = StepTable.from_columns(collective.num_ranks, columns, data, control)
    earlier, later = _conflicts(Algorithm(collective, table, scratch_units), position, part_of)
    # Rows of `table` in terms of the given rows, in which all other dependencies are stated.
    data = np.concatenate([data[0], order[earlier]]), np.concatenate([data[1], order[later]])
    return StepTable.from_columns(collective.num_ranks, columns, data, control)


def side_by_side(parts: Sequence[StepTable]) -> StepTable:
    """All steps of `parts`, which touch no common units: `join` without dependencies between them."""
    return StepTable.from_columns(parts[0].num_ranks, *_concatenated(parts))


def _concatenated(parts: Sequence[StepTable]) -> tuple[dict[str, npt.NDArray[Any]], Edges, Edges]:
    """Columns, data and control dependencies of all parts, with channels and lanes of their own."""
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMN_DTYPES
    }
    columns["channel"] = np.concatenate(_own_channels(parts))
    columns["lane"] = np.concatenate(_own_lanes(parts))
    first_row = np.cumsum([0, *(len(part) for part in parts)])
    return columns, _stated(parts, first_row, "data"), _stated(parts, first_row, "control")


def _own_channels(parts: Sequence[StepTable]) -> list[npt.NDArray[np.int64]]:
    """Channels of the messages, counted on from part to part."""
    shifted, first = [], 0
    for part in parts:
        is_message = part.sends | part.receives
        channel = part.channel.astype(np.int64)
        shifted.append(np.where(is_message, channel + first, channel))
        first = max(first, int(shifted[-1][is_message].max(initial=-1)) + 1)
    return shifted


def _own_lanes(parts: Sequence[StepTable]) -> list[npt.NDArray[np.int64]]:
    """Lanes, counted on from part to part in every rank; no opinion stays no opinion."""
    shifted, first = [], np.zeros(parts[0].num_ranks, np.int64)
    for part in parts:
        lane = part.lane.astype(np.int64)
        shifted.append(np.where(lane >= 0, lane + first[part.rank], lane))
        np.maximum.at(first, part.rank, shifted[-1] + 1)
    return shifted


def _stated(parts: Sequence[StepTable], first_row: Int64Array, name: str) -> Edges:
    parents, children = [], []
    for part, first in zip(parts, first_row[:-1].tolist(), strict=True):
        indptr, indices = getattr(part, f"{name}_indptr"), getattr(part, f"{name}_indices")
        parents.append(indices + first)
        children.append(np.repeat(np.arange(len(part)), np.diff(indptr)) + first)
    return np.concatenate(parents), np.concatenate(children)


def _positions(parts: Sequence[StepTable]) -> Int64Array:
    """A linear extension of what orders the steps of each part, part after part; -1 for steps that never run."""
    found, done = [], 0
    for part in parts:
        order = happens_before(part, match_messages(part, Findings())).order
        found.append(np.where(order.position >= 0, order.position + done, -1))
        done += len(order.nodes)
    return np.concatenate(found)


def _conflicts(algorithm: Algorithm, position: Int64Array, part_of: Int64Array) -> Edges:
    """Rows (earlier, later) of different parts whose order matters, in the modes that the collective claims."""
    collective = algorithm.collective
    sizes = (collective.input_units(), collective.output_units(), algorithm.scratch_units)
    if sum(float(size.astype(np.float64).sum()) for size in sizes) >= _MOST_ADDRESSES:
        raise InputError("too large to compose: more than 2^61 units of memory", code="too-large")
    everywhere = np.ones(len(algorithm.steps), np.bool_)
    pairs: list[Edges] = []
    for in_place, is_claimed in ((True, collective.in_place), (False, collective.out_of_place)):
        if is_claimed:
            layout = collective.memory_layout(in_place, algorithm.scratch_units)
            pairs.append(
                adjacent_conflicts(find_regions(algorithm, layout, everywhere, 1), position)
            )
    earlier, later = (np.concatenate(side) for side in zip(*pairs, strict=True))
    between = part_of[earlier] < part_of[later]
    return earlier[between], later[between]
