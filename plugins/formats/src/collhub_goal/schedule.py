"""A GOAL schedule as numpy columns, the grammar of its text, and its printed form.

The columns have one row per operation, and the dependencies.

Source of the grammar: scanner and parser of txt2bin, which is part of LogGOPSim and ATLAHS
(github.com/spcl/atlahs). A file contains `num_ranks`, then one block per rank in ascending order. A
block has one statement per line: an operation, with a label if other operations depend on it, or a
dependency between two labels. The parts of an operation have a fixed order: size, peer, tag, cpu,
nic.

In printed text every operation has a label; the dependencies of a rank are at the end of its block,
because txt2bin requires a label to be defined before its use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np

from hub_core.columns import ColumnTable, Int64Array, group_pointer


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


KEYWORDS = frozenset(
    (
        b"num_ranks",
        b"rank",
        b"calc",
        b"send",
        b"recv",
        b"to",
        b"from",
        b"tag",
        b"cpu",
        b"nic",
        b"requires",
        b"irequires",
    )
)
HEAD = re.compile(rb"\s*num_ranks[ \t]+([0-9]{1,9})[ \t]*\n")
BLOCK = re.compile(rb"\s*rank[ \t]+([0-9]{1,9})[ \t]*\{([^{}]*)\}")
# Only at the start of a line: txt2bin accepts no comment after a statement.
COMMENT = re.compile(rb"(?m)^[ \t]*(//[^\n]*|/\*(?s:.*?)\*/)")
OPEN_COMMENT = re.compile(rb"(?m)^[ \t]*/\*")
# Bounded, so that the search for a colon is always short.
_LABEL = rb"[A-Za-z][A-Za-z0-9_]{0,254}"
# 18 digits always fit into int64.
_NUMBER = rb"[0-9]{1,18}"
STATEMENT = re.compile(
    rb"(?m)^[ \t]*(?:"
    rb"(?:(" + _LABEL + rb")[ \t]*:[ \t]*)?(?:"
    rb"calc[ \t]+(" + _NUMBER + rb")"
    rb"|send[ \t]+(" + _NUMBER + rb")b[ \t]+to[ \t]+(" + _NUMBER + rb")"
    rb"|recv[ \t]+(" + _NUMBER + rb")b[ \t]+from[ \t]+(" + _NUMBER + rb"|-1)"
    rb")(?:[ \t]+tag[ \t]+([0-9]{1,18}|-1))?"
    rb"(?:[ \t]+cpu[ \t]+([0-9]{1,9}))?"
    rb"(?:[ \t]+nic[ \t]+([0-9]{1,9}))?"
    rb"|(" + _LABEL + rb")[ \t]+(i?requires)[ \t]+(" + _LABEL + rb")"
    rb")[ \t]*$"
)
"""Groups: label, texts of `OPERATION_PARTS`, then waiting label, keyword, awaited label."""
OPERATION_PARTS = ("calc", "send", "to", "recv", "from", "tag", "cpu", "nic")
FILLED_LINE = re.compile(rb"(?m)^[ \t]*[^ \t\n]")
BLANK = re.compile(rb"\s*")
EXPECTED = (
    "expected calc N, send Nb to R, recv Nb from R (then tag, cpu, nic in this order), "
    "or LABEL requires LABEL"
)
