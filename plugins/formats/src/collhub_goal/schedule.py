"""A GOAL schedule as numpy columns: the grammar of its text, its printed form, and its numbers.

The columns have one row per operation, and the dependencies.

Source of the grammar: scanner and parser of txt2bin, which is part of LogGOPSim and ATLAHS
(github.com/spcl/atlahs). A file contains `num_ranks`, then one block per rank in ascending order. A
block has one statement per line: an operation, with a label if other operations depend on it, or a
dependency between two labels. The parts of an operation have a fixed order: size, peer, tag, cpu,
nic.

In printed text every operation has a label; the dependencies of a rank are at the end of its block,
because txt2bin requires a label to be defined before its use.

Tags, cpus and nics are numbered for a schedule: GOAL matches messages by (peer, tag) in any order,
the hub by channel in FIFO order. LogGOPSim distinguishes 255 cpus and nics. Source: txt2bin stores
each number in 8 bits, and the simulator stores the largest one plus 1 in 8 bits too (Parser.hpp of
LogGOPSim and ATLAHS): cpu 256 would be cpu 0, and with a cpu 255 the number of cpus would be 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collhub_goal.plugin import GoalWriteOptions
from hub_core.columns import BoolArray, ColumnTable, Int64Array, group_pointer, ordinals, run_mask
from hub_core.model import InputError, StepTable

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


OPERATION_PARTS = ("calc", "send", "to", "recv", "from", "tag", "cpu", "nic")


FILLED_LINE = re.compile(rb"(?m)^[ \t]*[^ \t\n]")


BLANK = re.compile(rb"\s*")


EXPECTED = (
    "expected calc N, send Nb to R, recv Nb from R (then tag, cpu, nic in this order), "
    "or LABEL requires LABEL"
)


Int32Array = npt.NDArray[np.int32]


MAX_RESOURCES = 255


"""Groups: label, texts of `OPERATION_PARTS`, then waiting label, keyword, awaited label."""


class GoalOperation(IntEnum):
    """Kind of an operation of a schedule: local work, or one of the two ends of a message."""

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
    """Format a schedule as the complete GOAL file in ASCII.

    The first line is `num_ranks N`. Then follow the blocks of all ranks (`rank R {` to `}`) in
    ascending order, each after an empty line; a rank without operations has an empty block. In a
    block, every operation has the label `l` followed by its number within the rank, from 0, as in
    `l1: send 8b to 3 tag 5 cpu 0 nic 1`. A cpu or nic of -1 is not written. The dependencies
    follow: first `requires`, then `irequires`, each ordered by the waiting operation, then the
    awaited one.
    """
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


def assign_tags(steps: StepTable) -> Int64Array:
    """Return the tag of every step as int64.

    The tags are the channels if no two messages with equal source and destination share a channel
    and no step has a negative channel. Otherwise every message gets a unique number from 0, ordered
    by source, destination, channel and step; its send and its receive, the k-th of each in this
    order, have the same tag. Local steps always keep their channel, which has no meaning. Raises
    `InputError` (`unmatched-message`) if sends and receives do not match.
    """
    sends = _sort_sides(steps, steps.sends, steps.rank, steps.peer)
    receives = _sort_sides(steps, steps.receives, steps.peer, steps.rank)
    # Both are sorted equally, so the k-th send matches the k-th receive.
    for send_column, receive_column in zip(sends[1:], receives[1:], strict=True):
        if not np.array_equal(send_column, receive_column):
            raise InputError(
                "sends and receives do not match: the simulation could not finish",
                cure="see the output of 'collhub verify'",
                code="unmatched-message",
            )
    tags = steps.channel.astype(np.int64)
    # txt2bin interprets -1 as any tag, and accepts no other negative number.
    is_distinct = run_mask(sends.source, sends.destination, sends.channel)
    if (not bool(is_distinct.all())) or int(tags.min(initial=0)) < 0:
        number = np.arange(len(sends.row))
        tags[sends.row] = number
        tags[receives.row] = number
    return tags


def number_cpus(steps: StepTable, options: GoalWriteOptions) -> Int64Array:
    """Return the number of the cpu on which each step runs, int64 by step; -1 for none.

    With the option `cpu=lane` it is the lane of the step. If any lane is 255 or more, the
    lanes of every rank are renumbered from 0 (`_fold_numbers`). A step without a lane has
    -1. With any other value of the option, all numbers are -1.
    """
    # A cpu of GOAL executes one operation at a time, like a thread block.
    if options.cpu == "lane":
        return _fold_numbers(steps.rank, np.maximum(steps.lane, -1).astype(np.int64))
    return np.full(len(steps), -1, np.int64)


def number_nics(steps: StepTable, options: GoalWriteOptions) -> Int64Array:
    """Return the number of the nic (network card) of each step, int64 by step; -1 for none.

    With the option `nic=channel` it is the channel of the step, also of local steps. If any
    channel is 255 or more, the channels of every rank are renumbered from 0
    (`_fold_numbers`); negative channels stay and mean none. With any other value of the
    option, all numbers are -1.
    """
    # Messages of one nic are sent one after the other, like those of a channel in NCCL's runtimes.
    if options.nic == "channel":
        return _fold_numbers(steps.rank, steps.channel.astype(np.int64))
    return np.full(len(steps), -1, np.int64)


class _EdgeLines:
    """Dependencies of one kind, sorted by the waiting operation."""

    def __init__(self, word: str, parent: Int64Array, child: Int64Array) -> None:
        """Store dependencies, sorted by the operation that waits, then by the awaited one.

        `word` is the keyword, `requires` or `irequires`. `parent` (awaited) and `child` (waits)
        are rows of the schedule; they are not changed. Repeated dependencies are kept.
        """
        # By parent within a child, so that equal schedules give equal bytes.
        order = np.lexsort((parent, child))
        self._word = word
        self._parent = parent[order]
        self._child = child[order]

    def format_lines(self, start: int, stop: int) -> Iterator[str]:
        """Yield the dependencies of one rank as lines such as `l3 requires l1`, with a line feed.

        The word is the one for the kind of these dependencies (`requires` or `irequires`). The
        operations of the rank have the rows `start` to `stop` - 1; the label of a row is `l` and
        its distance from `start`. A line belongs to the rank of the operation that waits. Lines
        are ordered by this operation, then by the awaited one.
        """
        # Labels count the operations of a rank from 0.
        first, last = np.searchsorted(self._child, [start, stop])
        later = self._child[first:last] - start
        earlier = self._parent[first:last] - start
        for waiting, awaited in zip(later.tolist(), earlier.tolist(), strict=True):
            yield f"l{waiting} {self._word} l{awaited}\n"


def _format_operations(schedule: GoalSchedule, start: int, stop: int) -> Iterator[str]:
    """Yield one line per operation of one rank, whose rows are `start` to `stop` - 1.

    Each line ends with a line feed. The labels `l0`, `l1`, ... count within the rank. Examples:

    - a calc of 70 ns on cpu 2: `l0: calc 70 cpu 2`
    - a send of 8 bytes to rank 3: `l1: send 8b to 3 tag 5 cpu 0 nic 1`
    - a receive of 8 bytes from rank 3: `l2: recv 8b from 3 tag 5`

    A cpu or nic of -1 is omitted; the tag of a message is always written. A calc has no nic.
    """
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


class _MessageSides(NamedTuple):
    """One side of all messages, sorted by (source, destination, channel), then by step."""

    row: Int64Array
    source: Int32Array
    destination: Int32Array
    channel: Int32Array


def _sort_sides(
    steps: StepTable,
    is_side: BoolArray,
    source: Int32Array,
    destination: Int32Array,
) -> _MessageSides:
    """Return the sends (or the receives) sorted by source, then destination, then channel.

    `is_side` (bool per step) selects the steps. `source` and `destination` are the ranks of the
    message, per step: for receives, the source is the peer. Steps with three equal keys stay in the
    order of rows, so that the k-th send matches the k-th receive. The result has one entry per
    selected step: its row in `steps`, source, destination and channel.
    """
    rows = np.flatnonzero(is_side)
    # The last key is the primary one; equal keys stay in the order of steps.
    keys = (
        steps.channel[rows],
        destination[rows],
        source[rows],
    )
    row = rows[np.lexsort(keys)]
    return _MessageSides(
        row,
        source[row],
        destination[row],
        steps.channel[row],
    )


def _fold_numbers(rank: Int32Array, number: Int64Array) -> Int64Array:
    """Make sure that the numbers of cpus (or nics) are below 255, by renumbering them per rank.

    `number` is int64 per step; a negative number means none and stays. If all numbers are below
    255, `number` itself is returned. Otherwise the distinct numbers of each rank are replaced by 0,
    1, ... in ascending order, modulo 255, so that with more than 255 of them several share a
    number.
    """
    if number.max(initial=-1) < MAX_RESOURCES:
        return number
    has_number = number >= 0
    pairs = np.stack([rank[has_number].astype(np.int64), number[has_number]], axis=1)
    # Ascending by rank, then by number: equal numbers of a rank stay one resource.
    distinct_pairs, pair_of_step = np.unique(pairs, axis=0, return_inverse=True)
    folded = number.copy()
    folded[has_number] = (ordinals(distinct_pairs[:, 0]) % MAX_RESOURCES)[pair_of_step.reshape(-1)]
    return folded
