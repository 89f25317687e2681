"""Tuned collectives: the comparison of each, its windows of sizes, and the selection of winners."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise, takewhile

from collhub_machine_profiles.nccl_baseline import count_nodes

from collhub_tuning.baseline import (
    SizeDecision,
    decide_size,
    find_candidate_bands,
    find_winners,
)
from collhub_tuning.comparison_report import ComparisonOutcome
from collhub_tuning.measuring import create_verified_algorithm
from collhub_tuning.questions import ComparedAlgorithm
from hub_core import Algorithm, Registry, Topology
from hub_core.plugin_api import (
    IDEAL,
    Merit,
    SelectedCollective,
    SelectedWindow,
    Selection,
    choose_best,
)

Times = Mapping[str, Sequence[int | None]]
Messages = Mapping[str, Sequence[int]]

# Slowdowns are compared as integers in units of this fraction.
_SLOWDOWN_SCALE = 1_000_000


@dataclass(frozen=True, slots=True)
class DefaultWindow:
    """Sizes in bytes from `min_bytes` to `max_bytes` (None: no limit) of the runtime's default.

    `sizes`: sizes of the comparison in it. At measured ones, no algorithm certainly beats the
    measurement; the others are between two such sizes.
    """

    min_bytes: int
    max_bytes: int | None
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Times of algorithms at sizes, in bytes and ascending; None where an algorithm does not fit.

    `tolerance`: relative slowdown up to which an algorithm is kept although another is faster.
    `limits_ns`: at sizes with a time of the runtime's default, the time below which an algorithm
    certainly wins. Where no algorithm does, the size keeps the default. `winners`: at such sizes,
    the algorithms that certainly win; it replaces `limits_ns`. `messages`: numbers of messages of
    the algorithms, by size; an algorithm without numbers counts as one without messages.
    """

    sizes: tuple[int, ...]
    times_ns: Times
    tolerance: float
    limits_ns: Mapping[int, float] = field(default_factory=dict)
    winners: Mapping[int, Collection[str]] = field(default_factory=dict)
    messages: Messages = field(default_factory=dict)

    def windows(self, names: Collection[str] | None = None) -> tuple[SelectedWindow, ...]:
        """Choose windows of these algorithms (None: all) from 0 bytes on; the last one is open.

        At every measured size the chosen algorithm takes at most `1 + tolerance` times the best
        time. A window begins at the first of its measured sizes and ends one byte before the next
        window, or before sizes with the runtime's default. Sizes at which no algorithm fits are
        ignored.
        """
        return tuple(
            SelectedWindow(min_bytes, max_bytes, name, sizes)
            for name, min_bytes, max_bytes, sizes in self._divide(names)
            if name is not None
        )

    def default_windows(self) -> tuple[DefaultWindow, ...]:
        """Return the ranges of sizes in bytes outside of the windows of all algorithms, which the
        runtime decides, in ascending order; empty if algorithms cover all sizes.
        """
        return tuple(
            DefaultWindow(min_bytes, max_bytes, sizes)
            for name, min_bytes, max_bytes, sizes in self._divide(None)
            if name is None
        )

    def _divide(
        self, names: Collection[str] | None
    ) -> Iterator[tuple[str | None, int, int | None, tuple[int, ...]]]:
        """Divide the sizes into windows with one algorithm each; yield them, ascending.

        A window is (algorithm, first byte, last byte, sizes). It begins at its first size, the
        first one at 0, and ends before the next one; None for the last. Algorithms in `names`
        (None: all) take part where they can win: at sizes of `winners` those named there, at other
        sizes those with a time, below `limits_ns` if that has the size.

        1. A size of `winners` or `limits_ns` without such an algorithm keeps the default, as do
           all sizes between two neighbouring ones that keep it. Consecutive ones are a window of
           algorithm None. Remaining sizes without such an algorithm are omitted.
        2. Each group of other sizes is divided by `_find_longest_runs`, then `_move_borders`.
        """
        times: dict[str, list[int | None]] = {}
        for name, times_ns in self.times_ns.items():
            if names is not None and name not in names:
                continue
            times[name] = []
            for size, time_ns in zip(self.sizes, times_ns, strict=True):
                if size in self.winners:
                    can_win = name in self.winners[size]
                else:
                    can_win = time_ns is not None and time_ns < self.limits_ns.get(size, math.inf)
                times[name].append(time_ns if can_win else None)
        # The keys are the sizes at which the time of the runtime's default is known. Sizes with
        # neither a candidate nor such a reference are undecided.
        references = {*self.limits_ns, *self.winners}
        fitting = [_find_best_time(times, index) is not None for index in range(len(self.sizes))]
        measured = [index for index, size in enumerate(self.sizes) if size in references]
        decided = sorted({*measured, *(index for index, fits in enumerate(fitting) if fits)})
        defaults = {index for index in measured if not fitting[index]}
        for lower, upper in pairwise(measured):
            if lower in defaults and upper in defaults:
                defaults |= set(range(lower, upper))
        runs: list[tuple[str | None, list[int]]] = []
        for is_default, group in groupby(decided, key=defaults.__contains__):
            # Choosing the algorithm that stays within the tolerance for the longest run gives the
            # minimum number of windows, because no other choice ends later. Borders then move
            # down while the later algorithm is the faster one. Cost: sizes times algorithms.
            indices = list(group)
            if is_default:
                runs.append((None, indices))
            else:
                longest = _find_longest_runs(times, indices, self.tolerance, self.messages)
                runs += _move_borders(longest, times, self.messages)
        for number, (winner, run) in enumerate(runs):
            min_bytes = self.sizes[run[0]] if number else 0
            is_last = number == len(runs) - 1
            max_bytes = None if is_last else self.sizes[runs[number + 1][1][0]] - 1
            yield winner, min_bytes, max_bytes, tuple(self.sizes[index] for index in run)

    def slowdowns(self, sizes: Collection[int]) -> dict[str, float]:
        """Return the mean slowdown of each algorithm: its time divided by the fastest time.

        `sizes`: only these sizes count, each equally. Sizes that were not compared are ignored.
        The fastest time is that of the best algorithm at the size, so that ratios are at least 1.
        If it is 0, the ratio of every algorithm is 1. Algorithms without a time at a size that
        counts are left out.

        The keys ascend by mean; equal means keep the order of the algorithms. Empty if no size
        counts.
        """
        indices = [index for index, size in enumerate(self.sizes) if size in sizes]
        means: dict[str, float] = {}
        for name, times in self.times_ns.items():
            ratios = [
                _compute_slowdown(times[index], _find_best_time(self.times_ns, index))
                for index in indices
            ]
            known = [ratio for ratio in ratios if ratio is not None]
            if known and len(known) == len(indices):
                means[name] = sum(known) / len(known)
        return dict(sorted(means.items(), key=lambda item: item[1]))

    def time_ns(self, name: str, size: int) -> int | None:
        """Return the time of an algorithm in ns at a size of the comparison; None if it does not
        fit there. Raises `KeyError` or `ValueError` for another name or size.
        """
        return self.times_ns[name][self.sizes.index(size)]


_Run = tuple[str, list[int]]


def _find_longest_runs(
    times: Times, indices: Sequence[int], tolerance: float, messages: Messages
) -> list[_Run]:
    """Divide `indices` into the fewest parts with one algorithm each; return them in order.

    The result has (algorithm, indices) for consecutive parts of `indices`; [] without indices. From
    the start of a part, every algorithm is followed while it has a time of at most 1 + `tolerance`
    times the best time in `times` (any time if the best is 0). The longest such sequence is the
    part.

    If several algorithms reach this length, those within 1 % of the smallest mean slowdown over the
    part are compared. The one with the fewest messages, summed over the part, is used; of equal
    ones the one with the smaller slowdown, then the first in `times`.

    At each index, at least one algorithm must have a time; otherwise raises `ZeroDivisionError`.
    """
    slowdowns: dict[str, list[float]] = {}
    best_ns = [_find_best_time(times, index) for index in indices]
    for name, row in times.items():
        ratios = [_compute_slowdown(row[i], best) for i, best in zip(indices, best_ns, strict=True)]
        slowdowns[name] = [math.inf if ratio is None else ratio for ratio in ratios]
    runs: list[_Run] = []
    start = 0
    while start < len(indices):
        lengths = {}
        for name, ratios_of_name in slowdowns.items():
            tolerable = takewhile(lambda ratio: ratio <= 1 + tolerance, ratios_of_name[start:])
            lengths[name] = len(list(tolerable))
        longest = max(lengths.values())
        end = start + longest
        part = list(indices[start:end])
        candidates = [name for name, length in lengths.items() if length == longest]
        merits = []
        for name in candidates:
            mean_slowdown = sum(slowdowns[name][start:end]) / longest
            num_messages = sum(_count_messages(messages, name, index) for index in part)
            merits.append(Merit(round(_SLOWDOWN_SCALE * mean_slowdown), num_messages))
        runs.append((candidates[choose_best(merits)], part))
        start = end
    return runs


def _move_borders(runs: list[_Run], times: Times, messages: Messages) -> list[_Run]:
    """Move sizes at the end of each run to the next run while the next run's algorithm is better.

    `runs`: (algorithm, ascending indices of its sizes), in order of size. Better means faster;
    within 1 % of the time, fewer messages (`choose_best`). Every run keeps at least one size. A
    border stops at the first size at which the algorithms are equal, or one of them has no time.
    The lists are changed and returned.
    """
    for (name, run), (later, next_run) in pairwise(runs):
        while len(run) > 1:
            index = run[-1]
            time_ns, later_ns = times[name][index], times[later][index]
            if time_ns is None or later_ns is None:
                break
            merit = Merit(time_ns, _count_messages(messages, name, index))
            later_merit = Merit(later_ns, _count_messages(messages, later, index))
            # Of equal merits, the first is the best.
            if choose_best([merit, later_merit]) == 0:
                break
            next_run.insert(0, run.pop())
    return runs


def _count_messages(messages: Messages, name: str, index: int) -> int:
    return messages[name][index] if name in messages else 0


def _find_best_time(times: Times, index: int) -> int | None:
    times_ns = [row[index] for row in times.values()]
    return min((time_ns for time_ns in times_ns if time_ns is not None), default=None)


def _compute_slowdown(time_ns: int | None, best_ns: int | None) -> float | None:
    # All algorithms of a single rank take 0 ns and are equal.
    if time_ns is None or best_ns is None:
        return None
    return time_ns / best_ns if best_ns else 1.0


@dataclass(frozen=True)
class TunedCollective:
    """The comparison of a collective, and its windows."""

    outcome: ComparisonOutcome
    algorithms: Sequence[ComparedAlgorithm]
    tolerance: float

    @property
    def label(self) -> str:
        """Return the kind of collective, with the mode if only one is supported.

        For example `all-gather` or `all-gather, in place`.
        """
        question = self.outcome.question
        is_both = question.collective.in_place and question.collective.out_of_place
        return question.kind if is_both else f"{question.kind}, {question.mode.replace('-', ' ')}"

    @cached_property
    def times(self) -> MeasuredTimes:
        """Return the times of all algorithms in ns at the sizes of the comparison; cached.

        Only algorithms with a simulated time at a size have a time there; others have None. If the
        time of such an algorithm was also measured at the size, the measured time is used. Times
        are rounded.

        `winners` has an entry for each size with a known time (measured or predicted) of the
        library's default: the algorithms that are certainly faster than it (`find_winners`),
        perhaps none. At other sizes, every algorithm with a time can win. `messages` has the
        number of messages of each algorithm by size, 0 where it has no time. `limits_ns` is empty.
        """
        sizes = self.outcome.question.sizes
        times_ns: dict[str, tuple[int | None, ...]] = {}
        bands = {size: find_candidate_bands(self.outcome, size) for size in sizes}
        for algorithm in self.algorithms:
            by_size = {
                size: round(bands[size][algorithm.name].time_us * 1e3)
                for size in sizes
                if algorithm.name in bands[size]
            }
            times_ns[algorithm.name] = tuple(by_size.get(size) for size in sizes)
        winners = {
            size: find_winners(decision.default, decision.candidates)
            for size, decision in self.decisions.items()
            if decision.default is not None
        }
        messages = {
            (one.algorithm, one.size): one.messages
            for one in self.outcome.measurements
            if one.time_ns is not None
        }
        counts = {
            one.name: tuple(messages.get((one.name, size), 0) for size in sizes)
            for one in self.algorithms
        }
        return MeasuredTimes(sizes, times_ns, self.tolerance, winners=winners, messages=counts)

    @cached_property
    def decisions(self) -> dict[int, SizeDecision]:
        """Return the decisions between the algorithms and the runtime's default, by size.

        Sizes without any time are missing. The result is cached.
        """
        decisions = (decide_size(self.outcome, size) for size in self.outcome.question.sizes)
        return {decision.size: decision for decision in decisions if decision is not None}

    def ratio(self, algorithm: str, size: int) -> float | None:
        """Return the time of an algorithm at a size in bytes, divided by the lower bound there.

        The result is at least 1. Of several measurements of this name and size, the first counts.
        None without a measurement, if its time or the bound is missing or 0, or if the time is
        below the bound.
        """
        ratios = (
            self.outcome.ratio(measured)
            for measured in self.outcome.measurements
            if (measured.algorithm, measured.size) == (algorithm, size)
        )
        return next(ratios, None)

    @property
    def has_times(self) -> bool:
        """True if an algorithm has a time at one size at least."""
        return any(measured.time_ns is not None for measured in self.outcome.measurements)

    @cached_property
    def windows(self) -> tuple[SelectedWindow, ...]:
        """The windows of all algorithms; empty if no algorithm fits, or none certainly wins."""
        return self.times.windows()

    @cached_property
    def default_windows(self) -> tuple[DefaultWindow, ...]:
        """Sizes with the runtime's default, because no algorithm certainly beats it."""
        return self.times.default_windows()

    def selected(self, registry: Registry) -> SelectedCollective:
        """Return the collective with four functions by which writers choose algorithms.

        In this order:

        - `MeasuredTimes.windows`: for given names (None: all), the windows of sizes with one
          algorithm. Sizes with the runtime's default are in none of them.
        - `MeasuredTimes.slowdowns`: for given sizes, the mean slowdown of each algorithm.
        - A function (name, size) that returns the verified algorithm. It is created at the first
          call; equal requests share it (`_create_synthesis`). Raises `KeyError` for an unknown
          name, and `HubError` if the algorithm cannot be created, is wrong, or does not serve its
          sizes.
        - A function (name, size) that returns the protocol of the measurement of this algorithm at
          this size; "" without such a measurement.

        No algorithm is created here.
        """
        question, topology = self.outcome.question, self.outcome.topology
        # Synthesized on request, because some formats contain no algorithms.
        synthesize = _create_synthesis(self, topology, registry)
        protocols = {
            (measured.algorithm, measured.size): measured.protocol
            for measured in self.outcome.measurements
        }
        return SelectedCollective(
            question.collective,
            self.times.windows,
            self.times.slowdowns,
            synthesize,
            lambda name, size: protocols.get((name, size), ""),
        )


def create_selection(tuned: Sequence[TunedCollective], registry: Registry) -> Selection:
    """Create the selection from the tuned collectives that have windows of sizes, in order.

    The topology is that of the first tuned collective, also if it has no windows. The
    selection may be empty. Raise `IndexError` for an empty sequence.
    """
    topology = tuned[0].outcome.topology
    selected = [collective.selected(registry) for collective in tuned if collective.windows]
    nodes = count_nodes(topology)
    return Selection(topology.name, topology.num_npus, nodes, tuple(selected), topology)


def _create_synthesis(
    tuned: TunedCollective, topology: Topology, registry: Registry
) -> Callable[[str, int], Algorithm]:
    """Return a function (name, size in bytes) that creates and verifies an algorithm.

    If `tuned` has a measurement of this name and size, the algorithm has its instances and pieces,
    and is created for its size `made_for`, or for the given size if that is None. Without a
    measurement, it is created for the given size with 1 instance and 1 piece.

    If the comparison is for a runtime (not `IDEAL`), the algorithm must also serve all sizes of the
    first window of `tuned` (a list of measured sizes) that contains the given size. Without such a
    window, it must serve the given size.

    Calls with equal name, creation size, instances, pieces and served sizes return the same object.
    The function raises `KeyError` for an unknown name. It raises `HubError` if the algorithm cannot
    be created, is wrong, or does not serve the sizes.
    """
    by_name: Mapping[str, ComparedAlgorithm] = {
        algorithm.name: algorithm for algorithm in tuned.algorithms
    }
    question = tuned.outcome.question
    measurements = {
        (measured.algorithm, measured.size): measured for measured in tuned.outcome.measurements
    }
    cache: dict[tuple[str, int, int, int, tuple[int, ...]], Algorithm] = {}

    def synthesize(name: str, size: int) -> Algorithm:
        measured = measurements.get((name, size))
        made_for = (measured.made_for if measured else None) or size
        instances, pieces = (measured.instances, measured.pieces) if measured else (1, 1)
        served: tuple[int, ...] = ()
        if question.runtime != IDEAL:
            windows = [one.sizes for one in tuned.windows if size in one.sizes]
            served = windows[0] if windows else (size,)
        key = name, made_for, instances, pieces, served
        if key not in cache:
            cache[key] = create_verified_algorithm(
                by_name[name], question, made_for, topology, registry, instances, pieces, served
            )
        return cache[key]

    return synthesize
