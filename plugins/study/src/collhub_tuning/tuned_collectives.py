"""Tuned collectives: the comparison of each, its windows of sizes, and the selection of winners."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise

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
        first window at 0, and ends before the next one; None for the last one. Only algorithms in
        `names` (None: all) take part, at sizes where they can win (`_winning_times`). A size
        without such an algorithm is omitted if the time of the runtime's default is unknown.

        1. Consecutive sizes that keep the default (`_default_indices`) are one window of algorithm
           None.
        2. Each group of other sizes is divided into the longest runs, from its start, in which one
           algorithm takes at most (1 + `tolerance`) times the best time (`_find_longest_runs`).
        3. The last size of such a run moves to the next run of the group while the algorithm of
           that one is better there (`_move_borders`). Every window keeps its first size.
        """
        times = {
            name: self._winning_times(name)
            for name in self.times_ns
            if names is None or name in names
        }
        runs: list[tuple[str | None, list[int]]] = []
        # At a decided size, a candidate has a time or a reference was measured.
        decided = [
            index
            for index, size in enumerate(self.sizes)
            if size in self._reference_sizes or _find_best_time(times, index) is not None
        ]
        defaults = self._default_indices(times, decided)
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
        for number, (name, run) in enumerate(runs):
            min_bytes = self.sizes[run[0]] if number else 0
            is_last = number == len(runs) - 1
            max_bytes = None if is_last else self.sizes[runs[number + 1][1][0]] - 1
            yield name, min_bytes, max_bytes, tuple(self.sizes[index] for index in run)

    def _winning_times(self, name: str) -> list[int | None]:
        """Return the times of an algorithm in ns, one per size; None where it cannot win or has
        no time.

        At a size whose possible winners are given (`winners`), the algorithm must be one of
        them. At other sizes, its time must be below the limit of the size in `limits_ns` (not
        equal to it), if there is one. Raises `KeyError` for an unknown name.
        """
        times_ns: list[int | None] = []
        for size, time_ns in zip(self.sizes, self.times_ns[name], strict=True):
            if size in self.winners:
                is_winner = name in self.winners[size]
            else:
                is_winner = time_ns is not None and time_ns < self.limits_ns.get(size, math.inf)
            times_ns.append(time_ns if is_winner else None)
        return times_ns

    @property
    def _reference_sizes(self) -> set[int]:
        """Sizes in bytes at which the time of the runtime's default is known: the keys of
        `limits_ns` and `winners`.
        """
        return {*self.limits_ns, *self.winners}

    def _default_indices(self, times: Times, decided: Sequence[int]) -> set[int]:
        """Return the indices of sizes that keep the runtime's default.

        `times`: times of the algorithms, None where they cannot win. `decided`: the indices that
        count, ascending. Of these, a reference is one at whose size the time of the default is
        known. The default is kept at each reference at which no algorithm can win. If two
        neighbouring references keep it, all indices between them keep it too, also those that
        are not in `decided`.
        """
        measured = [index for index in decided if self.sizes[index] in self._reference_sizes]
        defaults = {index for index in measured if _find_best_time(times, index) is None}
        for lower, upper in pairwise(measured):
            if lower in defaults and upper in defaults:
                defaults |= set(range(lower, upper))
        return defaults

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
    the start of a part, every algorithm is followed while it takes at most 1 + `tolerance` times
    the best time in `times`. The part has the length of the longest such sequence.

    If several algorithms reach this length, those within 1 % of the smallest mean slowdown over the
    part are compared. The one with the fewest messages, summed over the part, is used; of equal
    ones the one with the smaller slowdown, then the first in `times`.

    At each index, at least one algorithm must have a time; otherwise raises `ZeroDivisionError`.
    """
    runs: list[_Run] = []
    start = 0
    while start < len(indices):
        lengths = {
            name: _count_tolerable(times, name, indices[start:], tolerance) for name in times
        }
        longest = max(lengths.values())
        taken = list(indices[start : start + longest])
        candidates = [name for name, length in lengths.items() if length == longest]
        merits = [
            Merit(
                round(_SLOWDOWN_SCALE * _compute_mean_slowdown(times, name, taken)),
                sum(_count_messages(messages, name, index) for index in taken),
            )
            for name in candidates
        ]
        runs.append((candidates[choose_best(merits)], taken))
        start += longest
    return runs


def _count_tolerable(times: Times, name: str, indices: Sequence[int], tolerance: float) -> int:
    """Return the number of the first `indices` at which an algorithm is within the tolerance.

    At each of them it takes at most 1 + `tolerance` times the best time of all algorithms in
    `times`; if the best time is 0, any time is accepted. The first index at which this is
    false, or the algorithm has no time, ends the count.
    """
    for number, index in enumerate(indices):
        ratio = _compute_slowdown(times[name][index], _find_best_time(times, index))
        if ratio is None or ratio > 1 + tolerance:
            return number
    return len(indices)


def _move_borders(runs: list[_Run], times: Times, messages: Messages) -> list[_Run]:
    """Move sizes at the end of each run to the next run while the next run's algorithm is better.

    `runs`: (algorithm, ascending indices of its sizes), in order of size. Better means faster;
    within 1 % of the time, fewer messages (`choose_best`). Every run keeps at least one size. A
    border stops at the first size at which the algorithms are equal, or one of them has no time.
    The lists are changed and returned.
    """
    for (name, run), (later, next_run) in pairwise(runs):
        while len(run) > 1 and _is_better(times, messages, later, name, run[-1]):
            next_run.insert(0, run.pop())
    return runs


def _is_better(times: Times, messages: Messages, name: str, than: str, index: int) -> bool:
    time_ns, reference_ns = times[name][index], times[than][index]
    if time_ns is None or reference_ns is None:
        return False
    reference = Merit(reference_ns, _count_messages(messages, than, index))
    return choose_best([reference, Merit(time_ns, _count_messages(messages, name, index))]) == 1


def _count_messages(messages: Messages, name: str, index: int) -> int:
    return messages[name][index] if name in messages else 0


def _compute_mean_slowdown(times: Times, name: str, indices: Sequence[int]) -> float:
    ratios = [
        _compute_slowdown(times[name][index], _find_best_time(times, index)) or 1.0
        for index in indices
    ]
    return sum(ratios) / len(ratios)


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
          call; equal requests share it (`_create_synthesis`).
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
