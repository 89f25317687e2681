"""Assign work to thread blocks, and order blocks by semaphores."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from collhub_mscclpp.writing.work import PlanWork
from hub_core.columns import BoolArray, Int64Array, labels, ordinals
from hub_core.model import StepKind, StepTable


@dataclass(slots=True)
class Semaphores:
    """`count`: semaphores of every rank. `released`, `acquired`: their numbers by row of steps."""

    count: list[int]
    released: dict[int, list[int]] = field(default_factory=dict)
    acquired: dict[int, list[int]] = field(default_factory=dict)

    def another(self, rank: int) -> int:
        """The number of a further semaphore of a rank."""
        self.count[rank] += 1
        return self.count[rank] - 1


def semaphores_of(work: PlanWork, block: Int64Array) -> Semaphores:
    """One semaphore for every wait between blocks that no earlier wait of the block covers."""
    steps, position = work.steps, work.position
    found = Semaphores([0] * steps.num_ranks)
    parents, children = work.edges()
    crosses = block[parents] != block[children]
    parents, children = parents[crosses], children[crosses]
    # Later parents first: waiting for one covers all before it in its block.
    order = sorted(
        range(len(parents)), key=lambda edge: (position[children[edge]], -position[parents[edge]])
    )
    covered: dict[tuple[int, int, int], int] = {}
    for edge in order:
        parent, child = int(parents[edge]), int(children[edge])
        rank = int(steps.rank[child])
        pair = (rank, int(block[parent]), int(block[child]))
        if position[parent] <= covered.get(pair, -1):
            continue
        covered[pair] = int(position[parent])
        semaphore = found.another(rank)
        found.released.setdefault(parent, []).append(semaphore)
        found.acquired.setdefault(child, []).append(semaphore)
    return found


MOST_BLOCKS = 64
"""Thread blocks of a rank before they are cut to fit the executor's tables."""


def blocks_of(work: PlanWork) -> Int64Array:
    """The thread block of every step, from 0 in each rank: int64[rows].

    Lanes of the algorithm stay together. Any division is free of deadlocks, as every block does its
    steps in the one order of all ranks; so are blocks folded where a rank has too many.
    """
    steps = work.steps
    rank = steps.rank.astype(np.int64)
    group = _groups(work)
    width = int(group.max(initial=0)) + 1
    number = labels(rank * width + group)
    _, first = np.unique(number, return_index=True)
    # Numbers of groups count over all ranks; those of blocks begin anew in each.
    block_of_group = ordinals(rank[first])
    return np.asarray(block_of_group[number] % MOST_BLOCKS, np.int64)


def _groups(work: PlanWork) -> Int64Array:
    """A number for every step, the same for those of one rank that one block does."""
    steps = work.steps
    lane = work.lane
    if bool((lane >= 0).all()):
        return lane
    open_group = int(lane.max(initial=-1)) + 1
    of_connection = _connection_groups(work)
    group = np.where(lane >= 0, lane, open_group)
    is_open = (lane < 0) & (work.connection >= 0)
    is_send = steps.sends.astype(np.int64)
    side = work.connection * 2 + is_send
    group[is_open] = open_group + 1 + of_connection[side[is_open]]
    _place_local_steps(work, group)
    return group


def _connection_groups(work: PlanWork) -> Int64Array:
    """The group of the receives (2 c) and of the sends (2 c + 1) of every connection c.

    A receiving block passes on what it got, to one connection: ring steps need no semaphores then.
    Messages that are added to one sum arrive in one block: one operation adds several.
    """
    steps, connection = work.steps, work.connection
    group = np.arange(2 * len(work.source), dtype=np.int64)
    parents, children = work.edges()
    is_open = (work.lane[parents] < 0) & (work.lane[children] < 0)
    parents, children = parents[is_open], children[is_open]
    is_sum = _is_further_term(steps, parents, children)
    for earlier, later in np.unique(
        connection[np.stack([parents[is_sum], children[is_sum]], axis=1)], axis=0
    ).tolist():
        group[group == group[2 * later]] = group[2 * earlier]
    is_forward = steps.receives[parents] & steps.sends[children]
    received, sent = connection[parents[is_forward]], connection[children[is_forward]]
    pairs, count = np.unique(np.stack([received, sent], axis=1), axis=0, return_counts=True)
    is_taken = np.zeros(len(group), np.bool_)
    # The pairs with most steps first; every connection has one partner.
    for pair in np.argsort(-count, kind="stable").tolist():
        receive_side, send_side = 2 * pairs[pair, 0], 2 * pairs[pair, 1] + 1
        if not is_taken[receive_side] and not is_taken[send_side]:
            group[send_side] = group[receive_side]
            is_taken[[receive_side, send_side]] = True
    return group


def _is_further_term(steps: StepTable, parents: Int64Array, children: Int64Array) -> BoolArray:
    """Dependencies from a sum of a message to the sum of another in the same place."""
    is_sum = steps.is_kind(StepKind.RECV_REDUCE)
    found = is_sum[parents] & is_sum[children]
    for column in (steps.dst_buffer, steps.dst_offset, steps.count):
        found &= column[parents] == column[children]
    return found


def _place_local_steps(work: PlanWork, group: Int64Array) -> None:
    """Put local steps without a lane behind the step that they wait for."""
    steps = work.steps
    is_local = steps.is_kind(StepKind.COPY, StepKind.REDUCE) & (work.lane < 0)
    rows = np.flatnonzero(is_local)
    in_order = rows[np.argsort(work.position[rows], kind="stable")]
    for row in in_order.tolist():
        first, last = steps.data_indptr[row], steps.data_indptr[row + 1]
        if last > first:
            parents = steps.data_indices[first:last]
            group[row] = group[parents[np.argmax(work.position[parents])]]
