"""Choose what the times of a command describe: nominal links, or a measured machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hub_core.model import PluginError, UsageError
from hub_core.network.topology import Topology
from hub_core.pipeline.calls import blame, misfit
from hub_core.pipeline.simulation import DEFAULT_SIMULATOR
from hub_core.plugin_api import (
    LibraryTimes,
    LibraryTimesRequest,
    MachineDescription,
    Simulator,
    resolve,
)
from hub_core.registry.plugins import Provided, Registry

if TYPE_CHECKING:
    from hub_core.model import JsonValue

NO_MACHINE = "none"
NOMINAL = "nominal links, not a machine"
_MACHINE_OPTION = "machine"
_FASTEST_INSTANCES = {"instances": "0"}


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
        """The line that reports state about their times."""
        machine = self.machine
        if machine is None:
            return NOMINAL
        error = machine.held_out_error
        known = "not measured" if error is None else f"{100 * error:.1f} %"
        return f"machine {machine.name}, {machine.library}, held-out error {known}"

    def document(self) -> dict[str, JsonValue]:
        """Return the fields of JSON reports."""
        machine = self.machine
        description: dict[str, JsonValue] | None = None
        if machine is not None:
            description = {
                "name": machine.name,
                "library": machine.library,
                "held_out_error": machine.held_out_error,
            }
        return {"timing": self.note, "machine": description}


def simulator_name(machine: str | None, backend: str, registry: Registry) -> str:
    """Return the simulator for the options `--machine` and `--backend`, whose options apply.

    Raises `UsageError` if the two exclude each other, `PluginError` if no plugin models machines.
    """
    if machine in (None, NO_MACHINE):
        return backend
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

    `machine`: name or content of a profile, `none`, or None if the option is not given; with
    `uses_known` None selects the profile of a known machine that the topology names.
    `tries_instances`: on a machine, algorithms have the time of the fastest number of instances, as
    runtimes execute them. Raises `HubError` for an unknown profile, and for one of another machine
    than the topology.
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
    """Predict the times of a measured library on a machine, with the plugin that models machines.

    Raises `PluginError` if no plugin predicts them, `HubError` for an unknown profile.
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


def _find_simulator(registry: Registry) -> Provided[Simulator] | None:
    """Return the first simulator of machines, None if no plugin offers one."""
    offered = registry.all(Simulator)
    return next((provided for provided in offered if provided.offer.machines), None)
