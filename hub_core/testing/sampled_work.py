"""Run simulators, executors and passes on the sample algorithms of the kit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import HubError, PluginError
from hub_core.model.kinds import ReduceOp
from hub_core.pipeline.inputs import parse_topology
from hub_core.plugin_api.runs import (
    ExecutionRequest,
    ExecutionResult,
    Executor,
    SimulationRequest,
    SimulationResult,
    Simulator,
)
from hub_core.plugin_api.subjects import AlgorithmPass
from hub_core.testing.checked_plugin import Skip, call, title
from hub_core.testing.samples import all_samples

RANKS = 4
TOPOLOGY = "fully-connected:4"
ELEMENTS_PER_UNIT = 3

_COLLECTIVE_BYTES = 1 << 20
_SEED = 20240229

R = TypeVar("R")
Sampled = Simulator | Executor | AlgorithmPass


def run_on_samples(
    offer: Sampled,
    run: Callable[[Sampled, Algorithm], R],
) -> tuple[dict[str, tuple[Algorithm, R]], Sequence[str | Skip]]:
    """Call `run(offer, algorithm)` for every sample of 4 ranks.

    Returns the samples that were not refused with (algorithm, result) by name, and the problems: if
    all samples were refused, one `Skip` (only `PluginError`, such as a missing program or device)
    or one text. Raises `AssertionError` if the algorithm was changed.
    """
    results: dict[str, tuple[Algorithm, R]] = {}
    refusals: list[HubError] = []
    for sample, algorithm in all_samples(RANKS).items():
        before = copy.deepcopy(algorithm)
        try:
            results[sample] = algorithm, run(offer, algorithm)
        # Refusing some of the samples is allowed.
        except HubError as error:
            refusals.append(error)
        changed = before.differences(algorithm)
        label = f"{title(offer)}, sample {sample}"
        assert not changed, f"{label}: the algorithm was changed: {', '.join(changed)}"
    if results:
        return results, ()
    # A missing program or device is no defect of the plugin.
    if all(isinstance(error, PluginError) for error in refusals):
        return results, [Skip(str(refusals[0]))]
    return results, [f"{title(offer)} refuses every sample: {refusals[0]}"]


def simulate_sample(simulator: Sampled, algorithm: Algorithm) -> SimulationResult:
    """Simulate a collective of 1 MiB on 4 fully connected NPUs, with the simulator's defaults.

    Rank i is on NPU i. Raises `AssertionError` for a wrong result type; the simulator's exceptions
    pass.
    """
    topology = parse_topology(TOPOLOGY)
    request = SimulationRequest(algorithm, topology, _COLLECTIVE_BYTES)
    result = call(simulator, request)
    message = f"returned {type(result).__name__}, expected SimulationResult"
    assert isinstance(result, SimulationResult), message
    return result


def execute_sample(executor: Sampled, algorithm: Algorithm) -> ExecutionResult:
    """Execute an algorithm on `build_inputs` with SUM, out of place if it supports that.

    Out of place, a run that overwrites its inputs is detected. The executor has its default
    options. Raises `AssertionError` for a wrong result type; its exceptions pass.
    """
    # Out of place, a run that overwrites its inputs is detected.
    in_place = not algorithm.collective.out_of_place
    request = ExecutionRequest(algorithm, build_inputs(algorithm), in_place, ReduceOp.SUM)
    result = call(executor, request)
    message = f"returned {type(result).__name__}, expected ExecutionResult"
    assert isinstance(result, ExecutionResult), message
    return result


def build_inputs(algorithm: Algorithm) -> tuple[npt.NDArray[np.generic], ...]:
    """Build the inputs of all ranks: one read-only float32 array per rank, equal in every call.

    The values are integers from 0 to 99, whose sums are exact. A unit of a rank's input has
    `ELEMENTS_PER_UNIT` (3) elements.
    """
    generator = np.random.default_rng(_SEED)
    sizes = algorithm.collective.input_units() * ELEMENTS_PER_UNIT
    inputs = []
    for size in sizes.tolist():
        array = generator.integers(0, 100, size).astype(np.float32)
        array.flags.writeable = False
        inputs.append(array)
    return tuple(inputs)
