"""Assign every step to a lane: the producer's lanes if they are valid, else new ones.

New lanes depend on which receives provide the data of which sends, so that these can be fused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.writing.draft import StepDraft, arrange, find_neighbours
from collhub_msccl.writing.execution_times import compute_begin_times
from collhub_msccl.writing.reduction_runs import NEVER, RunTimes, find_reduction_chains
from hub_core.columns import BoolArray, Int64Array, run_mask, run_starts


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Lanes of all ranks, sorted by rank; each becomes one thread block, or several under limits.

    `of_row`: int64 per row. `is_given`: the producer's lanes, whose steps keep the order of their
    rows.
    """

    of_row: Int64Array
    is_given: bool

    @property
    def size(self) -> int:
        """Number of lanes."""
        return int(self.of_row.max(initial=-1)) + 1

    def find_program_order(self) -> Edges:
        """Return the pairs (earlier, later) of consecutive rows of each given lane, as two columns.

        Empty if the lanes are new, because these have no order yet.
        """
        if not self.is_given:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return find_neighbours(self.of_row, np.arange(len(self.of_row)))

    def find_fusable(self, draft: StepDraft) -> Edges:
        """Return the pairs (receive, send) that one step may execute, each row at most once.

        Both are consecutive in one lane, and the send forwards the data of the receive.
        """
        first, second = self._find_consecutive(draft)
        is_pair = draft.is_forwarding(first, second)
        return match_one_to_one(first[is_pair], second[is_pair])

    def find_chains(self, draft: StepDraft, fused: Edges) -> Edges:
        """Return the pairs (first, later) of reductions of one lane that may be fused.

        `fused`: (receive, send) pairs that are one step. In given lanes, whose order the producer
        chose, only fusions that delay no step.
        """
        times = self._compute_times(draft, fused) if self.is_given else None
        return find_reduction_chains(draft, *self._find_consecutive(draft), times)

    def _compute_times(self, draft: StepDraft, fused: Edges) -> RunTimes | None:
        """Compute the times of the rows if each reduction is a single step; None if there is no
        order.

        Times are in units of data and without contention: a row lasts its count, fused rows share
        one step, and links take no time. `ready`: end of the last row of another lane on which the
        row depends, 0 without one; `begin`, `end`; `needed`: earliest begin of a row of another
        lane that depends on it, NEVER without one. None if dependencies, lanes and `fused` form a
        cycle.
        """
        order = self.find_program_order()
        arrangement = arrange(draft, *order, fused)
        if arrangement is None:
            return None
        node = np.where(arrangement.fused_into < 0, np.arange(len(draft)), arrangement.fused_into)
        ends = np.concatenate([draft.parents, order[0]]), np.concatenate([draft.children, order[1]])
        is_between = node[ends[0]] != node[ends[1]]
        sends = np.flatnonzero(draft.sends)
        begin = compute_begin_times(
            draft.count,
            (node[ends[0][is_between]], node[ends[1][is_between]]),
            (node[sends], node[draft.partner[sends]]),
        )[node]
        end = begin + draft.count
        is_crossing = self.of_row[draft.parents] != self.of_row[draft.children]
        parents, children = draft.parents[is_crossing], draft.children[is_crossing]
        ready = np.zeros(len(draft), np.int64)
        np.maximum.at(ready, children, end[parents])
        needed = np.full(len(draft), NEVER)
        np.minimum.at(needed, parents, begin[children])
        return RunTimes(ready, begin, end, needed)

    def _find_consecutive(self, draft: StepDraft) -> Edges:
        """Return the dependent pairs of rows of a lane; in a given lane, the adjacent rows.

        Other fusions would change the order of a given lane.
        """
        if self.is_given:
            return self.find_program_order()
        is_inside = self.of_row[draft.parents] == self.of_row[draft.children]
        return draft.parents[is_inside], draft.children[is_inside]

    def separate_sends(self, draft: StepDraft, lanes: Int64Array) -> Lanes:
        """Return lanes in which the sends of `lanes` (numbers) have lanes of their own.

        A new lane follows the lane from which it is separated; lanes are renumbered.
        """
        # Doubled numbers leave room for the separated sends directly after their lane.
        moves = draft.sends & np.isin(self.of_row, lanes)
        return number_lanes(draft, self.of_row * 2 + moves, self.is_given)


def find_given_lanes(draft: StepDraft) -> Lanes | None:
    """Return the producer's lanes as thread blocks; None if a row has none, or they violate a rule.

    Each lane may send to one rank, receive from one rank, and use one channel; no two lanes may
    share a side of a connection.
    """
    if not len(draft) or int(draft.lane.min()) < 0:
        return None
    lanes = number_lanes(draft, draft.lane, True)
    connection, _ = draft.connections
    for side in (draft.sends, draft.receives):
        lane, connection_of_side = lanes.of_row[side], connection[side]
        if not _is_function(lane, connection_of_side) or not _is_function(connection_of_side, lane):
            return None
    # A thread block has one channel for both directions.
    is_message = connection >= 0
    if not _is_function(lanes.of_row[is_message], draft.channel[is_message]):
        return None
    return lanes


def assign_lanes(
    draft: StepDraft,
    is_tight: bool = False,
    is_merging: bool = True,
    forwarded: Edges | None = None,
) -> Lanes:
    """Assign a lane to each side of a connection; two sides are joined if one provides the other's
    data.

    Pairs with the largest number of messages are joined first, each side once. Local steps join the
    lane of their predecessors, else of their successors. `is_tight`: also join unrelated
    connections, to have few lanes. `is_merging`: reductions that can be fused stay together.
    `forwarded`: (receive, send) pairs for which lanes are joined; None: all.
    """
    connection, _ = draft.connections
    fed = draft.find_forwarding() if forwarded is None else forwarded
    # (incoming, outgoing) connections whose receives provide the sends' data, those with the
    # largest number of messages first: joining these saves most, because they can be fused.
    receive, send = fed
    incoming, outgoing = connection[receive].tolist(), connection[send].tolist()
    messages = Counter(zip(incoming, outgoing, strict=True))
    ordered = sorted(messages.items(), key=lambda item: (-item[1], item[0]))
    pairs = [pair for pair, _ in ordered]
    if is_tight:
        pairs += _list_all_pairs(draft, connection)
    lane_of_outgoing = np.arange(int(connection.max(initial=-1)) + 1) * 2 + 1
    # A greedy matching: the first pairs win, and no connection is joined twice.
    joined: set[int] = set()
    taken: set[int] = set()
    for incoming, outgoing in pairs:
        if outgoing not in joined and incoming not in taken:
            joined.add(outgoing)
            taken.add(incoming)
            lane_of_outgoing[outgoing] = incoming * 2
    lane = np.where(draft.receives, connection * 2, -1)
    sends = draft.sends
    lane[sends] = lane_of_outgoing[connection[sends]]
    lane = _assign_local_lanes(draft, lane, is_tight, is_merging)
    return number_lanes(draft, lane, False)


def _list_all_pairs(draft: StepDraft, connection: Int64Array) -> list[tuple[int, int]]:
    """List every (incoming, outgoing) pair of connections of a rank with one channel.

    `connection`: number of the connection of each row. Pairs are sorted by rank and channel in the
    order of the first incoming connection, then by incoming, then by outgoing; those without a
    counterpart are omitted.
    """
    incoming = _group_connections(draft, connection, draft.receives)
    outgoing = _group_connections(draft, connection, draft.sends)
    pairs: list[tuple[int, int]] = []
    for key, incoming_numbers in incoming.items():
        outgoing_numbers = outgoing.get(key, [])
        pairs += [
            (incoming_number, outgoing_number)
            for incoming_number in incoming_numbers
            for outgoing_number in outgoing_numbers
        ]
    return pairs


def _group_connections(
    draft: StepDraft,
    connection: Int64Array,
    side: BoolArray,
) -> dict[tuple[int, int], list[int]]:
    """Group the connections of one direction by (rank on this side, channel), in row order.

    `connection`: number of the connection of each row; `side`: mask of the receives or the sends.
    Each connection is listed once, in the order of its first row.
    """
    # Dictionaries as ordered sets: the same input gives the same file.
    groups: dict[tuple[int, int], dict[int, None]] = {}
    ranks, channels = draft.rank[side].tolist(), draft.channel[side].tolist()
    for rank, channel, number in zip(ranks, channels, connection[side].tolist(), strict=True):
        groups.setdefault((rank, channel), {})[number] = None
    return {key: list(numbers) for key, numbers in groups.items()}


def _assign_local_lanes(
    draft: StepDraft,
    lane: Int64Array,
    is_tight: bool,
    is_merging: bool,
) -> Int64Array:
    """Return `lane` with lanes for the local rows, which are -1.

    The lane of the last row that they wait for, else of the first row with a lane that waits for
    them, else a spare lane of the rank (with `is_tight`, the lane of its first message). With
    `is_merging`, later reductions of a chain get the lane of its first.
    """
    local = np.flatnonzero(lane < 0).tolist()
    if not local:
        return lane
    lane_of_row: list[int] = lane.tolist()
    leader_of: dict[int, int] = {}
    if is_merging:
        leaders, members = find_reduction_chains(draft, draft.parents, draft.children)
        leader_of = dict(zip(members.tolist(), leaders.tolist(), strict=True))
    parents_of = _group_values(draft.children, draft.parents)
    children_of = _group_values(draft.parents, draft.children)
    # Lane of the first message row of every rank that has one.
    any_lane: dict[int, int] = {}
    if is_tight:
        has_lane = lane >= 0
        rank, first = np.unique(draft.rank[has_lane], return_index=True)
        any_lane = dict(zip(rank.tolist(), lane[has_lane][first].tolist(), strict=True))
    ranks = draft.rank.tolist()
    for row in local:
        if row in leader_of:
            lane_of_row[row] = lane_of_row[leader_of[row]]
            continue
        # Rows are in a possible order of execution, so parents have their lanes already.
        known = [lane_of_row[parent] for parent in sorted(parents_of.get(row, ()), reverse=True)]
        known += [lane_of_row[child] for child in sorted(children_of.get(row, ()))]
        # Larger than all lanes of messages, which are below twice the number of connections.
        spare = 2 * len(draft) + ranks[row]
        choices = [lane for lane in known if lane >= 0] or [any_lane.get(ranks[row], spare)]
        lane_of_row[row] = choices[0]
    return np.asarray(lane_of_row, np.int64)


def _group_values(keys: Int64Array, values: Int64Array) -> dict[int, list[int]]:
    """Group pairs (key, value) by key; the values of a key keep their order."""
    groups: dict[int, list[int]] = {}
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        groups.setdefault(key, []).append(value)
    return groups


def match_one_to_one(first: Int64Array, second: Int64Array) -> Edges:
    """Select pairs (receive, send) such that each row occurs at most once.

    For every send its last receive, then for every receive its first send.
    """
    order = np.lexsort((-first, second))
    first, second = first[order], second[order]
    # By the order above, the first entry of each send is its last receive.
    once = run_starts(second)
    first, second = first[once], second[once]
    _, once = np.unique(first, return_index=True)
    return first[once], second[once]


def number_lanes(
    draft: StepDraft,
    lane: Int64Array,
    is_given: bool,
) -> Lanes:
    """Number the pairs (rank, lane) that occur from 0 on without gaps, and return the lanes.

    `lane`: a number, at least 0, for every row of `draft`; equal numbers on different ranks are
    different lanes. The new numbers are in ascending order of rank, then of `lane`. `is_given`:
    whether the producer of the algorithm chose the lanes. It is stored in the result, and tells
    later stages to keep the steps of each lane in the order of the rows of `draft`; in new lanes,
    only dependencies order the steps.
    """
    width = int(lane.max(initial=0)) + 1
    _, number = np.unique(draft.rank * width + lane, return_inverse=True)
    return Lanes(number.astype(np.int64).reshape(-1), is_given)


def _is_function(keys: Int64Array, values: Int64Array) -> bool:
    """Return whether every key has a single value. `keys`, `values`: pairs, which may repeat.

    Values of one key are compared in the given order. True without pairs.
    """
    order = np.argsort(keys, kind="stable")
    is_new_value = run_mask(values[order])
    is_new_key = run_mask(keys[order])
    return not bool(np.any(is_new_value & ~is_new_key))
