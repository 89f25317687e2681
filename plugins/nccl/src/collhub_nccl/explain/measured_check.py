"""Compare measured calls with a machine's profile, and find the constant that explains them.

Measured calls are records of NCCL's Inspector, or results of nccl-tests and other benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from collhub_machine_profiles.calls import PlannedCall
from collhub_machine_profiles.machine_profile import MachineProfile
from collhub_machine_profiles.nccl_baseline import expected_time, expected_time_of_choice_us
from collhub_machine_profiles.nccl_choice import NcclChoice, launch_of
from collhub_machine_profiles.nccl_costs import Communicator
from collhub_machine_profiles.time_models import (
    MEANINGS,
    NAMES,
    call_columns,
    predict,
)

from collhub_nccl.explain.calls import COLLECTIVES, CallRequest, ExplainedCall, explain_call
from hub_core.model import UsageError
from hub_core.plugin_api import Library, Measurement

DEFAULT_TOLERANCE = 0.18
"""Relative difference that counts as equal if the profile states no error: the bar of its model."""
MAX_FACTOR = 16.0
"""Largest change of one constant that counts as an explanation."""
_OTHER_CHOICE = 0.05
# Smallest relative change of a time by one percent of a constant.
_MIN_INFLUENCE = 1e-4
_BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class MeasuredFinding:
    """One measured call. `expected_us` is None if the profile does not cover it.

    `agrees` is None without an expected time; `difference` is measured / expected - 1.
    """

    point: Measurement
    call: ExplainedCall | None
    expected_us: float | None
    expected_by: str
    agrees: bool | None
    explanation: str

    @property
    def difference(self) -> float | None:
        """Return measured / expected - 1, None without an expected time."""
        return None if self.expected_us is None else self.point.time_us / self.expected_us - 1


def check_measured(
    points: Sequence[Measurement],
    profile: MachineProfile | None,
    build: Callable[[int | None, int | None, str], Communicator],
) -> list[MeasuredFinding]:
    """Compare every point with the expected time of NCCL's choice on the machine.

    `build` returns the communicator of the machine for ranks, nodes and version ("" if unknown).
    """
    return [_check_point(point, profile, build) for point in points]


def _check_point(
    point: Measurement,
    profile: MachineProfile | None,
    build: Callable[[int | None, int | None, str], Communicator],
) -> MeasuredFinding:
    """Compare a measured call with the expected time of NCCL's choice by the profile.

    There is no expected time, `agrees` is None and the explanation is the reason in these cases, in
    this order: NCCL's cost model lacks the collective, the library is not NCCL, `build` refuses the
    communicator, no profile covers the call.

    Otherwise it agrees, without an explanation, if the difference relative to the expected time is
    at most the larger of the prediction's `p90_error` and `DEFAULT_TOLERANCE` (0.18). If it does
    not, the explanation has up to two parts, joined by " or ": another choice of NCCL with about
    the measured time (`_find_other_choice`), and a constant of the profile with a value that gives
    this time (`_find_constant`). With neither, the text is that no single constant explains it.
    """
    if point.collective not in COLLECTIVES:
        reason = f"NCCL's cost model has no {point.collective}"
        return MeasuredFinding(point, None, None, "", None, reason)
    if not point.library.name.startswith("NCCL"):
        reason = f"measured with {point.library}, not with NCCL"
        return MeasuredFinding(point, None, None, "", None, reason)
    try:
        communicator = build(point.ranks, point.nodes, point.library.version)
    except UsageError as error:
        return MeasuredFinding(point, None, None, "", None, error.diagnostics[0].message)
    request = CallRequest(communicator, point.collective, point.size_bytes, point.dtype)
    call = explain_call(request)
    predicted = None
    if profile is not None:
        predicted = expected_time(
            profile, point.collective, point.ranks, point.nodes, point.size_bytes,
            point.library.version, point.dtype,
        )  # fmt: skip
    if profile is None or predicted is None:
        reason = "no profile covers the call; NCCL's own cost is not a measured time"
        return MeasuredFinding(point, call, None, "", None, reason)
    tolerance = max(predicted.p90_error or 0.0, DEFAULT_TOLERANCE)
    difference = point.time_us / predicted.time_us - 1
    if abs(difference) <= tolerance:
        return MeasuredFinding(point, call, predicted.time_us, str(predicted.method), True, "")
    parts = []
    fitting = _find_other_choice(point, call, profile)
    if fitting is not None:
        choice, time_us = fitting
        name = f"{choice.algorithm} {choice.protocol}"
        parts.append(f"{name} would take {time_us:.2f} us: a setting or a tuner")
    constant = _find_constant(point, call, profile)
    if constant is not None:
        name, value, usual = constant
        parts.append(f"{name} {value:.3g} instead of {usual:.3g} ({MEANINGS[name]})")
    explanation = " or ".join(parts) or "no single constant of the profile explains it"
    return MeasuredFinding(
        point, call, predicted.time_us, str(predicted.method), False, explanation
    )


def _find_other_choice(
    point: Measurement, call: ExplainedCall, profile: MachineProfile
) -> tuple[NcclChoice, float] | None:
    """Return the choice whose modelled time is nearest to the measured one, with its time in us.

    The call's own choice is excluded. Candidates are the launches of the alternatives that NCCL
    allows for the call. A candidate counts only if:

    - it differs from the call's own choice (algorithm, protocol, channels, threads or chunk)
    - the profile has a time for it (`expected_time_of_choice_us`): rings and NVLS on one node
    - its time differs from the measured one by at most 5 % of the measured one (`_OTHER_CHOICE`)

    Of equally near ones, the first in `call.alternatives` is returned; these ascend by NCCL's own
    cost. None if no candidate counts, as for an all-to-all, which has no alternatives.
    """
    communicator = call.request.communicator
    nearest: tuple[float, NcclChoice, float] | None = None
    for row in call.alternatives:
        if row.time_us is None:
            continue
        choice = launch_of(communicator, point.collective, row.alternative, point.size_bytes)
        if choice == call.choice:
            continue
        time_us = expected_time_of_choice_us(
            profile, communicator, point.collective, point.size_bytes, choice
        )
        if time_us is None:
            continue
        distance = abs(time_us / point.time_us - 1)
        if distance <= _OTHER_CHOICE and (nearest is None or distance < nearest[0]):
            nearest = distance, choice, time_us
    return None if nearest is None else nearest[1:]


def _find_constant(
    point: Measurement, call: ExplainedCall, profile: MachineProfile
) -> tuple[str, float, float] | None:
    """Return the constant that explains a measured time: name, needed value, value of the profile.

    The model of the profile predicts the call with NCCL's choice. For every constant, influence is
    the relative change of this time (absolute value) when the constant grows by 1 %. Constants are
    tried in descending order of influence; of equal ones, the one later in `NAMES` is tried first.
    Constants with an influence below `_MIN_INFLUENCE` (0.0001) are not tried.

    The first constant is returned for which a factor from 1/16 to 16 (`MAX_FACTOR`) gives the
    measured time; the needed value is the profile's value times the factor. All other constants
    keep their values. None if no constant can, if the call has no choice, and if the profile has no
    model for the call (`modelled_gpu`; for example with several nodes).
    """
    choice = call.choice
    communicator = call.request.communicator
    library = Library("NCCL", communicator.version)
    planned = PlannedCall(
        point.collective, point.ranks, point.nodes, point.size_bytes, library, point.dtype
    )
    gpu = profile.modelled_gpu(planned)
    if gpu is None or choice is None:
        return None
    columns = call_columns(gpu, [planned], communicator.version, [choice])
    values = profile.constant_values()

    def time_us(index: int, factor: float) -> float:
        changed = values.copy()
        changed[index] *= factor
        return float(predict(changed, columns)[0])

    usual_us = float(predict(values, columns)[0])
    influence = [abs(time_us(index, 1.01) / usual_us - 1) for index in range(len(NAMES))]
    for index in np.argsort(influence, kind="stable")[::-1].tolist():
        if influence[index] < _MIN_INFLUENCE:
            break
        factor = _solve_factor(partial(time_us, index), point.time_us)
        if factor is not None:
            return NAMES[index], float(values[index]) * factor, float(values[index])
    return None


def _solve_factor(time_of: Callable[[float], float], target_us: float) -> float | None:
    """Return the factor for which `time_of` gives the target time in us, or None if there is none.

    The factor is sought between 1 / `MAX_FACTOR` and `MAX_FACTOR`, by `_BISECTIONS` bisections of
    its logarithm. `time_of` must rise, or fall, over this whole range. The result is None if the
    target is below the smaller or above the larger of the times at both ends. A target equal to one
    of these times is accepted.
    """
    low, high = 1 / MAX_FACTOR, MAX_FACTOR
    rises = time_of(high) > time_of(low)
    if not min(time_of(low), time_of(high)) <= target_us <= max(time_of(low), time_of(high)):
        return None
    for _ in range(_BISECTIONS):
        middle = (low * high) ** 0.5
        if (time_of(middle) < target_us) == rises:
            low = middle
        else:
            high = middle
    return float((low * high) ** 0.5)
