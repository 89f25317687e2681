"""Into how many chunks to cut the share of every tree: double while the time falls, then look between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from collhub_packing.pipelining import Pipeline, Pipelining

from hub_core.diagnostics import InputError

__all__ = ["Chunked", "best_chunks", "chunk_counts"]

_MOST_CHUNKS = 1 << 14
_MOST_MESSAGES = 1 << 20
# Twice the chunks are twice the steps of the algorithm: worth a gain of one part in so many, no less.
_WORTHWHILE_PART = 100


@dataclass(frozen=True, slots=True, eq=False)
class Chunked:
    """A schedule with `chunks` chunks on the widest tree."""

    chunks: int
    pipeline: Pipeline


def chunk_counts(weights: Sequence[int], chunks: int) -> list[int]:
    """Chunks of every tree when the widest has about `chunks`: all of one size, or powers of two where that is too many."""
    divisor = math.gcd(*weights)
    widest = max(weights)
    if chunks * divisor >= widest:
        times = max(1, round(chunks * divisor / widest))
        return [times * weight // divisor for weight in weights]
    return [1 << max(0, round(math.log2(chunks * weight / widest))) for weight in weights]


def best_chunks(pipelining: Pipelining, weights: Sequence[int]) -> Chunked | None:
    """The fastest schedule over the numbers of chunks; None where the data is too small to be shared out.

    Multiplicative increase as Blink's (Wang et al., MLSys 2020, section 4), judged by the schedule itself, while the time
    falls by a hundredth; then the numbers half way to the neighbours. Ctrl-C ends the search; without a schedule it is
    raised again.
    """
    best: Chunked | None = None
    try:
        for found in _search(lambda chunks: _scheduled(pipelining, weights, chunks)):
            if best is None or _is_worthwhile(best, found):
                best = found
    except KeyboardInterrupt:
        if best is None:
            raise
    return best


def _is_worthwhile(best: Chunked, found: Chunked) -> bool:
    """Whether a schedule is faster, by a hundredth where it has more chunks."""
    gain = best.pipeline.time_ps - found.pipeline.time_ps
    return gain * _WORTHWHILE_PART > best.pipeline.time_ps if found.chunks > best.chunks else gain > 0


def _search(schedule: Callable[[int], Chunked | None]) -> Iterator[Chunked]:
    best: Chunked | None = None
    chunks, failures = 1, 0
    while chunks <= _MOST_CHUNKS and failures < 2 and (found := schedule(chunks)) is not None:
        yield found
        failures += 1
        if best is None or _is_worthwhile(best, found):
            best, failures = found, 0
        chunks *= 2
    if best is not None and best.chunks > 1:
        for between in (best.chunks * 3 // 4, best.chunks * 3 // 2):
            if (found := schedule(between)) is not None:
                yield found


def _scheduled(pipelining: Pipelining, weights: Sequence[int], chunks: int) -> Chunked | None:
    counts = chunk_counts(weights, chunks)
    if chunks > 1 and sum(counts[stream.tree] * len(stream.operations) for stream in pipelining.streams) > _MOST_MESSAGES:
        return None
    try:
        return Chunked(chunks, pipelining.schedule(counts))
    except InputError:
        return None
