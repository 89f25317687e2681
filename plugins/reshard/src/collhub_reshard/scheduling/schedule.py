"""A schedule of tasks on network cards, and lower bounds on its time with their proofs.

A bound names the hosts or the task that prove it. The model is that of section 4 of "On Optimizing
the Communication of Model Parallelism" (MLSys 2023); the sets of senders are Hall sets. They are
found by sharing the bytes among senders: Newton's method on a ratio (Dinkelbach 1967), with
max-flow as the test.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collhub_reshard.scheduling.host_tasks import HostTasks


@dataclass(frozen=True, slots=True)
class Piece:
    """A task, or a part of one, from one sender; `start` and `duration` in ticks.

    `first` and `last`: the part of the task's bytes, from 0 to 1.
    """

    task: int
    sender: int
    start: Fraction
    duration: Fraction
    first: Fraction = Fraction(0)
    last: Fraction = Fraction(1)

    @property
    def end(self) -> Fraction:
        """Tick at which the piece finishes."""
        return self.start + self.duration


@dataclass(frozen=True, slots=True)
class HostSchedule:
    """Pieces in order of their start, and their proof.

    `method`: the method that found them. `status`: `optimal` (proved by the bound or the solver) or
    `feasible`. `proof`: `bound`, `solver` or `none`. `lower_bound_ticks`: the best known bound,
    including the solver's.
    """

    pieces: tuple[Piece, ...]
    method: str
    status: str
    proof: str
    bound: Bound
    lower_bound_ticks: Fraction

    @property
    def makespan(self) -> Fraction:
        """Tick at which the last piece finishes, 0 without pieces."""
        return max((piece.end for piece in self.pieces), default=Fraction(0))

    @property
    def gap(self) -> float:
        """Excess of the makespan over the lower bound, as a fraction of the bound.

        It is 0.0 for a bound of 0. 0.05 means that the makespan is 5 % longer than the bound.
        """
        lower_bound = self.lower_bound_ticks
        return float(self.makespan / lower_bound - 1) if lower_bound else 0.0

    def late_tasks(self, tasks: HostTasks) -> tuple[int, ...]:
        """Return the numbers of the tasks that finish after their due times, ascending.

        A task finishes with the last of its pieces. A task that finishes exactly at its due
        time is not late. A task without a due time or without pieces is not late either.
        """
        ends = _find_ends(self.pieces)
        late = []
        for task, end in sorted(ends.items()):
            due = tasks.due[task]
            if due is not None and end > due:
                late.append(task)
        return tuple(late)


Order = Sequence[tuple[int, int]]
"""Tasks with their senders, in the order in which they start."""


class Cards:
    """Times at which the cards of all hosts become free, in one direction."""

    def __init__(self, cards: int) -> None:
        self._cards = cards
        # Hosts are added when tasks name them.
        self._free: dict[int, list[int]] = {}

    def free_at(self, hosts: Iterable[int]) -> int:
        """Return the tick at which every one of these hosts has a free card; 0 for unused cards."""
        # The first entry of a heap is its minimum.
        return max((self._free[host][0] for host in hosts if host in self._free), default=0)

    def occupy(self, hosts: Iterable[int], until: int) -> None:
        """Occupy, on every one of these hosts, the card that becomes free first, until tick
        `until`. Changes the cards; `until` must not be before the card becomes free.
        """
        for host in hosts:
            free = self._free.setdefault(host, [0] * self._cards)
            heapq.heapreplace(free, until)


def schedule_in_order(tasks: HostTasks, order: Order) -> tuple[Piece, ...]:
    """Schedule tasks strictly in the given order of (task, sender); return one piece per task.

    Each host has `tasks.cards` cards for sending, and as many for receiving. A task starts at
    the first tick at which it is released, its sender has a free card for sending, and each
    receiver has a free card for receiving. On each of these hosts it occupies the card that
    becomes free first, from its start to its end. A later task of the order never uses a gap
    before it.

    Times are in ticks. Pieces are sorted by start, then by task. Raises `ValueError` for a
    host that is no sender of its task.
    """
    sending, receiving = Cards(tasks.cards), Cards(tasks.cards)
    pieces = []
    for task, sender in order:
        receivers = tasks.receivers[task]
        free = max(sending.free_at([sender]), receiving.free_at(receivers))
        start = max(free, tasks.release[task])
        ticks = tasks.duration(task, sender)
        sending.occupy([sender], start + ticks)
        receiving.occupy(receivers, start + ticks)
        pieces.append(Piece(task, sender, Fraction(start), Fraction(ticks)))
    return tuple(sorted(pieces, key=lambda piece: (piece.start, piece.task)))


def compute_makespan(pieces: Sequence[Piece]) -> Fraction:
    """Return when the last piece finishes, in ticks; 0 without pieces."""
    return max((piece.end for piece in pieces), default=Fraction(0))


def compute_lateness(tasks: HostTasks, pieces: Sequence[Piece]) -> Fraction:
    """Return the largest time in ticks by which a task finishes after its due time.

    A task finishes with the last of its pieces. The result is 0 if no task is late, or without
    pieces. Tasks without a due time or without pieces do not count.
    """
    worst = Fraction(0)
    for task, end in _find_ends(pieces).items():
        due = tasks.due[task]
        if due is not None:
            worst = max(worst, end - due)
    return worst


def _find_ends(pieces: Sequence[Piece]) -> dict[int, Fraction]:
    """Return the end in ticks of every task that has pieces: the largest end of its pieces.

    The keys are task numbers, in the order of their first pieces.
    """
    ends: dict[int, Fraction] = {}
    for piece in pieces:
        before = ends.get(piece.task, piece.end)
        ends[piece.task] = max(piece.end, before)
    return ends


Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sharing:
    """The minimum time in which hosts can send all groups, and a division that achieves it.

    `hosts`: a set of hosts that needs all of this time (a Hall set). `shares`: bytes by group and
    host.
    """

    time_s: Fraction
    hosts: tuple[int, ...]
    shares: Mapping[tuple[Group, int], Fraction]


def find_least_sharing(demand: Mapping[Group, int], rate: Mapping[int, Fraction]) -> Sharing:
    """Divide the bytes of every group among its hosts so that the busiest host finishes earliest.

    `demand`: bytes by group (a tuple of hosts that may send them). `rate`: bytes per second by
    host. The result has:

    - `time_s`: the minimum time, exact: the longest time of a host, which is its bytes divided by
      its rate
    - `shares`: bytes by (group, host), as fractions; pairs with 0 bytes are absent
    - `hosts`: a set of hosts that proves the time, ascending. The bytes of all groups within this
      set, divided by the sum of its rates, are the time.

    Groups of 0 bytes are ignored. Without bytes the time is 0, and the rest is empty. The time is
    raised from a lower bound until a maximum flow exists. Raises `KeyError` for a host without a
    rate, and `ZeroDivisionError` if all rates of an examined set of hosts are 0.
    """
    groups = [group for group in sorted(demand) if demand[group]]
    hosts = sorted({host for group in groups for host in group})
    if not groups:
        return Sharing(Fraction(0), (), {})
    binding = tuple(hosts)
    while True:
        # Only these hosts can send the bytes of the groups within them.
        inside = [group for group in groups if set(group) <= set(binding)]
        total = Fraction(sum(demand[group] for group in inside))
        time = total / sum((rate[host] for host in binding), Fraction(0))
        flow = _BipartiteFlow(groups, demand, hosts, {h: time * rate[h] for h in hosts})
        short = flow.short_hosts()
        if not short:
            return Sharing(time, binding, flow.shares())
        binding = short


class _BipartiteFlow:
    """Maximum flow from groups to hosts, by shortest augmenting paths."""

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
        """Return the bytes that each host sends for each group, by (group, host); pairs with 0
        bytes are absent.
        """
        return {key: share for key, share in self._shares.items() if share}

    def short_hosts(self) -> tuple[int, ...]:
        """Return the hosts that together have too little capacity, ascending; empty if all fits.

        They are the hosts that the last search for a path reached. Their capacity is less than the
        bytes that only they can send.
        """
        if not any(self._left.values()):
            return ()
        return tuple(sorted(self._reached))

    def _augment(self) -> bool:
        """Find a path from a group with bytes left to a host with room, and send bytes along it.

        Room is capacity that is left. Returns True if there is such a path. As many bytes as
        possible are sent (`_fill`). Otherwise returns False; shares and capacities stay unchanged.
        `self._reached` becomes the hosts that the search reached. Without a path, they are all
        hosts that groups with bytes left can reach.

        The path alternates between groups and hosts. It leads from a group to any of its hosts.
        From a host it leads to any group that has a share there, because this share can move to
        another host. The breadth-first search returns a path with the fewest groups. On a tie, it
        prefers the path whose first group comes first, then the hosts in the order of the groups'
        tuples.
        """
        # The predecessor of every reached host (a group) and of every reached group (a host).
        self._reached = {}
        previous_host: dict[Group, int | None] = {g: None for g in self._groups if self._left[g]}
        queue = deque(previous_host)
        while queue:
            group = queue.popleft()
            for host in group:
                if host in self._reached:
                    continue
                self._reached[host] = group
                if self._room[host]:
                    self._fill(host, previous_host)
                    return True
                for next_group in self._users[host]:
                    if next_group not in previous_host and self._shares[next_group, host]:
                        previous_host[next_group] = host
                        queue.append(next_group)
        return False

    def _fill(self, last: int, previous_host: Mapping[Group, int | None]) -> None:
        """Move as many bytes as possible along the path that ends at host `last`.

        A share is the number of bytes that a host sends for a group (`self._shares`). The path
        alternates between groups and hosts. `self._reached` has the group before each host.
        `previous_host` has the host before each group on the path, and None for the first group,
        which has unsent bytes.

        Each group on the path gains the amount at the host after it. Each group except the first
        loses the amount at the host before it. The amount is the minimum of the unsent bytes of the
        first group, the remaining capacity of `last`, and the shares that lose it. The unsent bytes
        and this capacity are reduced by the amount.
        """
        path: list[tuple[Group, int]] = []
        host: int | None = last
        while host is not None:
            group = self._reached[host]
            path.append((group, host))
            host = previous_host[group]
        first = path[-1][0]
        amount = min(self._left[first], self._room[last])
        # Along the path a group removes bytes from one host that it adds to the next.
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
    """A proven minimum time in ticks, and its reason.

    `kind`: `receiver` (all data that `hosts[0]` must receive), `senders` (all data that only
    `hosts` can send), `exclusive` (the data for all receivers, then the remaining data that only
    `hosts` can send), `task` (the unsplit task `task`), `nothing` (no bytes are sent).
    """

    kind: str
    ticks: Fraction
    hosts: tuple[int, ...] = ()
    task: int = -1

    @property
    def whole_ticks(self) -> int:
        """The bound rounded up; it holds for unsplit schedules, whose times are integral ticks."""
        return math.ceil(self.ticks)


def compute_fluid_bound(tasks: HostTasks) -> Bound:
    """Return the largest lower bound on the makespan, in ticks, that also holds if tasks are split.

    There are three: by the data of one receiver, by the data that a set of senders must send, and
    by tasks that all hosts receive (`exclusive`). Of equal ones, the first in this order counts.
    Without tasks it is the bound `nothing` of 0 ticks.
    """
    if not len(tasks):
        return Bound("nothing", Fraction(0))
    # Senders may share a task here, so the bound holds with and without splitting.
    sharing = share_among_senders(tasks, range(len(tasks)))
    out = Bound("senders", sharing.time_s / tasks.tick_s, sharing.hosts)
    # Among equal bounds, the first one has the simplest proof.
    return max(
        (compute_receiver_bound(tasks), out, compute_exclusive_bound(tasks)),
        key=lambda bound: bound.ticks,
    )


def compute_unsplit_bound(tasks: HostTasks) -> Bound:
    """Return the largest lower bound for schedules that do not split tasks, in ticks.

    It is the larger one of `compute_fluid_bound` and `compute_task_bound`; the first one wins ties.
    """
    fluid = compute_fluid_bound(tasks)
    longest = compute_task_bound(tasks)
    return longest if longest.ticks > fluid.ticks else fluid


def compute_receiver_bound(tasks: HostTasks) -> Bound:
    """Return the bound `receiver`: the time of the host that receives longest.

    The time is an exact fraction of ticks. For each host, it is the earliest release of the
    tasks that the host receives, plus all bytes of these tasks divided by the rate of all
    its cards in. Of several slowest hosts, the one with the smallest number is named.
    Without tasks the result is the bound `nothing` of 0 ticks.
    """
    load = compute_receiver_loads(tasks, range(len(tasks)))
    if not load:
        return Bound("nothing", Fraction(0))
    # Sorted, so that the proof is deterministic if loads are equal.
    busiest = max(sorted(load), key=lambda host: load[host])
    return Bound("receiver", load[busiest], (busiest,))


def compute_receiver_loads(tasks: HostTasks, chosen: Iterable[int]) -> dict[int, Fraction]:
    """Return the ticks after which each host can have received its tasks in `chosen`, by host.

    It is the earliest release of these tasks, plus their bytes divided by the rate of all
    cards of the host. Hosts that receive none of these tasks are absent. The order of the
    hosts is that of their first tasks.
    """
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
    """Return the shortest time in seconds in which the hosts can send the tasks in `chosen`.

    Tasks may be split arbitrarily among their senders, a host sends with all its cards at
    once, and release times and receivers do not limit. `shares` of the result has the bytes
    that each host sends, by (senders of the tasks, host). The time is 0 without tasks. See
    `find_least_sharing`.
    """
    demand: dict[tuple[int, ...], int] = {}
    for task in chosen:
        senders = tasks.senders[task]
        demand[senders] = demand.get(senders, 0) + tasks.bytes[task]
    rate = {host: tasks.network.out_rate[host] * tasks.cards for group in demand for host in group}
    return find_least_sharing(demand, rate)


def compute_exclusive_bound(tasks: HostTasks) -> Bound:
    """Return a lower bound on the makespan, in ticks, from tasks that all receivers get.

    Receivers are the hosts that receive at least one task. If hosts have one card, a task
    that all of them receive excludes every other task. So the bound is the sum of two
    times: the bytes of these tasks at the rate of the slowest receiver, and the shortest
    time in which the senders can send all other tasks. Release times do not count. The kind
    is `exclusive`, with the hosts that determine the second time. It is `nothing` with 0
    ticks if hosts have several cards, or if one of the two groups of tasks is empty.
    """
    everyone = tuple(sorted({host for hosts in tasks.receivers for host in hosts}))
    shared = [task for task in range(len(tasks)) if tasks.receivers[task] == everyone]
    rest = [task for task in range(len(tasks)) if tasks.receivers[task] != everyone]
    if not shared or not rest or tasks.cards > 1:
        return Bound("nothing", Fraction(0))
    slowest = min(tasks.network.in_rate[host] for host in everyone)
    first = Fraction(sum(tasks.bytes[task] for task in shared)) / slowest / tasks.tick_s
    sharing = share_among_senders(tasks, rest)
    return Bound("exclusive", first + sharing.time_s / tasks.tick_s, sharing.hosts)


def compute_task_bound(tasks: HostTasks) -> Bound:
    """Return a lower bound on the makespan, in ticks, from the task that must finish last.

    A task finishes at the earliest at its release plus its duration from the fastest
    sender, divided by its `work`. So the bound is valid for every strategy, also if no card
    carries the bytes several times. The first task wins ties. The kind is `task`; without
    tasks it is `nothing` with 0 ticks.
    """
    if not len(tasks):
        return Bound("nothing", Fraction(0))

    def end(task: int) -> Fraction:
        return tasks.release[task] + min(tasks.durations[task]) / tasks.work[task]

    longest = max(range(len(tasks)), key=end)
    return Bound("task", end(longest), task=longest)
