"""Which ways may still be the fastest with more pieces, by how far behind they were with fewer."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

# So many times the fastest of as many pieces is far behind, by a simulator and by the own clock of
# plans, and so often in a row.
_FAR, _FAR_OF_PARTS = 1.4, 1.12
_OFTEN = 2
# A way that gains less than this by twice the pieces has its pipeline full: it does not catch up.
_FASTER = 0.9
# Numbers of pieces that differ by less say nothing of that.
_APART = 1.5
# Twice the pieces gain half as much once more where a pipeline fills: a way that is so far behind
# after so many times its last gain does not catch up, either.
_CATCHES_UP, _GAINS_LEFT = 1.02, 2.0


@dataclass(frozen=True, slots=True)
class Way:
    """How candidates are made, whatever the number of pieces.

    `form`: of the algorithm; `place`: of its spreading among those of the form; `rule`: of windows.
    """

    form: str
    place: int
    rule: Hashable


class Prospects:
    """Times of ways by number of pieces.

    A way has none left when it was far behind several times in a row, and gained little; or behind
    by more than what it may still gain. The fastest way of a number of pieces always goes on.
    """

    def __init__(self, far: float = _FAR) -> None:
        self._far = far
        self._times: dict[int, dict[Way, float]] = {}
        self._parts: dict[str, Prospects] = {}

    def of_part(self, name: str) -> Prospects:
        """Those of the ways of a part of the work, whose times are an account of their own."""
        return self._parts.setdefault(name, Prospects(_FAR_OF_PARTS))

    def note(self, way: Way, pieces: int, time_ps: int | None) -> None:
        """What a way takes; None where that is more than anybody would compare."""
        self._times.setdefault(pieces, {})[way] = math.inf if time_ps is None else time_ps

    def least_ps(self, pieces: int) -> float:
        """What the fastest way of so many pieces takes, infinite for none."""
        times = self._times.get(pieces, {})
        return min(times.values(), default=math.inf)

    def are_good(self, way: Way, pieces: int) -> bool:
        """Whether a way should be tried with so many pieces, after all that had fewer."""
        # A rung that left the way out says nothing of it.
        tried = [rung for rung in sorted(self._times) if rung < pieces and way in self._times[rung]]
        if len(tried) < _OFTEN:
            return True
        if not any(self._may_catch_up(way, tried, rung) for rung in tried[-_OFTEN:]):
            return False
        behind = [self._behind(way, rung) for rung in tried[-_OFTEN:]]
        return min(behind) <= self._far or self._gains(way, tried)

    def _may_catch_up(self, way: Way, tried: Sequence[int], rung: int) -> bool:
        """Whether a way could reach what was the fastest, by what it had gained by then."""
        time_ps, fewer = self._times[rung][way], [one for one in tried if one <= rung / _APART]
        if not fewer or math.isinf(time_ps):
            return True
        gained_ps = max(0.0, self._times[fewer[-1]][way] - time_ps)
        fastest_ps = min(self._times[rung].values())
        return time_ps - _GAINS_LEFT * gained_ps <= _CATCHES_UP * fastest_ps

    def _behind(
        self,
        way: Way,
        pieces: int,
    ) -> float:
        """What a way takes by what the fastest takes with as many pieces."""
        times = self._times[pieces]
        return times[way] / min(times.values())

    def _gains(self, way: Way, tried: Sequence[int]) -> bool:
        """Whether a way was made much faster the last time that it had many more pieces."""
        last = tried[-1]
        fewer = [rung for rung in tried if rung <= last / _APART]
        if not fewer:
            return True
        enough: float = _FASTER ** math.log2(last / fewer[-1])
        return self._times[last][way] < enough * self._times[fewer[-1]][way]

    def has_place(self, form: str, place: int, pieces: int) -> bool:
        """Whether a spreading should be made, for one of its rules; a new one should."""
        ways = {way for times in self._times.values() for way in times}
        alike = [way for way in ways if (way.form, way.place) == (form, place)]
        return not alike or any(self.are_good(way, pieces) for way in alike)


@dataclass(frozen=True, slots=True)
class Trials:
    """Plans of one kind with one number of pieces, by their places among all of the kind."""

    prospects: Prospects = field(default_factory=Prospects)
    pieces: int = 1

    def is_worth(self, place: int) -> bool:
        """Whether a plan should be put in time, after what it took with fewer pieces."""
        return self.prospects.are_good(Way("plan", place, None), self.pieces)

    def note(self, place: int, time_ps: int) -> None:
        """What a plan takes, in picoseconds."""
        self.prospects.note(Way("plan", place, None), self.pieces, time_ps)
