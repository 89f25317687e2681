"""Compare the predictions of a machine profile with measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_machine_profiles.gpus import SIBLINGS, Gpu, known_gpu, machine_label
from collhub_machine_profiles.machine_profile import MachineProfile
from collhub_machine_profiles.measurement import Measurement, counted
from collhub_machine_profiles.nccl_choice import Choice
from collhub_machine_profiles.network_model import extrapolate_nodes
from collhub_machine_profiles.node_model import call_columns, choice_of, is_modelled, predict

from hub_core.model import Diagnostic, InputError, Severity

CHECK_SCHEMA = "collhub/report-calibrate-check-1"


@dataclass(frozen=True, slots=True)
class CheckedPoint:
    """One measured time with its predictions in us; None if a predictor does not apply."""

    point: Measurement
    table_us: float | None
    model_us: float | None
    choice: Choice | None

    def document(self) -> dict[str, object]:
        """Return the point as JSON."""
        choice = self.choice
        return {
            "collective": self.point.collective,
            "ranks": self.point.ranks,
            "nodes": self.point.nodes,
            "size_bytes": self.point.size_bytes,
            "measured_us": self.point.time_us,
            "table_us": None if self.table_us is None else round(self.table_us, 3),
            "model_us": None if self.model_us is None else round(self.model_us, 3),
            "chosen": {
                "algorithm": choice.algorithm if choice else None,
                "protocol": choice.protocol if choice else None,
                "channels": choice.channels if choice else None,
            },
        }


@dataclass(frozen=True, slots=True)
class ProfileCheck:
    """All points with their predictions, and what was not compared."""

    points: tuple[CheckedPoint, ...]
    diagnostics: tuple[Diagnostic, ...]

    def errors(self, predictor: str) -> dict[str, float | None]:
        """Return median and 90th percentile of |predicted / measured - 1|; None without points."""
        values = [
            abs(predicted / one.point.time_us - 1)
            for one in self.points
            if (predicted := one.table_us if predictor == "table" else one.model_us) is not None
        ]
        if not values:
            return {"median_error": None, "p90_error": None}
        return {
            "median_error": round(float(np.median(values)), 5),
            "p90_error": round(float(np.percentile(values, 90)), 5),
        }

    def document(self, profile: MachineProfile) -> dict[str, object]:
        """Return the comparison as JSON."""
        return {
            "schema": CHECK_SCHEMA,
            "machine": profile.name,
            "points": [one.document() for one in self.points],
            "table": self.errors("table"),
            "model": self.errors("model"),
        }


def check_profile(
    profile: MachineProfile, points: Sequence[Measurement], like: Gpu | None
) -> ProfileCheck:
    """Predict every point of the profile's machine. Raises `InputError` if there is none."""
    used, diagnostics = _own_points(profile, points, like)
    gpu = profile.known_gpu
    # The tables belong to the measured machine; the constants also describe its siblings.
    is_sibling = any(one.code == "sibling" for one in diagnostics)
    checked = []
    for point in used:
        table = None if is_sibling else profile.table_for(point)
        size = np.array([point.size_bytes], dtype=float)
        table_us = None if table is None else float(table.time_us(size)[0])
        is_covered = gpu is not None and bool(profile.constants) and is_modelled(gpu, point)
        choice = model_us = None
        if gpu is not None and is_covered:
            version = profile.library.version
            choice = choice_of(gpu, point, version)
            times = predict(profile.constant_values(), call_columns(gpu, [point], version))
            model_us = float(times[0])
        network = next((one for one in profile.networks if one.applies_to(point)), None)
        if network is not None and not is_sibling:
            model_us = float(network.times_us([point])[0])
        if model_us is None and not is_sibling:
            model_us = extrapolate_nodes(profile.tables, point)
        checked.append(CheckedPoint(point, table_us, model_us, choice))
    notes = [] if is_sibling else _coverage_notes(profile, used)
    return ProfileCheck(tuple(checked), (*diagnostics, *notes))


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
        raise InputError(message, cure=cure, code="other-machine")
    others = len(points) - len(used)
    if not others:
        return used, []
    message = f"{counted(others, 'point')} of other machines than {profile.label}: not compared"
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
