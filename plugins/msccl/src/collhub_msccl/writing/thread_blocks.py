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
from collhub_msccl.writing.reduction_runs import NEVER, ReductionTimes, find_reduction_chains
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

    def count_per_rank(self, draft: StepDraft) -> int:
        """Return the number of lanes of the rank with the most. `draft`: the rows of the lanes."""
        rank = np.zeros(self.size, np.int64)
        rank[self.of_row] = draft.rank
        return int(np.bincount(rank).max(initial=0))

    def find_program_order(self) -> Edges:
        """Return the pairs (row, next row) in each lane of the producer, as two arrays.

        A lane is the sequence of steps of one future thread block. The pairs are sorted by
        lane, then by row. Both arrays are empty if the lanes are new, because these do not have
        an order yet.
        """
        if not self.is_given:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return find_neighbours(self.of_row, np.arange(len(self.of_row)))

    def find_fusable(self, draft: StepDraft) -> Edges:
        """Return the pairs (receive, send) that may become one step, each row at most once.

        Both rows must be in one lane (steps of one thread block), and the send must forward
        exactly the received data. In a lane of the producer they must be adjacent, in a new
        lane the send must depend directly on the receive. Of several pairs, `match_one_to_one`
        selects: the last receive of each send, then the first send of each receive. The pairs
        ascend by receive.
        """
        first, second = self._find_consecutive(draft)
        is_pair = draft.is_forwarding(first, second)
        return match_one_to_one(first[is_pair], second[is_pair])

    def find_chains(self, draft: StepDraft, fused: Edges) -> Edges:
        """Return pairs (first, later reduction) of a lane for chains that may run in one pass.

        A lane is the sequence of steps of one future thread block. `fused`: (receive, send)
        pairs that are one step. In lanes of the producer, a chain consists of adjacent rows and
        is divided where it would delay a step; if the steps have no order, the delay is not
        checked. In new lanes, each reduction depends directly on the previous one, and the
        delay is never checked. Order and length of the chains are those of
        `find_reduction_chains`.
        """
        times = self._compute_times(draft, fused) if self.is_given else None
        return find_reduction_chains(draft, *self._find_consecutive(draft), times)

    def _compute_times(self, draft: StepDraft, fused: Edges) -> ReductionTimes | None:
        """Compute the times of the rows without fused reductions; None if the rows form a cycle.

        `fused`: pairs (receive, send) that become one step and begin together. Pairs that are in a
        cycle, or on a path between two cycles, remain two steps. A row lasts `count` units of
        time. It begins at the latest of these times, or at 0:

        - the ends of the rows on which it depends
        - if the lanes are those of the producer (`is_given`), the end of the previous row of its
          lane
        - for a receive, the begin (not the end) of its send

        The members of the result are int64 by row:

        - `ready`: latest end of the rows of other lanes on which it depends, 0 without one
        - `begin`, `end`: of the row
        - `needed`: earliest begin of a row of another lane that depends on it, otherwise `NEVER`
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
        return ReductionTimes(ready, begin, end, needed)

    def _find_consecutive(self, draft: StepDraft) -> Edges:
        """Return the pairs of rows of one lane that may be fused, as two arrays.

        In lanes of the producer these are the adjacent rows, because other fusions would change
        the order. In new lanes these are all pairs in which the second row depends directly on
        the first, in the order of the dependencies.
        """
        if self.is_given:
            return self.find_program_order()
        is_inside = self.of_row[draft.parents] == self.of_row[draft.children]
        return draft.parents[is_inside], draft.children[is_inside]

    def separate_sends(self, draft: StepDraft, lanes: Int64Array) -> Lanes:
        """Return lanes in which the sends of some lanes are moved to new lanes.

        `lanes`: numbers of these lanes; their receives and local steps remain. A new lane
        directly follows the lane from which it is separated, and all lanes are renumbered
        without gaps. A lane that has only sends, or none, does not change. `is_given` is kept.
        """
        # Doubled numbers leave room for the separated sends directly after their lane.
        moves = draft.sends & np.isin(self.of_row, lanes)
        return number_lanes(draft, self.of_row * 2 + moves, self.is_given)


def find_given_lanes(draft: StepDraft) -> Lanes | None:
    """Return the lanes that the producer assigned if they can be thread blocks, otherwise None.

    A connection has all messages of one (source, destination, channel); its sides are its sends and
    its receives. The lanes of the producer are valid if all of these hold:

    - There is a row, and every row has a lane of at least 0. Equal numbers on different ranks are
      different lanes.
    - A lane sends on at most one connection and receives from at most one, both of one channel.
    - No two lanes send on one connection, and no two receive from one.

    The lanes of the result are renumbered from 0, ascending by rank, then by the producer's number.
    Nothing is raised.
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
    """Return new lanes (future thread blocks) for all rows, numbered from 0 by ascending rank.

    A connection has all messages of one (source, destination, channel). Its sends are one lane, and
    its receives another. The receives of one connection and the sends of another on a rank become
    one lane if the sends forward data of the receives. Pairs of connections with most forwarded
    messages are joined first, then those with lower numbers; each side at most once. `forwarded`:
    (receive, send) rows that forward; None means those of the draft. With `is_tight`, remaining
    sides of equal rank and channel are then joined, too.

    A local step (no message) gets the first of these lanes that exists:

    1. With `is_merging`, for a later reduction of a chain: the lane of the chain's first reduction.
    2. That of the direct predecessor with the highest row that has a lane.
    3. That of the direct successor with the lowest row that has a lane.
    4. With `is_tight`: that of the first message of the rank.
    5. A lane for all remaining local steps of the rank.

    Empty without rows. The draft is not changed.
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
    """List all pairs of an incoming and an outgoing connection with one rank and channel.

    `connection`: connection of each row of the draft. A receive belongs to an incoming
    connection, a send to an outgoing one.

    The ranks and channels are in the order of their first receive; those without a receive or
    without a send have no pair. For each, the pairs are sorted by the first row of the
    incoming connection, then by that of the outgoing one. A connection may be in several
    pairs. Returns [] if there is no pair.
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
    """Group the connections of the rows in a mask by (rank, channel) of the row.

    `connection`: the number of the connection of each row of the draft. `side`: the mask,
    which selects the receives or the sends. The rank is that of the row: the receiver of a
    receive, the sender of a send. A connection is listed once, in the group of its first row
    in the mask. Groups, and the connections in each, are in the order of their first rows.
    The result is empty if the mask selects no row.
    """
    rows = np.flatnonzero(side)
    _, first = np.unique(connection[rows], return_index=True)
    # One row for each connection, in the order of rows: the same input gives the same file.
    rows = rows[np.sort(first)]
    groups: dict[tuple[int, int], list[int]] = {}
    columns = (draft.rank[rows].tolist(), draft.channel[rows].tolist(), connection[rows].tolist())
    for rank, channel, number in zip(*columns, strict=True):
        groups.setdefault((rank, channel), []).append(number)
    return groups


def _assign_local_lanes(
    draft: StepDraft,
    lane: Int64Array,
    is_tight: bool,
    is_merging: bool,
) -> Int64Array:
    """Return the lane of every row, with lanes filled in for the local rows, which have -1.

    Local rows are steps that are no messages. They are processed in the order of the rows; each
    gets the first of these lanes that exists:

    1. With `is_merging`: the lane of the first reduction, if the row is a later one of a chain
       (`find_reduction_chains`).
    2. The lane of the predecessor (direct dependency) with the highest row number that has a lane.
    3. The lane of the successor with the lowest row number that has a lane at this moment.
    4. With `is_tight`: the lane of the first message of the rank.
    5. The spare lane of the rank, 2 * (number of rows) + rank.

    Callers pass rows in a possible order of execution. `lane` is not changed; if no row is local,
    it is returned itself.
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
    """Group pairs (key, value) by key, as lists of values by key.

    Keys are in the order of their first pair, the values of a key in the order of the
    pairs. Repeated values are kept.
    """
    groups: dict[int, list[int]] = {}
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        groups.setdefault(key, []).append(value)
    return groups


def match_one_to_one(first: Int64Array, second: Int64Array) -> Edges:
    """Select pairs (receive, send) so that each row occurs at most once.

    `first`, `second`: rows of the receives and of the sends of the pairs. First only the last
    receive (highest row) of each send is kept, then only the first send (lowest row) of each
    receive. The result is ordered by receive.
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
    """Number the occurring pairs (rank, lane) from 0 without gaps, and return the lanes.

    `lane`: a number of at least 0 for every row; equal numbers on different ranks are
    different lanes. The new numbers are ascending by rank, then by `lane`.

    `is_given`: whether the producer of the algorithm chose the lanes; it is stored in the
    result. If it is True, later stages keep the order of the rows within each lane. If it
    is False, only dependencies order the steps.
    """
    width = int(lane.max(initial=0)) + 1
    _, number = np.unique(draft.rank * width + lane, return_inverse=True)
    return Lanes(number.astype(np.int64).reshape(-1), is_given)


def _is_function(keys: Int64Array, values: Int64Array) -> bool:
    """Return whether every key has a single value.

    `keys`, `values`: pairs, which may repeat. True if there are no pairs.
    """
    order = np.argsort(keys, kind="stable")
    is_new_value = run_mask(values[order])
    is_new_key = run_mask(keys[order])
    return not bool(np.any(is_new_value & ~is_new_key))
