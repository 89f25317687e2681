"""Predict the time of a collective on a machine: by its table, else by its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from collhub_machine_profiles.calls import CollectiveCall, MedianTimes, PlannedCall, envelope
from collhub_machine_profiles.machine_profile import ErrorEntry, MachineProfile
from collhub_machine_profiles.nccl_baseline import network_of_machine
from collhub_machine_profiles.nccl_choice import NcclChoice
from collhub_machine_profiles.time_models import (
    FloatArray,
    bandwidth_factor,
    call_columns,
    choice_of,
    extrapolate_nodes,
    is_between_nodes,
    predict,
)

MIN_NOMINAL_BYTES = 2**28
MAX_FITTED_BYTES = 2**29
NIC_EFFICIENCY = 0.9


class Method(StrEnum):
    """Origin of a predicted time.

    MEASURED: a knot of the table. INTERPOLATED: between its knots. EXTRAPOLATED: beyond them, or
    on more nodes than were measured. MODEL: by the constants of the profile. NOMINAL: by the
    nominal rate of the network cards.
    """

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    MODEL = "model"
    NOMINAL = "nominal"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted time in us.

    `median_error` and `p90_error` are held-out errors |predicted / measured - 1| of the predictor,
    None if none was measured. `choice` is NCCL's choice where the model knows it.
    """

    time_us: float
    method: Method
    median_error: float | None = None
    p90_error: float | None = None
    choice: NcclChoice | None = None


def predict_time(profile: MachineProfile, call: CollectiveCall) -> Prediction | None:
    """Return the time of a call by the table of the profile, else by its model, else None."""
    return predict_by_table(profile, call) or predict_by_model(profile, call)


def predict_by_table(profile: MachineProfile, call: CollectiveCall) -> Prediction | None:
    """Predict the time of a call in us by the profile's table for it; None without a table.

    - At a measured size it is the smallest measured time of this and all larger sizes (`envelope`).
      Both errors are 0.
    - Between measured sizes it is interpolated (`_time_between_knots_us`).
    - Below the first size it is the time of the first size. Above the last size it grows with the
      slope of the last two (`interpolate`). The method is then EXTRAPOLATED.

    Extrapolated and interpolated times have the errors of tables at sizes that they did not see
    (`_errors`), which are None if none was measured.
    """
    table = profile.table_for(call)
    if table is None:
        return None
    if call.size_bytes in table.sizes:
        return Prediction(_time_by_table_us(table, call), Method.MEASURED, 0.0, 0.0)
    errors = _errors(profile, "table", call)
    if not table.sizes[0] <= call.size_bytes <= table.sizes[-1]:
        return Prediction(_time_by_table_us(table, call), Method.EXTRAPOLATED, *errors)
    time_us = _time_between_knots_us(profile, table, call)
    return Prediction(time_us, Method.INTERPOLATED, *errors)


def _time_by_table_us(table: MedianTimes, call: CollectiveCall) -> float:
    return float(table.time_us(np.array([call.size_bytes], dtype=float))[0])


def _time_between_knots_us(
    profile: MachineProfile, table: MedianTimes, call: CollectiveCall
) -> float:
    """Return the time in us at a size between two measured sizes of a table.

    The measured times of the two nearest sizes are taken from the `envelope`: the shortest time of
    the size and of all larger sizes. The first rule that applies:

    1. If a model covers the call (`_modelled_times_us`): the time of the model plus its error. The
       error is (measured - model) at the two sizes, interpolated linearly in the size. The result
       is limited to the range between the two measured times.
    2. Otherwise: the time interpolated linearly in the size between the two measured times.

    At the two sizes themselves both rules give the measured time. The size must be above the first
    size of the table, and at most the last one, which is not checked.
    """
    upper = int(np.searchsorted(table.sizes, call.size_bytes))
    knots = slice(upper - 1, upper + 1)
    sizes, measured_us = table.sizes[knots], envelope(table.times_us)[knots]
    calls = [
        PlannedCall(call.collective, call.ranks, call.nodes, int(size), table.library, call.dtype)
        for size in (*sizes, call.size_bytes)
    ]
    model_us = _modelled_times_us(profile, calls)
    if model_us is None:
        return _time_by_table_us(table, call)
    error_us = np.interp(call.size_bytes, sizes, measured_us - model_us[:2])
    return float(np.clip(model_us[2] + error_us, *measured_us))


def _modelled_times_us(
    profile: MachineProfile, calls: Sequence[CollectiveCall]
) -> FloatArray | None:
    """Return the times in us of calls that differ only in their sizes, by fitted constants.

    `calls` must not be empty; its first call decides. If the model of one node covers it
    (`MachineProfile.modelled_gpu`), the constants of the profile are used. Otherwise the
    first network model of the profile that applies to it is used. The result is None if
    there is neither.
    """
    gpu = profile.modelled_gpu(calls[0])
    if gpu is not None:
        columns = call_columns(gpu, calls, profile.library.version)
        return predict(profile.constant_values(), columns)
    network = next((one for one in profile.networks if one.applies_to(calls[0])), None)
    return None if network is None else network.times_us(calls)


def predict_by_model(profile: MachineProfile, call: CollectiveCall) -> Prediction | None:
    """Predict the time (us) of a call without a table for exactly this call.

    The first of these that covers the call is used, otherwise the result is None:

    1. The model of one node. The GPU must be known, and the profile must have constants.
    2. The first network of the profile, i.e. a model of several nodes, that covers the call.
    3. Extrapolation of the tables to more nodes than were measured.
    4. Nominal rates of network cards, only for large all-reduces.

    The errors of 1 to 3 are those of the model at sizes that it did not see. Nominal times have no
    errors. Only 1 also gives NCCL's choice (algorithm and protocol).
    """
    errors = _errors(profile, "model", call)
    gpu = profile.modelled_gpu(call)
    if gpu is not None:
        version = profile.library.version
        choice = choice_of(gpu, call, version)
        columns = call_columns(gpu, [call], version, [choice])
        times_us = predict(profile.constant_values(), columns)
        return Prediction(float(times_us[0]), Method.MODEL, *errors, choice)
    network_us = _modelled_times_us(profile, [call])
    if network_us is not None:
        return Prediction(float(network_us[0]), Method.MODEL, *errors)
    extrapolated_us = extrapolate_nodes(profile.tables, call)
    if extrapolated_us is not None:
        return Prediction(extrapolated_us, Method.EXTRAPOLATED, *errors)
    nominal_us = _nominal_time_us(profile, call)
    return None if nominal_us is None else Prediction(nominal_us, Method.NOMINAL)


def _nominal_time_us(profile: MachineProfile, call: CollectiveCall) -> float | None:
    """Estimate the time in us of a large all-reduce on several nodes from rates of network cards.

    Returns None unless all these conditions hold:

    - The GPU and the cards of the machine are known.
    - The call is an all-reduce of at least two nodes, without a particular dtype.
    - All nodes are full: ranks = nodes * GPUs per node.
    - The size is at least `MIN_NOMINAL_BYTES` (256 MiB).

    The time is size / (0.9 * rate of all cards of a node * f). f is 1 for two nodes, else n
    / (2 (n - 1)) for n ranks. Cards are assumed to reach 0.9 of their nominal rate
    (measured: 0.86 to 0.95). The result is at least the modelled time of the same size on
    one node. Above `MAX_FITTED_BYTES` (512 MiB) that is the time of this size, increased in
    proportion. It is ignored if no model covers one node.
    """
    gpu, cards = profile.known_gpu, network_of_machine(profile.name)
    if gpu is None or cards is None or not is_between_nodes(call):
        return None
    if call.size_bytes < MIN_NOMINAL_BYTES or call.ranks != call.nodes * gpu.gpus_per_node:
        return None
    rate = NIC_EFFICIENCY * cards.nics * cards.nic_rate * bandwidth_factor(call)
    between_us = call.size_bytes / rate / 1e3
    # Constants of one node were fitted up to this size: a larger size takes the same rate.
    size = min(call.size_bytes, MAX_FITTED_BYTES)
    inner = PlannedCall(call.collective, gpu.gpus_per_node, 1, size, call.library)
    within = predict_by_model(profile, inner)
    return max(between_us, within.time_us * call.size_bytes / size if within else 0.0)


def _errors(
    profile: MachineProfile, predictor: str, call: CollectiveCall
) -> tuple[float | None, float | None]:
    """Return the (median error, 90th percentile) to report with a prediction; both are fractions.

    Each is the largest one of the profile's error entries of `predictor` for the collective, ranks
    and nodes of the call, of any library. If there is none, all entries of `predictor` for the
    collective count; otherwise all its entries. The two may come from different entries. (None,
    None) if the predictor has no entry.
    """
    entries = [entry for entry in profile.errors if entry.predictor == predictor]
    same_kind = [entry for entry in entries if entry.collective == call.collective]
    exact = [entry for entry in same_kind if (entry.ranks, entry.nodes) == (call.ranks, call.nodes)]
    nearest: list[ErrorEntry] = exact or same_kind or entries
    if not nearest:
        return None, None
    return max(entry.median for entry in nearest), max(entry.p90 for entry in nearest)
