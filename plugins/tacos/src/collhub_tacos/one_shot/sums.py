"""Vectors that one NPU has in an all-reduce by partial sums, and how they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

OWN = 0
"""Number of the NPU's own contribution among its vectors."""
# An addition takes a nanosecond in simulators, at least.
_ADDITION_PS = 1000


@dataclass(slots=True)
class Vector:
    """Own contribution of an NPU, what arrives there, or the sum of two other vectors.

    `time_ps`: when it is there on idle links. `message`: which one brings it, -1 for none. `left`,
    `right`: what it is the sum of, -1 for none. `uses`: sends and additions that read it. `adder`:
    the last sum that was made of it, -1 for none. The others are filled while steps are made:
    `slot` in SCRATCH, -1 for none; `steps`: by piece, the step that writes it.
    """

    time_ps: int
    message: int = -1
    left: int = -1
    right: int = -1
    uses: int = 0
    adder: int = -1
    slot: int = -1
    steps: list[int] = field(default_factory=list)


class Vectors:
    """Vectors of one NPU; of two sums that begin alike, the beginning is made once."""

    def __init__(self) -> None:
        self.vectors = [Vector(0)]
        self._sums: dict[tuple[int, int], int] = {}

    def __getitem__(self, number: int) -> Vector:
        return self.vectors[number]

    def arriving(self, message: int, time_ps: int) -> int:
        """Number of the vector that a message brings."""
        # Nobody reads it yet.
        self.vectors.append(Vector(time_ps, message))
        return len(self.vectors) - 1

    def total(self, parts: Sequence[int]) -> int:
        """Number of the sum of some vectors.

        The two that are there first are added first, and their sum is one of those that are left:
        so parts that come one by one are added as they come, and those of one instant in a tree.
        """
        ahead = sorted((self.vectors[part].time_ps, part) for part in parts)
        while len(ahead) > 1:
            one, other = ahead[0][1], ahead[1][1]
            added = self._sum(min(one, other), max(one, other))
            ahead = sorted([*ahead[2:], (self.vectors[added].time_ps, added)])
        return ahead[0][1]

    def _sum(self, left: int, right: int) -> int:
        if (left, right) in self._sums:
            return self._sums[left, right]
        number = len(self.vectors)
        latest = 0
        for part in (left, right):
            vector = self.vectors[part]
            vector.uses += 1
            vector.adder = number
            latest = max(latest, vector.time_ps)
        self.vectors.append(Vector(latest + _ADDITION_PS, left=left, right=right))
        self._sums[left, right] = number
        return number
