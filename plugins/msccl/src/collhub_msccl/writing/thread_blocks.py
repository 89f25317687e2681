"""Give every step a thread block: the producer's lanes where they can be, else from which receives feed which sends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.emission_order import neighbours

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lanes:
    """Lanes of all ranks, sorted by rank: a lane becomes one thread block, or several where limits ask for it.

    `of_row`: int64 per row. `is_given`: the producer's own, whose steps stay in the order of their rows.
    """

    of_row: Int64Array
    is_given: bool

    @property
    def size(self) -> int:
        """Number of lanes."""
        return int(self.of_row.max(initial=-1)) + 1

    def program_order(self) -> tuple[Int64Array, Int64Array]:
        """Pairs of rows that follow each other in a given lane."""
        if not self.is_given:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return neighbours(self.of_row, np.arange(len(self.of_row)))

    def fusable(self, draft: StepDraft) -> tuple[Int64Array, Int64Array]:
        """(receive, send) pairs of one lane that may become one step: next to each other in a given lane."""
        if self.is_given:
            first, second = self.program_order()
            is_pair = (
                draft.receives[first]
                & draft.sends[second]
                & (draft.count[first] == draft.count[second])
            )
            for side in ("buffer", "offset"):
                is_pair &= (
                    getattr(draft, f"dst_{side}")[first] == getattr(draft, f"src_{side}")[second]
                )
            return first[is_pair], second[is_pair]
        first, second = draft.forwarding()
        inside = self.of_row[first] == self.of_row[second]
        return _one_to_one(first[inside], second[inside])

    def parted(self, draft: StepDraft, lanes: Int64Array) -> Lanes:
        """The same lanes, but the sends of these ones have lanes of their own."""
        moves = draft.sends & np.isin(self.of_row, lanes)
        return _numbered(draft, self.of_row * 2 + moves, self.is_given)


def given_lanes(draft: StepDraft) -> Lanes | None:
    """The producer's lanes as thread blocks; None where there are none, or where the runtimes' rules forbid them.

    Each must send to one rank at most, receive from one, on one channel, and no two may share a connection's end.
    """
    if not len(draft) or int(draft.lane.min()) < 0:
        return None
    lanes = _numbered(draft, draft.lane, True)
    connection, _ = draft.connections
    is_message = connection >= 0
    for side in (draft.sends, draft.receives):
        if not _is_one_to_one(lanes.of_row[side], connection[side]):
            return None
    return lanes if _is_function(lanes.of_row[is_message], draft.channel[is_message]) else None


def assign_lanes(draft: StepDraft, is_tight: bool) -> Lanes:
    """Make lanes: one for each end of a connection, two joined where one's receives feed the other's sends.

    Local steps go with what they wait for, else with what waits for them. `is_tight`: also join what has nothing to
    do with each other, to have as few lanes as possible.
    """
    connection, _ = draft.connections
    lane = _message_lanes(draft, connection, is_tight)
    lane = _with_local_steps(draft, lane, is_tight)
    return _numbered(draft, lane, False)


def _message_lanes(draft: StepDraft, connection: Int64Array, is_tight: bool) -> Int64Array:
    """Lane of every message row: twice the connection's number where it is received, one more where it is sent."""
    receive, send = draft.forwarding()
    fed: Counter[tuple[int, int]] = Counter(
        zip(connection[receive].tolist(), connection[send].tolist(), strict=True)
    )
    pairs = [pair for pair, _ in sorted(fed.items(), key=lambda item: (-item[1], item[0]))]
    if is_tight:
        pairs += _any_pairs(draft, connection)
    joined: dict[int, int] = {}
    taken: set[int] = set()
    for incoming, outgoing in pairs:
        if outgoing not in joined and incoming not in taken:
            joined[outgoing] = incoming
            taken.add(incoming)
    number = np.arange(int(connection.max(initial=-1)) + 1) * 2 + 1
    for outgoing, incoming in joined.items():
        number[outgoing] = incoming * 2
    lane = np.where(draft.receives, connection * 2, -1)
    sends = draft.sends
    lane[sends] = number[connection[sends]]
    return lane


def _any_pairs(draft: StepDraft, connection: Int64Array) -> list[tuple[int, int]]:
    """Every (incoming, outgoing) pair of connections of a rank with one channel."""
    ends: list[dict[tuple[int, int], dict[int, None]]] = []
    for side in (draft.receives, draft.sends):
        found: dict[tuple[int, int], dict[int, None]] = {}
        columns = (column[side].tolist() for column in (draft.rank, draft.channel, connection))
        for rank, channel, number in zip(*columns, strict=True):
            found.setdefault((rank, channel), {})[number] = None
        ends.append(found)
    incoming, outgoing = ends
    return [
        (one, other)
        for key, ones in incoming.items()
        for one in ones
        for other in outgoing.get(key, ())
    ]


def _with_local_steps(draft: StepDraft, lane: Int64Array, is_tight: bool) -> Int64Array:
    """Lanes of the local rows: of the last row that they wait for, else of the first that waits for them, else their own."""
    local = np.flatnonzero(lane < 0).tolist()
    if not local:
        return lane
    found: list[int] = lane.tolist()
    waits, followers = (
        _grouped(*pair)
        for pair in ((draft.children, draft.parents), (draft.parents, draft.children))
    )
    spare = 2 * len(draft)
    any_lane = _first_lanes(draft, lane) if is_tight else {}
    ranks = draft.rank.tolist()
    for row in local:
        known = [found[parent] for parent in sorted(waits.get(row, ()), reverse=True)]
        known += [found[child] for child in sorted(followers.get(row, ())) if found[child] >= 0]
        found[row] = known[0] if known else any_lane.get(ranks[row], spare + ranks[row])
    return np.asarray(found, np.int64)


def _grouped(keys: Int64Array, values: Int64Array) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        groups.setdefault(key, []).append(value)
    return groups


def _first_lanes(draft: StepDraft, lane: Int64Array) -> dict[int, int]:
    has_lane = lane >= 0
    rank, first = np.unique(draft.rank[has_lane], return_index=True)
    return dict(zip(rank.tolist(), lane[has_lane][first].tolist(), strict=True))


def _one_to_one(first: Int64Array, second: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Of pairs (receive, send), for every send its last receive, and for every receive its first send."""
    order = np.lexsort((-first, second))
    first, second = first[order], second[order]
    once = np.unique(second, return_index=True)[1]
    first, second = first[once], second[once]
    once = np.unique(first, return_index=True)[1]
    return first[once], second[once]


def _numbered(draft: StepDraft, lane: Int64Array, is_given: bool) -> Lanes:
    """Number (rank, lane) densely."""
    width = int(lane.max(initial=0)) + 1
    number = np.unique(draft.rank * width + lane, return_inverse=True)[1]
    return Lanes(number.astype(np.int64).reshape(-1), is_given)


def _is_one_to_one(one: Int64Array, other: Int64Array) -> bool:
    return _is_function(one, other) and _is_function(other, one)


def _is_function(keys: Int64Array, values: Int64Array) -> bool:
    """Whether every key has one value."""
    if not len(keys):
        return True
    order = np.argsort(keys, kind="stable")
    same = keys[order][1:] == keys[order][:-1]
    return bool(np.all(values[order][1:][same] == values[order][:-1][same]))
