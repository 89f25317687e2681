"""Offers of this package: the simulator of machines, its options, and a check of its kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import (
    Check,
    OptionType,
    Simulator,
    Subject,
    WarmOptions,
    choice,
    hookimpl,
    option,
    optional,
)

PROTOCOLS_OF_KERNEL = {
    "fifo": ("ll", "ll128", "simple"),
    "exchange": ("ll", "simple"),
    "nvls": ("simple",),
    "direct": ("ll", "simple"),
}
"""Kernels (`collhub_machine_timing.constants` describes them) and the protocols of each."""


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """Options of the simulator: the profile of the machine, and how it executes an algorithm."""

    machine: str | None = optional(
        "profile: the name of a shipped one, as h100, or the text of one that 'collhub calibrate'"
        " wrote (default: the profile of the topology)"
    )
    kernel: str | None = choice(
        (None, *PROTOCOLS_OF_KERNEL),
        "code that executes the algorithm: fifo (NCCL, MSCCL), exchange (NCCL's sends and receives"
        " in a group), nvls, direct (MSCCL++) (default: fifo, or exchange if no message waits for"
        " another; and nvls if switches add up or copy messages and this is faster)",
    )
    protocol: str | None = choice(
        (None, *PROTOCOLS_OF_KERNEL["fifo"]), "protocol of all messages (default: the fastest one)"
    )
    chunk: int | None = optional(
        "largest message, as 1MiB; larger ones take several rounds of the algorithm, which overlap"
        " (default: the chunk of the kernel)",
        OptionType.SIZE,
    )
    instances: int = option(
        OptionType.INT,
        1,
        "copies of the algorithm, each with a part of the data on thread blocks of its own;"
        " 0: the fastest power of two that fits on a GPU",
        minimum=0,
        maximum=1024,
    )
    pieces: int | None = optional(
        "parts into which each copy divides its data, of which the next one starts before the"
        " previous one has finished; 0: the fastest one of several numbers (default: 1, and 0"
        " with instances=0)",
        OptionType.INT,
        minimum=0,
        maximum=1024,
    )


COLLHUB_PLUGIN_API = (1, 0)

MACHINE = Simulator(
    "machine",
    "times of real machines, with constants of a profile that was fitted to measurements",
    "collhub_machine_timing.simulate:simulate",
    MachineOptions,
    places_ranks=True,
    machines="collhub_machine_timing.profiles:describe_machine",
    library_times="collhub_machine_timing.profiles:predict_library_times",
)


@hookimpl
def collhub_consumers() -> Sequence[Simulator]:
    """Return the plugin's only simulator, `MACHINE`."""
    return [MACHINE]


KERNEL = Check(
    "machine-kernel",
    Subject.INSTALLATION,
    "compiles the kernel of the simulator of machines beforehand, for doctor --warm",
    "collhub_machine_timing.simulate:check",
    WarmOptions,
)


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Return the plugin's only check, which compiles the kernel on request."""
    return [KERNEL]
