"""Sharing bytes among senders: the least rate of work that no set of hosts exceeds, by max-flow.

Newton's method on the ratio (Dinkelbach 1967): a flow that does not fit shows a set of hosts that
must do more, whose ratio is the next guess. Every guess is a bound, the last one is reached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sharing:
    """The least time in which hosts can send all groups, and how.

    `hosts`: the set that needs all of it (a Hall set). `shares`: bytes by group and host.
    """

    time_s: Fraction
    hosts: tuple[int, ...]
    shares: Mapping[tuple[Group, int], Fraction]


def least_sharing(demand: Mapping[Group, int], rate: Mapping[int, Fraction]) -> Sharing:
    """Share every group's bytes among its hosts so that the busiest host ends earliest.

    `demand`: bytes by the hosts that may send them. `rate`: bytes per second by host.
    """
    groups = [group for group in sorted(demand) if demand[group]]
    hosts = sorted({host for group in groups for host in group})
    if not groups:
        return Sharing(Fraction(0), (), {})
    binding = tuple(hosts)
    time = _ratio(groups, demand, binding, rate)
    while True:
        flow = _BipartiteFlow(groups, demand, hosts, {h: time * rate[h] for h in hosts})
        short = flow.short_hosts()
        if not short:
            return Sharing(time, binding, flow.shares())
        binding = short
        inside = [group for group in groups if set(group) <= set(short)]
        time = _ratio(inside, demand, short, rate)


def _ratio(
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
