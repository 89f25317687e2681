"""Schedules of one packing, and the choice of its number of chunks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from collhub_packing.pipelining import Pipeline, Pipelining

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.streams import measure_chunk_times, prepare_pipelining
from hub_core.model import CollectiveKind, InputError
from hub_core.network import Occupancy

_MAX_CHUNKS = 1 << 14
_MAX_MESSAGES = 1 << 20
# Maximum number of messages of a coarse schedule, and of one that is fast to simulate.
_MAX_COARSE_MESSAGES = 1 << 16
_MAX_FAST_MESSAGES = 1 << 18
# Minimum relative gain in time that justifies twice or four times as many chunks: all users of the
# algorithm pay for its steps. If twice the chunks save 0.3 %, filling the pipelines takes 0.6 %.
MIN_GAIN_OF_DOUBLING, MIN_GAIN_OF_QUADRUPLING = 3e-3, 5e-3
# An all-reduce of more messages takes seconds to simulate and to verify, so that doubling must save
# more. Up to this number it may save less.
_MAX_MESSAGES_WITHOUT_DELAY = 1 << 19
_MIN_GAIN_OF_SLOW_DOUBLING, _MIN_GAIN_OF_HALF = 5e-3, 2e-3
# Minimum relative gain in time to fill the pipelines that justifies chunks of two sizes.
_MIN_GAIN_OF_SMALL_CHUNKS = 0.1
# A link may have this many messages in flight at once, see `hub_core.schedules.Transfers.window`.
_MAX_MESSAGES_IN_FLIGHT = 12


@dataclass(frozen=True, slots=True, eq=False)
class PackingSchedule:
    """A schedule of a packing.

    `chunks`: approximate number of chunks on the tree with the most chunks; see
    `compute_chunk_weights` and `compute_chunk_counts` for the other trees. `slack`: planned delay
    between receiving and forwarding a chunk, in rounds; a round sends one chunk of every tree and
    takes the bandwidth time over `chunks`.
    """

    chunks: int
    pipeline: Pipeline
    slack: float = 0.0

    @property
    def has_link_order(self) -> bool:
        """Whether messages of a link are sent in a fixed order: some message has a `window`."""
        return bool(self.pipeline.transfers.window.any())


def find_schedule(task: PackingTask, packing: PlacedPacking) -> PackingSchedule | None:
    """Build the schedule of a packing with `task.chunks` chunks, or search for a good number.

    If `task.chunks` is not None, the widest tree (largest weight) gets about this number of chunks
    (`compute_chunk_counts`). Raise `InputError` (`size-too-small`) if a chunk would then have less
    than one byte.

    Otherwise `_CountSearch.run` chooses the number by planned time. It first plans a quarter of the
    maximum number. If even four times as many chunks are estimated to need at least
    `task.within_ns`, the schedule with the quarter is returned. Return None if all numbers tried
    give chunks below one byte.

    Ctrl-C ends the search, and the best schedule so far is returned. If there is none yet,
    `KeyboardInterrupt` is raised again.
    """
    pipelining = prepare_pipelining(task, packing)
    if task.chunks is not None:
        counts = compute_chunk_counts(packing.weights, task.chunks)
        return PackingSchedule(task.chunks, pipelining.schedule(counts))
    search = _CountSearch(*_prepare(task, packing))
    try:
        search.run(bandwidth_time_ns(task, packing), task.within_ns)
    except KeyboardInterrupt:
        if search.best is None:
            raise
    return search.best


@lru_cache(maxsize=32)
def compute_chunk_weights(task: PackingTask, packing: PlacedPacking) -> tuple[int, ...]:
    """Return weights of the trees to which their numbers of chunks are in proportion.

    They are the weights of the packing, so that all chunks have the same size, except for an
    all-reduce in a network without switches, if the numbers of chunks and units are free. Its
    pipelines fill and drain in about the time of one chunk on the slowest tree. Slow trees get
    twice the weight, so that their chunks have half the size, if as many messages then save at
    least 10 % of this time (`_MIN_GAIN_OF_SMALL_CHUNKS`) with the most chunks. Slow are trees on
    which a chunk takes longer than a limit, for which the times of all trees are tried.
    """
    weights = tuple(packing.weights)
    are_free = task.chunks is None and task.units is None
    is_all_reduce = task.collective.kind is CollectiveKind.ALL_REDUCE
    if not (are_free and is_all_reduce and task.network.is_switchless):
        return weights
    pipelining = prepare_pipelining(task, packing)
    most = _find_maximum_chunks(pipelining, weights, _MAX_MESSAGES)
    counts = np.asarray(compute_chunk_counts(weights, most))
    latencies, times = measure_chunk_times(pipelining, counts)
    messages = counts * pipelining.widths
    best_time_s = (1 - _MIN_GAIN_OF_SMALL_CHUNKS) * times.max()
    chosen = np.ones(len(weights), np.int64)
    for limit in np.unique(times)[:-1]:
        factors = np.where(times > limit, 2, 1)
        # All chunks are larger by this ratio, so that the number of messages is the same.
        ratio = (messages * factors).sum() / messages.sum()
        time_s = (latencies + (times - latencies) * ratio / factors).max()
        if time_s < best_time_s:
            best_time_s, chosen = time_s, factors
    return tuple((chosen * np.asarray(weights)).tolist())


def _prepare(task: PackingTask, packing: PlacedPacking) -> tuple[Pipelining, tuple[int, ...]]:
    """Return the pipelining of a packing, and the weights for its numbers of chunks."""
    return prepare_pipelining(task, packing), compute_chunk_weights(task, packing)


# The search evaluates the same few packings of a task repeatedly.
@lru_cache(maxsize=16)
def bandwidth_time_ns(task: PackingTask, packing: PlacedPacking) -> float:
    """Return the time in ns that the busiest link needs for its bytes, without latencies.

    The busiest link has the largest quotient of bytes and bandwidth. The bytes are those of all
    chunks of the collective; a message that crosses several links counts on each. Messages
    follow `Topology.routes`, which may differ from the routes of the packing. Without messages
    the time is 0.0. Cached for the same task and packing objects.
    """
    pipelining = prepare_pipelining(task, packing)
    routes, topology = pipelining.routes, pipelining.topology
    stream_fractions = [float(stream.part) for stream in pipelining.streams]
    # Fraction of a share that every operation moves over every link of its route.
    fractions = np.repeat(stream_fractions, pipelining.widths)
    link_fractions = np.repeat(fractions, np.diff(routes.indptr))
    load = np.bincount(routes.links, link_fractions, len(topology.source))
    share_bytes = task.collective_bytes / pipelining.num_shares
    return float((load / topology.bandwidth_bytes_per_s).max() * share_bytes * 1e9)


def estimate_fine_grained_time_ns(time_ns: float, bandwidth_ns: float) -> float:
    """Estimate the shortest time in ns with four times as many chunks.

    `bandwidth_ns` is the bandwidth time. The rest of `time_ns` fills the pipelines and shrinks to a
    quarter at best.
    """
    return bandwidth_ns + (time_ns - bandwidth_ns) / 4


def build_coarse_schedule(task: PackingTask, packing: PlacedPacking) -> PackingSchedule | None:
    """Build the schedule with `task.chunks` chunks, or a coarse one to compare packings.

    The number of chunks is that of the tree with the most chunks. It is `task.chunks` if that is
    given, without a limit. Otherwise it is the smaller of these two numbers, but at least 1:

    - a quarter of the largest number that all limits allow, rounded down; the quarter
      leaves room for refinement
    - the largest number that they allow with at most `_MAX_COARSE_MESSAGES` messages

    Return None if a chunk would have less than one byte, or if `task.chunks` is 0.
    """
    if task.chunks is not None:
        return _build_schedule_or_none(
            prepare_pipelining(task, packing), packing.weights, task.chunks
        )
    pipelining, weights = _prepare(task, packing)
    # A quarter, so that there is room for refinement.
    quarter = _find_maximum_chunks(pipelining, weights, _MAX_MESSAGES) // 4
    few = _find_maximum_chunks(pipelining, weights, _MAX_COARSE_MESSAGES)
    return build_schedule(task, packing, max(1, min(quarter, few)))


@lru_cache(maxsize=32)
def maximum_chunks(
    task: PackingTask, packing: PlacedPacking, *, is_fast_to_simulate: bool = False
) -> int:
    """Compute the maximum number of chunks on the tree with the most chunks: 1 to `_MAX_CHUNKS`.

    Other trees have the chunks of `compute_chunk_counts` for the weights of
    `compute_chunk_weights`. A number is allowed if all of these hold:

    - All trees together have at most `_MAX_MESSAGES` messages, or `_MAX_FAST_MESSAGES` with
      `is_fast_to_simulate`.
    - The chunks of a share do not exceed the unit limits of the task, if it has any.
    - (`_MAX_MESSAGES_IN_FLIGHT` - 1) of the smallest chunks have at least the bytes in flight on a
      link, the maximum of bandwidth times latency (0 with `Occupancy.ALPHA_BETA`).

    1 is returned even if it is not allowed. The result is cached.
    """
    max_messages = _MAX_FAST_MESSAGES if is_fast_to_simulate else _MAX_MESSAGES
    pipelining, weights = _prepare(task, packing)
    return _find_maximum_chunks(pipelining, weights, max_messages)


def build_schedule(
    task: PackingTask, packing: PlacedPacking, chunks: int, slack: float = 0.0
) -> PackingSchedule | None:
    """Build the schedule of a packing with about `chunks` chunks on the tree with the most chunks.

    `chunks` must be at least 1; the trees have chunks in proportion to `compute_chunk_weights`
    (`compute_chunk_counts`). `slack`: number of rounds for which received data wait before
    they are sent on; a round is the bandwidth time of the packing divided by `chunks`.
    Return None if a chunk would be below one byte.
    """
    round_ns = bandwidth_time_ns(task, packing) / chunks
    slack_ps = 1000 * slack * round_ns
    pipelining, weights = _prepare(task, packing)
    return _build_schedule_or_none(pipelining, weights, chunks, slack, int(slack_ps))


def build_schedule_with_half_the_chunks(
    task: PackingTask, packing: PlacedPacking, schedule: PackingSchedule
) -> PackingSchedule | None:
    """Build the schedule with half as many chunks as `schedule`.

    None if `schedule` has a single chunk or a chunk would have less than a byte.
    """
    pipelining, weights = _prepare(task, packing)
    return _build_schedule_or_none(pipelining, weights, schedule.chunks // 2)


def build_schedule_by_rounds(
    task: PackingTask, packing: PlacedPacking, schedule: PackingSchedule
) -> PackingSchedule | None:
    """Build the schedule with the chunks of `schedule`, in which earlier chunks always go first.

    Its messages have no deadlines. None if those of `schedule` have none, or if a chunk would have
    less than a byte.
    """
    pipelining, weights = _prepare(task, packing)
    if not pipelining.has_deadlines:
        return None
    by_rounds = replace(pipelining, has_deadlines=False)
    return _build_schedule_or_none(by_rounds, weights, schedule.chunks)


def remove_link_order(schedule: PackingSchedule) -> PackingSchedule:
    """Return a copy of the schedule without an order of messages on links (all windows 0).

    Every message is then sent as soon as its data are available. The planned times are kept, though
    they belong to the order; the slack of the copy is 0.
    """
    transfers = schedule.pipeline.transfers
    unordered = replace(transfers, window=np.zeros(len(transfers), np.int64))
    return PackingSchedule(schedule.chunks, replace(schedule.pipeline, transfers=unordered))


def compute_chunk_counts(weights: Sequence[int], chunks: int) -> list[int]:
    """Return the number of chunks of every tree in the order of `weights`, each at least 1.

    The widest tree gets about `chunks` (at least 1). Let W be the largest weight divided by the
    greatest common divisor of all weights.

    - If `chunks` >= W, the numbers are exactly in proportion to the weights, so that all chunks
      have the same size. The widest tree has the multiple of W that is nearest to `chunks`; of two
      equally near ones, the even multiple, but at least W.
    - Otherwise each number is the power of two that is nearest, by logarithm, to `chunks` * weight
      / largest weight. It is 1 if that is below 1.

    Raise `ValueError` without weights, and for 0 `chunks`.
    """
    divisor = math.gcd(*weights)
    widest = max(weights)
    if chunks * divisor >= widest:
        # Chunks of equal size, so that all trees finish together.
        times = max(1, round(chunks * divisor / widest))
        return [times * weight // divisor for weight in weights]
    # Narrow trees would have less than one chunk of that size.
    exponents = [round(math.log2(chunks * weight / widest)) for weight in weights]
    return [1 << max(0, exponent) for exponent in exponents]


class _CountSearch:
    """Search for the number of chunks of one packing.

    `best`: the schedule chosen so far, None before the first.
    """

    def __init__(
        self,
        pipelining: Pipelining,
        weights: Sequence[int],
    ) -> None:
        self._pipelining = pipelining
        self._weights = weights
        self._most = _find_maximum_chunks(pipelining, weights, _MAX_MESSAGES)
        self._made: dict[int, PackingSchedule | None] = {}
        self.best: PackingSchedule | None = None

    def run(self, bandwidth_ns: float, within_ns: float | None) -> None:
        """Choose the number of chunks by planned time, and store its schedule in `best`.

        M: most chunks of the widest tree that the limits allow. Quotients are rounded down.

        1. If the time t of M / 4 gives `bandwidth_ns` + (t - `bandwidth_ns`) / 4 >= `within_ns`
           (unless None), M / 4 is stored and the search ends.
        2. t is short if it is at most 0.5 % above `bandwidth_ns`. An all-reduce is slow if M / 4
           has more than 2^17 messages. If it is slow and t is not short, `_refine` tries M / 2
           and M. The search ends if it stores one.
        3. M / 4 is stored if t is short or the all-reduce is slow, otherwise M. Then a quarter of
           the last number is stored repeatedly, until it is over 0.5 % slower than `best`, or 0.
        4. Half of the number in `best` is stored unless it is over 0.3 % slower. It is not tried
           if a quarter of that number was planned and is over 1.8 % slower.

        Numbers with chunks below one byte are skipped; without M / 4, step 3 begins with M. If no
        number is stored, 1 is tried instead of step 4. `best` stays None if 1 fails too.
        """
        count = self._most
        quarter = self.build_schedule(count // 4)
        if quarter is not None:
            time_ns = quarter.pipeline.time_ps / 1000
            is_near_bandwidth_time = time_ns <= (1 + MIN_GAIN_OF_QUADRUPLING) * bandwidth_ns
            cannot_beat_known_time = (
                within_ns is not None
                and estimate_fine_grained_time_ns(time_ns, bandwidth_ns) >= within_ns
            )
            if cannot_beat_known_time:
                self.best = quarter
                return
            is_slow = (
                self._pipelining.collective.kind is CollectiveKind.ALL_REDUCE
                and 4 * len(quarter.pipeline.transfers) > _MAX_MESSAGES_WITHOUT_DELAY
            )
            if not is_near_bandwidth_time and is_slow and self._refine(quarter):
                return
            # Start at a quarter if more chunks cannot gain enough.
            count = quarter.chunks if is_near_bandwidth_time or is_slow else count
        while count and self._is_good(count, MIN_GAIN_OF_QUADRUPLING):
            count //= 4
        if self.best is None:
            self._is_good(1, MIN_GAIN_OF_QUADRUPLING)
            return
        quarter = self._made.get(self.best.chunks // 4)
        # Filling a pipeline takes twice as long with half the chunks, four times with a quarter:
        # the slowdown with half of them is about a third of that with a quarter.
        is_hopeless = (
            quarter is not None
            and _relative_slowdown(self.best, quarter) / 3 > 2 * MIN_GAIN_OF_DOUBLING
        )
        if not is_hopeless:
            self._is_good(self.best.chunks // 2, MIN_GAIN_OF_DOUBLING)

    def _refine(self, quarter: PackingSchedule) -> bool:
        """Store the schedule with half of the maximum number of chunks, or with all of them.

        Half must gain more than 0.2 % of time over `quarter`, else nothing is stored and the result
        is False. The maximum number is planned only if the gain that is expected from it, half of
        the gain before, exceeds 0.5 %. It is stored if it does gain that much over half of it.
        """
        half = self.build_schedule(self._most // 2)
        if half is None:
            return False
        gain = _relative_slowdown(half, quarter)
        if gain <= _MIN_GAIN_OF_HALF:
            return False
        self.best = half
        # Filling the pipelines takes half as long with twice the chunks, each time.
        if gain / 2 > _MIN_GAIN_OF_SLOW_DOUBLING:
            full = self.build_schedule(self._most)
            if full is not None and _relative_slowdown(full, half) > _MIN_GAIN_OF_SLOW_DOUBLING:
                self.best = full
        return True

    def _is_good(self, count: int, max_slowdown: float) -> bool:
        """Build the schedule with `count` chunks and store it as the best unless it is much slower.

        It is stored if there is no best schedule yet, or if its planned time exceeds that of the
        best by at most the fraction `max_slowdown`. Return True if it is stored. Return True
        without storing it if its chunks would be below one byte, so that the caller continues with
        fewer chunks. Return False if it is too slow, and for 0 chunks.
        """
        schedule = self.build_schedule(count)
        if schedule is None:
            return count > 0
        if self.best is not None and _relative_slowdown(self.best, schedule) > max_slowdown:
            return False
        self.best = schedule
        return True

    def build_schedule(self, count: int) -> PackingSchedule | None:
        """Return the schedule with `count` chunks on the widest tree; each is built once.

        None for 0, for more than the maximum, and if a chunk would have less than a byte.
        """
        if count > self._most:
            return None
        if count not in self._made:
            self._made[count] = _build_schedule_or_none(self._pipelining, self._weights, count)
        return self._made[count]


def _find_maximum_chunks(pipelining: Pipelining, weights: Sequence[int], max_messages: int) -> int:
    """Return the largest number of chunks of the widest tree that all limits allow, at least 1.

    The limits are those of `_ChunkLimits` with `max_messages`; the other trees have the chunks
    of `compute_chunk_counts(weights, number)`. The number is found by bisection from 1 to
    `_MAX_CHUNKS`, as if all numbers below an allowed one were allowed. 1 is returned even if
    the limits do not allow it.
    """
    limits = _ChunkLimits.of(pipelining, max_messages)
    low, high = 1, _MAX_CHUNKS
    while low < high:
        middle = (low + high + 1) // 2
        if limits.allow(pipelining, compute_chunk_counts(weights, middle)):
            low = middle
        else:
            high = middle - 1
    return low


def _relative_slowdown(finer: PackingSchedule, coarser: PackingSchedule) -> float:
    """Return the increase of time from `finer` to `coarser`, as a fraction of the finer one's time.

    Negative if the schedule with fewer chunks is faster.
    """
    increase_ps = coarser.pipeline.time_ps - finer.pipeline.time_ps
    return increase_ps / finer.pipeline.time_ps


def _build_schedule_or_none(
    pipelining: Pipelining,
    weights: Sequence[int],
    chunks: int,
    slack: float = 0.0,
    slack_ps: int = 0,
) -> PackingSchedule | None:
    """Build the schedule with about `chunks` chunks on the widest tree, or return None.

    The numbers of all trees are those of `compute_chunk_counts`. `slack_ps`: delay in ps before
    received data are sent on; `slack` is the same in rounds and only recorded. Return None if
    `chunks` is 0, and if a chunk would have less than one byte. Other `InputError`s of the
    scheduling pass through.
    """
    if not chunks:
        return None
    counts = compute_chunk_counts(weights, chunks)
    try:
        return PackingSchedule(chunks, pipelining.schedule(counts, slack_ps), slack)
    except InputError as error:
        # A chunk would have less than a byte. Other errors are passed on.
        if error.diagnostics[0].code != "size-too-small":
            raise
        return None


@dataclass(frozen=True, slots=True)
class _ChunkLimits:
    """Limits on the numbers of chunks of every tree: at most `max_messages` messages, at most
    `max_chunks` chunks per share (None: any), and at most `most_of_tree` chunks of each tree. With
    more of them, 11 messages in flight would not fill the latency of the link with the most bytes
    in flight; it is empty if no link has bytes in flight.

    `operations`: number of messages of one chunk, by tree.
    """

    max_messages: int
    max_chunks: int | None
    most_of_tree: Mapping[int, int]
    operations: Mapping[int, int]

    @classmethod
    def of(cls, pipelining: Pipelining, max_messages: int) -> _ChunkLimits:
        """Collect the limits on the numbers of chunks of a pipelining.

        - `max_messages`: as given; the limit of all trees together.
        - `max_chunks`: the largest number of chunks per buffer part that the request allows; 0 if
          it allows none, None if it has no limits.
        - `most_of_tree`: chunks of each tree at which 11 messages still fill every link. It is
          floor(p x 11 x bytes / (parts x F)). p is the fraction of the tree's smallest stream,
          bytes the size of the collective, parts the number of equal parts of its buffer, and F
          the largest product of bandwidth and latency of a link. Empty if F is 0 or the occupancy
          is `ALPHA_BETA`.
        - `operations`: messages of one chunk of each tree, summed over its streams.
        """
        operations: Counter[int] = Counter()
        for stream in pipelining.streams:
            operations[stream.tree] += len(stream.operations)
        max_chunks = None
        if pipelining.units is not None:
            max_chunks = max(pipelining.units.list_counts(pipelining.num_shares), default=0)
        most_of_tree: dict[int, int] = {}
        bytes_in_flight = Fraction(0)
        # With ALPHA_BETA, a link carries no second message before the first one arrives.
        if pipelining.occupancy is not Occupancy.ALPHA_BETA:
            topology = pipelining.topology
            in_flight = topology.bandwidth_bytes_per_s * topology.latency_s
            bytes_in_flight = Fraction(float(in_flight.max(initial=0.0)))
        if bytes_in_flight:
            collective = pipelining.collective
            shares = collective.kind.traits.parts(collective.num_ranks)
            in_flight_bytes = Fraction(
                (_MAX_MESSAGES_IN_FLIGHT - 1) * pipelining.collective_bytes, shares
            )
            # Exact: fractions of integers, rounded down.
            most_of_share = in_flight_bytes / bytes_in_flight
            for part, tree in dict.fromkeys((one.part, one.tree) for one in pipelining.streams):
                most = math.floor(part * most_of_share)
                most_of_tree[tree] = min(most, most_of_tree.get(tree, most))
        return cls(max_messages, max_chunks, most_of_tree, operations)

    def allow(self, pipelining: Pipelining, counts: Sequence[int]) -> bool:
        """Return whether the trees may have these numbers of chunks; `counts[t]` is that of tree t.

        True if all of these hold; equality is allowed:

        - All trees together have at most `max_messages` messages. A tree has its chunks times
          `operations[t]`, the messages of one chunk.
        - No share has more than `max_chunks` chunks on all of its trees (None: no limit). A share
          is one of the equal parts of the data, such as the data of one rank.
        - Each tree in `most_of_tree` has at most that number of chunks.
        """
        messages = sum(counts[tree] * number for tree, number in self.operations.items())
        if messages > self.max_messages:
            return False
        limit = self.max_chunks
        if limit is not None and pipelining.count_chunks_of_share(counts) > limit:
            return False
        return all(counts[tree] <= most for tree, most in self.most_of_tree.items())


TimeEvaluator = Callable[[PlacedPacking, PackingSchedule], int]
"""Function that returns the time of a packing's schedule in ns, usually by simulation."""


@dataclass(frozen=True, slots=True, eq=False)
class TimedSchedule:
    """A packing, its schedule, and the time in ns.

    `is_interrupted`: the search was interrupted.
    """

    packing: PlacedPacking
    schedule: PackingSchedule
    time_ns: int
    is_interrupted: bool = False


def planned_time_ns(schedule: PackingSchedule) -> float:
    """Return the planned time of a schedule in ns, without contention at switches."""
    return schedule.pipeline.time_ps / 1000
