"""Windows of sizes: the best algorithm for each, as few of them as the tolerance allows.

At every measured size the chosen algorithm takes at most `1 + tolerance` times the best one's time.
Of all ways to cut the sizes under this rule, taking again and again the algorithm that stays within
it longest makes the fewest windows: it never ends before any other way does. A border then moves
down as long as the later algorithm is the faster one there. Cost: sizes times algorithms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hub_core.plugin_api import SelectedWindow

Times = Mapping[str, Sequence[int | None]]


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Times of algorithms at sizes, in bytes and ascending; None where an algorithm does not fit.

    `tolerance`: share by which another algorithm may be better without being changed to.
    """

    sizes: tuple[int, ...]
    times_ns: Times
    tolerance: float

    def windows(self, names: Collection[str] | None = None) -> tuple[SelectedWindow, ...]:
        """Windows of some algorithms (None: of all), from 0 bytes on, the last one open.

        A window begins at the first of its measured sizes and ends one byte before the next one.
        Sizes at which none of them fits count as not measured.
        """
        times = {name: self.times_ns[name] for name in self.times_ns if _is_in(name, names)}
        places = [place for place in range(len(self.sizes)) if _best(times, place) is not None]
        runs = _earlier_borders(_longest_runs(times, places, self.tolerance), times)
        found = []
        for number, (name, run) in enumerate(runs):
            least = self.sizes[run[0]] if number else 0
            is_last = number == len(runs) - 1
            most = None if is_last else self.sizes[runs[number + 1][1][0]] - 1
            found.append(SelectedWindow(least, most, name, tuple(self.sizes[at] for at in run)))
        return tuple(found)

    def slowdowns(self, sizes: Collection[int]) -> dict[str, float]:
        """Mean time over that of the fastest by algorithm that fits all sizes, the best first."""
        places = [place for place, size in enumerate(self.sizes) if size in sizes]
        means: dict[str, float] = {}
        for name, times in self.times_ns.items():
            ratios = [_ratio(times[place], _best(self.times_ns, place)) for place in places]
            known = [ratio for ratio in ratios if ratio is not None]
            if known and len(known) == len(places):
                means[name] = sum(known) / len(known)
        return dict(sorted(means.items(), key=lambda item: item[1]))

    def time_ns(self, name: str, size: int) -> int | None:
        """The time of an algorithm at a measured size."""
        # None: it failed at this size.
        return self.times_ns[name][self.sizes.index(size)]


_Run = tuple[str, list[int]]


def _longest_runs(times: Times, places: Sequence[int], tolerance: float) -> list[_Run]:
    """Algorithms and the places that they take, in order."""
    runs: list[_Run] = []
    start = 0
    while start < len(places):
        lengths = {name: _length(times, name, places[start:], tolerance) for name in times}
        most = max(lengths.values())
        taken = list(places[start : start + most])
        able = [name for name, length in lengths.items() if length == most]
        # Of those that last as long the fastest; of equal ones the first.
        runs.append((min(able, key=lambda name: _mean(times, name, taken)), taken))
        start += most
    return runs


def _length(times: Times, name: str, places: Sequence[int], tolerance: float) -> int:
    """At how many places, from the first one on, an algorithm is good enough."""
    for number, place in enumerate(places):
        ratio = _ratio(times[name][place], _best(times, place))
        if ratio is None or ratio > 1 + tolerance:
            return number
    return len(places)


def _earlier_borders(runs: list[_Run], times: Times) -> list[_Run]:
    """The same runs, each begun where its algorithm is faster than the one before."""
    for (name, run), (later, behind) in pairwise(runs):
        while len(run) > 1 and _is_faster(times, later, name, run[-1]):
            behind.insert(0, run.pop())
    return runs


def _is_faster(times: Times, name: str, than: str, place: int) -> bool:
    one, other = times[name][place], times[than][place]
    return one is not None and other is not None and one < other


def _mean(times: Times, name: str, places: Sequence[int]) -> float:
    ratios = [_ratio(times[name][place], _best(times, place)) or 1.0 for place in places]
    return sum(ratios) / len(ratios)


def _best(times: Times, place: int) -> int | None:
    known = [one[place] for one in times.values()]
    return min((time_ns for time_ns in known if time_ns is not None), default=None)


def _ratio(time_ns: int | None, best_ns: int | None) -> float | None:
    # A time of nothing is that of one rank alone, where all are alike.
    if time_ns is None or best_ns is None:
        return None
    return time_ns / best_ns if best_ns else 1.0


def _is_in(name: str, names: Collection[str] | None) -> bool:
    return names is None or name in names
