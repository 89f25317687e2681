"""Paths of edges between the nodes of a network, and how vertices that only pass on vanish.

Rule of the contraction: NPUs stay. Another vertex of degree 0 or 1 is dropped; one of degree 2
whose neighbours are not yet joined becomes part of the link between them. What remains forwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Hop:
    """A path of edges from vertex `one` to `other`, over vertices that only pass data on.

    `bandwidths`, `latencies`: what its edges state, in bytes per second and in seconds. `links`:
    rows of their links, in order. `positions`: of the links there and back, where the hub's own
    annotation says so: each None where there is no such link.
    """

    one: int
    other: int
    links: tuple[int, ...]
    bandwidths: tuple[float, ...] = ()
    latencies: tuple[float, ...] = ()
    positions: tuple[int | None, int | None] | None = None

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """The least that an edge of the path states, None where none states any."""
        return min(self.bandwidths, default=None)

    @property
    def latency_s(self) -> float | None:
        """The sum of what the edges of the path state, None where none states any."""
        return sum(self.latencies) if self.latencies else None

    def turned(self) -> Hop:
        """The same path from its other end."""
        positions = None if self.positions is None else self.positions[::-1]
        back = replace(
            self,
            one=self.other,
            other=self.one,
            positions=positions,
        )
        return replace(back, links=self.links[::-1])

    def with_next(self, after: Hop) -> Hop:
        """This path and the one that goes on where it ends."""
        return Hop(
            self.one,
            after.other,
            self.links + after.links,
            self.bandwidths + after.bandwidths,
            self.latencies + after.latencies,
            self.positions or after.positions,
        )


class Contraction:
    """The hops of a graph while vertices vanish.

    `kept`: which vertices stay whatever their degree. `keeps_parallel`: whether a vertex of degree
    2 vanishes even between neighbours that are joined, so that parallel cables remain.
    """

    def __init__(self, hops: Sequence[Hop], kept: Sequence[bool], keeps_parallel: bool) -> None:
        self._kept = kept
        self._keeps_parallel = keeps_parallel
        self._hops = dict(enumerate(hops))
        self._at: list[list[int]] = [[] for _ in kept]
        self._joined: Counter[tuple[int, int]] = Counter()
        self.is_gone = [False] * len(kept)
        for number, hop in self._hops.items():
            self._join(number, hop)

    def run(self) -> list[Hop]:
        """The hops that are left, in the order of the first edge of each."""
        vanished = 1
        # A vertex that vanishes lowers the degree of others, so that they may follow it.
        while vanished:
            vanished = sum(self._vanishes(vertex) for vertex in range(len(self._kept)))
        return [self._hops[number] for number in sorted(self._hops)]

    def _vanishes(self, vertex: int) -> bool:
        """Whether a vertex can be left out, and its removal where it can."""
        if self._kept[vertex] or self.is_gone[vertex] or len(self._at[vertex]) > 2:
            return False
        if len(self._at[vertex]) == 2 and not self._contract(vertex):
            return False
        self.is_gone[vertex] = True
        for number in list(self._at[vertex]):
            self._leave(number)
        return True

    def _contract(self, vertex: int) -> bool:
        """Join the two neighbours of a vertex directly, if they may be."""
        first, second = sorted(self._at[vertex])
        before, after = self._hops[first], self._hops[second]
        # An edge has no direction: both are turned so that they follow one another.
        if before.other != vertex:
            before = before.turned()
        if after.one != vertex:
            after = after.turned()
        pair = _pair(before.one, after.other)
        if before.one == after.other or (self._joined[pair] and not self._keeps_parallel):
            # A cable back to where it came from carries nothing.
            return before.one == after.other
        self._leave(first)
        self._leave(second)
        # The number of the first: hops stay in the order of the document.
        self._hops[first] = before.with_next(after)
        self._join(first, self._hops[first])
        return True

    def _join(
        self,
        number: int,
        hop: Hop,
    ) -> None:
        self._at[hop.one].append(number)
        self._at[hop.other].append(number)
        self._joined[_pair(hop.one, hop.other)] += 1

    def _leave(self, number: int) -> None:
        hop = self._hops.pop(number)
        self._at[hop.one].remove(number)
        self._at[hop.other].remove(number)
        self._joined[_pair(hop.one, hop.other)] -= 1


def _pair(
    one: int,
    other: int,
) -> tuple[int, int]:
    return (one, other) if one < other else (other, one)
