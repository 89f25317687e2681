"""Simulators of algorithms and workloads, and executors that run an algorithm on real data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hub_core.model.diagnostics import Diagnostic
from hub_core.plugin_api.options import NoOptions, OptionType, Reference, optional

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hub_core.columns import Int64Array
    from hub_core.model.algorithm import Algorithm, JsonValue
    from hub_core.model.kinds import ReduceOp
    from hub_core.model.workload import Workload
    from hub_core.network.topology import Topology
    from hub_core.registry.plugins import Registry


@dataclass(frozen=True, slots=True)
class LocalWorkOptions:
    """Options of whatever times steps of one rank alone; in bytes per second.

    A time that the step itself states comes first.
    """

    reduce_bandwidth: float | None = optional(
        "bytes reduced per second, as 200GB/s; not given: 1 ns each", OptionType.BANDWIDTH
    )
    copy_bandwidth: float | None = optional(
        "bytes copied per second, as 1TB/s; not given: 1 ns each", OptionType.BANDWIDTH
    )


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """An algorithm for a collective of `collective_bytes` on a topology.

    `npus`: the NPU that every rank runs on, by default NPU r for rank r. `hub`: the plugins of the
    run, None in a request made by hand.
    """

    algorithm: Algorithm
    topology: Topology
    collective_bytes: int
    npus: tuple[int, ...] | None = None
    hub: Registry | None = None


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """Traffic on one directed link over a simulation: node ids, bytes, busy time."""

    source: int
    destination: int
    bytes: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Outcome of a simulation; all times in nanoseconds from the common start.

    `rank_finish_ns`: when each rank's last step ended, None where it never did. `step_start_ns`,
    `step_end_ns`: int64 per row of the step table, -1 where a step never started (ended), or None
    where the simulator does not tell. `link_loads`: per link that carried traffic, busiest first.
    `diagnostics`: why ranks never finished, what was assumed. `shares_links`: False where messages
    do not wait for one another on links, so that no lower bound holds. `rank_exposed_ns`: the time
    of each rank in which it did not compute, as the simulator counts it, None where it never
    finishes; empty where the simulator does not tell. `details`: further results of the simulator.
    """

    rank_finish_ns: tuple[int | None, ...]
    step_start_ns: Int64Array | None = None
    step_end_ns: Int64Array | None = None
    link_loads: tuple[LinkLoad, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    shares_links: bool = True
    rank_exposed_ns: tuple[int | None, ...] = ()
    details: Mapping[str, JsonValue] = field(default_factory=dict)

    def __repr__(self) -> str:
        time = "not all finish" if self.time_ns is None else f"{self.time_ns} ns"
        return f"<SimulationResult: {len(self.rank_finish_ns)} ranks, {time}>"

    @property
    def time_ns(self) -> int | None:
        """When the last rank finished; None when a rank never does."""
        finished = [time for time in self.rank_finish_ns if time is not None]
        return max(finished) if len(finished) == len(self.rank_finish_ns) else None


@dataclass(frozen=True, slots=True)
class Simulator:
    """Consumer: `simulate(request: SimulationRequest, options) -> SimulationResult`.

    An option `occupancy` with the choices of `Occupancy` says that it knows both link models.
    `scales`: on a network whose times are all 10^6-fold (bandwidths divided, latencies multiplied)
    it counts femtoseconds in place of nanoseconds, so that ratios to bounds are free of rounding.
    `places_ranks`: it minds `SimulationRequest.npus`; others are not asked for placed algorithms.
    `machines`: of a simulator of real machines, which `--machine P` selects with the option
    `machine`: `machines(machine: str | None, topology) -> MachineDescription | None` describes the
    profile of a name or a document, or, for None, the known machine of a topology. It raises
    `HubError` for an unknown profile, and for one of another machine than the topology.
    """

    name: str
    description: str
    simulate: Reference
    options: type = NoOptions
    places_ranks: bool = False
    scales: bool = False
    machines: Reference = ""


@dataclass(frozen=True, slots=True)
class MachineDescription:
    """A measured machine whose constants a simulator uses.

    `library`: name and version of the library that was measured. `held_out_error`: median relative
    error on measurements that the constants were not fitted to, None if not measured.
    """

    name: str
    library: str
    held_out_error: float | None = None


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """A workload on a topology, rank r on NPU r; None for the one that its source states."""

    workload: Workload
    topology: Topology | None = None


@dataclass(frozen=True, slots=True)
class WorkloadTimes(SimulationResult):
    """Outcome of a simulation, with nodes for steps.

    `slots`: name of the rule that limits the nodes that a rank runs at the same time.
    """

    slots: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadSimulator:
    """Consumer: `simulate(request: WorkloadRequest, options) -> WorkloadTimes`."""

    name: str
    description: str
    simulate: Reference
    options: type = NoOptions


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """A verified algorithm to run on real data, once or several times.

    `inputs`: one read-only array a rank, all of one dtype and of one size, which fills the rank's
    INPUT. `in_place`: whether INPUT and OUTPUT share memory as the collective defines. `warmups`:
    runs before the `repeats` timed ones. `timeout_s`: when to give up and say where every rank
    stands. `wants_step_times`: whether the last run is to be timed step by step.
    """

    algorithm: Algorithm
    inputs: tuple[npt.NDArray[np.generic], ...]
    in_place: bool
    reduce_op: ReduceOp
    repeats: int = 1
    warmups: int = 0
    timeout_s: float = 60.0
    wants_step_times: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """Outcome of an execution on real data.

    `outputs`: OUTPUT of every rank after the last run. `repeat_times_s`: of each timed run, from
    the first rank's start to the last rank's end; moving inputs into place does not count.
    `native_times_s`: the same for the library's own collective on the same data in the same
    session, empty where it has none. `step_start_ns`, `step_end_ns`: int64 per row of the step
    table, from the start of the last run, -1 for rows that do nothing, or None where the executor
    does not tell. `statistics`: what else the user should know, by name: messages, levels.
    """

    outputs: tuple[npt.NDArray[np.generic], ...]
    repeat_times_s: tuple[float, ...] = ()
    native_times_s: tuple[float, ...] = ()
    step_start_ns: Int64Array | None = None
    step_end_ns: Int64Array | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    statistics: Mapping[str, JsonValue] = field(default_factory=dict)

    def __repr__(self) -> str:
        fastest = f", {min(self.repeat_times_s):g} s" if self.repeat_times_s else ""
        return f"<ExecutionResult: {len(self.outputs)} ranks{fastest}>"


@dataclass(frozen=True, slots=True)
class Executor:
    """Consumer: `execute(request: ExecutionRequest, options) -> ExecutionResult`.

    It starts and ends its own processes. What is missing (a library, a launcher, a device) is a
    `PluginError` that says how to get it; a deadlock, or a rank that ends early, is an `InputError`
    with one diagnostic a rank, and leaves no process and no shared memory behind.
    """

    name: str
    description: str
    execute: Reference
    options: type = NoOptions
