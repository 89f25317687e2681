"""The synthesizers of ASTRA-sim's native algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from collhub_astra_sim.native_algorithms.messages import (
    NativePlan,
    NativeTask,
    direct,
    halving_doubling,
    ring,
)
from collhub_astra_sim.native_algorithms.tree import double_binary_tree
from collhub_astra_sim.options import AnalyticalOptions, NativeAlgorithmOptions
from collhub_astra_sim.simulating.analytical import simulate
from hub_core import installed_version
from hub_core.model import (
    Algorithm,
    CollectiveKind,
    Provenance,
    StepTable,
    UsageError,
)
from hub_core.plugin_api import SimulationRequest, SynthesisRequest, SynthesisResult
from hub_core.schedules import collective_among

_NAME = "collhub-astra-sim"
# A reduction reads two operands and writes one.
_ACCESSES = 3


def astra_ring(request: SynthesisRequest, options: NativeAlgorithmOptions) -> SynthesisResult:
    """Synthesize ASTRA-sim's algorithm `ring`, in which every rank sends only to the next one."""
    return _synthesize("astra-ring", ring, request, options)


def astra_direct(request: SynthesisRequest, options: NativeAlgorithmOptions) -> SynthesisResult:
    """Synthesize ASTRA-sim's algorithm `direct`: every rank exchanges parts with all others."""
    return _synthesize("astra-direct", direct, request, options)


def astra_halving_doubling(
    request: SynthesisRequest, options: NativeAlgorithmOptions
) -> SynthesisResult:
    """Synthesize ASTRA-sim's `halvingDoubling`: exchanges at distances that are powers of two."""
    return _synthesize("astra-halving-doubling", halving_doubling, request, options)


def astra_double_binary_tree(
    request: SynthesisRequest, options: NativeAlgorithmOptions
) -> SynthesisResult:
    """Synthesize one of the two trees of ASTRA-sim's `doubleBinaryTree`."""
    return _synthesize("astra-double-binary-tree", double_binary_tree, request, options)


def _synthesize(
    name: str,
    plan_of: Callable[[NativeTask], NativePlan],
    request: SynthesisRequest,
    options: NativeAlgorithmOptions,
) -> SynthesisResult:
    """Build the algorithm of a plan and simulate its time.

    Raises `UsageError` for one rank and for a size with less than one byte per unit.
    """
    collective, size = request.collective, request.collective_bytes
    if collective.num_ranks == 1:
        cure = "let at least two ranks take part"
        raise UsageError("one rank has no message to send", cure=cure, code="one-rank")
    total = request.topology.num_npus
    # The size affects only the time of reductions.
    reduced_bytes = 0 if options.memory_bandwidth is None else size
    plan = _build_placed_plan(plan_of, collective.kind, options, reduced_bytes, request.npus, total)
    if size < plan.unit_count:
        message = f"{size} bytes cannot be divided into {plan.unit_count} parts"
        raise UsageError(message, cure="choose a larger size", code="size-too-small")
    definition = replace(
        collective, unit_count=plan.unit_count, in_place=plan.in_place, out_of_place=True
    )
    scratch = np.zeros(total, np.int64)
    scratch[list(request.npus)] = plan.scratch_units
    option_values = {key: str(value) for key, value in asdict(options).items()}
    algorithm = Algorithm(
        collective_among(definition, request.npus, total),
        plan.steps,
        scratch,
        Provenance(_NAME, installed_version(_NAME) or "", request.topology.name, "", option_values),
        size,
    )
    time_ns = request.simulate(algorithm)
    if time_ns is None:
        time_ns = _simulate_time_ns(algorithm, request)
    return SynthesisResult(algorithm, time_ns, statistics={"algorithm": name})


class _PlacedPlan(NamedTuple):
    """A `NativePlan` with ranks placed on NPUs, and its steps as a table."""

    steps: StepTable
    unit_count: int
    scratch_units: int
    in_place: bool


# A comparison requests the same plan for every size.
@lru_cache(maxsize=4)
def _build_placed_plan(
    plan_of: Callable[[NativeTask], NativePlan],
    kind: CollectiveKind,
    options: NativeAlgorithmOptions,
    size: int,
    npus: tuple[int, ...],
    total: int,
) -> _PlacedPlan:
    """Return the plan for `size` bytes, with rank r on NPU `npus[r]` of `total`; cached."""

    def reduce_ns(size: int) -> int:
        bandwidth = options.memory_bandwidth
        return 0 if bandwidth is None else _ACCESSES * int(size / bandwidth * 1e9)

    plan = plan_of(
        NativeTask(
            kind,
            len(npus),
            size,
            options.delay_ns,
            reduce_ns,
            options.width,
            options.small_group,
            options.root == "lowest",
        )
    )
    table = plan.steps.table(npus, total)
    return _PlacedPlan(table, plan.unit_count, plan.scratch_units, plan.in_place)


def _simulate_time_ns(algorithm: Algorithm, request: SynthesisRequest) -> int:
    """Simulate the algorithm with ASTRA-sim's model; return its time in ns, at least 1."""
    simulation = SimulationRequest(algorithm, request.topology, request.collective_bytes)
    options = AnalyticalOptions(occupancy=str(request.occupancy))
    time_ns = simulate(simulation, options).time_ns
    assert time_ns is not None, "messages of ASTRA-sim's algorithms match, so that they end"
    return max(time_ns, 1)
