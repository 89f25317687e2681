"""What an algorithm is, in numbers.

Steps by kind, traffic by pair of ranks, and the longest chains of steps and messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.model import Algorithm, Findings, StepTable, match_messages, message_bytes
from hub_core.model.kinds import StepKind
from hub_core.trace_profile.algorithms.lowering import message_tags
from hub_core.verification.fifo import fused_pairs

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages between pairs of ranks, one entry a pair, ordered by source, then destination.

    Columns int64: `source`, `destination`, `messages`, `units`, and `bytes`, None where no size is
    known.
    """

    source: Int64Array
    destination: Int64Array
    messages: Int64Array
    units: Int64Array
    bytes: Int64Array | None


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """What no number of lanes makes shorter.

    `steps`: of the longest chain of dependent steps; `messages`: the most in such a chain.
    """

    steps: int
    messages: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """Lanes (thread blocks, streams) as the source states them.

    `most`: of one rank, 0 where the source has no opinion; `longest`: steps of the longest lane;
    `fused`: sends of all ranks that are one instruction with the receive before them, not counted
    in `longest`.
    """

    most: int
    longest: int
    fused: int


def lanes(steps: StepTable) -> Lanes:
    """What lanes there are, and how long."""
    named = np.flatnonzero(steps.lane >= 0)
    pairs = np.stack([steps.rank[named], steps.lane[named]])
    distinct, lane = np.unique(pairs, axis=1, return_inverse=True)
    _, fused = fused_pairs(steps, match_messages(steps, Findings()))
    is_counted = ~np.isin(named, fused)
    length = np.bincount(lane.reshape(-1), weights=is_counted)
    most = np.bincount(distinct[0]).max(initial=0)
    return Lanes(int(most), int(length.max(initial=0)), len(fused))


def kind_counts(steps: StepTable) -> dict[str, int]:
    """Number of steps of every kind, kinds without steps included."""
    counts = np.bincount(steps.kind, minlength=len(StepKind)).tolist()
    return {kind.name.lower().replace("_", "-"): counts[kind] for kind in StepKind}


def channel_count(steps: StepTable) -> int:
    """Number of channels that messages use."""
    # Local steps have no channel.
    return len(np.unique(steps.channel[steps.sends | steps.receives]))


def traffic(algorithm: Algorithm, collective_bytes: int | None) -> Traffic:
    """Sum what is sent from rank to rank.

    Bytes for a collective of `collective_bytes`, if given.
    """
    steps = algorithm.steps
    sends = np.flatnonzero(steps.sends)
    pairs = _pair(steps.rank[sends], steps.peer[sends])
    distinct, entry, messages = np.unique(pairs, return_inverse=True, return_counts=True)
    units = _sums(entry, steps.count[sends], len(distinct))
    sent_bytes = None
    if collective_bytes is not None:
        sizes = message_bytes(collective_bytes, algorithm.collective.unit_count, steps.count[sends])
        sent_bytes = _sums(entry, sizes, len(distinct))
    return Traffic(
        distinct >> 32, distinct & 0xFFFFFFFF, messages.astype(np.int64), units, sent_bytes
    )


def critical_path(steps: StepTable) -> CriticalPath | None:
    """Longest chains over dependencies and messages; None where steps wait in a circle.

    A RECV follows the SEND that it matches; what has no match follows nothing. Level-synchronous:
    time O(steps + dependencies) plus a constant per level.
    """
    parent, child, is_message = _all_edges(steps)
    order = np.argsort(parent, kind="stable")
    child, is_message = child[order], is_message[order].astype(np.int64)
    first_child = np.searchsorted(parent[order], np.arange(len(steps) + 1))
    waits_for = np.bincount(child, minlength=len(steps))
    messages = np.zeros(len(steps), np.int64)
    frontier, levels, done = np.flatnonzero(waits_for == 0), 0, 0
    while len(frontier):
        levels, done = levels + 1, done + len(frontier)
        width = first_child[frontier + 1] - first_child[frontier]
        edges = np.repeat(first_child[frontier] - np.cumsum(width) + width, width) + np.arange(
            int(width.sum())
        )
        reached = child[edges]
        np.maximum.at(messages, reached, np.repeat(messages[frontier], width) + is_message[edges])
        np.subtract.at(waits_for, reached, 1)
        frontier = np.unique(reached[waits_for[reached] == 0])
    return CriticalPath(levels, int(messages.max(initial=0))) if done == len(steps) else None


def _all_edges(steps: StepTable) -> tuple[Int64Array, Int64Array, npt.NDArray[np.bool_]]:
    """(parent row, child row, is a message) of every dependency and every matched message."""
    parent, child = steps.edges()
    send, receive = _matches(steps)
    is_message = np.concatenate([np.zeros(len(parent), np.bool_), np.ones(len(send), np.bool_)])
    return np.concatenate([parent, send]), np.concatenate([child, receive]), is_message


def _matches(steps: StepTable) -> tuple[Int64Array, Int64Array]:
    """Rows of SENDs and of the receives that take their messages."""
    tags = message_tags(steps).astype(np.int64)
    send, receive = np.flatnonzero(steps.sends), np.flatnonzero(steps.receives)
    pairs = np.concatenate(
        [_pair(steps.rank[send], steps.peer[send]), _pair(steps.peer[receive], steps.rank[receive])]
    )
    pair_number = np.unique(pairs, return_inverse=True)[1]
    keys = pair_number << 31 | tags[np.concatenate([send, receive])]
    _, at_send, at_receive = np.intersect1d(
        keys[: len(send)], keys[len(send) :], assume_unique=True, return_indices=True
    )
    return send[at_send], receive[at_receive]


def _pair(source: npt.NDArray[np.int32], destination: npt.NDArray[np.int32]) -> Int64Array:
    return source.astype(np.int64) << 32 | (destination.astype(np.int64) & 0xFFFFFFFF)


def _sums(entry: Int64Array, values: Int64Array, length: int) -> Int64Array:
    """Totals of the values by entry: int64[length]."""
    sums = np.zeros(length, np.int64)
    # Exact: weights of a bincount would be floats.
    np.add.at(sums, entry, values)
    return sums
