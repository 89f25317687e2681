"""Options of the writer `goal`."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import LocalWorkOptions, OptionType, choice, optional


@dataclass(frozen=True, slots=True)
class GoalWriteOptions(LocalWorkOptions):
    """Contents of a schedule in addition to messages, and the duration of local work.

    `size` in bytes; bandwidths in bytes per second, for local steps without a duration.
    """

    size: int | None = optional(
        "size of the collective (default: the size of the algorithm)", OptionType.SIZE
    )
    cpu: str = choice(
        ("lane", "none"),
        "source of the cpu numbers; a cpu executes one operation at a time",
    )
    nic: str = choice(("none", "channel"), "source of the nic numbers")
