"""Match every send with its receive: the k-th send of a connection with its k-th receive.

A connection is a (source, destination, channel); NCCL, MSCCL and MPI (per communicator and tag)
deliver in FIFO order on it. `connection_keys` and `pair_in_order` match messages of any table;
`match_messages` matches a `StepTable` and reports mismatches; `matched_messages` does not report.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hub_core.columns import (
    BoolArray,
    Int64Array,
    IntArray,
    Order,
    is_sorted,
    labels,
    sorted_ordinals,
    stable_order,
    topological_levels,
)
from hub_core.model.diagnostics import CAP, Findings
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.steps import StepTable

# The operand of a reduction is named first.
_FORMS = {
    StepKind.SEND: "send of {src} to rank {peer}",
    StepKind.RECV: "receive from rank {peer} into {dst}",
    StepKind.RECV_REDUCE: "reducing receive from rank {peer} and {src} into {dst}",
    StepKind.COPY: "copy of {src} to {dst}",
    StepKind.REDUCE: "reduction of {src} into {dst}",
    StepKind.COMPUTE: "computation",
}


def region(buffer: int, offset: int, count: int) -> str:
    """Format the region of `count` units at `offset` of a buffer.

    The result is `OUTPUT[4:6]` for two units (the end is excluded), and `OUTPUT[4]` for one. An
    invalid buffer is named by its number, such as `buffer 9[4:6]`.
    """
    name = Buffer(buffer).name if buffer in set(Buffer) else f"buffer {buffer}"
    return f"{name}[{offset}]" if count == 1 else f"{name}[{offset}:{offset + count}]"


def action(steps: StepTable, row: int) -> str:
    """Describe the action of a row, such as `send of INPUT[0] to rank 1`.

    The form depends on the kind of step; regions are named as by `region`.
    """
    kind, count = StepKind(int(steps.kind[row])), int(steps.count[row])
    source = region(int(steps.src_buffer[row]), int(steps.src_offset[row]), count)
    destination = region(int(steps.dst_buffer[row]), int(steps.dst_offset[row]), count)
    return _FORMS[kind].format(peer=int(steps.peer[row]), src=source, dst=destination)


def describe(steps: StepTable, row: int) -> str:
    """Describe the position and the action of a row.

    An example is `line 12, rank 3, step 2 (send of INPUT[0] to rank 1)`. Steps of a rank are
    numbered from 0. The line is omitted if the row has no source line (-1).
    """
    line = int(steps.source_line[row])
    lead = f"line {line}, " if line >= 0 else ""
    return f"{lead}rank {int(steps.rank[row])}, step {steps.step_of(row)} ({action(steps, row)})"


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of a table, as int64 columns of row numbers.

    `send[i]` and `receive[i]` are matched, ascending in `send`. `lonely_sends`, `lonely_receives`:
    unmatched rows, ascending.
    """

    send: Int64Array
    receive: Int64Array
    lonely_sends: Int64Array
    lonely_receives: Int64Array


def connection_keys(source: IntArray, destination: IntArray, channel: IntArray) -> Int64Array:
    """Compute one integer per (source, destination, channel), ordered like the triple: int64[rows].

    `source`, `destination`: rank numbers, not negative. `channel`: any integers, such as channels
    or tags. Only keys of the same call can be compared: pass sends and receives together.
    """
    ranks = 1 + max(int(source.max(initial=0)), int(destination.max(initial=0)))
    pair = source.astype(np.int64) * ranks + destination
    # Consecutive numbers of channels, so that keys are far below 2^63.
    number = labels(channel)
    channels = int(number.max(initial=0)) + 1
    return pair if channels == 1 else pair * channels + number


def pair_in_order(
    sends: Int64Array, receives: Int64Array, send_keys: Int64Array, receive_keys: Int64Array
) -> Messages:
    """Match the k-th of `sends` with the k-th of `receives`, separately for every key.

    `sends`, `receives`: row numbers in the order of matching. `send_keys`, `receive_keys`: the key
    of each row, for example from `connection_keys`. `receive[i]` of the result is the partner of
    `send[i]`. Pairs ascend by the row number of the send, whatever their keys. Rows without a
    partner are in `lonely_sends` and `lonely_receives`, both ascending. Columns of the result may
    be arguments themselves. Takes linear time if all columns are sorted and the keys of both sides
    are equal, otherwise a few sorts.
    """
    sends, send_keys = _sorted_by_key(sends, send_keys)
    receives, receive_keys = _sorted_by_key(receives, receive_keys)
    # True for every correct algorithm, which needs no further sorts.
    if np.array_equal(send_keys, receive_keys):
        return _messages(sends, receives, sends[:0], receives[:0])
    # The k-th send and the k-th receive of a connection get the same slot number.
    number = labels(np.concatenate([send_keys, receive_keys]))
    width = len(sends) + len(receives) + 1
    send_slots = number[: len(sends)] * width + sorted_ordinals(send_keys)
    receive_slots = number[len(sends) :] * width + sorted_ordinals(receive_keys)
    _, s, r = np.intersect1d(send_slots, receive_slots, assume_unique=True, return_indices=True)
    return _messages(sends[s], receives[r], np.delete(sends, s), np.delete(receives, r))


def match_messages(steps: StepTable, findings: Findings) -> Messages:
    """Match every send with its receive (see `matched_messages`), and report invalid messages.

    One finding is added to `findings` per message with a peer that is no rank (`peer-range`) or
    is the rank itself (`self-message`), per message without a partner (`unmatched-send`,
    `unmatched-receive`), and per matched pair with different counts (`count-mismatch`, at the
    receiving step); such a pair remains matched. Of each code, at most `CAP` findings are listed.
    """
    messages = matched_messages(steps)
    _, outside, is_to_self = _judge_peers(steps)
    unequal = np.flatnonzero(steps.count[messages.send] != steps.count[messages.receive])
    sends, receives = messages.send[unequal], messages.receive[unequal]
    partner = dict(zip(receives[:CAP].tolist(), sends[:CAP].tolist(), strict=True))

    def say_outside(row: int) -> str:
        expected = f"expected 0..{steps.num_ranks - 1}"
        return f"peer {int(steps.peer[row])} is not a rank, {expected}: {action(steps, row)}"

    def say_own(row: int) -> str:
        return f"the peer of a message is the rank itself: {action(steps, row)}"

    def say_lonely(row: int) -> str:
        partner = f"rank {int(steps.peer[row])} on channel {int(steps.channel[row])}"
        return f"nothing at {partner} matches this {action(steps, row)}"

    def say_unequal(row: int) -> str:
        send = partner[row]
        counts = f"{int(steps.count[row])} units are expected, {int(steps.count[send])} are sent"
        return f"{counts}: this {action(steps, row)} matches {describe(steps, send)}"

    findings.add_rows("peer-range", steps, np.flatnonzero(outside), say_outside)
    cure = "use a local copy"
    findings.add_rows("self-message", steps, np.flatnonzero(is_to_self), say_own, cure=cure)
    findings.add_rows("unmatched-send", steps, messages.lonely_sends, say_lonely)
    findings.add_rows("unmatched-receive", steps, messages.lonely_receives, say_lonely)
    findings.add_rows("count-mismatch", steps, receives, say_unequal)
    return messages


@lru_cache(maxsize=2)
def matched_messages(steps: StepTable) -> Messages:
    """Match the k-th send of each connection with its k-th receive, in the order of rows.

    A connection is a source, a destination and a channel. Pairs ascend by the row of the
    send. Sends and receives without a partner are the lonely rows of the result. Steps whose
    peer is not a rank, or is the rank itself, are left out completely. The columns are
    read-only. The results for the last two tables are cached, by identity of the table.
    """
    is_message, outside, is_to_self = _judge_peers(steps)
    rows = np.flatnonzero(is_message & ~outside & ~is_to_self)
    sent = steps.sends[rows]
    keys = connection_keys(*steps.ends(rows), steps.channel[rows])
    messages = pair_in_order(rows[sent], rows[~sent], keys[sent], keys[~sent])
    # All callers share the cached columns.
    lonely = messages.lonely_sends, messages.lonely_receives
    for column in (messages.send, messages.receive, *lonely):
        column.flags.writeable = False
    return messages


@lru_cache(maxsize=1)
def matched_order(steps: StepTable) -> Order:
    """Order the steps by levels: each follows its dependencies and its matching SEND.

    The level of a step is the number of steps on the longest chain of dependencies (data and
    control) and matched messages (`matched_messages`) before it. A message without a partner adds
    no order. Steps of equal level are in the order of their rows. Steps in or after a cycle are
    missing in `nodes` and have position -1. The columns are read-only. The result of the last
    table is cached, by identity of the table, because verification and timing both need it.
    """
    parents, children = steps.edges()
    messages = matched_messages(steps)
    order = topological_levels(
        len(steps),
        np.concatenate([parents, messages.send]),
        np.concatenate([children, messages.receive]),
    )
    # All callers share the cached columns.
    for column in (order.nodes, order.level_indptr, order.position):
        column.flags.writeable = False
    return order


def _sorted_by_key(rows: Int64Array, keys: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return both columns sorted by ascending key; rows of equal keys keep their order.

    Columns that are sorted already are returned as they are, without a copy.
    """
    if is_sorted(keys):
        return rows, keys
    order = stable_order(keys)
    return rows[order], keys[order]


def _messages(
    send: Int64Array, receive: Int64Array, lonely_sends: Int64Array, lonely_receives: Int64Array
) -> Messages:
    """Build `Messages` from rows of steps: matched pairs sorted by send, unmatched rows ascending.

    `receive[i]` is the partner of `send[i]`; `lonely_sends` and `lonely_receives` have no partner.
    """
    receive, send = _sorted_by_key(receive, send)
    return Messages(send, receive, np.sort(lonely_sends), np.sort(lonely_receives))


def _judge_peers(steps: StepTable) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Return three masks of the rows: messages, messages outside, messages to the rank itself.

    Each is bool[rows]. A message is a row that sends or receives. It is outside if its peer is
    no rank of the table, and to itself if its peer is the rank of the row. Both are False for
    rows that are no messages.
    """
    is_message = steps.sends | steps.receives
    outside = is_message & ((steps.peer < 0) | (steps.peer >= steps.num_ranks))
    is_to_self = is_message & (steps.peer == steps.rank)
    return is_message, outside, is_to_self
