"""Find the channels of an algorithm that share no memory: they can run beside each other."""

from __future__ import annotations

import numpy as np
from collhub_execution import LevelledProgram

from hub_core.model import Int64Array, StepTable, expanded_ranges

# Addresses that are looked at; beyond, the program gets one lane rather than gigabytes of columns.
_MOST_ADDRESSES = 50_000_000


def lanes_of(program: LevelledProgram, steps: StepTable, most: int) -> Int64Array:
    """The lane of every record, int64, numbered from 0 without gaps; at most `most` of them.

    Channels that touch one block of memory, of which one writes it, are in one lane, and so are
    both ends of a message. Nothing orders two lanes, so that they may run at once. Level 0, which
    comes before all messages, is in lane 0 and runs before lanes begin. Where there are more groups
    of channels than lanes, groups share them in turn.
    """
    channels, channel = np.unique(steps.channel[program.row], return_inverse=True)
    lane = np.zeros(len(program), np.int64)
    if most == 1 or len(channels) < 2:
        return lane
    touched = _touched_addresses(program)
    if touched is None:
        return lane
    record, address, is_write = touched
    groups = _Groups(len(channels))
    groups.join(*_neighbours(channel[record], address, is_write))
    send, receive = program.message_ends()
    groups.join(channel[send], channel[receive])
    in_lanes = program.level > 0
    used, number = np.unique(groups.roots()[channel[in_lanes]], return_inverse=True)
    if len(used):
        lane[in_lanes] = number % most
    return lane


def _touched_addresses(
    program: LevelledProgram,
) -> tuple[Int64Array, Int64Array, Int64Array] | None:
    """(record, address in the memory of all ranks, 1 where it is written), a row each.

    Of all levels but 0; None where they are too many.
    """
    if 2 * int(program.count.sum()) > _MOST_ADDRESSES:
        return None
    sides = []
    for is_write, first in enumerate(program.addresses()):
        used = np.flatnonzero((first >= 0) & (program.level > 0))
        count = program.count[used]
        record = np.repeat(used, count)
        address = expanded_ranges(first[used], count)
        sides.append(np.stack([record, address, np.full_like(record, is_write)]))
    record, address, is_write = np.concatenate(sides, axis=1)
    return record, address, is_write


def _neighbours(
    channel: Int64Array, address: Int64Array, is_write: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Pairs of channels that touch one address, of those addresses that are written."""
    written = np.unique(address[is_write == 1])
    kept = np.isin(address, written)
    channel, address = channel[kept], address[kept]
    order = np.argsort(address, kind="stable")
    channel, address = channel[order], address[order]
    is_same = address[1:] == address[:-1]
    pairs = np.stack([channel[:-1][is_same], channel[1:][is_same]])
    one, other = np.unique(pairs, axis=1)
    return one, other


class _Groups:
    """Union-find over channels, which are few."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def join(self, ones: Int64Array, others: Int64Array) -> None:
        """Put both of every pair into one group."""
        pairs = np.unique(np.stack([ones, others]), axis=1)
        for one, other in pairs.T.tolist():
            roots = sorted((self._root(one), self._root(other)))
            self._parent[roots[1]] = roots[0]

    def _root(self, member: int) -> int:
        while self._parent[member] != member:
            member = self._parent[member]
        return member

    def roots(self) -> Int64Array:
        """The first member of the group of every member."""
        return np.array([self._root(member) for member in range(len(self._parent))], np.int64)
