"""Options of the simulator of machines."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option, optional

PROTOCOLS_OF_KERNEL = {
    "fifo": ("ll", "ll128", "simple"),
    "exchange": ("ll", "simple"),
    "nvls": ("simple",),
    "direct": ("ll", "simple"),
}
"""Kernels (`collhub_machine_timing.constants` describes them) and the protocols of each."""


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The profile of the machine, and the code that executes the algorithm."""

    machine: str | None = optional(
        "profile: the name of a shipped one, as h100, or the text of one that 'collhub calibrate'"
        " wrote (default: the profile of the topology)"
    )
    kernel: str | None = choice(
        (None, *PROTOCOLS_OF_KERNEL),
        "code that executes the algorithm: fifo (NCCL, MSCCL), exchange (NCCL's sends and receives"
        " in a group), nvls, direct (MSCCL++) (default: nvls if switches add up or copy messages,"
        " exchange if no message waits for another, else fifo)",
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
