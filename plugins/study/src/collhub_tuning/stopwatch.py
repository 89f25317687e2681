"""Time algorithms at one size; the fastest algorithm is timed only once."""

from __future__ import annotations

from collections.abc import Callable

from hub_core import Algorithm
from hub_core.model import placement_of


class Stopwatch:
    """Nanoseconds of algorithms by `simulate`, None where a rank never finishes."""

    def __init__(self, simulate: Callable[[Algorithm], int | None]) -> None:
        self._simulate = simulate
        self._fastest: tuple[int, Algorithm] | None = None

    def time_ns(self, algorithm: Algorithm) -> int | None:
        """The time of an algorithm. Raises what the simulator does."""
        if self._fastest is not None and _runs_alike(algorithm, self._fastest[1]):
            return self._fastest[0]
        time_ns = self._simulate(algorithm)
        if time_ns is not None and (self._fastest is None or time_ns < self._fastest[0]):
            self._fastest = time_ns, algorithm
        return time_ns


def _runs_alike(algorithm: Algorithm, other: Algorithm) -> bool:
    """Whether they are one algorithm, but for what is said of it."""
    if algorithm.steps is not other.steps or algorithm.collective != other.collective:
        return False
    return placement_of(algorithm) == placement_of(other)
