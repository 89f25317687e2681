"""Schedules of a packing: into how many chunks the share of every tree is cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collhub_packing.pipelining import Pipeline, Pipelining

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.streams import pipelining_of
from hub_core.model import InputError
from hub_core.network import Occupancy

_MOST_CHUNKS = 1 << 14
_MOST_MESSAGES = 1 << 20
# Where messages meet at switches, the simulator has to time every schedule that counts.
_MOST_MESSAGES_THROUGH_SWITCHES = 1 << 17
# Twice the chunks are twice the steps of the algorithm: worth a gain of one part in so many.
_WORTHWHILE_PART = 100
_HALVINGS = (1, 2)
# After so many numbers in a row without a gain, a search in one direction ends.
_MOST_FAILURES = 2
# As many messages of one link may be on their way at once, see
# `collhub_schedules.Transfers.window`.
_MOST_ON_THE_WAY = 12


@dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """A schedule with about `chunks` chunks on the widest tree."""

    chunks: int
    pipeline: Pipeline


class Schedules:
    """The schedules of one packing by their number of chunks, each made once."""

    def __init__(self, task: PackingTask, packing: PlacedPacking) -> None:
        self._pipelining = pipelining_of(task, packing)
        self._weights = packing.weights
        self._made: dict[int, Scheduled | None] = {}

    def stated(self, chunks: int) -> Scheduled:
        """With so many chunks on the widest tree. Raises `InputError` below a byte a chunk."""
        counts = chunk_counts(self._weights, chunks)
        return Scheduled(chunks, self._pipelining.schedule(counts))

    def sensible(self, chunks: int) -> Scheduled | None:
        """The same, None where so many chunks make no sense."""
        if chunks not in self._made:
            self._made[chunks] = self._sensible(chunks)
        return self._made[chunks]

    def _sensible(self, chunks: int) -> Scheduled | None:
        if not chunks:
            return None
        counts = chunk_counts(self._weights, chunks)
        if chunks > 1 and not _is_sensible(self._pipelining, counts):
            return None
        try:
            return self.stated(chunks)
        # A chunk would have less than a byte.
        except InputError:
            return None


def best_schedule(schedules: Schedules, near: int = 1) -> Scheduled | None:
    """The one with the best number of chunks, None where the data is too small to share out.

    `near`: a number of chunks that is good for another packing; the search begins at a quarter.
    Multiplicative increase as Blink's (Wang et al., MLSys 2020, section 4), judged by the
    schedule itself, while the time falls by a hundredth; then the numbers half way to the
    neighbours. Ctrl-C ends the search; without a schedule it is raised again.
    """
    best: Scheduled | None = None
    try:
        for found in _candidates(schedules, max(1, near // 4)):
            if best is None or _is_worthwhile(best, found):
                best = found
    except KeyboardInterrupt:
        if best is None:
            raise
    return best


def coarser(schedules: Schedules, found: Scheduled) -> Iterator[Scheduled]:
    """Those with a half and a quarter of the chunks of a schedule."""
    for halvings in _HALVINGS:
        other = schedules.sensible(found.chunks >> halvings)
        if other is not None:
            yield other


def chunk_counts(weights: Sequence[int], chunks: int) -> list[int]:
    """Chunks of every tree when the widest has about `chunks`.

    All of one size, or powers of two where that is too many.
    """
    divisor = math.gcd(*weights)
    widest = max(weights)
    if chunks * divisor >= widest:
        # Chunks of one size, so that all trees end together.
        times = max(1, round(chunks * divisor / widest))
        return [times * weight // divisor for weight in weights]
    # Narrow trees would have less than one chunk of that size.
    return [_power_of_two_near(chunks * weight / widest) for weight in weights]


def _power_of_two_near(count: float) -> int:
    """The power of two next to a number, at least 1."""
    exponent = round(math.log2(count))
    return 1 << max(0, exponent)


def _candidates(
    schedules: Schedules,
    first: int,
) -> Iterator[Scheduled]:
    """Twice the chunks while that helps, else half as long as that does.

    Then between the best and its neighbours.
    """
    best: Scheduled | None = None
    times_ps: dict[int, int] = {}
    for is_upward in (True, False):
        for found in _in_direction(schedules, first, is_upward, best):
            yield found
            times_ps[found.chunks] = found.pipeline.time_ps
            if best is None or _is_worthwhile(best, found):
                best = found
        # More chunks than at first were better, so fewer are not.
        if best is not None and best.chunks > first:
            break
    if best is None or best.chunks == 1:
        return
    for between in _neighbours(best.chunks, times_ps):
        near = schedules.sensible(between)
        if near is not None:
            yield near


def _neighbours(best: int, times_ps: Mapping[int, int]) -> Iterator[int]:
    """Numbers half way to the neighbours of the best one, which doubling has passed over.

    None where twice the chunks still gain a little, since nothing before gains more; none below
    where gains halve alone: then every chunk costs next to nothing, and the optimum is above.
    """
    time_ps = times_ps[best]
    if times_ps.get(2 * best, time_ps) < time_ps:
        return
    half = times_ps.get(best // 2, time_ps)
    quarter = times_ps.get(best // 4, half)
    # Of a + b / chunks + c * chunks, a third stands for an optimum at 1.12 times the best.
    if 3 * (half - time_ps) < quarter - half or quarter <= half:
        yield best * 3 // 4
    yield best * 3 // 2


def _in_direction(
    schedules: Schedules,
    first: int,
    is_upward: bool,
    best: Scheduled | None,
) -> Iterator[Scheduled]:
    """Schedules with ever more, or ever fewer, chunks, until two in a row do not help."""
    chunks = first if is_upward else first // 2
    failures = 0
    before: Scheduled | None = None
    while 0 < chunks <= _MOST_CHUNKS and failures < _MOST_FAILURES:
        found = schedules.sensible(chunks)
        if found is None:
            return
        yield found
        if best is not None and before is not None and _is_flat(before, found, best):
            return
        before = found if is_upward else None
        if best is None or _is_worthwhile(best, found):
            best, failures = found, 0
        else:
            failures += 1
        chunks = chunks * 2 if is_upward else chunks // 2


def _is_worthwhile(best: Scheduled, found: Scheduled) -> bool:
    """Whether a schedule is faster, by a hundredth where it has more chunks."""
    gain = best.pipeline.time_ps - found.pipeline.time_ps
    if found.chunks > best.chunks:
        return gain * _WORTHWHILE_PART > best.pipeline.time_ps
    return gain > 0


def _is_flat(before: Scheduled, found: Scheduled, best: Scheduled) -> bool:
    """Whether ever more chunks would not be worthwhile, after twice the chunks of `before`.

    A chunk costs what it waits at every hop, which halves with its size: all further doublings
    together gain no more than the last one.
    """
    # Few chunks of narrow trees are as many as before.
    if 8 * len(found.pipeline.transfers) < 15 * len(before.pipeline.transfers):
        return False
    gain = before.pipeline.time_ps - found.pipeline.time_ps
    least = found.pipeline.time_ps - max(0, gain)
    return (best.pipeline.time_ps - least) * _WORTHWHILE_PART < best.pipeline.time_ps


def _is_sensible(pipelining: Pipelining, counts: Sequence[int]) -> bool:
    """Whether messages are not too many, and so large that few are on their way on a link."""
    topology = pipelining.topology
    has_switches = topology.num_nodes > topology.num_npus
    most = _MOST_MESSAGES_THROUGH_SWITCHES if has_switches else _MOST_MESSAGES
    if _message_count(pipelining, counts) > most:
        return False
    smallest = _smallest_chunk(pipelining, counts)
    return smallest * (_MOST_ON_THE_WAY - 1) >= _bytes_on_the_way(pipelining)


def _message_count(pipelining: Pipelining, counts: Sequence[int]) -> int:
    """Messages of all chunks of all trees."""
    messages = 0
    for stream in pipelining.streams:
        messages += counts[stream.tree] * len(stream.operations)
    return messages


def _bytes_on_the_way(pipelining: Pipelining) -> float:
    """The most bytes that a link has on its way while it waits for no message to arrive."""
    # A link that is held until the message arrives has one on its way.
    if pipelining.occupancy is Occupancy.ALPHA_BETA:
        return 0.0
    topology = pipelining.topology
    on_the_way = topology.bandwidth_bytes_per_s * topology.latency_s
    return float(on_the_way.max(initial=0.0))


def _smallest_chunk(pipelining: Pipelining, counts: Sequence[int]) -> Fraction:
    """Bytes of the smallest chunk."""
    collective = pipelining.collective
    shares = collective.kind.traits.parts(collective.num_ranks)
    parts = [stream.part / counts[stream.tree] for stream in pipelining.streams]
    return min(parts) * pipelining.collective_bytes / shares
