"""A GOAL schedule as numpy columns: one row per operation, and dependencies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from hub_core.columns import ColumnTable, Int64Array


class GoalOperation(IntEnum):
    """Kind of an operation."""

    CALC = 0
    SEND = 1
    RECV = 2


@dataclass(frozen=True, slots=True, eq=False)
class GoalSchedule(ColumnTable):
    """Operations grouped by rank, in the order of the file; all columns are int64.

    `operation`: a `GoalOperation`; `amount`: ns of a calc, bytes of a message; `peer`, `tag`: of
    messages, else -1 and 0; `cpu`, `nic`: -1 if not given; `line`: from 1, or -1. `parent`,
    `child`: row `child` starts after row `parent` has finished (`requires`); `early_parent`,
    `early_child`: after it has started (`irequires`).
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
