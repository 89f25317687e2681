"""The offer `WorkloadSimulator`: the time of a whole job on a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference
from hub_core.plugin_api.simulator import SimulationResult

if TYPE_CHECKING:
    from hub_core.model.algorithm import JsonValue
    from hub_core.model.workload import Workload
    from hub_core.network.topology import Topology


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """A workload on a topology, rank r on NPU r; None for the one that its source states."""

    workload: Workload
    topology: Topology | None = None


@dataclass(frozen=True, slots=True)
class WorkloadTimes(SimulationResult):
    """Outcome of a simulation, with nodes for steps.

    `slots`: which rule said what a rank may have in flight at once. `details`: what else
    the simulator tells.
    """

    slots: str = ""
    details: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkloadSimulator:
    """Consumer: `simulate(request: WorkloadRequest, options) -> WorkloadTimes`."""

    name: str
    description: str
    simulate: Reference
    options: type = NoOptions
