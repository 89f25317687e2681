"""Robust least squares on logarithms of times, with priors.

The residual is ln(predicted / measured). Noise slows a run down and never speeds it up, so a slow
measurement counts less (soft L1, scale 0.03) than a slow prediction (scale 0.1).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
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
    """Return the logarithms of the constants that fit `measured`, logarithms of times.

    The prior of each constant is `start` with the width `widths`. Levenberg-Marquardt with
    reweighting; cost O(iterations x points x constants^2).
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
    """Return d ln(time) / d ln(constant); shape (points, constants)."""
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
    """Return residuals and slopes that do not depend on points: priors and the coupling."""
    residuals = _PRIOR_WEIGHT * (position - start) / widths
    slopes = np.diag(_PRIOR_WEIGHT / widths)
    if coupling is None:
        return residuals, slopes
    residual, slope = coupling(position)
    return np.append(residuals, residual), np.vstack([slopes, slope])
