"""Run passes: an algorithm or a workload in, another one and what changed out."""

from __future__ import annotations

from typing import TypeVar

from hub_core.model import Algorithm, UsageError, Workload
from hub_core.pipeline.calls import bound_options, call, misfit
from hub_core.plugin_api import AlgorithmPass, PassReport, Subject
from hub_core.registry.bind_options import OptionText
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Registry

Model = TypeVar("Model", bound=Algorithm | Workload)


def transform(
    model: Model,
    name: str,
    *beside: object,
    options: OptionText | None = None,
    registry: Registry | None = None,
) -> tuple[Model, PassReport]:
    """Run the pass `name`; `beside`: workers, progress, budget of a search. Raises `HubError`."""
    found = (registry or run_registry()).find(AlgorithmPass, name)
    subject = Subject(type(model).__name__.lower())
    if found.offer.subject is not subject:
        message = f"the pass {name} takes one {found.offer.subject}, not one {subject}"
        raise UsageError(message, cure="'collhub formats' lists the passes", code="subject")
    result = call(found, tuple, model, bound_options(found, options), *beside)
    kinds = tuple(type(part) for part in result)
    if kinds != (type(model), PassReport):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise misfit(found, f"returned {names}, expected {type(model).__name__}, PassReport")
    return result[0], result[1]
