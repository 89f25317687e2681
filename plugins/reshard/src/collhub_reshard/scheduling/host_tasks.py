"""Unit tasks as the cards of hosts see them: who may send, who must receive, for how long."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from collhub_shardings import Move, UnitTasks, device_pairs

from collhub_reshard.scheduling.host_network import HostNetwork


@dataclass(frozen=True, slots=True)
class HostTasks:
    """Tasks between hosts; a task occupies a card of its sender and of each of its receivers.

    Per task: `rows` (its unit task), `bytes`, `senders` and `receivers` (ascending hosts),
    `durations` (in ticks, one a sender), `release` and `due` (in ticks, due None for any time).
    `work`: how often the busiest card carries the task's bytes, 1 but for some strategies.
    `tick_s`: seconds of one tick; all durations are whole ticks, so that schedules are exact.
    """

    rows: tuple[int, ...]
    bytes: tuple[int, ...]
    senders: tuple[tuple[int, ...], ...]
    receivers: tuple[tuple[int, ...], ...]
    durations: tuple[tuple[int, ...], ...]
    release: tuple[int, ...]
    due: tuple[int | None, ...]
    work: tuple[Fraction, ...]
    tick_s: Fraction
    network: HostNetwork

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def cards(self) -> int:
        """Cards of every host."""
        return self.network.cards

    def duration(self, task: int, sender: int) -> int:
        """Ticks of a task from one of its senders."""
        # Senders differ in time only where
        # their cards do.
        return self.durations[task][self.senders[task].index(sender)]

    def seconds(self, ticks: int | Fraction) -> float:
        """Ticks as seconds."""
        return float(ticks * self.tick_s)

    def classes(self) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]]:
        """Tasks by their senders and receivers."""
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for task, key in enumerate(zip(self.senders, self.receivers, strict=True)):
            found.setdefault(key, []).append(task)
        return found


def host_tasks(
    tasks: UnitTasks,
    moves: Sequence[Move],
    network: HostNetwork,
    work: Mapping[int, Fraction] | None = None,
) -> HostTasks:
    """The tasks that cross between hosts.

    A receiver on a host that has the box needs no card: such hosts are left out, and tasks without
    others too. `work`: how often a card carries the box of a unit task, by row, else once.
    """
    work = {} if work is None else work
    needs = needing_hosts(tasks)
    rows = [row for row in range(len(tasks)) if needs[row] and tasks.bytes[row]]
    senders = [tasks.hosts_of(tasks.senders_of(row)) for row in rows]
    receivers = [needs[row] for row in rows]
    sizes = [int(tasks.bytes[row]) for row in rows]
    exact = [
        [size * work.get(row, 1) / network.rate(host, to) for host in hosts]
        for row, size, hosts, to in zip(rows, sizes, senders, receivers, strict=True)
    ]
    times = _move_times(tasks, moves, rows)
    tick = _common_measure([time for row in exact for time in row] + _stated(times))
    return HostTasks(
        tuple(rows),
        tuple(sizes),
        tuple(senders),
        tuple(receivers),
        tuple(tuple(int(time / tick) for time in row) for row in exact),
        tuple(int(release / tick) for release, _ in times),
        tuple(None if due is None else int(due / tick) for _, due in times),
        tuple(Fraction(work.get(row, 1)) for row in rows),
        tick,
        network,
    )


def needing_hosts(tasks: UnitTasks) -> list[tuple[int, ...]]:
    """Per unit task, the hosts of its receivers that do not have the box."""
    task, receiver, _ = device_pairs(tasks)
    width = int(tasks.host_of.max()) + 1
    found: list[tuple[int, ...]] = []
    hosts = tasks.host_of[receiver]
    keys = np.unique(task * width + hosts)
    groups: list[list[int]] = [[] for _ in range(len(tasks))]
    for key in keys.tolist():
        groups[key // width].append(key % width)
    for row, group in enumerate(groups):
        own = set(tasks.hosts_of(tasks.senders_of(row)))
        found.append(tuple(host for host in group if host not in own))
    return found


def _move_times(
    tasks: UnitTasks, moves: Sequence[Move], rows: Sequence[int]
) -> list[tuple[Fraction, Fraction | None]]:
    """Release and due time of every task, in seconds."""
    known = [
        (
            Fraction(repr(move.release_s)),
            None if move.due_s is None else Fraction(repr(move.due_s)),
        )
        for move in moves
    ]
    return [known[tasks.move[row]] for row in rows]


def _stated(times: Sequence[tuple[Fraction, Fraction | None]]) -> list[Fraction]:
    return [time for pair in times for time in pair if time]


def _common_measure(times: Sequence[Fraction]) -> Fraction:
    """The largest time of which all are whole multiples."""
    # A model has thousands of boxes of a few sizes.
    distinct = set(times)
    if not distinct:
        # Where all is zero any tick will do.
        return Fraction(1)
    top = math.gcd(*(time.numerator for time in distinct))
    # Denominators come from rates and stated times.
    bottom = math.lcm(*(time.denominator for time in distinct))
    # Of reduced fractions, gcd = gcd of the numerators over a common denominator.
    whole = math.gcd(*(int(time * bottom) for time in distinct))
    return Fraction(whole, bottom) if whole else Fraction(top, bottom)
