"""Measured curves of a comparison: read them, check their machine, and decide between them and
simulated times.

A predicted time p with the held-out error e stands for measured times from p / (1 + e) to
p / (1 - e). A measured time in this band leaves the decision open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from collhub_machine_profiles import find_profile, profile_of_text
from collhub_machine_profiles.calls import format_ranks, make_tables, merge_calls
from collhub_machine_profiles.gpus import has_switched_links, known_gpu
from collhub_machine_profiles.nccl_baseline import count_nodes

from collhub_tuning.comparison_records import CurveItem, DecisionItem, MeasuredItem
from hub_core import read_measurements
from hub_core.model import UsageError, format_bytes, format_count, format_time
from hub_core.plugin_api import Library

if TYPE_CHECKING:
    from collhub_machine_profiles.machine_profile import MachineProfile

    from collhub_tuning.comparison_report import ComparisonOutcome
    from hub_core import CommandContext, TimingSource
    from hub_core.network import Topology
    from hub_core.plugin_api import Measurement

_MAX_LISTED_SIZES = 8
PROGRAM_LIBRARY = "collhub program"
"""Library of times of an emitted program, which its reader states."""
_AGGREGATED = "agg iters"
"""Setting in the variant of a library whose times are those of several calls in one launch."""


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Median times in us by size in bytes of a library, at sizes of the comparison."""

    library: Library
    times_us: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class MeasuredCurves:
    """Measured curves of one collective, sorted by library.

    `ignored`: numbers of measurements of all files that are not in a curve, by the reason.
    `algorithms`: measured times in us by size, of compared algorithms by name.
    """

    curves: tuple[MeasuredCurve, ...]
    ignored: Mapping[str, int]
    algorithms: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def with_algorithms(self) -> MeasuredCurves:
        """Return new curves in which the algorithms are curves too, to compare all of them.

        The curves of the algorithms follow those of the libraries; each has the algorithm's
        name as the name of its library. `algorithms` of the result is empty.
        """
        named = (MeasuredCurve(Library(name), times) for name, times in self.algorithms.items())
        return MeasuredCurves((*self.curves, *named), self.ignored)

    def fastest(self, size: int) -> tuple[Library, float] | None:
        """Return the library with the shortest time at a size in bytes, and this time in us.

        Only times at exactly this size count. On a tie, the first one in the order of the
        curves wins. None if no curve has the size.
        """
        times = [
            (curve.times_us[size], curve.library) for curve in self.curves if size in curve.times_us
        ]
        if not times:
            return None
        time_us, library = min(times, key=lambda pair: pair[0])
        return library, time_us


class TimeKind(StrEnum):
    """Kind of the time that wins at a size."""

    SIMULATED = "simulated"
    MEASURED = "measured"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision at a size with a measurement.

    `winner`: the algorithm or the library; None if undecided. `measured_us`: time of `library`, the
    fastest one.
    """

    kind: TimeKind
    winner: str | None
    library: Library
    measured_us: float


@dataclass(frozen=True, slots=True)
class MeasuredFiles:
    """Measurements by all ranks of a topology, of requested collectives at requested sizes.

    `points`: those of libraries. `algorithms`: those of compared algorithms, by name.
    """

    points: Sequence[Measurement]
    ignored: Mapping[str, int]
    algorithms: Mapping[str, Sequence[Measurement]] = field(default_factory=dict)

    def curves(self, kind: str, mode: str) -> MeasuredCurves:
        """Return the curves of the collective `kind`: times in us by size in bytes.

        `mode`: `in-place` uses times of calls in place; any other text uses times out of place.
        Times of the other placement are used only at sizes where the same library on the same
        machine has none of the first placement. Points of all machines are combined.

        - Library curves: one per library, and one per combination of dtype and numbers of ranks
          and nodes. The time at a size is the median of its points. They are ordered by library
          text.
        - Algorithm curves: one per name. Its time at a size is the shortest median of its
          libraries.

        Without points of `kind`, there are no curves. The numbers of ignored measurements are
        copied.
        """
        curves = tuple(
            MeasuredCurve(library, times_us)
            for library, times_us in _make_curves(self.points, kind, mode)
        )
        algorithms: dict[str, dict[int, float]] = {}
        for name, points in self.algorithms.items():
            for _, times_us in _make_curves(points, kind, mode):
                shortest = algorithms.setdefault(name, {})
                for size, time_us in times_us.items():
                    shortest[size] = min(time_us, shortest.get(size, time_us))
        return MeasuredCurves(curves, self.ignored, algorithms)

    @property
    def note(self) -> str:
        """Return one line with the number of ignored measurements, in total and per reason.

        For example `5 measurements ignored: 3 of other collectives, 2 of other sizes`, in the
        order of `ignored`. A total of 1 is followed by `measurement`. It is "" if none is
        ignored.
        """
        if not self.ignored:
            return ""
        total = sum(self.ignored.values())
        reasons = ", ".join(f"{count} of {reason}" for reason, count in self.ignored.items())
        return f"{format_count(total, 'measurement')} ignored: {reasons}"


def read_measured_files(
    context: CommandContext,
    files: Sequence[str],
    topology: Topology,
    timing: TimingSource,
    kinds: Sequence[str],
    sizes: Sequence[int],
    algorithms: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> MeasuredFiles | None:
    """Read the files of `--measured`, and select the measurements that a comparison uses.

    `files`: each is `NAME=FILE` if NAME is in `algorithms`, else `FILE`. Without any, returns None.

    - Ranks and nodes that a file lacks are those of the topology. A missing collective is that of
      `kinds` if there is just one. The records of each call are merged.
    - Selected, in their order, are measurements of `kinds` and `sizes` with the ranks and nodes of
      the topology. Sums of 8-bit integers and times of several calls in one launch are left out.
    - Those of `NAME=FILE` belong to the algorithm NAME. If the selected ones of the file contain
      the library `collhub program`, only these do. All others belong to libraries.
    - Skipped lines are reported. Then the number of ignored measurements is printed, if any.

    Raises first the errors of reading: `InputError` for a file without usable points, `UsageError`
    for an unknown option or several readers, `PluginError` for invalid points. Then raises
    `UsageError` (`other-machine`) for another machine, or `InputError` for a defect of the machine
    profile of `timing`. Then raises `UsageError` (`no-measurement`) if none is selected.
    """
    if not files:
        return None
    communicator = topology.num_npus, count_nodes(topology)
    name_of_path = {}
    for text in files:
        name, equals, path = text.partition("=")
        is_named = bool(equals) and name in algorithms
        name_of_path[path if is_named else text] = name if is_named else ""
    read = read_measurements(
        list(name_of_path),
        collective=kinds[0] if len(kinds) == 1 else None,
        ranks=communicator[0],
        nodes=communicator[1],
        options=options,
        registry=context.registry(),
    )
    context.report(read.skipped)
    all_points = merge_calls(read.points)
    _refuse_other_machines(all_points, timing, topology)
    used, ignored = _select_points(all_points, communicator, kinds, sizes)
    programs = {point.file for point in used if point.library.name == PROGRAM_LIBRARY}
    points_of: dict[str, list[Measurement]] = {"": []}
    for point in used:
        is_library = point.file in programs and point.library.name != PROGRAM_LIBRARY
        name = "" if is_library else name_of_path.get(point.file, "")
        points_of.setdefault(name, []).append(point)
    if not any(points_of.values()):
        raise _create_no_match_error(all_points, communicator, kinds)
    measured = MeasuredFiles(points_of.pop(""), ignored, points_of)
    if measured.note:
        context.say(measured.note)
    return measured


def _make_curves(
    points: Sequence[Measurement], kind: str, mode: str
) -> Iterator[tuple[Library, Mapping[int, float]]]:
    """Yield each library with its times in us by size in bytes, for the collective `kind` in
    a mode.

    With the mode `in-place`, points in place count, otherwise points out of place. Points of
    the other place count at sizes that a library has no others of on a machine (`one_place`).
    The time of a size is the median of its points. Sizes ascend, and libraries are in the order
    of their texts. A library with several data types, or numbers of ranks or nodes, is yielded
    once for each.
    """
    other_place = "out" if mode == "in-place" else "in"
    for table in make_tables([point for point in points if point.collective == kind], other_place):
        pairs = zip(table.sizes, table.times_us, strict=True)
        yield table.library, {int(size): float(time_us) for size, time_us in pairs}


def find_timed_profile(options: Mapping[str, str]) -> MachineProfile | None:
    """Return the profile that the option `machine` of a simulator names or contains; None without
    it (nominal links). Raises `InputError` for a defect of the profile.
    """
    return profile_of_text(options.get("machine", ""))


def _refuse_other_machines(
    points: Sequence[Measurement], timing: TimingSource, topology: Topology
) -> None:
    """Raise `UsageError` (`other-machine`) for the first point of another machine.

    The GPU of the comparison is that of the first of these that exists: the profile in the option
    `machine` of `timing`, the shipped profile of the topology, the GPU in the name of the topology.
    If this GPU is unknown, all points are accepted. A point is of another machine in two cases:

    - Its machine names another known GPU.
    - It names the same GPU, but as PCIe or another form without NVSwitch, and the GPU usually has
      NVSwitch (`has_model`).

    Points whose machine names no known GPU are accepted. Raises `InputError` for a defect of the
    profile in the option `machine`.
    """
    profile = find_timed_profile(timing.options) or find_profile(topology)
    gpu = known_gpu(topology.name) if profile is None else profile.known_gpu
    if gpu is None:
        return
    for point in points:
        measured_gpu = known_gpu(point.machine)
        if measured_gpu is None:
            continue
        lacks_switch = gpu.has_model and not has_switched_links(point.machine)
        if measured_gpu.name != gpu.name or lacks_switch:
            machine = gpu.name if profile is None else f"the profile {profile.name} ({gpu.name})"
            place = f"{point.file}:{point.line}: " if point.file else ""
            raise UsageError(
                f"{place}the measurements are of {point.machine!r:.80}, not of {machine}",
                cure="give measurements of the machine of the topology, or name theirs: --topology",
                code="other-machine",
            )


def _select_points(
    points: Sequence[Measurement],
    communicator: tuple[int, int],
    kinds: Sequence[str],
    sizes: Sequence[int],
) -> tuple[list[Measurement], dict[str, int]]:
    """Return the points that a comparison uses, and the numbers of ignored points by reason.

    `communicator`: (ranks, nodes). A point is ignored for the first reason that applies:

    1. `other collectives`: its collective is not in `kinds`.
    2. `other numbers of ranks`, then `other numbers of nodes`: they differ from `communicator`.
    3. `8-bit integers`: its `dtype` is not empty (sums of 8-bit integers).
    4. `other sizes`: its size in bytes is not in `sizes`.
    5. `aggregated calls`: its time is that of several calls in one launch (option `-m` of
       nccl-tests), which is below that of single calls.

    The points that are used keep their order. The numbers are sorted by reason, alphabetically, and
    reasons without points are absent.
    """
    used: list[Measurement] = []
    ignored: Counter[str] = Counter()
    for point in points:
        if point.collective not in kinds:
            ignored["other collectives"] += 1
        elif point.ranks != communicator[0]:
            ignored["other numbers of ranks"] += 1
        elif point.nodes != communicator[1]:
            ignored["other numbers of nodes"] += 1
        elif point.dtype:
            ignored["8-bit integers"] += 1
        elif point.size_bytes not in sizes:
            ignored["other sizes"] += 1
        elif _AGGREGATED in point.library.variant:
            ignored["aggregated calls"] += 1
        else:
            used.append(point)
    return used, dict(sorted(ignored.items()))


def _create_no_match_error(
    points: Sequence[Measurement], communicator: tuple[int, int], kinds: Sequence[str]
) -> UsageError:
    """Return the error (`no-measurement`) that no measurement matches a comparison.

    `points`: all measurements; `communicator`: (ranks, nodes); `kinds`: collectives. A point
    matches if its collective is in `kinds` and its ranks and nodes are those of `communicator`. A
    point is aggregated if it measured several calls in one launch. The cure is one of:

    - All matching points are aggregated: measure single calls.
    - Some are not aggregated: the distinct sizes of those, ascending. Of more than 8 sizes, the
      list has the 7 smallest and the largest.
    - No point matches: the first 8 configurations (collective, ranks, nodes) of all points, in
      sorted order.
    """
    of_kind = [
        point
        for point in points
        if point.collective in kinds and (point.ranks, point.nodes) == communicator
    ]
    matching = sorted(
        {point.size_bytes for point in of_kind if _AGGREGATED not in point.library.variant}
    )
    if of_kind and not matching:
        cure = "measure single calls, without aggregation: run the test without -m"
    elif matching:
        names = [format_bytes(size) for size in matching]
        if len(names) > _MAX_LISTED_SIZES:
            names = [*names[: _MAX_LISTED_SIZES - 1], f"... {names[-1]}"]
        cure = f"give sizes that were measured with --size: {', '.join(names)}"
    else:
        configurations = sorted({(one.collective, one.ranks, one.nodes) for one in points})
        names = [f"{kind} of {format_ranks(*counts)}" for kind, *counts in configurations]
        listed = "; ".join(names[:_MAX_LISTED_SIZES])
        cure = f"the files have {listed}: give their collective and topology"
    return UsageError(
        f"--measured: no measurement of {' or '.join(kinds)} of {format_ranks(*communicator)}"
        " at the sizes of the comparison",
        cure=cure,
        code="no-measurement",
    )


def held_out_error(timing: TimingSource) -> float | None:
    """Return the held-out error of the machine of the times; None if unknown (nominal links)."""
    return None if timing.machine is None else timing.machine.held_out_error


def maximum_winning_time_ns(measured_us: float, error: float | None) -> float:
    """Return the time in ns below which a simulated time certainly wins; 0 if none does."""
    return 0.0 if error is None else measured_us * 1e3 * max(0.0, 1 - error)


def decide(outcome: ComparisonOutcome, size: int) -> Decision | None:
    """Decide between the best simulated algorithm and the fastest measured library at a size.

    The best algorithm is the first of `outcome.ranking`: the one with the fewest messages within
    1 % of the shortest time. Let s be its time, m the time of the fastest library (of equal ones
    the first curve), and e the held-out error of the simulation as a fraction. The first rule that
    applies decides:

    1. No library was measured at this size: returns None.
    2. No algorithm has a time: the library wins (`MEASURED`), also if e is unknown.
    3. s < m * max(0, 1 - e): the algorithm wins (`SIMULATED`).
    4. s > m * (1 + e): the library wins (`MEASURED`).
    5. Otherwise, and always if e is unknown: `UNDECIDED`, `winner` None.

    `library` and `measured_us` of the decision are always those of the fastest library.
    """
    fastest = None if outcome.measured is None else outcome.measured.fastest(size)
    if fastest is None:
        return None
    library, measured_us = fastest
    ranking = outcome.ranking(size)
    by_library = Decision(TimeKind.MEASURED, str(library), library, measured_us)
    if not ranking:
        return by_library
    error, simulated_ns = held_out_error(outcome.timing), ranking[0].time_ns or 0
    if simulated_ns < maximum_winning_time_ns(measured_us, error):
        return Decision(TimeKind.SIMULATED, ranking[0].algorithm, library, measured_us)
    if error is not None and simulated_ns > measured_us * 1e3 * (1 + error):
        return by_library
    return Decision(TimeKind.UNDECIDED, None, library, measured_us)


def measured_header(outcome: ComparisonOutcome) -> tuple[str, ...]:
    """Return the headings of the measured columns of a table: `measured: LIBRARY` per curve,
    `decision`.

    They are in the order of the curves. () if the comparison has no measurements.
    """
    if outcome.measured is None:
        return ()
    return (*(f"measured: {curve.library}" for curve in outcome.measured.curves), "decision")


def measured_cells(outcome: ComparisonOutcome, size: int) -> list[str]:
    """Return the cells of a size: the measured time of every curve as text, then the
    decision.

    A time that was not measured at exactly this size is "". The decision (`decide`) is ""
    if no library was measured at this size. The list is empty if the comparison has no
    measurements.
    """
    if outcome.measured is None:
        return []
    times_us = [curve.times_us.get(size) for curve in outcome.measured.curves]
    cells = ["" if time_us is None else format_time(time_us * 1e3) for time_us in times_us]
    return [*cells, format_decision(decide(outcome, size))]


def format_decision(decision: Decision | None) -> str:
    """Return a decision as text: `WINNER (KIND)`, only the kind without a winner, "" for None."""
    if decision is None:
        return ""
    if decision.winner is None:
        return str(decision.kind)
    return f"{decision.winner} ({decision.kind})"


def create_measured_item(outcome: ComparisonOutcome) -> MeasuredItem | None:
    """Return the measured curves and the decisions for reports; None without measurements.

    `curves`: the libraries in their order, each with one time per size of the comparison, rounded
    to integer ns, None where not measured. `decisions`: one entry per size, in the same order, None
    where no library was measured (`decide`). `ignored`: the numbers of ignored measurements by
    reason, in the order of `outcome`. Measured times of algorithms are not included.
    """
    measured = outcome.measured
    if measured is None:
        return None
    sizes = outcome.question.sizes
    curves = []
    for curve in measured.curves:
        times_us = [curve.times_us.get(size) for size in sizes]
        curves.append(
            CurveItem(
                library=curve.library.name,
                version=curve.library.version,
                variant=curve.library.variant,
                times_ns=[
                    None if time_us is None else round(time_us * 1e3) for time_us in times_us
                ],
            )
        )
    decisions: list[DecisionItem | None] = []
    for size in sizes:
        decision = decide(outcome, size)
        decisions.append(
            None
            if decision is None
            else DecisionItem(
                size=size,
                decision=str(decision.kind),
                winner=decision.winner,
                library=str(decision.library),
                measured_ns=round(decision.measured_us * 1e3),
                held_out_error=held_out_error(outcome.timing),
            )
        )
    return MeasuredItem(curves=curves, decisions=decisions, ignored=dict(measured.ignored))
