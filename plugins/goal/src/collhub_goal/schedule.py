"""A GOAL schedule as numpy columns: one row an operation, and who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from collhub_columns import ColumnTable, Int64Array


class GoalOperation(IntEnum):
    """What a line of a schedule does."""

    CALC = 0
    SEND = 1
    RECV = 2


@dataclass(frozen=True, slots=True, eq=False)
class GoalSchedule(ColumnTable):
    """Operations grouped by rank, in the order of the file; all columns are int64.

    `operation`: of `GoalOperation`. `amount`: ns of a calc, bytes of a message. `peer`, `tag`: of
    messages, else -1 and 0. `cpu`, `nic`: -1 where they are not stated. `line`: from 1, or -1.
    `parent`, `child`: the row `child` starts after the row `parent` has finished (`requires`).
    `early_parent`, `early_child`: after it has started (`irequires`).
    """

    num_ranks: int
    rank: Int64Array
    operation: Int64Array
    amount: Int64Array
    peer: Int64Array
    tag: Int64Array
    cpu: Int64Array
    nic: Int64Array
    line: Int64Array
    parent: Int64Array
    child: Int64Array
    early_parent: Int64Array
    early_child: Int64Array
