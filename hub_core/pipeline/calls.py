"""Call offers of plugins: bind options, attribute failures to plugins, check the results.

Generators, passes, executors and engines are called here; readers, writers, simulators and
synthesizers have modules of their own, which use `call`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from hub_core.model import Algorithm, InputError, ReduceOp, UsageError, Workload
from hub_core.model.diagnostics import PluginError
from hub_core.plugin_api import (
    AlgorithmPass,
    BudgetReached,
    NoOptions,
    PassReport,
    SearchBudget,
    Subject,
    WorkloadGenerator,
    resolve,
)
from hub_core.plugin_api.offers import Offer, kind_of
from hub_core.plugin_api.runs import ExecutionRequest, ExecutionResult, Executor
from hub_core.plugin_api.synthesis import Engine, EngineRequest
from hub_core.registry.bind_options import OptionText, bind_options, blamed_on
from hub_core.registry.compatibility import reference_of
from hub_core.registry.discovery import run_registry, running_with
from hub_core.registry.plugins import Provided, Registry

if TYPE_CHECKING:
    from concurrent import futures

    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")

Model = TypeVar("Model", bound=Algorithm | Workload)

DEFAULT_EXECUTOR = "numpy"


def bound_options(provided: Provided[Offer], texts: OptionText | None) -> object:
    """Return the options of an offer as its record of options, converted from texts.

    `texts`: values by name; None means that none are given. An option that is not given has the
    value of its environment variable, else its default. Raises `UsageError` for unknown names and
    invalid values.
    """
    owner = f"{kind_of(provided.offer).noun} {provided.name}"
    record: type = getattr(provided.offer, "options", NoOptions)
    return bind_options(record, texts or {}, os.environ, owner)


def call(provided: Provided[Offer], returns: type[T], *arguments: object) -> T:
    """Import and call the function of an offer, and check the type of its result.

    `returns`: the required type; subclasses are accepted. During the call, `run_registry` returns
    the registry of the offer. `HubError`, Ctrl-C and `MemoryError` pass through. Any other
    exception of a plugin becomes a `PluginError` that names the plugin; exceptions of the core's
    own offers pass through. A result of another type raises `PluginError`.
    """
    with running_with(provided.registry), blame(provided):
        result = resolve(reference_of(provided.offer))(*arguments)
    if not isinstance(result, returns):
        raise misfit(provided, f"returned {type(result).__name__}, expected {returns.__name__}")
    return result


def blame(provided: Provided[Offer]) -> AbstractContextManager[None]:
    """Return a context that converts exceptions of the body to `PluginError` for the plugin.

    `SystemExit` is converted too. `HubError` (raised on purpose), `KeyboardInterrupt` and
    `MemoryError` are not. For offers of the core no exception is converted, because their
    exceptions are bugs.
    """
    # An exception of the core is not attributed to a plugin: it is a bug.
    if provided.plugin.is_core:
        return nullcontext()
    return blamed_on(str(provided.plugin), reference_of(provided.offer))


def misfit(provided: Provided[Offer], defect: str) -> PluginError:
    """Create the error for a result that breaks the contract of the plugin API.

    `defect`: predicate of the sentence, such as `returned int, expected Algorithm`.
    """
    message = f"{provided.plugin}: {reference_of(provided.offer)} {defect}"
    return PluginError(message, cure="report it to the plugin's authors")


def start_engine(
    name: str, request: EngineRequest, *, options: OptionText | None = None, registry: Registry
) -> futures.Executor:
    """Start the workers of an engine and return them as an executor.

    The executor is a context manager that stops the workers. Raises `HubError` for an unknown
    engine or option, and if the plugin fails.
    """
    engine = registry.find(Engine, name)
    # Imported here: few commands start workers.
    from concurrent import futures

    return call(engine, futures.Executor, request, bound_options(engine, options))


def generate_job(
    name: str, options: OptionText, registry: Registry, budget: SearchBudget | None = None
) -> Workload:
    """Generate a job with the generator `name`.

    `options`: texts by name. `budget`: limits of the search (None: no limit); a generator that
    searches counts its work there, and records the parts that a limit ended. Errors, in this order:

    1. `HubError` for an unknown generator.
    2. `UsageError` for a time limit if the generator does not search; other limits are ignored
       then.
    3. `UsageError` for an unknown or invalid option.
    4. `InputError` (`limit-reached`) if a limit is reached before the first job is complete. Other
       `HubError`s of the generator pass through.
    5. `PluginError` if the generator fails or returns no `Workload`.
    """
    generator = registry.find(WorkloadGenerator, name)
    limits = budget or SearchBudget()
    if not generator.offer.searches and limits.timeout_s is not None:
        message = f"--timeout has no meaning for {name}, which does not search"
        raise UsageError(message, cure="leave it out")
    search_arguments = (limits,) if generator.offer.searches else ()
    try:
        return call(generator, Workload, bound_options(generator, options), *search_arguments)
    except BudgetReached:
        raise InputError(
            f"{name} finished no job after {limits.done} steps of work: {limits.reason}",
            cure="allow more time",
            code="limit-reached",
        ) from None


def transform(
    model: Model,
    name: str,
    *search_arguments: object,
    options: OptionText | None = None,
    registry: Registry | None = None,
) -> tuple[Model, PassReport]:
    """Apply the pass `name`; return the new model and the report of its changes.

    `search_arguments`: workers, progress and budget in this order for a pass that searches; none
    for any other pass. `options`: texts by name. `registry`: by default that of the current run.
    Raises `UsageError` (`subject`) if the pass is for the other kind of model (algorithm or
    workload), `HubError` for an unknown pass or option and for errors of the pass, and
    `PluginError` if it fails or returns other types than (model of the same kind, `PassReport`).
    """
    algorithm_pass = (registry or run_registry()).find(AlgorithmPass, name)
    subject = Subject(type(model).__name__.lower())
    if algorithm_pass.offer.subject is not subject:
        expected = algorithm_pass.offer.subject
        message = f"the pass {name} takes one {expected}, not one {subject}"
        raise UsageError(message, cure="'collhub formats' lists the passes", code="subject")
    result = call(
        algorithm_pass,
        tuple,
        model,
        bound_options(algorithm_pass, options),
        *search_arguments,
    )
    kinds = tuple(type(part) for part in result)
    if kinds != (type(model), PassReport):
        names = ", ".join(kind.__name__ for kind in kinds)
        expected_types = f"{type(model).__name__}, PassReport"
        raise misfit(algorithm_pass, f"returned {names}, expected {expected_types}")
    return result[0], result[1]


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
    """Run an algorithm on one array per rank with the executor `name`.

    `inputs`: the content of INPUT of each rank; they are not changed. `in_place`: by default True
    only if the algorithm does not claim to work out of place. `reduce_op`: by default that of the
    collective. `warmups` untimed runs come before `repeats` timed runs; the outputs are those of
    the last run. `timeout_s`: limit in seconds, passed to the executor. `wants_step_times`: whether
    the executor shall time the steps of the last run. `registry`: by default that of the current
    run.

    `options` and errors are those of `run_executor`; an executor raises `UsageError` for inputs of
    wrong sizes.
    """
    request = ExecutionRequest(
        algorithm,
        tuple(inputs),
        not algorithm.collective.out_of_place if in_place is None else in_place,
        reduce_op or algorithm.collective.reduce_op,
        repeats,
        warmups,
        timeout_s,
        wants_step_times,
        registry or run_registry(),
    )
    return run_executor(request, name, options)


def run_executor(
    request: ExecutionRequest, name: str, options: OptionText | None = None
) -> ExecutionResult:
    """Call the executor `name` with read-only inputs; check that it returns one output per rank.

    `options`: texts by name; None means none. The executor comes from the registry of the
    request, or from that of the current run if the request has none.

    Raises `HubError` for an unknown executor or option, `UsageError` unless the request has one
    input per rank, and `InputError` for an algorithm that the executor cannot run. Raises
    `PluginError` for another number of outputs, for another type of result, and for any other
    exception of a plugin. Other exceptions of an executor of the core pass through.
    """
    registry = request.hub or run_registry()
    executor = registry.find(Executor, name)
    ranks = request.algorithm.num_ranks
    if len(request.inputs) != ranks:
        message = f"{len(request.inputs)} inputs for {ranks} ranks"
        raise UsageError(message, cure="give one array per rank")
    # Views, so that the arrays of the caller remain writable.
    inputs = tuple(array.view() for array in request.inputs)
    for view in inputs:
        view.flags.writeable = False
    protected = replace(request, inputs=inputs, hub=registry)
    result = call(executor, ExecutionResult, protected, bound_options(executor, options))
    if len(result.outputs) != ranks:
        raise misfit(executor, f"returned {len(result.outputs)} outputs for {ranks} ranks")
    return result
