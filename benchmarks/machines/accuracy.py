"""Errors of tables and models of machines on public measurements.

`python benchmarks/machines/accuracy.py [measured.json [HELD_OUT...]]` fits every machine to the
points of `measured.json` (default: ../shared/corpus/measured) and prints median, 90th percentile
and worst error. Without held-out files the points are halved: every second size is left out of
the fit. With them, all points are fitted, and the points of the held-out files are predicted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from collhub_machine_profiles.calls import envelope, interpolate, make_tables
from collhub_machine_profiles.gpus import GPUS, Gpu, has_switched_links, known_gpu, machine_label
from collhub_machine_profiles.machine_profile import ErrorSummary
from collhub_machine_profiles.prediction import Method, predict_by_table
from collhub_machine_profiles.time_models import (
    CallColumns,
    call_columns,
    is_between_nodes,
    is_modelled,
    predict,
)
from collhub_machines.calibration import CalibrationRequest, calibrate_machines, read_points
from collhub_machines.fitting import (
    Prior,
    every_second_size,
    fit_constants,
    fit_networks,
    fit_node,
    held_out_errors,
    machine_prior,
    start_prior,
)
from collhub_machines.profile_check import check_profile

from hub_core.plugin_api import Measurement, MeasurementSet

CORPUS = Path(__file__).resolve().parents[2].parent / "shared/corpus/measured/measured.json"


# Sizes that suffice for the network of several nodes.
GIVEN_SIZES = (2**13, 2**18, 2**22, 2**26, 2**30)
# The bar of tables is for knots that are this many times apart.
MAX_GAP = 4
# Fewest sizes of a series of which one size at a time is left out.
MIN_SIZES = 5


def show(name: str, errors: Iterable[float], bar: str = "") -> None:
    """Print one line of statistics in percent."""
    values = list(errors)
    if values:
        error = ErrorSummary.of(values)
        numbers = f"{100 * error.median:5.1f} {100 * error.p90:6.1f} {100 * error.worst:6.1f}"
        print(f"{name:<62} {error.points:5} {numbers}  {bar}")


def machines_of(points: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """Group points by the label of their machine."""
    groups: dict[str, list[Measurement]] = {}
    for point in points:
        groups.setdefault(machine_label(point.machine), []).append(point)
    return dict(sorted(groups.items()))


def halves(points: Sequence[Measurement]) -> dict[str, list[float]]:
    """Return errors of models that are fitted without every second size, by their prior."""
    totals: dict[str, list[float]] = {}
    for title, prior_of in (("start values", start_prior), ("published constants", machine_prior)):
        total: list[float] = []
        for label, group in machines_of(points).items():
            gpu = known_gpu(label)
            if gpu is None or not has_switched_links(label):
                continue
            chosen = [one for one in group if is_modelled(gpu, one)]
            if len(chosen) < 20:
                continue
            errors = [error for _, error in held_out_errors(gpu, chosen, "", prior_of(gpu))]
            show(f"model, prior {title}: {label[:32]}", errors)
            total += errors
        show(f"model, prior {title}: all", total, "bar: 6 and 18")
        totals[title] = total
    return totals


def tables(points: Sequence[Measurement]) -> None:
    """Print errors of tables between their knots."""
    for title in LEFT_OUT:
        tables_between_knots(points, title)
    tables = [one for group in machines_of(points).values() for one in make_tables(group)]
    one_node = [one for one in tables if one.nodes == 1]
    errors_of = [error for one in one_node for error in one.errors_between_knots()]
    show("table, linear, one node, knots 16 times apart", errors_of, "(at 4 times: 3 and 18)")
    for title, errors in knots_four_times_apart(points).items():
        show(f"table, linear, knots at most 4 times apart: {title}", errors, "(3 and 18)")


def knots_four_times_apart(points: Sequence[Measurement]) -> dict[str, list[float]]:
    """Return errors of tables between knots at most 4 times apart, for which the bar holds.

    `same run`: sizes whose neighbours in the same table are so near. `another run`: sizes of
    another run with GPUs of the same kind, so that the error contains the difference of the runs.
    """
    errors: dict[str, list[float]] = {"same run": [], "another run": []}
    one_node = [one for one in points if one.nodes == 1]
    measured = [
        (known_gpu(label), table)
        for label, group in machines_of(one_node).items()
        for table in make_tables(group)
    ]
    for gpu, table in measured:
        sizes = table.sizes
        for place in range(1, len(sizes) - 1):
            if sizes[place + 1] <= MAX_GAP * sizes[place - 1]:
                ends = [place - 1, place + 1]
                time_us = interpolate(sizes[ends], envelope(table.times_us[ends]), sizes[place])
                errors["same run"].append(float(time_us) / table.times_us[place] - 1)
        for other_gpu, other in measured:
            configurations = {
                (one.collective, one.ranks, one.dtype, one.library.name) for one in (table, other)
            }
            if other is table or gpu is None or other_gpu != gpu or len(configurations) > 1:
                continue
            for size, time_us in zip(other.sizes, other.times_us, strict=True):
                upper = int(np.searchsorted(sizes, size))
                if 0 < upper < len(sizes) and size < sizes[upper] <= MAX_GAP * sizes[upper - 1]:
                    errors["another run"].append(float(table.time_us(size)) / time_us - 1)
    return errors


def tables_between_knots(points: Sequence[Measurement], title: str) -> dict[str, list[float]]:
    """Return errors of tables on one node at inner sizes that tables and fits do not see.

    `title` is a key of `LEFT_OUT`. The groups of the result are machines with and without a model.
    The remaining sizes are 16 times apart where the given ones are four times apart.
    """
    errors: dict[str, list[float]] = {"with a model": [], "without": []}
    one_node = [one for one in points if one.nodes == 1]
    for group in machines_of(one_node).values():
        for held in LEFT_OUT[title](group):
            kept = [one for one, is_held in zip(group, held, strict=True) if not is_held]
            tested = [one for one, is_held in zip(group, held, strict=True) if is_held]
            read = MeasurementSet(kept)
            for machine in calibrate_machines(read, CalibrationRequest(hold_out=False)):
                group_name = "with a model" if machine.profile.constants else "without"
                for point in tested:
                    predicted = predict_by_table(machine.profile, point)
                    if predicted is not None and predicted.method is Method.INTERPOLATED:
                        errors[group_name].append(predicted.time_us / point.time_us - 1)
    for group_name, values in errors.items():
        show(f"table, {title} left out: {group_name}", values)
    show(f"table, {title} left out: all", [one for values in errors.values() for one in values])
    return errors


def every_second(points: Sequence[Measurement]) -> Iterator[list[bool]]:
    """Yield once for each point whether its size is every second one of its series."""
    held = every_second_size(points)
    if not all(held):
        yield held


def one_at_a_time(points: Sequence[Measurement]) -> Iterator[list[bool]]:
    """Yield for each position whether each point has the inner size of this position in its series.

    Only series of at least `MIN_SIZES` sizes count.
    """
    tables = [one for one in make_tables(points) if len(one.sizes) >= MIN_SIZES]
    for position in range(1, max((len(one.sizes) for one in tables), default=1) - 1):
        held = {(*one.key, one.sizes[position]) for one in tables if position < len(one.sizes) - 1}
        yield [
            (one.collective, one.ranks, one.nodes, one.library, one.dtype, one.size_bytes) in held
            for one in points
        ]


LEFT_OUT: dict[str, Callable[[Sequence[Measurement]], Iterator[list[bool]]]] = {
    "every second size": every_second,
    "one size": one_at_a_time,
}
"""Selections of held-out sizes of a machine, each a list of masks."""


def machines_left_out(points: Sequence[Measurement]) -> list[float]:
    """Return errors on entire machines: constants of the other machines of their architecture.

    Without another machine of the architecture, the start values are used.
    """
    total: list[float] = []
    chosen = {
        label: [one for one in group if is_modelled(gpu, one)]
        for label, group in machines_of(points).items()
        if (gpu := known_gpu(label)) is not None and has_switched_links(label)
    }
    chosen = {label: group for label, group in chosen.items() if len(group) >= 20}
    for label, group in chosen.items():
        gpu = GPUS[known_gpu(label).name]  # type: ignore[union-attr]
        values = start_prior(gpu).values
        others = [
            (other, known)
            for name, other in chosen.items()
            if name != label
            and (known := known_gpu(name)) is not None
            and known.architecture == gpu.architecture
        ]
        if others:
            fits = [
                fit_node(known, other, "", start_prior(known)).values for other, known in others
            ]
            values = np.exp(np.mean(np.log(fits), axis=0))
        times = predict(values, call_columns(gpu, group, ""))
        errors = [time / point.time_us - 1 for time, point in zip(times, group, strict=True)]
        source = "a sibling" if others else "start values"
        show(f"model, machine left out, by {source}: {label[:25]}", errors)
        total += errors if others else []
    show("model, machine left out, by a sibling: all", total, "bar: 6 and 18")
    return total


def pool_prior(machines: Sequence[tuple[Gpu, list[Measurement]]]) -> Prior:
    """Fit all machines of an architecture together: a prior with a third of the start's widths.

    One machine may lack points of an algorithm that another one uses: NVLS replaces the rings of
    full nodes, and trays of four GPUs run them.
    """
    start = start_prior(machines[0][0])
    columns = [call_columns(gpu, group, "") for gpu, group in machines]
    calls = CallColumns(*(np.concatenate([getattr(one, name) for one in columns])
                          for name in CallColumns.__slots__))  # fmt: skip
    measured = np.log([point.time_us for _, group in machines for point in group])
    return Prior(fit_constants(calls, measured, start), start.widths / 3, "prior")


def collectives_left_out(points: Sequence[Measurement]) -> dict[str, list[float]]:
    """Return errors on all-gather by constants that all-reduce and all-to-all determine.

    Every machine alone from the start values, and with the fit of its architecture as prior.
    """
    total: dict[str, list[float]] = {"start values": [], "fit of the architecture": []}
    architectures: dict[str, list[tuple[Gpu, list[Measurement], list[Measurement]]]] = {}
    for label, group in machines_of(points).items():
        gpu = known_gpu(label)
        if gpu is None or not has_switched_links(label):
            continue
        chosen = [one for one in group if is_modelled(gpu, one)]
        kept = [one for one in chosen if one.collective != "all-gather"]
        tested = [one for one in chosen if one.collective == "all-gather"]
        if len(kept) >= 20 and tested:
            architectures.setdefault(gpu.architecture, []).append((gpu, kept, tested))
    for machines in architectures.values():
        pooled = pool_prior([(gpu, kept) for gpu, kept, _ in machines])
        for gpu, kept, tested in machines:
            for title, prior in zip(total, (start_prior(gpu), pooled), strict=True):
                values = fit_node(gpu, kept, "", prior).values
                times = predict(values, call_columns(gpu, tested, ""))
                pairs = zip(times, tested, strict=True)
                total[title] += [time / point.time_us - 1 for time, point in pairs]
    for title, errors in total.items():
        show(f"model, all-gather left out, prior {title}: all", errors, "bar: 6 and 18")
    return total


def nearest_sizes(sizes: Sequence[int]) -> set[int]:
    """Return the size nearest to each of `GIVEN_SIZES`, all different."""
    given: set[int] = set()
    for target in GIVEN_SIZES:
        rest = [size for size in sizes if size not in given]
        if rest:
            given.add(min(rest, key=lambda size: abs(np.log(size / target))))
    return given


def five_points(points: Sequence[Measurement]) -> dict[str, list[float]]:
    """Return errors on 2 to 4 nodes with five points: the sizes nearest to `GIVEN_SIZES`."""
    total: dict[str, list[float]] = {}
    for label, group in machines_of(points).items():
        between = [one for one in group if is_between_nodes(one) and one.library.name == "NCCL"]
        for nodes in sorted({one.nodes for one in between}):
            curve = [one for one in between if one.nodes == nodes]
            sizes = [one.size_bytes for one in curve]
            given = nearest_sizes(sizes)
            models = fit_networks([one for one in curve if one.size_bytes in given])
            tested = [one for one in curve if one.size_bytes not in given]
            if not models or not tested:
                continue
            times = models[0].times_us(tested)
            errors = [time / point.time_us - 1 for time, point in zip(times, tested, strict=True)]
            show(f"{nodes} nodes, five points: {label[:38]}", errors, "bar: 10" * (nodes <= 4))
            if nodes <= 4:
                total[f"{nodes} nodes, {label[:40]}"] = errors
    every = [error for errors in total.values() for error in errors]
    show("2 to 4 nodes, five points: all", every, "bar: 10")
    return total


def held_out(read: MeasurementSet, files: Sequence[str]) -> dict[str, list[float]]:
    """Return errors on the points of other files, by all profiles that `read` gives."""
    machines = calibrate_machines(read, CalibrationRequest(hold_out=False))
    points = read_points(files).points
    errors: dict[str, list[float]] = {"table": [], "model": []}
    for machine in machines:
        label = machine.profile.label
        own = [one for one in points if machine_label(one.machine) == label]
        if not own:
            continue
        check = check_profile(machine.profile, own, GPUS.get(machine.profile.gpu))
        for name in errors:
            values = [
                us / one.point.time_us - 1
                for one in check.points
                if (us := one.table_us if name == "table" else one.model_us) is not None
                and (name == "table" or one.point.nodes == 1)
            ]
            show(f"{name}: {label[:50]}", values)
            errors[name] += values
    show("table: all", errors["table"], "bar: 3 and 18")
    show("model of one node: all", errors["model"], "bar: 6 and 18")
    return errors


def main() -> None:
    """Print all errors and the CPU time."""
    files = sys.argv[1:] or [str(CORPUS)]
    read = read_points(files[:1])
    print(f"{'':<62} {'n':>5} {'med':>5} {'p90':>6} {'worst':>6}  %")
    if files[1:]:
        held_out(read, files[1:])
    else:
        halves(read.points)
        tables(read.points)
        machines_left_out(read.points)
        collectives_left_out(read.points)
        five_points(read.points)
    print(f"{time.process_time():.1f} CPU s")


if __name__ == "__main__":
    main()
