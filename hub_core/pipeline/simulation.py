"""Simulate algorithms and workloads, on nominal links or on a measured machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hub_core.model import (
    Algorithm,
    InputError,
    PluginError,
    UsageError,
    format_ranks,
    placement_of,
)
from hub_core.network.links import Occupancy
from hub_core.network.topology import Topology
from hub_core.pipeline.calls import blame, bound_options, call, misfit
from hub_core.pipeline.inputs import as_topology
from hub_core.plugin_api import (
    LibraryTimes,
    LibraryTimesRequest,
    MachineDescription,
    Simulator,
    WorkloadSimulator,
    resolve,
)
from hub_core.plugin_api.runs import SimulationRequest, SimulationResult
from hub_core.registry.bind_options import OptionText
from hub_core.registry.compatibility import options_of
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Provided, Registry

if TYPE_CHECKING:
    from hub_core.reports import TimedMachine

DEFAULT_SIMULATOR = "analytical"

# Femtoseconds per nanosecond.
_SLOWDOWN = 10**6

# Maximum ratio of a time to a bound at which fractions of a nanosecond may matter.
_NEAR_RATIO = 1.02

NO_MACHINE = "none"

NOMINAL = "nominal links, not a machine"

_MACHINE_OPTION = "machine"

_FASTEST_INSTANCES = {"instances": "0"}


def simulate(
    algorithm: Algorithm,
    topology: Topology | str,
    collective_bytes: int,
    *,
    backend: str = DEFAULT_SIMULATOR,
    options: OptionText | None = None,
    registry: Registry | None = None,
    wants_transfers: bool = False,
) -> SimulationResult:
    """Simulate an algorithm for a collective of `collective_bytes` with the simulator `backend`.

    Rank r runs on NPU r, unless the algorithm has a placement (`placement_of`). `topology`: a
    topology, a text such as `ring:4`, or the path of a file. `wants_transfers`: the result shall
    contain the transfers over links. Raises `HubError` for invalid arguments, and if the simulation
    fails.
    """
    registry = registry or run_registry()
    network = as_topology(topology, registry)
    npus = placement_of(algorithm)
    request = SimulationRequest(
        algorithm, network, collective_bytes, npus, registry, wants_transfers
    )
    return run_simulator(request, backend, options)


def run_simulator(
    request: SimulationRequest, name: str, options: OptionText | None = None
) -> SimulationResult:
    """Return the result of the simulator `name`, checked to have a time for every rank.

    `options`: texts by name. The simulator gets the registry of the request or, without one, that
    of the current run. Raises the first of:

    - `UsageError` for a size below 1, and for a topology with too few NPUs (`topology-too-small`)
    - the error of `Registry.find` for an unknown simulator
    - `UsageError` if ranks are placed on NPUs and the simulator cannot do this (`placed`), and for
      unknown or invalid options
    - errors of the simulator, and `PluginError` for a result with another number of times than
      ranks
    """
    check_size(request.collective_bytes)
    ranks, npus = request.algorithm.num_ranks, request.npus
    count, needed = request.topology.num_npus, 1 + max(npus or (ranks - 1,))
    if count < needed:
        size, cure = f"{ranks} ranks", "choose a topology with at least one NPU per rank"
        if npus is not None:
            size = f"ranks on NPUs {format_ranks(npus)}"
            cure = f"choose a topology of at least {needed} NPUs"
        message = f"topology {request.topology.name} has {count} NPUs, the algorithm {size}"
        raise UsageError(message, cure=cure, code="topology-too-small")
    registry = request.hub or run_registry()
    simulator = registry.find(Simulator, name)
    if npus is not None and not simulator.offer.places_ranks:
        raise UsageError(
            f"the algorithm runs on NPUs {format_ranks(npus)}, "
            f"but the simulator {name} can place ranks only on NPUs 0 to n-1",
            cure=f"use the simulator {DEFAULT_SIMULATOR}",
            code="placed",
        )
    completed = replace(request, hub=registry)
    result = call(simulator, SimulationResult, completed, bound_options(simulator, options))
    if (times := len(result.rank_finish_ns)) != ranks:
        message = f"{simulator.plugin}: {name} returned {times} times for {ranks} ranks"
        raise PluginError(message)
    return result


@dataclass(frozen=True, slots=True)
class ExactTime:
    """A time in ps with its error by rounding: the true time is at most `slack_ps` later.

    `time_ps` is None if a rank never finishes.
    """

    time_ps: int | None
    slack_ps: int = 0


def exact_time(
    algorithm: Algorithm,
    topology: Topology,
    collective_bytes: int,
    time_ns: int | None,
    *,
    near_ps: int | None = None,
    backend: str = DEFAULT_SIMULATOR,
    options: OptionText | None = None,
    registry: Registry | None = None,
) -> ExactTime:
    """Return the time of a simulation in ps with its possible error (slack), for ratios to bounds.

    `time_ns`: the time that `backend` returned, truncated to ns per message; so it may be below a
    bound. The first case that applies decides:

    1. `time_ns` is None: the time is None, the slack 0.
    2. `time_ns` is more than 2 % above the bound `near_ps`: `time_ns` in ps, slack 0.
    3. The simulator supports scaling: it runs again on a network that is 10^6 times slower. The
       result is the larger of both times; the slack is 1 fs per step, rounded up to ps.
    4. No scaling, or that run raises `InputError`: `time_ns` in ps. The slack is 1 ns per step,
       plus the rounding error of doubles above 2^50 ps.

    Cases 3 and 4 raise other errors of `simulate`, and that of `Registry.find` for a wrong
    `backend`.
    """
    if time_ns is None:
        return ExactTime(None)
    time_ps = 1000 * time_ns
    steps = len(algorithm.steps)
    if near_ps is not None and time_ps > _NEAR_RATIO * near_ps:
        return ExactTime(time_ps)
    registry = registry or run_registry()
    if not registry.find(Simulator, backend).offer.scales:
        return ExactTime(time_ps, _slack_ps(time_ps, 1000 * steps))
    try:
        slow = replace(
            topology,
            bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s / _SLOWDOWN,
            latency_s=topology.latency_s * _SLOWDOWN,
            dimensions=(),
        )
        finer = simulate(
            algorithm,
            slow,
            collective_bytes,
            backend=backend,
            options=options,
            registry=registry,
        )
    except InputError:
        # The time is above 10^18 fs, some 20 minutes, or a link is too slow to be slowed down.
        return ExactTime(time_ps, _slack_ps(time_ps, 1000 * steps))
    time_fs = finer.time_ns or 0
    # Local work of ranks is not slowed down; its duration is contained in `time_ps`.
    return ExactTime(max(time_ps, -(-time_fs // 1000)), -(-steps // 1000))


def check_size(collective_bytes: int) -> None:
    """Raise `UsageError` for a size of a collective below 1 byte; there is no upper limit."""
    if collective_bytes < 1:
        message = f"a collective of {collective_bytes} bytes moves nothing"
        raise UsageError(message, cure="state a size, such as 1MiB")


@dataclass(frozen=True, slots=True)
class TimingSource:
    """Simulator that times algorithms, its options, and the machine that it models.

    `machine`: None if times are those of nominal links.
    """

    backend: str = DEFAULT_SIMULATOR
    options: Mapping[str, str] = field(default_factory=dict)
    machine: MachineDescription | None = None

    @property
    def note(self) -> str:
        """The line by which reports name the source of their times.

        For nominal links it is a fixed text. For a machine it has the name, the library and the
        held-out error of the model: percent with one decimal, or `not measured` if unknown.
        """
        machine = self.machine
        if machine is None:
            return NOMINAL
        error = machine.held_out_error
        known = "not measured" if error is None else f"{100 * error:.1f} %"
        return f"machine {machine.name}, {machine.library}, held-out error {known}"

    def bounded_network(self, topology: Topology) -> Topology:
        """Return the network whose lower bounds hold for these times.

        On a measured machine, its measured switches multicast and reduce, so that the bounds of the
        nominal network without them could be beaten. Without a machine, the network itself.
        """
        return topology if self.machine is None else topology.with_measured_switches()

    def machine_record(self) -> TimedMachine | None:
        """Return the machine as part of a report: name, library and held-out error of its model.

        None if the times are those of nominal links. The error is a fraction, None if unknown.
        """
        # Imported here, because only reports need it.
        from hub_core.reports import TimedMachine

        machine = self.machine
        if machine is None:
            return None
        return TimedMachine(
            name=machine.name, library=machine.library, held_out_error=machine.held_out_error
        )


def simulator_name(
    machine: str | None, backend: str, registry: Registry, *, of_workloads: bool = False
) -> str:
    """Return the name of the simulator for the options `--machine` and `--backend`.

    `machine`: a profile; None or `none` mean nominal links, and the result is `backend`. With a
    profile, it is the first simulator, in the registry's order, that models machines; `backend`
    must then be this simulator or the default, `analytical`. `of_workloads`: choose among
    simulators of jobs. Raises `PluginError` (`not-available`) if no plugin models machines,
    then `UsageError` if `backend` is another simulator. The name of the profile is not checked.
    """
    if machine in (None, NO_MACHINE):
        return backend
    machine_simulator: Provided[Simulator] | Provided[WorkloadSimulator] | None
    if of_workloads:
        offered = registry.all(WorkloadSimulator)
        machine_simulator = next((one for one in offered if one.offer.has_machines), None)
    else:
        machine_simulator = _find_simulator(registry)
    if machine_simulator is None:
        raise PluginError(
            "no installed plugin models machines",
            cure="install one, or use --machine none",
            code="not-available",
        )
    if backend not in (DEFAULT_SIMULATOR, machine_simulator.name):
        raise UsageError(
            f"--machine and --backend {backend} exclude each other", cure="leave one of them out"
        )
    return machine_simulator.name


def choose_timing(
    machine: str | None,
    backend: str,
    topology: Topology | None,
    registry: Registry,
    *,
    uses_known: bool = False,
    tries_instances: bool = False,
) -> TimingSource:
    """Return the simulator and the machine for the options `--machine` and `--backend`.

    `machine`: name or content of a profile, `none`, or None if the option is missing. S is the
    result of `simulator_name`, M the first simulator that models machines. The first rule applies:

    1. No M, or no topology: S without a machine.
    2. S is not M: S without a machine. Exception: rule 3 follows if `machine` is None,
       `uses_known` is True and S is `DEFAULT_SIMULATOR`.
    3. M with the profile `machine`; for None or `none`, with the machine that the topology names.
       S without a machine if M knows no such machine.

    `tries_instances`: by rule 3, the time is that of the fastest number of copies. Raises the
    errors of `simulator_name` and M. Raises `PluginError` if M returns no machine description.
    """
    name = simulator_name(machine, backend, registry)
    machine_simulator = _find_simulator(registry)
    is_machine = machine_simulator is not None and machine_simulator.name == name
    may_be_known = uses_known and machine is None and name == DEFAULT_SIMULATOR
    if machine_simulator is None or topology is None or not (is_machine or may_be_known):
        return TimingSource(name)
    profile = None if machine == NO_MACHINE else machine
    with blame(machine_simulator):
        description = resolve(machine_simulator.offer.machines)(profile, topology)
    if not isinstance(description, MachineDescription | None):
        raise misfit(machine_simulator, f"described a machine by {type(description).__name__}")
    if description is None:
        return TimingSource(name)
    options = {_MACHINE_OPTION: profile if profile is not None else description.name}
    if tries_instances:
        options |= _FASTEST_INSTANCES
    return TimingSource(machine_simulator.name, options, description)


def predict_library_times(request: LibraryTimesRequest, registry: Registry) -> LibraryTimes:
    """Predict the times of a measured library on a machine, one per call of the request.

    The first simulator, in the order of the registry, that offers such times is used. Raises
    `PluginError` if there is none (`not-available`), if it fails, and if it does not return one
    time per call. Raises `HubError` for an unknown profile.
    """
    offered = registry.all(Simulator)
    machine_simulator = next((one for one in offered if one.offer.library_times), None)
    if machine_simulator is None:
        raise PluginError(
            "no installed plugin predicts the times of libraries on machines",
            cure="install one, or leave out --machine",
            code="not-available",
        )
    with blame(machine_simulator):
        times = resolve(machine_simulator.offer.library_times)(request)
    if not isinstance(times, LibraryTimes) or len(times.times) != len(request.calls):
        raise misfit(machine_simulator, "did not predict a time for each call")
    return times


def _slack_ps(time_ps: int, truncated_ps: int) -> int:
    """Add 2^-50 of the time to the truncation of messages, because simulators divide doubles."""
    return truncated_ps + (time_ps >> 50)


def _find_simulator(registry: Registry) -> Provided[Simulator] | None:
    """Return the first simulator, in the registry's order, that describes measured machines.

    It has the function `machines`. None if no plugin offers one.
    """
    offered = registry.all(Simulator)
    return next((provided for provided in offered if provided.offer.machines), None)


def create_timer(
    topology: Topology, size: int, occupancy: Occupancy, backend: str, registry: Registry
) -> Callable[[Algorithm], int | None]:
    """Return a function that simulates an algorithm and returns its time in ns, None if unknown.

    It simulates a collective of `size` bytes on `topology` with the simulator `backend`. The first
    rule that applies:

    1. The simulator is not installed: the time is always None.
    2. It has an option `occupancy`: this is set to the link model `occupancy`.
    3. The link model is not SERIALIZATION: the time is always None.
    4. Otherwise it is simulated without options.

    In cases 2 and 4 the time is None if a rank never finishes, and the function raises the errors
    of `simulate`.
    """
    simulators = [offered.offer for offered in registry.all(Simulator) if offered.name == backend]
    names = {option.name for offer in simulators for option in options_of(offer)}
    has_choice = "occupancy" in names
    if not simulators or (not has_choice and occupancy is not Occupancy.SERIALIZATION):
        return lambda algorithm: None
    options = {"occupancy": str(occupancy)} if has_choice else {}

    def time_ns(algorithm: Algorithm) -> int | None:
        result = simulate(
            algorithm, topology, size, backend=backend, options=options, registry=registry
        )
        return result.time_ns

    return time_ns
