"""Group steps of a thread block that one operation executes: sums, forwards, several sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from collhub_mscclpp.checking.rules import MOST_CHANNELS_OF_OPERATION
from collhub_mscclpp.writing.draft import Draft
from collhub_mscclpp.writing.segments import MEMORY
from hub_core.model import StepKind

_SEND = int(StepKind.SEND)
_SUM = int(StepKind.RECV_REDUCE)
_RECEIVING = (int(StepKind.RECV), int(StepKind.RECV_REDUCE))


@dataclass(slots=True)
class StepGroup:
    """A step, and further steps that the same operation executes.

    `terms`: receives that are added to the result of the step, which is a receive too. `sends`:
    sends of the result of the step, or sends from the buffer that the step sends.
    """

    row: int
    terms: list[int] = field(default_factory=list)
    sends: list[int] = field(default_factory=list)

    @property
    def receives(self) -> list[int]:
        """The step and its terms, in execution order."""
        return [self.row, *self.terms]

    @property
    def rows(self) -> list[int]:
        """Return all steps of the group, which one operation executes.

        These are the first step (`row`), then the terms, then the sends.
        """
        receives = self.receives
        return [*receives, *self.sends]


def group_steps(draft: Draft, rows: Sequence[int]) -> list[StepGroup]:
    """Divide the steps of a thread block into groups that one operation executes, in their order.

    `rows`: the steps in the order of execution. The first rule that applies to a step decides how
    it joins the last group:

    1. The last group is a reduction or multicast by a switch, and the step belongs to it or sends
       its sum (`_is_of_switch`): a send joins `sends`, any other step `terms`.
    2. The step adds a further message to the sum that the last group computes (`_is_term`): it
       joins `terms`.
    3. The step sends from the same buffer as the last group, or sends its result, over a memory
       channel (`_is_joined_send`): it joins `sends`.
    4. Otherwise the step begins a new group.

    By rules 2 and 3 a step joins only if it acquires no semaphore, and if the operation has room
    for its channel. Returns [] without rows.
    """
    groups: list[StepGroup] = []
    for row in rows:
        last = groups[-1] if groups else None
        if last and _is_of_switch(draft, last, row):
            is_send = int(draft.work.steps.kind[row]) == _SEND
            (last.sends if is_send else last.terms).append(row)
        elif last and _is_term(draft, last, row):
            last.terms.append(row)
        elif last and _is_joined_send(draft, last, row):
            last.sends.append(row)
        else:
            groups.append(StepGroup(row))
    return groups


def _is_of_switch(draft: Draft, group: StepGroup, row: int) -> bool:
    """Return whether a step belongs to the previous group's switch operation or sends its sum.

    `group`: the previous group of steps; its first row decides its sum. The first case that holds:

    1. No switch operations: False.
    2. The step receives for a sum: True if the first row of the group is of the same sum.
    3. The step sends for no multicast: False.
    4. The step sends for a multicast: True if any row of the group is of the same multicast, or if
       the multicast sends the sum of the first row of the group.
    """
    switches = draft.work.switches
    if switches.is_empty:
        return False
    total, multicast = int(switches.total[row]), int(switches.multicast[row])
    if total >= 0:
        return int(switches.total[group.row]) == total
    if multicast < 0:
        return False
    if any(int(switches.multicast[member]) == multicast for member in group.rows):
        return True
    return switches.joined.get(int(switches.total[group.row])) == multicast


def _uses_switch(draft: Draft, group: StepGroup) -> bool:
    """Return whether any step of a group belongs to a multicast or a sum of a switch channel.

    A switch channel reads or writes the memory of all its members at once.
    """
    switches = draft.work.switches
    rows = group.rows
    return not switches.is_empty and bool(
        (switches.multicast[rows] >= 0).any() or (switches.total[rows] >= 0).any()
    )


def _is_term(draft: Draft, group: StepGroup, row: int) -> bool:
    """Return whether a step adds another message to the sum that the previous group computes.

    All of these must hold: no switch is used; the group has no sends; the step and the first step
    of the group are reducing receives; they write the same range, which is also the operand of the
    new step; both messages are pulled or both are not; no semaphore is acquired by the step or
    released by the group; the operation has room for the channel.
    """
    if _uses_switch(draft, group) or draft.work.switches.total[row] >= 0:
        return False
    steps, landing, semaphores = draft.work.steps, draft.landing, draft.semaphores
    if group.sends or int(steps.kind[group.row]) != _SUM or int(steps.kind[row]) != _SUM:
        return False
    # The sum is complete only after all terms, so no semaphore may lie between the terms.
    is_ordered = row in semaphores.acquired
    if is_ordered or any(receive in semaphores.released for receive in group.receives):
        return False
    target = draft.target(group.row)
    is_same = draft.source(row) == target and draft.target(row) == target
    if not is_same or landing.is_pulled[row] != landing.is_pulled[group.row]:
        return False
    return _has_room(draft, group.receives, row)


def _is_joined_send(draft: Draft, group: StepGroup, row: int) -> bool:
    """Return whether a step is a send that the operation of the previous group can execute too.

    All of these must hold:

    - The step is a send on a memory channel, and acquires no semaphore.
    - Neither the step nor any step of the group belongs to a switch operation.
    - The operation has room: the sends of the group do not use the channel of the step, and use at
      most 6 different channels. Receives of the group do not count.
    - If the first step of the group is a send, it uses a memory channel and the same source buffer
      (at any offset). With the option `slices`, both have the same count.
    - If the first step of the group is a receive, also a reducing one, the step sends exactly the
      range that this receive writes.

    False for a group that begins with a step of another kind.
    """
    if _uses_switch(draft, group) or draft.work.switches.multicast[row] >= 0:
        return False
    steps = draft.work.steps
    if int(steps.kind[row]) != _SEND or draft.semaphores.acquired.get(row):
        return False
    sends = [member for member in group.rows if int(steps.kind[member]) == _SEND]
    if draft.channel_type(row) != MEMORY or not _has_room(draft, sends, row):
        return False
    kind = int(steps.kind[group.row])
    if kind == _SEND:
        # The executor uses the buffer of the first source for all; a pipeline has one length.
        same_buffer = bool(steps.src_buffer[row] == steps.src_buffer[group.row])
        if draft.options.slices and steps.count[row] != steps.count[group.row]:
            return False
        return same_buffer and draft.channel_type(group.row) == MEMORY
    return kind in _RECEIVING and draft.source(row) == draft.target(group.row)


def _has_room(draft: Draft, rows: Sequence[int], row: int) -> bool:
    """Return whether an operation on these messages can also use the channel of message `row`.

    `rows`: its messages. An operation has each channel at most once, and at most
    `MOST_CHANNELS_OF_OPERATION` - 1, because one entry is needed for the local operand or
    destination.
    """
    connection = draft.work.connection
    used = {int(connection[message]) for message in rows}
    # One entry is the local operand or destination of a reduction.
    return int(connection[row]) not in used and len(used) < MOST_CHANNELS_OF_OPERATION - 1
