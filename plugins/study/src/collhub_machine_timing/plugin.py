"""Offers of this package: the simulator of machines."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_machine_timing.options import MachineOptions
from hub_core.plugin_api import Check, Simulator, Subject, WarmOptions, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

MACHINE = Simulator(
    "machine",
    "times of real machines, with constants of a profile that was fitted to measurements",
    "collhub_machine_timing.simulate:simulate",
    MachineOptions,
    places_ranks=True,
    machines="collhub_machine_timing.profiles:describe_machine",
    library_times="collhub_machine_timing.library_times:predict_library_times",
)


@hookimpl
def collhub_consumers() -> Sequence[Simulator]:
    """Describe the simulator."""
    return [MACHINE]


KERNEL = Check(
    "machine-kernel",
    Subject.INSTALLATION,
    "compiles the kernel of the simulator of machines beforehand, for doctor --warm",
    "collhub_machine_timing.warming:check",
    WarmOptions,
)


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Describe the check that compiles the kernel."""
    return [KERNEL]
