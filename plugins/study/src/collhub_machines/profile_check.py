"""Compare the predictions of a machine profile with measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collhub_machine_profiles.gpus import SIBLINGS, Gpu, known_gpu, machine_label
from collhub_machine_profiles.machine_profile import ErrorSummary, MachineProfile
from collhub_machine_profiles.nccl_choice import Choice
from collhub_machine_profiles.prediction import (
    Prediction,
    predict_by_model,
    predict_by_table,
)

from collhub_machines.machine_records import (
    CalibrateCheckReport,
    CheckedPointItem,
    ChosenByLibrary,
    PredictorErrors,
)
from collhub_machines.reading import counted
from hub_core.model import Diagnostic, InputError, Location, Severity
from hub_core.plugin_api import Measurement


@dataclass(frozen=True, slots=True)
class CheckedPoint:
    """One measured time with its predictions; None if a predictor does not apply."""

    point: Measurement
    table: Prediction | None
    model: Prediction | None

    @property
    def table_us(self) -> float | None:
        """Time by the table in us."""
        return None if self.table is None else self.table.time_us

    @property
    def model_us(self) -> float | None:
        """Time by the model in us."""
        return None if self.model is None else self.model.time_us

    @property
    def choice(self) -> Choice | None:
        """NCCL's choice, where the model knows it."""
        return None if self.model is None else self.model.choice

    def create_item(self) -> CheckedPointItem:
        """Return the point for the JSON report; predictions in us with three digits."""
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
        """Return median and 90th percentile of |predicted / measured - 1|; None without points."""
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
        """Create the JSON report."""
        return CalibrateCheckReport(
            machine=profile.name,
            points=[checked_point.create_item() for checked_point in self.points],
            table=self.compute_errors("table"),
            model=self.compute_errors("model"),
        )


def check_profile(
    profile: MachineProfile, points: Sequence[Measurement], like: Gpu | None
) -> ProfileCheck:
    """Predict every point of the profile's machine. Raises `InputError` if there is none."""
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
    """Return the points of this machine: of its label, else of its GPU; report the others."""
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
    message = f"{counted(num_others, 'point')} of other machines than {profile.label}: not compared"
    cure = "check them with their own profiles"
    return used, [Diagnostic("other-machine", message, Severity.WARNING, cure=cure)]


def _gpu_name(label: str, like: Gpu | None) -> str:
    gpu = known_gpu(label) or like
    return gpu.name if gpu else ""


def _coverage_notes(profile: MachineProfile, points: Sequence[Measurement]) -> list[Diagnostic]:
    """Report configurations without a table, and sizes beyond one."""
    missing: dict[str, int] = {}
    beyond = 0
    for point in points:
        table = profile.table_for(point)
        if table is None:
            name = (
                f"{point.collective} of {point.ranks} ranks, {point.nodes} nodes, {point.library}"
            )
            missing[name] = missing.get(name, 0) + 1
        elif point.size_bytes > table.sizes[-1]:
            beyond += 1
    notes = [
        Diagnostic(
            "no-table",
            f"no table for {name} ({counted(count, 'point')})",
            Severity.WARNING,
            cure="calibrate with results of it",
        )
        for name, count in sorted(missing.items())
    ]
    if beyond:
        message = f"{counted(beyond, 'point')} larger than the table: extrapolated"
        cure = "measure larger sizes"
        notes.append(Diagnostic("beyond-table", message, Severity.WARNING, cure=cure))
    return notes
