"""Simulators, executors and passes at work on the kit's samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import HubError, PluginError
from hub_core.model.kinds import ReduceOp
from hub_core.pipeline.topology_input import parse_topology
from hub_core.plugin_api.algorithm_pass import AlgorithmPass
from hub_core.plugin_api.executor import ExecutionRequest, ExecutionResult, Executor
from hub_core.plugin_api.simulator import SimulationRequest, SimulationResult, Simulator
from hub_core.testing.checked_plugin import Skip, call, title
from hub_core.testing.samples import all_samples

RANKS = 4
TOPOLOGY = "fully-connected:4"
ELEMENTS_PER_UNIT = 3

_COLLECTIVE_BYTES = 1 << 20
_SEED = 20240229

R = TypeVar("R")
Sampled = Simulator | Executor | AlgorithmPass


def results_on_samples(
    offer: Sampled,
    run: Callable[[Sampled, Algorithm], R],
) -> tuple[dict[str, tuple[Algorithm, R]], Sequence[str | Skip]]:
    """What the work makes of the samples that it takes, and what is wrong where it takes none.

    Raises `AssertionError` where a sample was changed.
    """
    found: dict[str, tuple[Algorithm, R]] = {}
    refusals: list[HubError] = []
    for sample, algorithm in all_samples(RANKS).items():
        # A copy of the arrays too: they might be written to in place.
        before = copy.deepcopy(algorithm)
        try:
            found[sample] = algorithm, run(offer, algorithm)
        # Who takes some samples may refuse others.
        except HubError as error:
            refusals.append(error)
        changed = before.differences(algorithm)
        place = f"{title(offer)}, sample {sample}"
        assert not changed, f"{place}: the algorithm was changed: {', '.join(changed)}"
    if found:
        return found, ()
    return found, [_all_refused(offer, refusals)]


def _all_refused(offer: Sampled, refusals: Sequence[HubError]) -> str | Skip:
    # A program or a device that is not there is no defect of the plugin.
    if all(isinstance(error, PluginError) for error in refusals):
        return Skip(str(refusals[0]))
    return f"{title(offer)} refuses every sample: {refusals[0]}"


def simulated(simulator: Sampled, algorithm: Algorithm) -> SimulationResult:
    """The result of a simulator. Raises `AssertionError` for another one."""
    topology = parse_topology(TOPOLOGY)
    request = SimulationRequest(algorithm, topology, _COLLECTIVE_BYTES)
    result = call(simulator, request)
    message = f"returned {type(result).__name__}, expected SimulationResult"
    assert isinstance(result, SimulationResult), message
    return result


def executed(executor: Sampled, algorithm: Algorithm) -> ExecutionResult:
    """The result of an executor on `inputs_of`. Raises `AssertionError` for another one."""
    # Out of place where it may be: a run that spoils its inputs is then seen.
    in_place = not algorithm.collective.out_of_place
    request = ExecutionRequest(algorithm, inputs_of(algorithm), in_place, ReduceOp.SUM)
    result = call(executor, request)
    message = f"returned {type(result).__name__}, expected ExecutionResult"
    assert isinstance(result, ExecutionResult), message
    return result


def inputs_of(algorithm: Algorithm) -> tuple[npt.NDArray[np.generic], ...]:
    """Small whole numbers, which every floating-point type adds exactly: float32, a rank each.

    Read-only, and the same in every call.
    """
    generator = np.random.default_rng(_SEED)
    sizes = algorithm.collective.input_units() * ELEMENTS_PER_UNIT
    inputs = []
    for size in sizes.tolist():
        array = generator.integers(0, 100, size).astype(np.float32)
        array.flags.writeable = False
        inputs.append(array)
    return tuple(inputs)
