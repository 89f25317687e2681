"""Give every step a thread block: the producer's lanes where they can be, else new ones.

New lanes follow from which receives feed which sends, so that these can be fused into one step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array, run_mask, run_starts

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.writing.block_time import begin_times
from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.emission_order import arrange, neighbours
from collhub_msccl.writing.reduction_runs import NEVER, RunTimes, reduction_runs


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Lanes of all ranks, sorted by rank: each becomes one thread block, or several under limits.

    `of_row`: int64 per row. `is_given`: the producer's own, whose steps stay in the order of their
    rows.
    """

    of_row: Int64Array
    is_given: bool

    @property
    def size(self) -> int:
        """Number of lanes."""
        return int(self.of_row.max(initial=-1)) + 1

    def program_order(self) -> Edges:
        """Pairs of rows that follow each other in a given lane."""
        if not self.is_given:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return neighbours(self.of_row, np.arange(len(self.of_row)))

    def fusable(self, draft: StepDraft) -> Edges:
        """(receive, send) pairs of one lane that may become one step."""
        first, second = self._consecutive(draft)
        is_pair = draft.forwards(first, second)
        return one_to_one(first[is_pair], second[is_pair])

    def runs(self, draft: StepDraft, fused: Edges) -> Edges:
        """(first, later) pairs of reductions of one lane that may be done in one pass.

        `fused`: (receive, send) pairs that are one step. In given lanes, whose order the producer
        chose, only passes that delay nothing.
        """
        times = self._times(draft, fused) if self.is_given else None
        return reduction_runs(draft, *self._consecutive(draft), times)

    def _times(self, draft: StepDraft, fused: Edges) -> RunTimes | None:
        """Times of the rows where each reduction is a step; None where there is no order."""
        order = self.program_order()
        arrangement = arrange(draft, *order, fused)
        if arrangement is None:
            return None
        node = np.where(arrangement.fused_into < 0, np.arange(len(draft)), arrangement.fused_into)
        ends = np.concatenate([draft.parents, order[0]]), np.concatenate([draft.children, order[1]])
        is_between = node[ends[0]] != node[ends[1]]
        sends = np.flatnonzero(draft.sends)
        begin = begin_times(
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

    def _consecutive(self, draft: StepDraft) -> Edges:
        """Pairs of rows of a lane of which one waits for the other.

        In a given lane such as are next to each other: others would change its order.
        """
        if self.is_given:
            return self.program_order()
        is_inside = self.of_row[draft.parents] == self.of_row[draft.children]
        return draft.parents[is_inside], draft.children[is_inside]

    def parted(self, draft: StepDraft, lanes: Int64Array) -> Lanes:
        """The same lanes, but the sends of these ones have lanes of their own."""
        # Doubled numbers leave room for the parted sends right behind their lane.
        moves = draft.sends & np.isin(self.of_row, lanes)
        return numbered_lanes(draft, self.of_row * 2 + moves, self.is_given)


def given_lanes(draft: StepDraft) -> Lanes | None:
    """The producer's lanes as thread blocks; None where there are none, or rules forbid them.

    Each must send to one rank at most, receive from one, on one channel, and no two may share a
    connection's end.
    """
    if not len(draft) or int(draft.lane.min()) < 0:
        return None
    lanes = numbered_lanes(draft, draft.lane, True)
    connection, _ = draft.connections
    for side in (draft.sends, draft.receives):
        if not _is_one_to_one(lanes.of_row[side], connection[side]):
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
    """Make lanes: one for each end of a connection, two joined where one feeds the other.

    Local steps go with what they wait for, else with what waits for them. `is_tight`: also join
    what has nothing to do with each other, to have as few lanes as possible. `is_merging`: what can
    be reduced in one pass stays together. `forwarded`: the (receive, send) pairs for which lanes
    are joined; None: all.
    """
    connection, _ = draft.connections
    fed = draft.forwarding() if forwarded is None else forwarded
    lane = _message_lanes(draft, connection, is_tight, fed)
    lane = _with_local_steps(draft, lane, is_tight, is_merging)
    return numbered_lanes(draft, lane, False)


def _message_lanes(
    draft: StepDraft,
    connection: Int64Array,
    is_tight: bool,
    fed: Edges,
) -> Int64Array:
    """Lane of every message row; -1 for local rows.

    Twice the connection's number where it is received, one more where it is sent, unless the two
    are joined.
    """
    # Joining these saves most: their receives and sends become single steps.
    pairs = _feeding_pairs(connection, fed)
    if is_tight:
        pairs += _any_pairs(draft, connection)
    lane_of_outgoing = np.arange(int(connection.max(initial=-1)) + 1) * 2 + 1
    for outgoing, incoming in _joined(pairs).items():
        lane_of_outgoing[outgoing] = incoming * 2
    lane = np.where(draft.receives, connection * 2, -1)
    sends = draft.sends
    lane[sends] = lane_of_outgoing[connection[sends]]
    return lane


def _feeding_pairs(connection: Int64Array, fed: Edges) -> list[tuple[int, int]]:
    """(incoming, outgoing) connections where receives feed sends, the most messages first."""
    receive, send = fed
    incoming, outgoing = connection[receive].tolist(), connection[send].tolist()
    messages = Counter(zip(incoming, outgoing, strict=True))
    ordered = sorted(messages.items(), key=lambda item: (-item[1], item[0]))
    return [pair for pair, _ in ordered]


def _joined(pairs: list[tuple[int, int]]) -> dict[int, int]:
    """The incoming connection that each outgoing one is joined with.

    A greedy matching: the first pairs win, no connection is joined twice.
    """
    joined: dict[int, int] = {}
    taken: set[int] = set()
    for incoming, outgoing in pairs:
        if outgoing not in joined and incoming not in taken:
            joined[outgoing] = incoming
            taken.add(incoming)
    return joined


def _any_pairs(draft: StepDraft, connection: Int64Array) -> list[tuple[int, int]]:
    """Every (incoming, outgoing) pair of connections of a rank with one channel."""
    incoming = _by_rank_and_channel(draft, connection, draft.receives)
    outgoing = _by_rank_and_channel(draft, connection, draft.sends)
    pairs: list[tuple[int, int]] = []
    for key, ones in incoming.items():
        others = outgoing.get(key, [])
        pairs += [(one, other) for one in ones for other in others]
    return pairs


def _by_rank_and_channel(
    draft: StepDraft,
    connection: Int64Array,
    side: BoolArray,
) -> dict[tuple[int, int], list[int]]:
    """Connections of one direction by the rank at this end and the channel, in row order."""
    # Dictionaries as ordered sets: the same input gives the same file.
    found: dict[tuple[int, int], dict[int, None]] = {}
    ranks, channels = draft.rank[side].tolist(), draft.channel[side].tolist()
    for rank, channel, number in zip(ranks, channels, connection[side].tolist(), strict=True):
        found.setdefault((rank, channel), {})[number] = None
    return {key: list(numbers) for key, numbers in found.items()}


def _with_local_steps(
    draft: StepDraft,
    lane: Int64Array,
    is_tight: bool,
    is_merging: bool,
) -> Int64Array:
    """Give the local rows (lane -1) lanes.

    That of the last row that they wait for, else of the first that waits for them and has one, else
    a spare one of the rank, or with `is_tight` any.
    """
    local = np.flatnonzero(lane < 0).tolist()
    if not local:
        return lane
    found: list[int] = lane.tolist()
    leader_of = _leaders(draft) if is_merging else {}
    parents_of = _grouped(draft.children, draft.parents)
    children_of = _grouped(draft.parents, draft.children)
    any_lane = _first_lanes(draft, lane) if is_tight else {}
    ranks = draft.rank.tolist()
    for row in local:
        if row in leader_of:
            found[row] = found[leader_of[row]]
            continue
        # Rows stand in a possible order of execution, so parents have their lanes already.
        known = [found[parent] for parent in sorted(parents_of.get(row, ()), reverse=True)]
        known += [found[child] for child in sorted(children_of.get(row, ()))]
        # Beyond all lanes of messages, which are below twice the connections.
        spare = 2 * len(draft) + ranks[row]
        choices = [lane for lane in known if lane >= 0] or [any_lane.get(ranks[row], spare)]
        found[row] = choices[0]
    return np.asarray(found, np.int64)


def _leaders(draft: StepDraft) -> dict[int, int]:
    """The first reduction of the run that a later one can belong to."""
    leader, member = reduction_runs(draft, draft.parents, draft.children)
    return dict(zip(member.tolist(), leader.tolist(), strict=True))


def _grouped(keys: Int64Array, values: Int64Array) -> dict[int, list[int]]:
    """The values of each key."""
    groups: dict[int, list[int]] = {}
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        groups.setdefault(key, []).append(value)
    return groups


def _first_lanes(draft: StepDraft, lane: Int64Array) -> dict[int, int]:
    """The lane of the first message row of every rank that has one."""
    has_lane = lane >= 0
    rank, first = np.unique(draft.rank[has_lane], return_index=True)
    lanes = lane[has_lane][first]
    return dict(zip(rank.tolist(), lanes.tolist(), strict=True))


def one_to_one(first: Int64Array, second: Int64Array) -> Edges:
    """Of pairs (receive, send), each row once.

    For every send its last receive, then for every receive its first send.
    """
    order = np.lexsort((-first, second))
    first, second = first[order], second[order]
    # The first of each send is its last receive, by the order above.
    once = run_starts(second)
    first, second = first[once], second[once]
    _, once = np.unique(first, return_index=True)
    return first[once], second[once]


def numbered_lanes(
    draft: StepDraft,
    lane: Int64Array,
    is_given: bool,
) -> Lanes:
    """Number (rank, lane) densely."""
    width = int(lane.max(initial=0)) + 1
    _, number = np.unique(draft.rank * width + lane, return_inverse=True)
    return Lanes(number.astype(np.int64).reshape(-1), is_given)


def _is_one_to_one(one: Int64Array, other: Int64Array) -> bool:
    """Whether neither side has two partners."""
    return _is_function(one, other) and _is_function(other, one)


def _is_function(keys: Int64Array, values: Int64Array) -> bool:
    """Whether every key has one value."""
    order = np.argsort(keys, kind="stable")
    is_other_value = run_mask(values[order])
    is_other_key = run_mask(keys[order])
    return not bool(np.any(is_other_value & ~is_other_key))
