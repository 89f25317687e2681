"""Keep the fastest of candidates that come one after another, also where Ctrl-C ends the search."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar


class Searched(Protocol):
    """A dataclass of what a search found."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C has cut the search short."""


Found = TypeVar("Found", bound=Searched)


def fastest_of(candidates: Iterable[Found], time: Callable[[Found], int]) -> Found | None:
    """The candidate of least time, of equals the first; None where there is none.

    Ctrl-C, here or in the making of a candidate, ends the search: the best so far then comes back
    as interrupted. Where there is none yet, `KeyboardInterrupt` passes.
    """
    best: Found | None = None
    least = 0
    try:
        for found in candidates:
            # Each is timed once: that may take as long as to make it.
            taken = time(found)
            if best is None or taken < least:
                best, least = found, taken
            if found.is_interrupted:
                return replace(best, is_interrupted=True)
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, is_interrupted=True)
    return best
