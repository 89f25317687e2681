"""Parse and format lists of ranks such as `0,2,4-7`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hub_core.model.diagnostics import UsageError

_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
# Maximum number of ranks of a collective; a longer range is an error and would fill the memory.
_MOST_RANKS = 1 << 20


def parse_ranks(text: str, noun: str = "rank", wanted: int | None = None) -> tuple[int, ...]:
    """Convert `0,2,4-7` to (0, 2, 4, 5, 6, 7), in the order of the text.

    `noun`: name of an element in messages. Raises `UsageError` for other texts, for a rank that is
    listed twice, and unless the list has `wanted` elements (None: any number).
    """
    ranks: list[int] = []
    for part in text.split(","):
        run = _run(part)
        if run is None:
            message = f"{text[:80]!r} is not a list of {noun}s"
            raise UsageError(message, cure="write for example 0,2,4-7", code="invalid-ranks")
        ranks.extend(run)
    if len(set(ranks)) < len(ranks):
        doubled = next(rank for rank in ranks if ranks.count(rank) > 1)
        message = f"{noun} {doubled} stands more than once in {text[:80]!r}"
        raise UsageError(message, cure="name each once", code="invalid-ranks")
    if wanted not in (None, len(ranks)):
        message = f"{text[:80]!r} names {len(ranks)} {noun}s for {wanted} ranks"
        raise UsageError(message, cure="name one for each", code="invalid-ranks")
    return tuple(ranks)


def _run(part: str) -> range | None:
    """Convert `4-7` or `4` to a range; None for other texts and for more than 2^20 elements."""
    match = _PART.fullmatch(part.strip())
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    return range(first, last + 1) if first <= last < first + _MOST_RANKS else None


def format_ranks(ranks: Sequence[int]) -> str:
    """Format ranks as a text for `parse_ranks`; runs of three or more are joined: `0,2,4-7`."""
    parts: list[str] = []
    start = 0
    for end in range(1, len(ranks) + 1):
        if end == len(ranks) or ranks[end] != ranks[end - 1] + 1:
            run = ranks[start:end]
            parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
            start = end
    return ",".join(parts)
