"""Offers of this distribution to the hub: GOAL, written and read.

GOAL is the Group Operation Assembly Language (Hoefler, Siebert, Lumsdaine, ICPP 2009), which
LogGOPSim, ATLAHS and htsim simulate.
"""

from __future__ import annotations

from collections.abc import Sequence

from collhub_goal.options import GoalWriteOptions
from hub_core.plugin_api import Format, FormatReader, FormatWriter, WorkloadWriter, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

# The first statement, behind comments. Possessive groups: no text makes the search backtrack.
_SIGNATURE = rb"\A(?>\s|//[^\n]*\n|/\*(?s:.*?)\*/)*+num_ranks[ \t]+[0-9]"
_GOAL = Format(
    "goal",
    "GOAL schedules, the text that LogGOPSim's and ATLAHS's txt2bin takes",
    (".goal",),
    _SIGNATURE,
)

_WRITER = FormatWriter(_GOAL, "collhub_goal.write:write", GoalWriteOptions)
_JOB_WRITER = WorkloadWriter(_GOAL, "collhub_goal.write_job:write")


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Describe the reader."""
    return [FormatReader(_GOAL, "collhub_goal.read:read", samples="collhub_goal.read:samples")]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter | WorkloadWriter]:
    """Describe the writers."""
    return [_WRITER, _JOB_WRITER]
