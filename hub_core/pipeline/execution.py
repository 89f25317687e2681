"""Run an algorithm on real data with an executor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hub_core.model import Algorithm, ReduceOp, UsageError
from hub_core.pipeline.calls import bound_options, call, misfit
from hub_core.plugin_api.runs import ExecutionRequest, ExecutionResult, Executor
from hub_core.registry.bind_options import OptionText
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Registry

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
