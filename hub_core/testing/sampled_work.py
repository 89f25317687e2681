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
    """Call `run(offer, algorithm)` for every sample of 4 ranks; return results and problems.

    The results are (algorithm, result) by name of the sample, in the order of `all_samples`,
    without the samples for which `run` raised a `HubError`. The problems are empty if there is a
    result. If all samples were refused and every error is a `PluginError` (such as a missing
    device), the only problem is a `Skip` with the first error. Otherwise it is one text with the
    offer and the first error. Raises `AssertionError` at the first sample whose algorithm `run`
    changes, even if it was refused. Other exceptions of `run` are not caught.
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
    """Simulate an algorithm of 4 ranks with default options on the topology `TOPOLOGY`.

    `TOPOLOGY` has 4 fully connected NPUs, and rank i is on NPU i. The collective has 1 MiB.
    Raise `AssertionError` if the simulator returns no `SimulationResult`. Exceptions of the
    simulator are not caught.
    """
    topology = parse_topology(TOPOLOGY)
    request = SimulationRequest(algorithm, topology, _COLLECTIVE_BYTES)
    result = call(simulator, request)
    message = f"returned {type(result).__name__}, expected SimulationResult"
    assert isinstance(result, SimulationResult), message
    return result


def execute_sample(executor: Sampled, algorithm: Algorithm) -> ExecutionResult:
    """Execute an algorithm once on the inputs of `build_inputs`, with SUM and default options.

    The run is out of place if the algorithm supports this mode, because an executor that
    overwrites its inputs is then detected; otherwise it is in place. Raise `AssertionError`
    if the executor returns no `ExecutionResult`. Exceptions of the executor are not caught.
    """
    # Out of place, a run that overwrites its inputs is detected.
    in_place = not algorithm.collective.out_of_place
    request = ExecutionRequest(algorithm, build_inputs(algorithm), in_place, ReduceOp.SUM)
    result = call(executor, request)
    message = f"returned {type(result).__name__}, expected ExecutionResult"
    assert isinstance(result, ExecutionResult), message
    return result


def build_inputs(algorithm: Algorithm) -> tuple[npt.NDArray[np.generic], ...]:
    """Build the inputs of all ranks: by rank, a read-only one-dimensional float32 array.

    Its length is the rank's number of input units times `ELEMENTS_PER_UNIT` (3), which may
    be 0. The values are random integers from 0 to 99, whose sums are exact; they are equal
    in every call for the same algorithm.
    """
    generator = np.random.default_rng(_SEED)
    sizes = algorithm.collective.input_units() * ELEMENTS_PER_UNIT
    inputs = []
    for size in sizes.tolist():
        array = generator.integers(0, 100, size).astype(np.float32)
        array.flags.writeable = False
        inputs.append(array)
    return tuple(inputs)
