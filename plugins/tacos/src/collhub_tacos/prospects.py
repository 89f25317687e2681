"""Which ways may still be the fastest with more pieces, by how far behind they were with fewer."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

# So many times the fastest of as many pieces is far behind, and so often in a row.
_FAR = 1.2
_OFTEN = 3
# A way that comes nearer by less than this is not seen to catch up.
_NEARER = 0.95


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

    A way has none left when it was far behind three times in a row, and came no nearer. The fastest
    way of a number of pieces always goes on.
    """

    def __init__(self) -> None:
        self._times: dict[int, dict[Way, float]] = {}

    def note(self, way: Way, pieces: int, time_ps: int | None) -> None:
        """What a way takes; None where that is more than anybody would compare."""
        self._times.setdefault(pieces, {})[way] = math.inf if time_ps is None else time_ps

    def are_good(self, way: Way, pieces: int) -> bool:
        """Whether a way should be tried with so many pieces, after all that had fewer."""
        rungs = [self._times[fewer] for fewer in sorted(self._times) if fewer < pieces]
        behind = [times[way] / min(times.values()) for times in rungs if way in times]
        if len(behind) < _OFTEN:
            return True
        *_, before, last = behind
        return min(behind[-_OFTEN:]) <= _FAR or last < _NEARER * before

    def has_place(self, form: str, place: int, pieces: int) -> bool:
        """Whether a spreading should be made, for one of its rules; a new one should."""
        ways = {way for times in self._times.values() for way in times}
        alike = [way for way in ways if (way.form, way.place) == (form, place)]
        return not alike or any(self.are_good(way, pieces) for way in alike)
