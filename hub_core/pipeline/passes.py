"""Run passes: an algorithm in, another one and what changed out."""

from __future__ import annotations

from hub_core.model.algorithm import Algorithm
from hub_core.pipeline.calls import bound_options, call, misfit
from hub_core.plugin_api.algorithm_pass import AlgorithmPass, PassReport
from hub_core.registry.bind_options import OptionText
from hub_core.registry.discovery import discover
from hub_core.registry.plugins import Registry


def transform(
    algorithm: Algorithm,
    name: str,
    *,
    options: OptionText | None = None,
    registry: Registry | None = None,
) -> tuple[Algorithm, PassReport]:
    """Run the pass `name` on an algorithm. Raises `HubError`."""
    found = (registry or discover()).find(AlgorithmPass, name)
    result = call(found, tuple, algorithm, bound_options(found, options))
    if len(result) != 2:
        raise misfit(found, f"returned {len(result)} values, expected algorithm and PassReport")
    transformed, report = result
    if not isinstance(transformed, Algorithm) or not isinstance(report, PassReport):
        kinds = f"{type(transformed).__name__} and {type(report).__name__}"
        raise misfit(found, f"returned {kinds}, expected Algorithm and PassReport")
    return transformed, report
