"""Schedules by priority: at every step the task that can start first, of the busiest hosts.

For many tasks this meets the bound or comes near to it, in time linear in the tasks; it proves
nothing by itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from collhub_reshard.scheduling.bounds import sender_sharing
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import Cards, Order

_Class = tuple[int, tuple[int, ...]]


def balanced_senders(tasks: HostTasks) -> list[int]:
    """A sender for every task so that loads are even: largest tasks first.

    A task goes to the host that lacks most of the share that an even split gives it.
    """
    sharing = sender_sharing(tasks, range(len(tasks)))
    room = {key: float(share) for key, share in sharing.shares.items()}
    chosen = [0] * len(tasks)
    for task in sorted(range(len(tasks)), key=lambda one: -tasks.bytes[one]):
        senders = tasks.senders[task]
        sender = max(senders, key=lambda host: room.get((senders, host), 0.0))
        room[senders, sender] = room.get((senders, sender), 0.0) - tasks.bytes[task]
        chosen[task] = sender
    return chosen


def list_orders(tasks: HostTasks, rounds: int, senders: Sequence[int]) -> Iterator[Order]:
    """Build orders by priority for given senders of the tasks.

    The first order has no random part; later ones disturb the priorities from fixed seeds.
    """
    for seed in range(rounds):
        yield _Lists(tasks, list(senders), random.Random(seed), noise=0.1 * min(seed, 5)).order()


@dataclass(slots=True)
class _Lists:
    """One run: tasks by sender and receivers, longest first, and the load left on every card."""

    tasks: HostTasks
    senders: list[int]
    rng: random.Random
    noise: float
    left_out: dict[int, float] = field(default_factory=dict)
    left_in: dict[int, float] = field(default_factory=dict)

    def order(self) -> Order:
        """Place all tasks."""
        queues = self._queues()
        sending, receiving = Cards(self.tasks.cards), Cards(self.tasks.cards)
        found = []
        while queues:
            key = self._next(queues, sending, receiving)
            task = queues[key].pop()
            if not queues[key]:
                del queues[key]
            sender, receivers = key
            ticks = self.tasks.duration(task, sender)
            free = max(sending.free_at([sender]), receiving.free_at(receivers))
            end = max(free, self.tasks.release[task]) + ticks
            sending.occupy([sender], end)
            receiving.occupy(receivers, end)
            self._take(key, ticks)
            found.append((task, sender))
        return found

    def _queues(self) -> dict[_Class, list[int]]:
        """Tasks by class; the next one stands last: the earliest released, then the longest."""
        queues: dict[_Class, list[int]] = {}
        for task, sender in enumerate(self.senders):
            key = sender, self.tasks.receivers[task]
            queues.setdefault(key, []).append(task)
            self._take(key, -self.tasks.duration(task, sender))
        for (sender, _), queue in queues.items():
            queue.sort(key=lambda task: self._urgency(task, sender))
        return queues

    def _urgency(self, task: int, sender: int) -> tuple[float, float, int]:
        due = self.tasks.due[task]
        latest = -float("inf") if due is None else -float(due)
        return -self.tasks.release[task], latest, self.tasks.duration(task, sender)

    def _take(self, key: _Class, ticks: int) -> None:
        """Take ticks off the load that is left on the cards of a class."""
        # Negative ticks put load on them, at the start.
        sender, receivers = key
        self.left_out[sender] = self.left_out.get(sender, 0.0) - ticks
        # A task with many receivers counts at each of them.
        for host in receivers:
            self.left_in[host] = self.left_in.get(host, 0.0) - ticks

    def _next(self, queues: Mapping[_Class, list[int]], sending: Cards, receiving: Cards) -> _Class:
        """The class that can start first; of these the one whose cards have most left to do."""
        best: tuple[float, float] | None = None
        chosen: _Class | None = None
        for key, queue in queues.items():
            sender, receivers = key
            free = max(sending.free_at([sender]), receiving.free_at(receivers))
            start = float(max(free, self.tasks.release[queue[-1]]))
            load = max(self.left_out[sender], *(self.left_in[host] for host in receivers))
            # A busy card at either end counts, the other end breaks the tie.
            load += 0.25 * min(self.left_out[sender], self.left_in[receivers[0]])
            load *= 1 + self.noise * self.rng.random()
            if best is None or (start, -load) < best:
                best, chosen = (start, -load), key
        assert chosen is not None
        return chosen
