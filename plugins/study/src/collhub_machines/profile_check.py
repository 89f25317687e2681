"""Compare the predictions of a machine profile with measured times: text, JSON and a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from collhub_machine_profiles.calls import CollectiveCall
from collhub_machine_profiles.gpus import SIBLINGS, Gpu, known_gpu, machine_label
from collhub_machine_profiles.machine_profile import ErrorSummary, MachineProfile
from collhub_machine_profiles.nccl_choice import NcclChoice
from collhub_machine_profiles.prediction import Prediction, predict_by_model, predict_by_table

from collhub_machines.machine_records import (
    CalibrateCheckReport,
    CheckedPointItem,
    ChosenByLibrary,
    PredictorErrors,
)
from collhub_machines.reading import bus_factor, combine_notes
from hub_core import CommandContext
from hub_core.model import (
    Diagnostic,
    ExitCode,
    InputError,
    Location,
    Severity,
    UsageError,
    format_count,
)
from hub_core.plugin_api import BandwidthComparison, BandwidthSeries, Measurement

if TYPE_CHECKING:
    from collhub_machine_profiles.gpus import Gpu
    from collhub_machine_profiles.machine_profile import MachineProfile

    from hub_core.plugin_api import MeasurementSet


@dataclass(frozen=True, slots=True)
class CheckedPoint:
    """One measured time with its predictions; None if a predictor does not apply."""

    point: Measurement
    table: Prediction | None
    model: Prediction | None

    @property
    def table_us(self) -> float | None:
        """Predicted time by the table in us; None if no table predicts the point."""
        return None if self.table is None else self.table.time_us

    @property
    def model_us(self) -> float | None:
        """Predicted time by the model in us; None if the model does not predict the point."""
        return None if self.model is None else self.model.time_us

    @property
    def choice(self) -> NcclChoice | None:
        """NCCL's choice that the model assumes; None if the model does not predict the point."""
        return None if self.model is None else self.model.choice

    def create_item(self) -> CheckedPointItem:
        """Return the record of the point in the JSON report, with all times in us.

        It has the call (collective, ranks, nodes, bytes), the measured time and both predictions.
        The predictions of table and model are rounded to three decimal places, and None if missing;
        the measured time is not rounded. `chosen` has algorithm, protocol and channels of NCCL's
        choice. All three are None if the model does not predict the point or has no choice.
        """
        choice, point = self.choice, self.point
        return CheckedPointItem(
            collective=point.collective,
            ranks=point.ranks,
            nodes=point.nodes,
            size_bytes=point.size_bytes,
            measured_us=point.time_us,
            table_us=None if self.table_us is None else round(self.table_us, 3),
            model_us=None if self.model_us is None else round(self.model_us, 3),
            chosen=ChosenByLibrary(
                algorithm=choice.algorithm if choice else None,
                protocol=choice.protocol if choice else None,
                channels=choice.channels if choice else None,
            ),
        )


@dataclass(frozen=True, slots=True)
class ProfileCheck:
    """All points with their predictions, and what was not compared."""

    points: tuple[CheckedPoint, ...]
    diagnostics: tuple[Diagnostic, ...]

    def compute_errors(self, predictor: str) -> PredictorErrors:
        """Return the median and the 90th percentile of |predicted / measured - 1| of a predictor.

        `predictor`: "table", or any other text for the model. Both results are fractions (0.05 is
        5 %), rounded to 5 decimal places; percentiles are interpolated linearly. Points without a
        prediction are left out. Both are None if no point has one.
        """
        values = [
            abs(predicted / checked_point.point.time_us - 1)
            for checked_point in self.points
            if (
                predicted := checked_point.table_us
                if predictor == "table"
                else checked_point.model_us
            )
            is not None
        ]
        if not values:
            return PredictorErrors(median_error=None, p90_error=None)
        error = ErrorSummary.of(values)
        return PredictorErrors(median_error=round(error.median, 5), p90_error=round(error.p90, 5))

    def create_report(self, profile: MachineProfile) -> CalibrateCheckReport:
        """Create the JSON report of the check of `profile`: every checked point, and the errors of
        the table and of the model, computed separately.
        """
        return CalibrateCheckReport(
            machine=profile.name,
            points=[checked_point.create_item() for checked_point in self.points],
            table=self.compute_errors("table"),
            model=self.compute_errors("model"),
        )


def check_profile(
    profile: MachineProfile, points: Sequence[Measurement], like: Gpu | None
) -> ProfileCheck:
    """Predict the time of every point of the profile's machine by its tables and by its model.

    The result has the points in their order (`_own_points` selects them), with None for a
    missing prediction, and the findings: points of other machines, then points that the
    tables do not cover. `like`: GPU of points whose machine names none.

    If all points are of a sibling GPU, which takes its constants from the profile's GPU,
    they are predicted without tables and networks, which belong to the measured machine, and
    without findings about tables. Raise `InputError` (`other-machine`) if there is no point
    to compare.
    """
    used, diagnostics = _own_points(profile, points, like)
    # The tables belong to the measured machine; the constants also describe its siblings.
    is_sibling = any(diagnostic.code == "sibling" for diagnostic in diagnostics)
    if is_sibling:
        profile = replace(profile, tables=(), networks=())
    checked = tuple(
        CheckedPoint(point, predict_by_table(profile, point), predict_by_model(profile, point))
        for point in used
    )
    notes = [] if is_sibling else _coverage_notes(profile, used)
    return ProfileCheck(checked, (*diagnostics, *notes))


def _own_points(
    profile: MachineProfile, points: Sequence[Measurement], like: Gpu | None
) -> tuple[list[Measurement], list[Diagnostic]]:
    """Return the points to compare with a profile, in their order, and findings.

    The GPU of a point is the one that its machine names, else `like`. The first of these groups
    that is not empty is returned:

    1. points whose machine has the label of the profile (`machine_label`: without the node count)
    2. points without a machine, and points of the profile's GPU. If the profile has no GPU, these
       are the points of unknown GPUs.
    3. points of a GPU that takes its constants from the profile's GPU (`SIBLINGS`, e.g. B300 for
       B200)

    The findings are at most one warning: `sibling` for group 3, otherwise `other-machine` with the
    number of omitted points if there are any. Raises `InputError` (`other-machine`) if all groups
    are empty, also without points.
    """
    exact = [point for point in points if machine_label(point.machine) == profile.label]
    used = exact or [
        point
        for point in points
        if not point.machine or profile.gpu == _gpu_name(point.machine, like)
    ]
    siblings = [
        point
        for point in points
        if profile.gpu and SIBLINGS.get(_gpu_name(point.machine, like)) == profile.gpu
    ]
    if not used and siblings:
        message = f"the results are of a sibling of {profile.gpu}: the model alone is compared"
        return siblings, [Diagnostic("sibling", message, Severity.WARNING)]
    if not used:
        labels = ", ".join(sorted({machine_label(point.machine) for point in points})[:4])
        message = f"the profile is of {profile.label}, the results are of {labels}"
        cure = "calibrate this machine, or name another profile"
        location = Location(points[0].file) if points else Location()
        raise InputError(message, location=location, cure=cure, code="other-machine")
    num_others = len(points) - len(used)
    if not num_others:
        return used, []
    message = (
        f"{format_count(num_others, 'point')} of other machines than {profile.label}: not compared"
    )
    cure = "check them with their own profiles"
    return used, [Diagnostic("other-machine", message, Severity.WARNING, cure=cure)]


def _gpu_name(label: str, like: Gpu | None) -> str:
    gpu = known_gpu(label) or like
    return gpu.name if gpu else ""


def _coverage_notes(profile: MachineProfile, points: Sequence[Measurement]) -> list[Diagnostic]:
    """Return warnings about points that the tables of a profile do not cover.

    First comes one warning `no-table` per configuration without a table (`profile.table_for`), with
    the number of its points. A configuration is collective, ranks, nodes and library. They are
    sorted by their text, such as `all-gather of 16 ranks, 2 nodes, NCCL 2.21`.

    Then comes at most one warning `beyond-table`, with the number of all points that are larger
    than the largest size of their table. Points below the smallest size give no warning. The list
    is empty if all points are covered.
    """
    missing: dict[str, int] = {}
    beyond = 0
    for point in points:
        table = profile.table_for(point)
        if table is None:
            nodes = format_count(point.nodes, "node")
            name = f"{point.collective} of {point.ranks} ranks, {nodes}, {point.library}"
            missing[name] = missing.get(name, 0) + 1
        elif point.size_bytes > table.sizes[-1]:
            beyond += 1
    notes = [
        Diagnostic(
            "no-table",
            f"no table for {name} ({format_count(count, 'point')})",
            Severity.WARNING,
            cure="calibrate with results of it",
        )
        for name, count in sorted(missing.items())
    ]
    if beyond:
        message = f"{format_count(beyond, 'point')} larger than the table: extrapolated"
        cure = "measure larger sizes"
        notes.append(Diagnostic("beyond-table", message, Severity.WARNING, cure=cure))
    return notes


def report_check(
    context: CommandContext,
    profile: MachineProfile,
    read: MeasurementSet,
    like: Gpu | None,
    *,
    picture: str | None = None,
    as_json: bool = False,
    max_median: float | None = None,
) -> int:
    """Print a comparison of measured points with predictions; return the exit code.

    `like`: GPU of points without a machine. In this order, the findings are reported, the picture
    is written to the file `picture` (unless None), and the JSON report (`as_json`) or the tables
    are printed.

    `max_median`: largest accepted median error as a fraction, None for any. It is compared with the
    median error of the model. If the model predicts no point, that of the table is compared; if
    neither does, the error is 0. The exit code is `ExitCode.INVALID` with a message if the error is
    larger than `max_median`, otherwise `ExitCode.DONE`.

    Raises `UsageError` if `like` is not the GPU of the profile; a profile without a GPU accepts
    any. Raises `InputError` (`other-machine`) if no point is of its machine or of a sibling GPU,
    and the errors of writing the picture.
    """
    if like is not None and profile.gpu and like.name != profile.gpu:
        message = f"the profile is of {profile.gpu}, not of {like.name}"
        raise UsageError(message, cure="name the profile of this machine")
    check = check_profile(profile, read.points, like)
    context.report((*combine_notes(read.skipped), *check.diagnostics))
    if picture is not None:
        drawn = picture_request(check, profile.label)
        context.say_written(context.draw_report(drawn, picture))
    if as_json:
        context.print_report(check.create_report(profile))
    else:
        _print_check(context, check)
    errors = (check.compute_errors(predictor).median_error for predictor in ("model", "table"))
    median = next((error for error in errors if error is not None), 0.0)
    if max_median is None or median <= max_median:
        return ExitCode.DONE
    context.say(
        f"{profile.name}: median error {100 * median:.1f} % exceeds {100 * max_median:.0f} %;"
        " calibrate this machine"
    )
    return ExitCode.INVALID


def _print_check(context: CommandContext, check: ProfileCheck) -> None:
    rows = [
        (
            checked_point.point.collective,
            str(checked_point.point.ranks),
            str(checked_point.point.nodes),
            str(checked_point.point.size_bytes),
            f"{checked_point.point.time_us:.2f}",
            *(
                "-" if us is None else f"{us:.2f}"
                for us in (checked_point.table_us, checked_point.model_us)
            ),
            f"{checked_point.choice.algorithm} {checked_point.choice.protocol}"
            if checked_point.choice
            else "-",
        )
        for checked_point in check.points
    ]
    header = ("collective", "ranks", "nodes", "bytes", "measured", "table", "model", "chosen")
    context.print_table(header, rows, header[1:7])
    for predictor in ("table", "model"):
        error = check.compute_errors(predictor)
        if error.median_error is not None and error.p90_error is not None:
            median, p90 = 100 * error.median_error, 100 * error.p90_error
            context.print_line(f"{predictor}: median error {median:.1f} %, p90 {p90:.1f} %")


def picture_request(check: ProfileCheck, machine: str) -> BandwidthComparison:
    """Return the request for a picture of measured and predicted bus bandwidths in bytes/s.

    A configuration is collective, ranks, nodes and library. Configurations are sorted by their
    text, such as `all-gather of 16 on 2 nodes, NCCL 2.21`; a single node is not mentioned. Each has
    up to five series, in this order: `measured`, `table`, `model`, and two edges of a band around
    the model. With e, the 90th percentile of the model's error over all points, the lower edge is
    the model's bandwidth divided by 1 + e, and the upper one is multiplied by it. Both edges are
    left out if e is 0 or unknown.

    All series have one value per size that any point of the check has, by ascending size. A value
    is `None` where the configuration has no point of this size or no prediction. Series without
    values are left out. If several points of a configuration have the same size, the last one
    counts. `bus_bandwidth` defines the bandwidth. Without points, there are no sizes and no series.
    """
    sizes = tuple(sorted({checked_point.point.size_bytes for checked_point in check.points}))
    groups: dict[str, list[CheckedPoint]] = {}
    for checked_point in check.points:
        point = checked_point.point
        nodes = f" on {point.nodes} nodes" if point.nodes > 1 else ""
        name = f"{point.collective} of {point.ranks}{nodes}, {point.library}"
        groups.setdefault(name, []).append(checked_point)
    p90 = check.compute_errors("model").p90_error
    values: list[tuple[str, Callable[[CheckedPoint], float | None]]] = [
        ("measured", lambda checked_point: checked_point.point.time_us),
        ("table", lambda checked_point: checked_point.table_us),
        ("model", lambda checked_point: checked_point.model_us),
    ]
    if p90:
        edge = 1 + p90
        values += [
            (
                "model, lower edge (p90)",
                lambda checked_point: checked_point.model_us and checked_point.model_us * edge,
            ),
            (
                "model, upper edge (p90)",
                lambda checked_point: checked_point.model_us and checked_point.model_us / edge,
            ),
        ]
    series = []
    for name, points in sorted(groups.items()):
        for label, time_of in values:
            by_size = {
                checked_point.point.size_bytes: bus_bandwidth(
                    checked_point.point, time_of(checked_point)
                )
                for checked_point in points
            }
            if any(by_size.values()):
                bandwidths = tuple(by_size.get(size) for size in sizes)
                series.append(BandwidthSeries(f"{name}: {label}", bandwidths))
    return BandwidthComparison(f"{machine}: measured and predicted", sizes=sizes, series=series)


def bus_bandwidth(call: CollectiveCall, time_us: float | None) -> float | None:
    """Return the bus bandwidth in bytes per second: size / time, times `bus_factor`.

    Returns None without a time or for time 0.
    """
    if not time_us:
        return None
    return call.size_bytes / (time_us * 1e-6) * bus_factor(call.collective, call.ranks)
