"""Simulators of algorithms and workloads, and executors that run an algorithm on real data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hub_core.model.diagnostics import Diagnostic
from hub_core.model.notebook_display import NotebookDisplay
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
    """Speed of local steps, for simulators and generators that compute their durations.

    In bytes per second. The `duration_ns` of a step takes precedence.
    """

    reduce_bandwidth: float | None = optional(
        "bytes reduced per second, as 200GB/s; not given: 1 ns per step", OptionType.BANDWIDTH
    )
    copy_bandwidth: float | None = optional(
        "bytes copied per second, as 1TB/s; not given: 1 ns per step", OptionType.BANDWIDTH
    )


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """Request to simulate an algorithm for a collective of `collective_bytes` on a topology.

    `npus`: the NPU of each rank, None for NPU r of rank r. `hub`: the plugins of the run, None in a
    request built by hand. `wants_transfers`: report the transfers on links, which take memory.
    """

    algorithm: Algorithm
    topology: Topology
    collective_bytes: int
    npus: tuple[int, ...] | None = None
    hub: Registry | None = None
    wants_transfers: bool = False


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """Traffic on one directed link over a simulation: node ids, bytes, busy time."""

    source: int
    destination: int
    bytes: int
    busy_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class LinkTransfers:
    """Transfers of messages over links, int64 arrays of equal length; times in ns.

    `link`: number of the link in the topology. `row`: row of the send in the step table.
    `ready_ns`: the message is at the link's source; `start_ns`: the link begins to send it, after
    the messages before it; `busy_ns`: how long it occupies the link.
    """

    link: Int64Array
    row: Int64Array
    ready_ns: Int64Array
    start_ns: Int64Array
    busy_ns: Int64Array


@dataclass(frozen=True, slots=True)
class SimulationResult(NotebookDisplay):
    """Result of a simulation; all times in nanoseconds from the common start.

    `rank_finish_ns`: end of the last step of each rank, None if it never finishes. `step_start_ns`,
    `step_end_ns`: int64 per row of the step table, -1 for a step that never started (ended); None
    if the simulator does not report them. `link_loads`: one per link that carried traffic, busiest
    first. `diagnostics`: reasons of unfinished ranks, and assumptions. `shares_links`: False if
    messages on a link do not delay each other, so that lower bounds do not hold. `rank_exposed_ns`:
    time of each rank without computation, None for a rank that never finishes; empty if the
    simulator does not report it. `details`: further results of the simulator by name. `passes`:
    names and options of the passes that build the variant of the algorithm that the times describe,
    such as several copies; empty for the algorithm itself. `transfers`: use of links over time,
    None if it was not requested or the simulator does not report it.
    """

    rank_finish_ns: tuple[int | None, ...]
    step_start_ns: Int64Array | None = None
    step_end_ns: Int64Array | None = None
    link_loads: tuple[LinkLoad, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    shares_links: bool = True
    rank_exposed_ns: tuple[int | None, ...] = ()
    details: Mapping[str, JsonValue] = field(default_factory=dict)
    passes: tuple[tuple[str, Mapping[str, str]], ...] = ()
    transfers: LinkTransfers | None = None

    def __repr__(self) -> str:
        time = "not all finish" if self.time_ns is None else f"{self.time_ns} ns"
        return f"<SimulationResult: {len(self.rank_finish_ns)} ranks, {time}>"

    @property
    def time_ns(self) -> int | None:
        """Return the time in ns at which the last rank finished; None if any rank never finishes.

        Raises `ValueError` without ranks.
        """
        finished = [time for time in self.rank_finish_ns if time is not None]
        return max(finished) if len(finished) == len(self.rank_finish_ns) else None


@dataclass(frozen=True, slots=True)
class Simulator:
    """Consumer: `simulate(request: SimulationRequest, options) -> SimulationResult`.

    A simulator of both link models declares an option `occupancy` with the choices of `Occupancy`.
    `scales`: on a network slowed down by 10^6 (bandwidths divided, latencies multiplied), its times
    are femtoseconds instead of nanoseconds, so that ratios to bounds have no rounding error.
    `places_ranks`: it supports `SimulationRequest.npus`; the hub calls other simulators only for
    algorithms without a placement. `machines`: only for a simulator of real machines, which
    `--machine P` selects with the option `machine`; its option `instances` is the number of copies
    of the algorithm, 0 for the fastest. `machines(machine: str | None, topology) ->
    MachineDescription | None` describes the profile with this name or in this document, or, for
    None, the known machine of the topology. It raises `HubError` for an unknown profile, and for a
    profile of another machine than the topology. `library_times`: only with `machines`;
    `library_times(request: LibraryTimesRequest) -> LibraryTimes` predicts the times of the library
    that was measured on a machine, and raises `HubError` for an unknown profile.
    """

    name: str
    description: str
    simulate: Reference
    options: type = NoOptions
    places_ranks: bool = False
    scales: bool = False
    machines: Reference = ""
    library_times: Reference = ""


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
class LibraryCall:
    """Call of a collective by a library such as NCCL.

    `collective`: the hub's name, such as `all-gather`. `ranks`: ranks of the job that take part.
    `size_bytes`: full buffer of the collective.
    """

    collective: str
    ranks: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LibraryTimesRequest:
    """Request to predict the times of calls on a machine.

    `machine`: name of a profile, or its document. `ranks_per_node`: rank r of the job is on node
    r // ranks_per_node; None for one rank on each GPU of the machine.
    """

    machine: str
    calls: tuple[LibraryCall, ...]
    ranks_per_node: int | None = None


@dataclass(frozen=True, slots=True)
class LibraryTime:
    """Predicted time of a call.

    `nodes`: number of nodes of its ranks, None if unknown. `time_ns`: None if the profile does not
    predict the call; `reason` then states why. `method`: `measured` for a measured size,
    `interpolated`, `model` or `nominal`. `held_out_error`: median relative error of the predictor
    on measurements that it was not fitted to; 0 for `measured`, None if not measured.
    """

    nodes: int | None
    time_ns: float | None = None
    method: str = ""
    held_out_error: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LibraryTimes:
    """Predicted times in the order of the calls, and the machine and placement that they assume."""

    machine: MachineDescription
    ranks_per_node: int | None
    times: tuple[LibraryTime, ...]


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """Request to simulate a workload, rank r on NPU r.

    `topology`: None for the network that the source of the workload declares. `hub`: the plugins of
    the run, None in a request built by hand. `read_input_topology`: reads the network that the
    input contains beside the job, None if it contains none; for simulators of workloads that do not
    contain their network. `wants_transfers`: report the transfers on links, which take memory.
    """

    workload: Workload
    topology: Topology | None = None
    hub: Registry | None = None
    read_input_topology: Callable[[], Topology | None] | None = None
    wants_transfers: bool = False


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job with one change, timed again with all of its remaining dependencies.

    `name`: `bucket-size` (consecutive collectives joined), `overlap` (communication starts when its
    data is ready) or `instant` (collectives take no time). `description`: the change, for people.
    `job_ns`: time of the changed job; `saved_ns`: what it saves, negative if it takes longer.
    `min_saved_ns`, `max_saved_ns`: savings at the limits of the error of predicted times, None if
    an error is not measured. `assumptions`: sentences without a period.
    """

    name: str
    description: str
    job_ns: int
    saved_ns: int
    min_saved_ns: int | None = None
    max_saved_ns: int | None = None
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadTimes(SimulationResult):
    """Result of the simulation of a workload, in which nodes take the place of steps.

    `slots`: name of the rule that limits the nodes that a rank runs at the same time. `machine`:
    None if the times are those of nominal links. `changes`: the same job with changes, simulated
    again.
    """

    slots: str = ""
    machine: MachineDescription | None = None
    changes: tuple[JobChange, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadSimulator:
    """Consumer: `simulate(request: WorkloadRequest, options) -> WorkloadTimes`.

    `has_machines`: it simulates jobs on measured machines. `--machine P` selects it with the option
    `machine`, and it needs no topology.
    """

    name: str
    description: str
    simulate: Reference
    options: type = NoOptions
    has_machines: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """Request to run a verified algorithm on real data, once or several times.

    `inputs`: one read-only array per rank, all of one dtype and size, the content of the rank's
    INPUT. `in_place`: whether INPUT and OUTPUT share memory as the collective defines. `warmups`:
    untimed runs before the `repeats` timed runs. `timeout_s`: time limit, after which the executor
    stops and reports the position of every rank. `wants_step_times`: whether the steps of the last
    run are timed. `hub`: the plugins of the run, None in a request built by hand.
    """

    algorithm: Algorithm
    inputs: tuple[npt.NDArray[np.generic], ...]
    in_place: bool
    reduce_op: ReduceOp
    repeats: int = 1
    warmups: int = 0
    timeout_s: float = 60.0
    wants_step_times: bool = False
    hub: Registry | None = None


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """Result of an execution on real data.

    `outputs`: OUTPUT of every rank after the last run. `repeat_times_s`: time of each timed run,
    from the first rank's start to the last rank's end, without the copying of inputs.
    `native_times_s`: times of the library's own collective on the same data in the same session,
    empty if it has none. `step_start_ns`, `step_end_ns`: int64 per row of the step table, from the
    start of the last run, -1 for rows without effect; None if the executor does not report them.
    `statistics`: further values for the report by name: messages, levels.
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

    It starts and stops its own processes. A missing library, launcher or device raises
    `PluginError` with the way to install it. A deadlock, or a rank that exits early, raises
    `InputError` with one diagnostic per rank; no process and no shared memory remain.
    """

    name: str
    description: str
    execute: Reference
    options: type = NoOptions
