"""Print a schedule as GOAL text.

Every operation gets a label; the dependencies of a rank are at the end of its block, because
txt2bin requires a label to be defined before its use.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from collhub_goal.schedule import GoalOperation, GoalSchedule
from hub_core.columns import Int64Array, group_pointer


def format_goal(schedule: GoalSchedule) -> bytes:
    """The complete file. A cpu or nic of -1 is not printed."""
    bounds = group_pointer(schedule.rank, schedule.num_ranks).tolist()
    after_end = _EdgeLines("requires", schedule.parent, schedule.child)
    after_start = _EdgeLines("irequires", schedule.early_parent, schedule.early_child)
    parts = [f"num_ranks {schedule.num_ranks}\n"]
    for rank, (start, stop) in enumerate(pairwise(bounds)):
        parts.append(f"\nrank {rank} {{\n")
        parts.extend(_format_operations(schedule, start, stop))
        parts.extend(after_end.format_lines(start, stop))
        parts.extend(after_start.format_lines(start, stop))
        parts.append("}\n")
    return "".join(parts).encode("ascii")


class _EdgeLines:
    """Dependencies of one kind, sorted by the waiting operation."""

    def __init__(self, word: str, parent: Int64Array, child: Int64Array) -> None:
        """Sort the edges; `word` is the keyword, `parent` and `child` are rows of the schedule."""
        # By parent within a child, so that equal schedules give equal bytes.
        order = np.lexsort((parent, child))
        self._word = word
        self._parent = parent[order]
        self._child = child[order]

    def format_lines(self, start: int, stop: int) -> Iterator[str]:
        """Yield lines for the rows from `start` to `stop`, which are those of one rank."""
        # Labels count the operations of a rank from 0.
        first, last = np.searchsorted(self._child, [start, stop])
        later = self._child[first:last] - start
        earlier = self._parent[first:last] - start
        for waiting, awaited in zip(later.tolist(), earlier.tolist(), strict=True):
            yield f"l{waiting} {self._word} l{awaited}\n"


def _format_operations(schedule: GoalSchedule, start: int, stop: int) -> Iterator[str]:
    """Yield lines for the operations of one rank."""
    names = ("operation", "amount", "peer", "tag", "cpu", "nic")
    columns = (getattr(schedule, name)[start:stop].tolist() for name in names)
    for row, (operation, amount, peer, tag, cpu, nic) in enumerate(zip(*columns, strict=True)):
        on_cpu = f" cpu {cpu}" if cpu >= 0 else ""
        if operation == GoalOperation.CALC:
            yield f"l{row}: calc {amount}{on_cpu}\n"
            continue
        direction = "send {}b to {}" if operation == GoalOperation.SEND else "recv {}b from {}"
        message = direction.format(amount, peer)
        on_nic = f" nic {nic}" if nic >= 0 else ""
        # The grammar fixes this order.
        yield f"l{row}: {message} tag {tag}{on_cpu}{on_nic}\n"
