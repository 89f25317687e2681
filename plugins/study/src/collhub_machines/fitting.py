"""Fit the constants of nodes and networks by robust least squares, with held-out errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from collhub_machine_profiles.gpus import SIBLINGS, Gpu, network_rate_of_label
from collhub_machine_profiles.machine_profile import ErrorSummary
from collhub_machine_profiles.time_models import (
    NAMES,
    NETWORK_NAMES,
    CallColumns,
    FloatArray,
    NetworkModel,
    call_columns,
    is_between_nodes,
    log_network_times,
    network_columns,
    predict,
)

from hub_core.plugin_api import Library, Measurement

_COUPLING, _COUPLING_WEIGHT = 0.88, 2.0
_INFLUENCE = 0.02

# Start values for any machine, with the widths of their priors in ln.
_STARTS = {
    "b": (6.5, 0.4), "hLL": (0.95, 0.2), "gLL": (0.4, 0.3), "rLL": (5.0, 0.4),
    "b128": (18.0, 0.4), "h128": (1.7, 0.4), "r128": (10.0, 0.5), "bS": (18.0, 0.3),
    "LS": (5.0, 0.3), "rS": (14.0, 1.0), "yS": (0.45, 0.05), "bN": (18.0, 0.6),
    "oN": (7.0, 0.6), "rN": (2.5, 0.6), "bP": (7.0, 1.0), "nP": (0.04, 0.1),
    "pLL": (6.2, 0.2), "bPS": (1.6, 0.15), "cP": (40.0, 0.3), "BP": (300.0, 0.2),
    "rP": (17.5, 0.05),
}  # fmt: skip
_BY_ARCHITECTURE = {
    "ampere": {"rS": 9.0, "BP": 200.0, "rP": 10.2},
    "hopper": {"rS": 14.0, "BP": 300.0, "rP": 17.5},
    "blackwell": {"rS": 21.0, "BP": 600.0, "rP": 20.8},
}

# Constants fitted to public measurements of each machine (aiconfigurator, Apache-2.0).
_PUBLISHED = {
    "A100": (
        8.48, 0.913, 0.366, 4.2, 19.3, 1.71, 5.66, 32.2, 6.09, 8.98, 0.451,
        18, 7, 2.5, 10.4, 0.0393, 5.83, 1.31, 36.6, 202, 10.2,
    ),
    "H100": (
        4.82, 0.778, 0.359, 6.02, 17, 1.69, 11.3, 23.5, 6.74, 14.7, 0.45,
        12.3, 8.06, 2.69, 6.14, 0.0375, 7.41, 1.53, 40.8, 325, 17.5,
    ),
    "H200": (
        5.1, 0.8, 0.352, 5.91, 16.7, 1.68, 11.9, 23.3, 6.69, 14.9, 0.45,
        12.3, 8.06, 2.78, 6.49, 0.0372, 7.53, 1.47, 41.8, 326, 17.5,
    ),
    "B200": (
        6.88, 1.33, 0.255, 6.64, 18, 1.7, 10, 19.3, 9.72, 21.2, 0.451,
        24.8, 8.07, 2.93, 9.03, 0.035, 6.01, 1.52, 45.7, 738, 20.7,
    ),
    "GB200": (
        7.29, 1.32, 0.233, 6.11, 18, 1.7, 10, 18.9, 9.45, 21, 0.451,
        24.5, 8.02, 2.91, 9.7, 0.0359, 6.11, 1.44, 46, 727, 20.6,
    ),
}  # fmt: skip
_POOR_MEDIAN = 0.08
_HOST_CONSTANTS = frozenset({"b", "b128", "bS", "bN", "bP"})


@dataclass(frozen=True, slots=True)
class Prior:
    """Start values and widths, in ln, of all constants; `source` is `prior` or `sibling`."""

    values: FloatArray
    widths: FloatArray
    source: str


@dataclass(frozen=True, slots=True)
class FittedNode:
    """Constants in the order of `NAMES`; `points` counts the measurements that influence each."""

    values: FloatArray
    points: tuple[int, ...]
    source: str


def start_prior(gpu: Gpu) -> Prior:
    """Return start values of the model's constants for the architecture of a GPU, and their widths.

    A width is the distance, in the natural logarithm, by which a fit may easily move a constant
    from its start value. The start values are no logarithms. Both are in the order of `NAMES`.
    Values for the architecture take precedence over general ones; the widths are the same for
    all. No measurement of a machine is used. Raises `KeyError` for an architecture other than
    `ampere`, `hopper` and `blackwell`.
    """
    values = {name: value for name, (value, _) in _STARTS.items()}
    values.update(_BY_ARCHITECTURE[gpu.architecture])
    widths = np.array([_STARTS[name][1] for name in NAMES])
    return Prior(np.array([values[name] for name in NAMES]), widths, "prior")


def machine_prior(gpu: Gpu, *, is_loose: bool = False) -> Prior:
    """Return start values and widths of the model's constants for a kind of GPU.

    The values are the published constants of the GPU (source `prior`), or of the similar GPU that
    `SIBLINGS` gives for it (source `sibling`). The widths, how far a fit may easily move each
    constant, are a third of the widths of `start_prior`. With `is_loose`, constants that depend on
    the host and the benchmark (`_HOST_CONSTANTS`) keep the full width. Raises `KeyError` for a GPU
    without published constants and sibling.
    """
    name = SIBLINGS.get(gpu.name, gpu.name)
    loose = _HOST_CONSTANTS if is_loose else frozenset()
    share = [1 if constant in loose else 1 / 3 for constant in NAMES]
    widths = start_prior(gpu).widths * np.array(share)
    source = "prior" if name == gpu.name else "sibling"
    return Prior(np.array(_PUBLISHED[name], dtype=float), widths, source)


def choose_prior(
    gpu: Gpu, points: Sequence[Measurement], version: str
) -> tuple[Prior, list[tuple[Measurement, float]]]:
    """Choose between tight and loose widths of a machine's start values by the held-out errors.

    Returns the chosen start values with widths (`machine_prior`), and the errors of a fit with
    them (`held_out_errors`: pairs of a point and predicted / measured - 1). The loose widths are
    chosen only if the median absolute error with the tight ones is above `_POOR_MEDIAN` (0.08)
    and that with the loose ones is smaller. Without held-out points, the tight ones are chosen
    and the list is empty. Reason: points of full nodes cannot separate two constants of the
    protocol Simple (start and visibility), which a loose fit would let drift.
    """
    tight, loose = machine_prior(gpu), machine_prior(gpu, is_loose=True)
    errors = held_out_errors(gpu, points, version, tight)
    if not errors or _median(errors) <= _POOR_MEDIAN:
        return tight, errors
    loose_errors = held_out_errors(gpu, points, version, loose)
    return (loose, loose_errors) if _median(loose_errors) < _median(errors) else (tight, errors)


def _median(errors: Sequence[tuple[Measurement, float]]) -> float:
    return ErrorSummary.of(error for _, error in errors).median


def fit_node(gpu: Gpu, points: Sequence[Measurement], version: str, prior: Prior) -> FittedNode:
    """Fit all constants of the model to the measured points of one node.

    `points`: at least one, all covered by the model (`is_modelled`), with times above 0.
    `version`: version of NCCL, whose choices of algorithm and protocol determine the formula of
    each point. `prior`: start values of the constants with widths. The result has the constants
    and the source of the prior. For each constant it also has the number of points whose time
    depends on it: |d ln(time) / d ln(constant)| at the result is above `_INFLUENCE` (0.02).
    """
    calls = call_columns(gpu, points, version)
    measured = np.log([point.time_us for point in points])
    values = fit_constants(calls, measured, prior)
    slopes = slopes_of(lambda position: np.log(predict(np.exp(position), calls)), np.log(values))
    influence = np.abs(slopes) > _INFLUENCE
    return FittedNode(values, tuple(int(count) for count in influence.sum(axis=0)), prior.source)


def fit_constants(calls: CallColumns, measured: FloatArray, prior: Prior) -> FloatArray:
    """Return the positive constants of the model that fit measured times best.

    `measured`: ln of the times in us, one per call. The fit uses logarithms and gives outliers
    less weight (`robust_fit`). `prior`: start values with widths; a constant that the calls do not
    determine stays near its start value, unless `_coupling`, which relates rings of two ranks to
    exchanges of two, moves it. The result is in the order of `prior.values`.
    """

    def model(position: FloatArray) -> FloatArray:
        return np.log(predict(np.exp(position), calls))

    start = np.log(prior.values)
    return np.exp(robust_fit(model, measured, start, prior.widths, _coupling))


def _coupling(position: FloatArray) -> tuple[float, FloatArray]:
    """Return a residual that ties the time of a ring of two ranks to that of an exchange of two.

    Both cost nearly the same: the residual is `_COUPLING_WEIGHT` x ln((b + hLL) / (`_COUPLING` x bP
    x (1 + nP))), with constants named as in `NAMES`. This separates `b` and `hLL` even if only one
    number of ranks was measured. `position`: ln of all constants. Also returns the derivatives of
    the residual with respect to `position`.
    """
    index = {name: number for number, name in enumerate(NAMES)}
    base, hop, exchange, growth = (
        float(np.exp(position[index[name]])) for name in ("b", "hLL", "bP", "nP")
    )
    exchange_of_two = _COUPLING * exchange * (1 + growth)
    slopes = np.zeros(len(NAMES))
    slopes[index["b"]] = _COUPLING_WEIGHT * base / (base + hop)
    slopes[index["hLL"]] = _COUPLING_WEIGHT * hop / (base + hop)
    slopes[index["bP"]] = -_COUPLING_WEIGHT
    slopes[index["nP"]] = -_COUPLING_WEIGHT * growth / (1 + growth)
    return float(_COUPLING_WEIGHT * np.log((base + hop) / exchange_of_two)), slopes


def every_second_size(points: Sequence[Measurement]) -> list[bool]:
    """Return for each point whether it is held out as a test: every second size of each series is.

    A series is all points with equal collective, ranks, nodes, library and dtype; the machine and
    other fields do not matter. Its distinct sizes are sorted; the second, fourth, and so on are
    held out, with all points of that size. A series of one size has no held-out point. The result
    is in the order of `points`.
    """
    series: dict[tuple[object, ...], set[int]] = {}
    for point in points:
        series.setdefault(_series(point), set()).add(point.size_bytes)
    held_out_sizes = {
        (key, size)
        for key, sizes in series.items()
        for position, size in enumerate(sorted(sizes))
        if position % 2
    }
    return [(_series(point), point.size_bytes) in held_out_sizes for point in points]


def _series(point: Measurement) -> tuple[object, ...]:
    return point.collective, point.ranks, point.nodes, point.library, point.dtype


def held_out_errors(
    gpu: Gpu, points: Sequence[Measurement], version: str, prior: Prior
) -> list[tuple[Measurement, float]]:
    """Fit the model to some of the points, and return its relative errors at the left-out points.

    A series is all points with equal collective, ranks, nodes, library and dtype. The second,
    fourth, ... of its ascending sizes are left out. All other points are fitted, with `prior` and
    the NCCL `version` (`fit_node`; it requires points that the model covers).

    The result has (point, predicted / measured - 1) for each left-out point, in the order of
    `points`. It is empty if no series has two sizes.
    """
    held_out = every_second_size(points)
    fitted_points = [point for point, is_held in zip(points, held_out, strict=True) if not is_held]
    tested = [point for point, is_held in zip(points, held_out, strict=True) if is_held]
    if not fitted_points or not tested:
        return []
    fitted = fit_node(gpu, fitted_points, version, prior)
    times = predict(fitted.values, call_columns(gpu, tested, version))
    return [
        (point, float(time_us / point.time_us - 1))
        for point, time_us in zip(tested, times, strict=True)
    ]


Model = Callable[[FloatArray], FloatArray]
"""Logarithms of constants to logarithms of times; shapes (constants,) and (points,)."""
Coupling = Callable[[FloatArray], tuple[float, FloatArray]]
"""Logarithms of constants to one additional residual and its slopes."""

_SLOW_PREDICTION, _SLOW_MEASUREMENT = 0.1, 0.03
_PRIOR_WEIGHT = 0.05
_ITERATIONS = 80
_STEP = 1e-5
_MAX_STEP = 0.5


def robust_fit(
    model: Model,
    measured: FloatArray,
    start: FloatArray,
    widths: FloatArray,
    coupling: Coupling | None = None,
) -> FloatArray:
    """Return the logarithms of constants that fit measured times with the smallest sum of errors.

    `model` maps ln of the constants to ln of the times. `measured`: ln of the times. `start`: ln of
    the first guess, which is not changed. The sum has these terms:

    - per measured time, a function of predicted minus measured ln: about quadratic up to 0.1 if the
      prediction is too long (0.03 if too short), and linear beyond
    - per constant, the square of `_PRIOR_WEIGHT` * (ln of the constant - start) / `widths`, where
      all widths are above 0
    - the square of the residual of `coupling`, unless it is None

    Each iteration tries one damped step (Levenberg-Marquardt) of at most `_MAX_STEP` per constant.
    It is accepted only if it reduces the sum; otherwise the damping is raised. The search ends
    after `_ITERATIONS` iterations, a gain below 1e-9 of the sum, or a damping above 1e9, so the
    result may not be converged. Without measured times and `coupling` the result equals `start`.
    """
    position, damping = start.copy(), 1e-3
    fixed, fixed_slopes = _fixed_terms(position, start, widths, coupling)
    cost = _cost(model(position) - measured, fixed)
    for _ in range(_ITERATIONS):
        residual = model(position) - measured
        weight = 1 / np.sqrt(1 + (residual / _scale(residual)) ** 2)
        slopes = slopes_of(model, position)
        rows = np.sqrt(weight)[:, None] * slopes
        normal = rows.T @ rows + fixed_slopes.T @ fixed_slopes
        gradient = slopes.T @ (weight * residual) + fixed_slopes.T @ fixed
        damped = normal + damping * np.diag(np.diag(normal) + 1e-9)
        trial = position + np.clip(np.linalg.solve(damped, -gradient), -_MAX_STEP, _MAX_STEP)
        trial_fixed, trial_slopes = _fixed_terms(trial, start, widths, coupling)
        trial_cost = _cost(model(trial) - measured, trial_fixed)
        if trial_cost < cost:
            gain = cost - trial_cost
            position, cost, damping = trial, trial_cost, max(damping / 4, 1e-9)
            fixed, fixed_slopes = trial_fixed, trial_slopes
            if gain < 1e-9 * cost:
                break
        else:
            damping *= 8
            if damping > 1e9:
                break
    return position


def slopes_of(model: Model, position: FloatArray) -> FloatArray:
    """Return d ln(time) / d ln(constant) at `position`: float64[points, constants].

    `model` maps logarithms of constants to logarithms of times, one per point. `position`:
    logarithms of the constants, at least one. Each slope is the central difference with the
    steps +1e-5 and -1e-5 of one constant, so the model is called twice per constant.
    """
    columns = []
    for index in range(len(position)):
        shift = np.zeros(len(position))
        shift[index] = _STEP
        columns.append((model(position + shift) - model(position - shift)) / (2 * _STEP))
    return np.stack(columns, axis=1)


def _scale(residual: FloatArray) -> FloatArray:
    return np.where(residual > 0, _SLOW_PREDICTION, _SLOW_MEASUREMENT)


def _cost(residual: FloatArray, fixed: FloatArray) -> float:
    scale = _scale(residual)
    soft = 2 * scale**2 * (np.sqrt(1 + (residual / scale) ** 2) - 1)
    return float(soft.sum() + (fixed**2).sum())


def _fixed_terms(
    position: FloatArray, start: FloatArray, widths: FloatArray, coupling: Coupling | None
) -> tuple[FloatArray, FloatArray]:
    """Return the error terms that do not depend on measured points, and their derivatives.

    There is one term per constant, `_PRIOR_WEIGHT` x (position - start) / width. `coupling`, if
    given, appends one more. `position`: ln of the constants. The derivatives are float64[terms,
    constants].
    """
    residuals = _PRIOR_WEIGHT * (position - start) / widths
    slopes = np.diag(_PRIOR_WEIGHT / widths)
    if coupling is None:
        return residuals, slopes
    residual, slope = coupling(position)
    return np.append(residuals, residual), np.vstack([slopes, slope])


MIN_NETWORK_POINTS = 5

# Hops and rates differ by orders of magnitude between networks; the growth of the hop and the rate
# of small messages do not, and five sizes do not separate them.
_NETWORK_STARTS = np.log([30.0, 0.12, 20.0, 200.0, 80.0])
_WIDTHS = np.array([2.0, 0.1, 0.7, 2.0, 2.0])
# The NICs limit large all-reduces: 86 to 95 % of their nominal rate on all measured machines.
_LARGE_RATE = NETWORK_NAMES.index("rate_large_GBps")
_NIC_EFFICIENCY, _NIC_EFFICIENCY_WIDTH = 0.905, 0.05


def fit_networks(points: Sequence[Measurement]) -> list[NetworkModel]:
    """Return one network model for each library and number of GPUs per node with enough points.

    Points count if they are all-reduces without a dtype, on at least 2 nodes with equally many
    ranks (`is_between_nodes`). All other points are ignored. GPUs per node are ranks / nodes.

    A group (library, GPUs per node) has enough if its points have at least `MIN_NETWORK_POINTS`
    different pairs (nodes, size); outliers that `fit_network` drops count too. Other groups are
    left out. The result is sorted by library, as text, then by GPUs per node. It is [] if no group
    has enough.
    """
    groups: dict[tuple[Library, int], list[Measurement]] = {}
    for point in points:
        if is_between_nodes(point):
            key = (point.library, point.ranks // point.nodes)
            groups.setdefault(key, []).append(point)
    return [
        fit_network(library, per_node, group)
        for (library, per_node), group in sorted(
            groups.items(), key=lambda one: (str(one[0][0]), one[0][1])
        )
        if len({(point.nodes, point.size_bytes) for point in group}) >= MIN_NETWORK_POINTS
    ]


def fit_network(
    library: Library, ranks_per_node: int, points: Sequence[Measurement]
) -> NetworkModel:
    """Return a network model with constants fitted to measured all-reduces of several nodes.

    `points`: not empty; they are not checked. A point is an outlier, and is not fitted, if it takes
    longer than a point of a larger size on as many nodes. Points of equal size and nodes are
    compared in their order: a slower one after a faster one is an outlier too. `robust_fit` gives
    further outliers less weight. It starts at `_NETWORK_STARTS`, with one exception: if all machine
    labels give the same nominal rate of a node's NICs, the rate for large messages starts at
    `_NIC_EFFICIENCY` times this rate. Its width is then the small `_NIC_EFFICIENCY_WIDTH`, because
    few points do not separate it from the time of a hop.

    The result has the library, `ranks_per_node`, the constants (not logarithms), the number of
    `points` including outliers, and their numbers of nodes, distinct and ascending.
    """
    fastest_larger_us: dict[int, float] = {}
    descending = []
    for point in sorted(points, key=lambda one: -one.size_bytes):
        limit_us = fastest_larger_us.get(point.nodes, float("inf"))
        if point.time_us <= limit_us:
            descending.append(point)
        fastest_larger_us[point.nodes] = min(limit_us, point.time_us)
    fitted_points = descending[::-1]
    columns = network_columns(fitted_points)
    measured = np.log([point.time_us for point in fitted_points])
    starts, widths = _NETWORK_STARTS.copy(), _WIDTHS.copy()
    nominal = {network_rate_of_label(point.machine) for point in points}
    rate = nominal.pop() if len(nominal) == 1 else None
    if rate is not None:
        starts[_LARGE_RATE] = np.log(_NIC_EFFICIENCY * rate)
        widths[_LARGE_RATE] = _NIC_EFFICIENCY_WIDTH
    fitted = robust_fit(lambda at: log_network_times(at, *columns), measured, starts, widths)
    nodes = tuple(sorted({point.nodes for point in points}))
    values = tuple(float(value) for value in np.exp(fitted))
    return NetworkModel(library, ranks_per_node, values, len(points), nodes)


def network_deviations(
    points: Sequence[Measurement], held_out: Sequence[bool]
) -> list[tuple[Measurement, float]]:
    """Test models of the network: fit them without the held-out points, then predict these points.

    `held_out`: whether each point is held out, one entry per point (`ValueError` for another
    number). `fit_networks` makes one model per library and number of GPUs per node, if enough
    points remain. A point is predicted by the first model that applies to it: an all-reduce between
    nodes, with as many GPUs per node, a library that may be equal, and a number of nodes within the
    fitted range.

    Returns (point, predicted / measured - 1) for each held-out point to which a model applies, in
    the order of `points`. The list is empty without models.
    """
    pairs = list(zip(points, held_out, strict=True))
    models = fit_networks([point for point, is_held in pairs if not is_held])
    deviations = []
    for point, is_held in pairs:
        model = next((candidate for candidate in models if candidate.applies_to(point)), None)
        if is_held and model is not None:
            deviations.append((point, float(model.times_us([point])[0] / point.time_us - 1)))
    return deviations
