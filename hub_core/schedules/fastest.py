"""Select the fastest of successively generated candidates, even after Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar


class Searched(Protocol):
    """A dataclass: result of a search, or a candidate of one."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C stopped the search early."""


Candidate = TypeVar("Candidate", bound=Searched)


def fastest_of(
    candidates: Iterable[Candidate], time: Callable[[Candidate], int]
) -> Candidate | None:
    """Return the candidate with minimum time, among equals the first; None without candidates.

    `time` is called once per candidate. On Ctrl-C, or after a candidate that is interrupted, the
    best candidate so far is returned with `is_interrupted=True`. Raises `KeyboardInterrupt` if
    there is no candidate yet.
    """
    best: Candidate | None = None
    best_time = 0
    try:
        for candidate in candidates:
            candidate_time = time(candidate)
            if best is None or candidate_time < best_time:
                best, best_time = candidate, candidate_time
            if candidate.is_interrupted:
                return replace(best, is_interrupted=True)
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, is_interrupted=True)
    return best
