"""The options of the writer `goal`."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import LocalWorkOptions, OptionType, choice, optional


@dataclass(frozen=True, slots=True)
class GoalWriteOptions(LocalWorkOptions):
    """What a schedule states beside messages, and how long local work takes.

    `size` in bytes; bandwidths in bytes per second, for local steps that state no time.
    """

    size: int | None = optional(
        "size of the collective (default: the size that the algorithm states)", OptionType.SIZE
    )
    cpu: str = choice(
        ("lane", "none"),
        "what the number of the cpu is taken from; one cpu does one thing at a time",
    )
    nic: str = choice(("none", "channel"), "what the number of the nic is taken from")
