"""Fit the model of all-reduce on several nodes, and measure its error at sizes left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from collhub_machine_profiles.network_model import (
    NetworkModel,
    is_between_nodes,
    log_network_times,
    network_columns,
)

from collhub_machines.least_squares import robust_fit
from hub_core.plugin_api import Library, Measurement

MIN_NETWORK_POINTS = 5

# Hops and rates differ by orders of magnitude between networks; the growth of the hop and the rate
# of small messages do not, and five sizes do not separate them.
_STARTS = np.log([30.0, 0.15, 20.0, 200.0, 80.0])
_WIDTHS = np.array([2.0, 0.3, 0.7, 2.0, 2.0])


def fit_networks(points: Sequence[Measurement]) -> list[NetworkModel]:
    """Fit one model per library and number of GPUs per node that has enough points."""
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
    """Fit the constants to all-reduces of several nodes."""
    columns = network_columns(points)
    measured = np.log([point.time_us for point in points])
    fitted = robust_fit(lambda at: log_network_times(at, *columns), measured, _STARTS, _WIDTHS)
    nodes = tuple(sorted({point.nodes for point in points}))
    values = tuple(float(value) for value in np.exp(fitted))
    return NetworkModel(library, ranks_per_node, values, len(points), nodes)


def network_deviations(
    points: Sequence[Measurement], held_out: Sequence[bool]
) -> list[tuple[Measurement, float]]:
    """Fit without the points of `held_out`; return those with predicted / measured - 1."""
    pairs = list(zip(points, held_out, strict=True))
    models = fit_networks([point for point, is_held in pairs if not is_held])
    deviations = []
    for point, is_held in pairs:
        model = next((candidate for candidate in models if candidate.applies_to(point)), None)
        if is_held and model is not None:
            deviations.append((point, float(model.times_us([point])[0] / point.time_us - 1)))
    return deviations
