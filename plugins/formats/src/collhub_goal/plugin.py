"""Reader and writers of GOAL for the hub, and the options of the writers.

GOAL is the Group Operation Assembly Language (Hoefler, Siebert, Lumsdaine, ICPP 2009), which
LogGOPSim, ATLAHS and htsim simulate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import (
    Format,
    FormatReader,
    FormatWriter,
    LocalWorkOptions,
    OptionType,
    RuleSet,
    WorkloadWriter,
    choice,
    hookimpl,
    optional,
)

COLLHUB_PLUGIN_API = (1, 0)


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


# The first statement after comments. Possessive groups prevent backtracking for any text.
_SIGNATURE = rb"\A(?>\s|//[^\n]*\n|/\*(?s:.*?)\*/)*+num_ranks[ \t]+[0-9]"
_GOAL = Format(
    "goal",
    "GOAL schedules, the text format of txt2bin from LogGOPSim and ATLAHS",
    (".goal",),
    _SIGNATURE,
)

_WRITER = FormatWriter(_GOAL, "collhub_goal.write:write", GoalWriteOptions)
_JOB_WRITER = WorkloadWriter(_GOAL, "collhub_goal.write:write_job")


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Reader of schedules."""
    return [FormatReader(_GOAL, "collhub_goal.read:read", samples="collhub_goal.read:samples")]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter | WorkloadWriter]:
    """Writers of algorithms and of jobs."""
    return [_WRITER, _JOB_WRITER]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Rules of the reader and the writers."""
    return [RuleSet("goal", "findings in GOAL schedules", "collhub_goal.rules:list_rules")]
