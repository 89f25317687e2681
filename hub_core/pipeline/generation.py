"""Call generators, passes and executors of plugins, and check what they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hub_core.model import Algorithm, InputError, ReduceOp, UsageError, Workload
from hub_core.pipeline.calls import bound_options, call, misfit
from hub_core.plugin_api import (
    AlgorithmPass,
    BudgetReached,
    PassReport,
    SearchBudget,
    Subject,
    WorkloadGenerator,
)
from hub_core.plugin_api.runs import ExecutionRequest, ExecutionResult, Executor
from hub_core.registry.bind_options import OptionText
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Registry


def generate_job(
    name: str, options: OptionText, registry: Registry, budget: SearchBudget | None = None
) -> Workload:
    """The job that the generator of a name makes of options. Raises `HubError`.

    `budget`: limits of a search; it lists what they have cut.
    """
    found = registry.find(WorkloadGenerator, name)
    limits = budget or SearchBudget()
    if not found.offer.searches and limits.timeout_s is not None:
        message = f"--timeout has no meaning for {name}, which searches for nothing"
        raise UsageError(message, cure="leave it out")
    beside = (limits,) if found.offer.searches else ()
    try:
        return call(found, Workload, bound_options(found, options), *beside)
    except BudgetReached:
        raise InputError(
            f"{name} finished no job after {limits.done} steps of work: {limits.reason}",
            cure="allow more time",
            code="limit-reached",
        ) from None


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


DEFAULT_EXECUTOR = "numpy"


def execute(
    algorithm: Algorithm,
    inputs: Sequence[npt.NDArray[np.generic]],
    *,
    name: str = DEFAULT_EXECUTOR,
    in_place: bool | None = None,
    reduce_op: ReduceOp | None = None,
    repeats: int = 1,
    warmups: int = 0,
    timeout_s: float = 60.0,
    wants_step_times: bool = False,
    options: OptionText | None = None,
    registry: Registry | None = None,
) -> ExecutionResult:
    """Run an algorithm on one array a rank, which fills its INPUT, with the executor `name`.

    Inputs stay as they are. `in_place`: default out of place where the algorithm claims that.
    `reduce_op`: default that of the collective. Raises `InputError` for what cannot run,
    `UsageError` for inputs of wrong sizes.
    """
    executor = (registry or run_registry()).find(Executor, name)
    ranks = algorithm.num_ranks
    if len(inputs) != ranks:
        raise UsageError(f"{len(inputs)} inputs for {ranks} ranks", cure="give one array a rank")
    request = ExecutionRequest(
        algorithm,
        tuple(_read_only(array) for array in inputs),
        not algorithm.collective.out_of_place if in_place is None else in_place,
        reduce_op or algorithm.collective.reduce_op,
        repeats,
        warmups,
        timeout_s,
        wants_step_times,
    )
    result = call(executor, ExecutionResult, request, bound_options(executor, options))
    if len(result.outputs) != ranks:
        raise misfit(executor, f"returned {len(result.outputs)} outputs for {ranks} ranks")
    return result


def _read_only(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    view = array.view()
    view.flags.writeable = False
    return view
