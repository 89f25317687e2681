"""Schedules of a packing: into how many chunks the share of every tree is cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from collhub_packing.pipelining import Pipeline, Pipelining

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.streams import pipelining_of
from hub_core.model import InputError
from hub_core.network import Occupancy

_MOST_CHUNKS = 1 << 14
_MOST_MESSAGES = 1 << 20
# Of schedules that are compared before finer ones are made, and of those that cost little.
_MOST_ROUGH_MESSAGES = 1 << 16
_MOST_CHEAP_MESSAGES = 1 << 18
# Each chunk more costs steps, which all who work on the algorithm pay: they must save such parts of
# the time. Where twice the chunks save 0.3 %, filling takes 0.6 %.
WORTH_OF_HALF, WORTH_OF_QUARTER = 3e-3, 5e-3
# As many messages of one link may be on their way at once, see
# `collhub_schedules.Transfers.window`.
_MOST_ON_THE_WAY = 12


@dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """A schedule with about `chunks` chunks on the widest tree.

    `slack`: for how many turns, each of a chunk of every tree, data lie before they are sent on.
    """

    chunks: int
    pipeline: Pipeline
    slack: float = 0.0

    @property
    def has_turns(self) -> bool:
        """Whether messages of a link wait for others of it."""
        return bool(self.pipeline.transfers.window.any())


def schedule(task: PackingTask, packing: PlacedPacking) -> Scheduled | None:
    """The schedule with the stated number of chunks, or with about the best one.

    A rougher one where that takes a time within which there is another algorithm. None where the
    data is too small to share out. Ctrl-C ends the search; without a schedule it is raised again.
    """
    pipelining = pipelining_of(task, packing)
    if task.chunks is not None:
        counts = chunk_counts(packing.weights, task.chunks)
        return Scheduled(task.chunks, pipelining.schedule(counts))
    search = _CountSearch(pipelining, packing.weights)
    try:
        search.run(fluid_ns(task, packing), task.within_ns)
    except KeyboardInterrupt:
        if search.best is None:
            raise
    return search.best


# A search asks for the same few packings of one task again and again.
@lru_cache(maxsize=16)
def fluid_ns(task: PackingTask, packing: PlacedPacking) -> float:
    """Nanoseconds of the data at the rate of a packing, without latency.

    On the routes that messages take, which may be others than those of the packing.
    """
    pipelining = pipelining_of(task, packing)
    routes, topology = pipelining.routes, pipelining.topology
    parts = [float(stream.part) for stream in pipelining.streams]
    widths = [len(stream.operations) for stream in pipelining.streams]
    # The part of a share that every operation moves, on every link of its route.
    moved = np.repeat(parts, widths)
    passing = np.repeat(moved, np.diff(routes.indptr))
    load = np.bincount(routes.links, passing, len(topology.source))
    share_bytes = task.collective_bytes / pipelining.num_shares
    return float((load / topology.bandwidth_bytes_per_s).max() * share_bytes * 1e9)


def finest_ns(time_ns: float, flows_ns: float) -> float:
    """About what four times the chunks would take at least.

    `flows_ns`: what the data take at the rate of their packing; the rest of `time_ns` fills
    pipelines, and shrinks in proportion at best.
    """
    return flows_ns + (time_ns - flows_ns) / 4


def rough(task: PackingTask, packing: PlacedPacking) -> Scheduled | None:
    """The schedule with the stated number of chunks, or with few that cost little.

    With at most a quarter of the most chunks that make sense.
    """
    if task.chunks is not None:
        return _scheduled(pipelining_of(task, packing), packing.weights, task.chunks)
    pipelining = pipelining_of(task, packing)
    # Finer ones follow: so there must be room for them.
    quarter = _most_chunks(pipelining, packing.weights, _MOST_MESSAGES) // 4
    few = _most_chunks(pipelining, packing.weights, _MOST_ROUGH_MESSAGES)
    return with_chunks(task, packing, max(1, min(quarter, few)))


@lru_cache(maxsize=32)
def most_chunks(task: PackingTask, packing: PlacedPacking, *, is_cheap: bool = False) -> int:
    """The most chunks that make sense, at least 1; `is_cheap`: of those that cost little."""
    most = _MOST_CHEAP_MESSAGES if is_cheap else _MOST_MESSAGES
    return _most_chunks(pipelining_of(task, packing), packing.weights, most)


def with_chunks(
    task: PackingTask, packing: PlacedPacking, chunks: int, slack: float = 0.0
) -> Scheduled | None:
    """The schedule with so many chunks, None where a chunk would have less than a byte."""
    turn_ns = fluid_ns(task, packing) / chunks
    slack_ps = 1000 * slack * turn_ns
    pipelining = pipelining_of(task, packing)
    return _scheduled(pipelining, packing.weights, chunks, slack, int(slack_ps))


def halved(task: PackingTask, packing: PlacedPacking, found: Scheduled) -> Scheduled | None:
    """The schedule with half as many chunks; None for the half of one."""
    return _scheduled(pipelining_of(task, packing), packing.weights, found.chunks // 2)


def without_turns(found: Scheduled) -> Scheduled:
    """The same messages, each sent as soon as its data are there, in any order."""
    transfers = found.pipeline.transfers
    free = replace(transfers, window=np.zeros(len(transfers), np.int64))
    return Scheduled(found.chunks, replace(found.pipeline, transfers=free))


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


class _CountSearch:
    """Schedules of a packing by their number of chunks on the widest tree."""

    def __init__(
        self,
        pipelining: Pipelining,
        weights: Sequence[int],
    ) -> None:
        self._pipelining = pipelining
        self._weights = weights
        self._most = _most_chunks(pipelining, weights, _MOST_MESSAGES)
        self._made: dict[int, Scheduled | None] = {}
        self.best: Scheduled | None = None

    def run(self, flows_ns: float, within_ns: float | None) -> None:
        """From the most chunks on ever fewer: quarters, while that costs little, then a half.

        In large data the most are mostly the best, so that few schedules are made. Times of few
        chunks are too uneven to tell those of many. `flows_ns`, `within_ns`: the time at the rate
        of the packing, and one that is reached already.
        """
        count = self._most
        quarter = self.with_chunks(count // 4)
        if quarter is not None:
            time_ns = quarter.pipeline.time_ps / 1000
            is_as_good = time_ns <= (1 + WORTH_OF_QUARTER) * flows_ns
            is_too_late = within_ns is not None and finest_ns(time_ns, flows_ns) >= within_ns
            if is_too_late:
                self.best = quarter
                return
            # As good as any, without a look at what more chunks take.
            count = quarter.chunks if is_as_good else count
        while count and self._is_good(count, WORTH_OF_QUARTER):
            count //= 4
        if self.best is not None and self._may_half_do(self.best):
            self._is_good(self.best.chunks // 2, WORTH_OF_HALF)

    def _may_half_do(self, found: Scheduled) -> bool:
        """Whether half of the chunks may be as good, by what a quarter of them has lost."""
        quarter = self._made.get(found.chunks // 4)
        if quarter is None:
            return True
        # A pipeline of half the chunks takes twice as long to fill, of a quarter four times.
        return _part_lost(found, quarter) / 3 <= 2 * WORTH_OF_HALF

    def _is_good(self, count: int, worth: float) -> bool:
        """Whether so many chunks are the best so far: if all more take not that much less."""
        found = self.with_chunks(count)
        if found is None:
            # Fewer chunks are larger: each then has a byte at least.
            return count > 0
        if self.best is not None and _part_lost(self.best, found) > worth:
            return False
        self.best = found
        return True

    def with_chunks(self, count: int) -> Scheduled | None:
        """The schedule with so many chunks, None where that makes no sense."""
        if count > self._most:
            return None
        if count not in self._made:
            self._made[count] = _scheduled(self._pipelining, self._weights, count)
        return self._made[count]


def _most_chunks(pipelining: Pipelining, weights: Sequence[int], messages: int) -> int:
    """The most chunks that make sense, at least 1, with at most so many messages; by bisection."""
    low, high = 1, _MOST_CHUNKS
    while low < high:
        middle = (low + high + 1) // 2
        if _is_sensible(pipelining, chunk_counts(weights, middle), messages):
            low = middle
        else:
            high = middle - 1
    return low


def _part_lost(finer: Scheduled, found: Scheduled) -> float:
    """What a schedule takes more than one of more chunks, as a part of its time."""
    more_ps = found.pipeline.time_ps - finer.pipeline.time_ps
    return more_ps / finer.pipeline.time_ps


def _scheduled(
    pipelining: Pipelining,
    weights: Sequence[int],
    chunks: int,
    slack: float = 0.0,
    slack_ps: int = 0,
) -> Scheduled | None:
    """The schedule with so many chunks on the widest tree, None where that makes no sense."""
    if not chunks:
        return None
    counts = chunk_counts(weights, chunks)
    try:
        return Scheduled(chunks, pipelining.schedule(counts, slack_ps), slack)
    except InputError as error:
        # A chunk would have less than a byte; nothing else passes with fewer chunks.
        if error.diagnostics[0].code != "size-too-small":
            raise
        return None


def _is_sensible(pipelining: Pipelining, counts: Sequence[int], most: int) -> bool:
    """Whether messages are at most so many, and so large that few are on their way on a link."""
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
