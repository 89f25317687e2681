"""Lower bounds on the time of a resharding, each with the hosts or the task that prove it.

The model is that of section 4 of "On Optimizing the Communication of Model Parallelism" (MLSys
2023); the sets of senders are Hall sets. They are found by sharing the bytes among senders:
Newton's method on a ratio (Dinkelbach 1967), with max-flow as the test.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collhub_reshard.scheduling.host_tasks import HostTasks

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sharing:
    """The least time in which hosts can send all groups, and how.

    `hosts`: the set that needs all of it (a Hall set). `shares`: bytes by group and host.
    """

    time_s: Fraction
    hosts: tuple[int, ...]
    shares: Mapping[tuple[Group, int], Fraction]


def find_least_sharing(demand: Mapping[Group, int], rate: Mapping[int, Fraction]) -> Sharing:
    """Share every group's bytes among its hosts so that the busiest host ends earliest.

    `demand`: bytes by the hosts that may send them. `rate`: bytes per second by host.
    """
    groups = [group for group in sorted(demand) if demand[group]]
    hosts = sorted({host for group in groups for host in group})
    if not groups:
        return Sharing(Fraction(0), (), {})
    binding = tuple(hosts)
    time = _compute_ratio(groups, demand, binding, rate)
    while True:
        flow = _BipartiteFlow(groups, demand, hosts, {h: time * rate[h] for h in hosts})
        short = flow.short_hosts()
        if not short:
            return Sharing(time, binding, flow.shares())
        binding = short
        inside = [group for group in groups if set(group) <= set(short)]
        time = _compute_ratio(inside, demand, short, rate)


def _compute_ratio(
    groups: Sequence[Group],
    demand: Mapping[Group, int],
    hosts: Sequence[int],
    rate: Mapping[int, Fraction],
) -> Fraction:
    """Time in which these hosts together send what only they can."""
    # A set of hosts must do what nobody else can.
    known = set(hosts)
    total = sum(demand[group] for group in groups if set(group) <= known)
    # All of its cards together do it at their rates.
    return Fraction(total) / sum((rate[host] for host in hosts), Fraction(0))


class _BipartiteFlow:
    """The largest flow from groups to hosts, by shortest augmenting paths."""

    def __init__(
        self,
        groups: Sequence[Group],
        demand: Mapping[Group, int],
        hosts: Sequence[int],
        room: Mapping[int, Fraction],
    ) -> None:
        self._groups = list(groups)
        self._left = {group: Fraction(demand[group]) for group in groups}
        self._room = dict(room)
        self._shares = {(group, host): Fraction(0) for group in groups for host in group}
        self._users: dict[int, list[Group]] = {host: [] for host in hosts}
        for group in groups:
            for host in group:
                self._users[host].append(group)
        self._reached: dict[int, Group] = {}
        while self._augment():
            pass

    def shares(self) -> dict[tuple[Group, int], Fraction]:
        """Bytes by group and host."""
        # Groups leave out most of their hosts
        # where one has room for all.
        return {key: share for key, share in self._shares.items() if share}

    def short_hosts(self) -> tuple[int, ...]:
        """Hosts that cannot take what their groups bring; empty where all is placed."""
        if not any(self._left.values()):
            return ()
        return tuple(sorted(self._reached))

    def _augment(self) -> bool:
        """Find a path from a group with bytes left to a host with room, and fill it."""
        # How every host and group was reached: hosts from groups, groups from hosts.
        self._reached = {}
        came: dict[Group, int | None] = {g: None for g in self._groups if self._left[g]}
        queue = deque(came)
        while queue:
            group = queue.popleft()
            for host in group:
                if host in self._reached:
                    continue
                self._reached[host] = group
                if self._room[host]:
                    self._fill(host, came)
                    return True
                for other in self._users[host]:
                    if other not in came and self._shares[other, host]:
                        came[other] = host
                        queue.append(other)
        return False

    def _fill(self, last: int, came: Mapping[Group, int | None]) -> None:
        path: list[tuple[Group, int]] = []
        host: int | None = last
        while host is not None:
            group = self._reached[host]
            path.append((group, host))
            host = came[group]
        first = path[-1][0]
        amount = min(self._left[first], self._room[last])
        # Along the path a group gives up at one host what it places at the next.
        for (_, taken), (group, _) in zip(path[1:], path[:-1], strict=True):
            amount = min(amount, self._shares[group, taken])
        for group, placed in path:
            self._shares[group, placed] += amount
        for (_, taken), (group, _) in zip(path[1:], path[:-1], strict=True):
            self._shares[group, taken] -= amount
        self._left[first] -= amount
        self._room[last] -= amount


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


def compute_fluid_bound(tasks: HostTasks) -> Bound:
    """The largest bound that holds for split tasks too."""
    if not len(tasks):
        return Bound("nothing", Fraction(0))
    # Senders may share a task here, which no schedule of whole tasks does:
    # the bound holds for both.
    sharing = share_among_senders(tasks, range(len(tasks)))
    out = Bound("senders", sharing.time_s / tasks.tick_s, sharing.hosts)
    # The first of equals, the simplest proof.
    return max(
        (compute_receiver_bound(tasks), out, compute_exclusive_bound(tasks)),
        key=lambda bound: bound.ticks,
    )


def compute_unsplit_bound(tasks: HostTasks) -> Bound:
    """The largest bound for schedules that keep every task whole."""
    fluid = compute_fluid_bound(tasks)
    longest = compute_task_bound(tasks)
    return longest if longest.ticks > fluid.ticks else fluid


def compute_receiver_bound(tasks: HostTasks) -> Bound:
    """The host that takes longest to receive what it must."""
    # What a host must receive comes through its own cards.
    load = compute_receiver_loads(tasks, range(len(tasks)))
    if not load:
        return Bound("nothing", Fraction(0))
    # Sorted, so that equal loads give the same proof everywhere.
    busiest = max(sorted(load), key=lambda host: load[host])
    return Bound("receiver", load[busiest], (busiest,))


def compute_receiver_loads(tasks: HostTasks, chosen: Iterable[int]) -> dict[int, Fraction]:
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


def share_among_senders(tasks: HostTasks, chosen: Iterable[int]) -> Sharing:
    """The least time in which the senders can send some tasks, split as they like."""
    demand: dict[tuple[int, ...], int] = {}
    for task in chosen:
        senders = tasks.senders[task]
        demand[senders] = demand.get(senders, 0) + tasks.bytes[task]
    rate = {host: tasks.network.out_rate[host] * tasks.cards for group in demand for host in group}
    return find_least_sharing(demand, rate)


def compute_exclusive_bound(tasks: HostTasks) -> Bound:
    """Tasks that all hosts receive leave no card for others: their time comes on top."""
    everyone = tuple(sorted({host for hosts in tasks.receivers for host in hosts}))
    whole = [task for task in range(len(tasks)) if tasks.receivers[task] == everyone]
    rest = [task for task in range(len(tasks)) if tasks.receivers[task] != everyone]
    if not whole or not rest or tasks.cards > 1:
        return Bound("nothing", Fraction(0))
    slowest = min(tasks.network.in_rate[host] for host in everyone)
    first = Fraction(sum(tasks.bytes[task] for task in whole)) / slowest / tasks.tick_s
    sharing = share_among_senders(tasks, rest)
    return Bound("exclusive", first + sharing.time_s / tasks.tick_s, sharing.hosts)


def compute_task_bound(tasks: HostTasks) -> Bound:
    """The task that takes longest by itself, from its fastest sender."""
    if not len(tasks):
        return Bound("nothing", Fraction(0))

    def end(task: int) -> int:
        return tasks.release[task] + min(tasks.durations[task])

    longest = max(range(len(tasks)), key=end)
    return Bound("task", Fraction(end(longest)), task=longest)
