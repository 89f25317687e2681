"""What `collhub tune` asks: a comparison for every collective, and the selection of its winners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from collhub_tuning.comparison_report import ComparisonOutcome
from collhub_tuning.measuring import verified_algorithm
from collhub_tuning.questions import ComparedAlgorithm
from collhub_tuning.selection_windows import MeasuredTimes
from hub_core import Algorithm, Registry, Topology
from hub_core.plugin_api import SelectedCollective, SelectedWindow, Selection


@dataclass(frozen=True)
class TunedCollective:
    """The comparison of a collective, and its windows."""

    outcome: ComparisonOutcome
    algorithms: Sequence[ComparedAlgorithm]
    tolerance: float

    @property
    def label(self) -> str:
        """The collective, with its calls where those are of one mode."""
        question = self.outcome.question
        is_both = question.collective.in_place and question.collective.out_of_place
        return question.kind if is_both else f"{question.kind}, {question.mode.replace('-', ' ')}"

    @cached_property
    def times(self) -> MeasuredTimes:
        """Times of all algorithms, by size."""
        sizes = self.outcome.question.sizes
        times_ns: dict[str, tuple[int | None, ...]] = {}
        for one in self.algorithms:
            found = {
                measured.size: measured.time_ns
                for measured in self.outcome.measurements
                if measured.algorithm == one.name
            }
            times_ns[one.name] = tuple(found.get(size) for size in sizes)
        return MeasuredTimes(sizes, times_ns, self.tolerance)

    def ratio(self, algorithm: str, size: int) -> float | None:
        """Time by bound of an algorithm at a measured size; None where one of them is missing."""
        found = (
            self.outcome.ratio(one)
            for one in self.outcome.measurements
            if (one.algorithm, one.size) == (algorithm, size)
        )
        return next(found, None)

    @cached_property
    def windows(self) -> tuple[SelectedWindow, ...]:
        """The windows of all algorithms; none where nothing fits."""
        return self.times.windows()

    def selected(self, registry: Registry) -> SelectedCollective:
        """What writers get."""
        question, topology = self.outcome.question, self.outcome.topology
        # Made when a writer asks: some formats hold no algorithm.
        made = _maker(self, topology, registry)
        return SelectedCollective(
            question.collective, self.times.windows, self.times.slowdowns, made
        )


def selection_of(tuned: Sequence[TunedCollective], registry: Registry) -> Selection:
    """The selection of all collectives that have a window."""
    topology = tuned[0].outcome.topology
    able = [one.selected(registry) for one in tuned if one.windows]
    nodes = num_nodes(topology)
    return Selection(topology.name, topology.num_npus, nodes, tuple(able), topology)


def num_nodes(topology: Topology) -> int:
    """Groups of a topology, where every NPU is in one of them and all are alike; else 1."""
    members = [npu for group in topology.groups.values() for npu in group]
    sizes = {len(group) for group in topology.groups.values()}
    is_whole = sorted(members) == list(range(topology.num_npus))
    return len(topology.groups) if is_whole and len(sizes) == 1 else 1


def _maker(
    tuned: TunedCollective, topology: Topology, registry: Registry
) -> Callable[[str, int], Algorithm]:
    """The verified algorithm by name and size, each made once."""
    by_name: Mapping[str, ComparedAlgorithm] = {one.name: one for one in tuned.algorithms}
    question = tuned.outcome.question
    made_for = {(one.algorithm, one.size): one.made_for for one in tuned.outcome.measurements}
    kept: dict[tuple[str, int], Algorithm] = {}

    def made(name: str, size: int) -> Algorithm:
        asked = made_for.get((name, size)) or size
        if (name, asked) not in kept:
            found = verified_algorithm(by_name[name], question, asked, topology, registry)
            kept[name, asked] = found
        return kept[name, asked]

    return made
