"""Lower bounds on the time of a resharding, each with the hosts or the task that prove it.

Section 4 of "On Optimizing the Communication of Model Parallelism" (MLSys 2023) has the model; the
sets of senders are Hall's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from collhub_reshard.scheduling.flows import Sharing, least_sharing
from collhub_reshard.scheduling.host_tasks import HostTasks


@dataclass(frozen=True, slots=True)
class Bound:
    """A time that no schedule beats, in ticks, and why.

    `kind`: `receiver` (all that `hosts[0]` must receive), `senders` (all that only `hosts` can
    send), `exclusive` (what all receivers take, then the rest by `hosts`), `task` (the unsplit task
    `task`), `nothing` (no bytes cross).
    """

    kind: str
    ticks: Fraction
    hosts: tuple[int, ...] = ()
    task: int = -1

    @property
    def whole_ticks(self) -> int:
        """The bound of an unsplit schedule, whose times are whole ticks."""
        return math.ceil(self.ticks)


def fluid_bound(tasks: HostTasks) -> Bound:
    """The largest bound that holds for split tasks too."""
    if not len(tasks):
        return Bound("nothing", Fraction(0))
    # Senders may share a task here, which no schedule of whole tasks does:
    # the bound holds for both.
    sharing = sender_sharing(tasks, range(len(tasks)))
    out = Bound("senders", sharing.time_s / tasks.tick_s, sharing.hosts)
    # The first of equals, the simplest proof.
    return max((receiver_bound(tasks), out, exclusive_bound(tasks)), key=lambda bound: bound.ticks)


def unsplit_bound(tasks: HostTasks) -> Bound:
    """The largest bound for schedules that keep every task whole."""
    fluid = fluid_bound(tasks)
    longest = task_bound(tasks)
    return longest if longest.ticks > fluid.ticks else fluid


def receiver_bound(tasks: HostTasks) -> Bound:
    """The host that takes longest to receive what it must."""
    # What a host must receive comes through its own cards.
    load = receiver_loads(tasks, range(len(tasks)))
    if not load:
        return Bound("nothing", Fraction(0))
    # Sorted, so that equal loads give the same proof everywhere.
    busiest = max(sorted(load), key=lambda host: load[host])
    return Bound("receiver", load[busiest], (busiest,))


def receiver_loads(tasks: HostTasks, chosen: Iterable[int]) -> dict[int, Fraction]:
    """Ticks that the cards of every receiver need for some tasks, from the first release on."""
    load: dict[int, Fraction] = {}
    first: dict[int, int] = {}
    for task in chosen:
        for host in tasks.receivers[task]:
            rate = tasks.network.in_rate[host] * tasks.cards
            ticks = tasks.bytes[task] / rate / tasks.tick_s
            load[host] = load.get(host, Fraction(0)) + ticks
            first[host] = min(first.get(host, tasks.release[task]), tasks.release[task])
    return {host: ticks + first[host] for host, ticks in load.items()}


def sender_sharing(tasks: HostTasks, chosen: Iterable[int]) -> Sharing:
    """The least time in which the senders can send some tasks, split as they like."""
    demand: dict[tuple[int, ...], int] = {}
    for task in chosen:
        senders = tasks.senders[task]
        demand[senders] = demand.get(senders, 0) + tasks.bytes[task]
    rate = {host: tasks.network.out_rate[host] * tasks.cards for group in demand for host in group}
    return least_sharing(demand, rate)


def exclusive_bound(tasks: HostTasks) -> Bound:
    """Tasks that all hosts receive leave no card for others: their time comes on top."""
    everyone = tuple(sorted({host for hosts in tasks.receivers for host in hosts}))
    whole = [task for task in range(len(tasks)) if tasks.receivers[task] == everyone]
    rest = [task for task in range(len(tasks)) if tasks.receivers[task] != everyone]
    if not whole or not rest or tasks.cards > 1:
        return Bound("nothing", Fraction(0))
    slowest = min(tasks.network.in_rate[host] for host in everyone)
    first = Fraction(sum(tasks.bytes[task] for task in whole)) / slowest / tasks.tick_s
    sharing = sender_sharing(tasks, rest)
    return Bound("exclusive", first + sharing.time_s / tasks.tick_s, sharing.hosts)


def task_bound(tasks: HostTasks) -> Bound:
    """The task that takes longest by itself, from its fastest sender."""
    if not len(tasks):
        return Bound("nothing", Fraction(0))

    def end(task: int) -> int:
        return tasks.release[task] + min(tasks.durations[task])

    longest = max(range(len(tasks)), key=end)
    return Bound("task", Fraction(end(longest)), task=longest)
