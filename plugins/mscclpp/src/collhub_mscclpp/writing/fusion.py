"""Steps of a thread block that one operation does: sends of what was just received, or together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from collhub_mscclpp.checking.limits import MOST_CHANNELS_OF_OPERATION
from collhub_mscclpp.writing.draft import Draft
from collhub_mscclpp.writing.rank_tables import MEMORY
from hub_core.model import StepKind

_SEND = int(StepKind.SEND)
_RECEIVING = (int(StepKind.RECV), int(StepKind.RECV_REDUCE))


@dataclass(slots=True)
class StepGroup:
    """A step, and sends that are done with it: of what it writes, or from the buffer it sends."""

    row: int
    sends: list[int] = field(default_factory=list)

    @property
    def rows(self) -> list[int]:
        """All steps in their order."""
        return [self.row, *self.sends]


def groups_of(draft: Draft, rows: Sequence[int]) -> list[StepGroup]:
    """Divide the steps of a thread block; within a group nothing waits for other blocks."""
    groups: list[StepGroup] = []
    for row in rows:
        # Only neighbours join, so that the order of the block stays.
        if groups and _joins(draft, groups[-1], row):
            groups[-1].sends.append(row)
        else:
            groups.append(StepGroup(row))
    return groups


def _joins(draft: Draft, group: StepGroup, row: int) -> bool:
    """Whether a step is a send that can be done with the group before it."""
    steps = draft.work.steps
    if int(steps.kind[row]) != _SEND or draft.semaphores.acquired.get(row):
        return False
    if draft.channel_type(row) != MEMORY or not _has_room(draft, group, row):
        return False
    kind = int(steps.kind[group.row])
    if kind == _SEND:
        # The executor takes the buffer of the first source for all of them.
        same_buffer = bool(steps.src_buffer[row] == steps.src_buffer[group.row])
        return same_buffer and draft.channel_type(group.row) == MEMORY
    return kind in _RECEIVING and draft.source(row) == draft.target(group.row)


def _has_room(draft: Draft, group: StepGroup, row: int) -> bool:
    """Whether the operation has room for another channel; each is signalled once."""
    connection = draft.work.connection
    sends = [one for one in group.rows if int(draft.work.steps.kind[one]) == _SEND]
    used = {int(connection[one]) for one in sends}
    # One place is the local destination of a reduction.
    return int(connection[row]) not in used and len(used) < MOST_CHANNELS_OF_OPERATION - 1
