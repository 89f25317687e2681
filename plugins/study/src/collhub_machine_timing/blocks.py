"""Instructions of thread blocks from the steps of an algorithm.

A receive and the send that forwards its data are one instruction, as in NCCL and MSCCL. A block
executes its instructions in order. Steps with lanes keep these as blocks. Other messages get a
block per connection; the connection that a block forwards to joins the one that it receives from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, Int64Array, labels, run_mask
from hub_core.model import Messages, StepTable, connection_keys, matched_messages
from hub_core.schedules import SwitchGroups


@dataclass(frozen=True, slots=True, eq=False)
class Instructions:
    """Instructions of all ranks as int64 columns, ordered by their first row.

    `of_row`: instruction of every step. `send`, `receive`: rows of the instruction's messages, -1
    for none; `block`: thread block, -1 for none. `parents`, `children`: dependencies between
    instructions, without the order of blocks. `messages`: rows of matched messages;
    `connection`: key of the sender, receiver and channel of each. `switched_work`: int8, 1 for the
    instruction of a rank that lets switches add up or copy messages, 0 for the other ends of such
    messages, -1 elsewhere.
    """

    of_row: Int64Array
    rank: Int64Array
    send: Int64Array
    receive: Int64Array
    block: Int64Array
    parents: Int64Array
    children: Int64Array
    messages: Messages
    connection: Int64Array
    switched_work: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.rank)


def build_instructions(
    steps: StepTable,
    groups: SwitchGroups | None,
    *,
    fuses: bool = True,
    has_fifos: bool = True,
) -> Instructions:
    """Build the instructions of an algorithm's steps, in the order of their first rows.

    Each step is one instruction, except that a send is fused with the receive whose data it
    forwards if all of these conditions hold:

    - `fuses` is True, and the send is not in `groups` (multicasts and sums in switches).
    - The send reads exactly the range that the receive writes. The receive is the last row on
      which the send depends, and the send is the first such send of this receive.
    - Both have the same lane, and the send is the next row. Without lanes: of all such pairs,
      most of the receive's connection go to the send's connection, and vice versa.

    The thread block of an instruction is its lane. Without a lane, each direction of a
    connection is a block, which the connections of fused steps share. Local steps without a lane
    have block -1. With `has_fifos` False, each message without a lane has a separate block.

    In `groups`, the first send of a multicast and the first receive of a sum have a block, which
    is common to the rank and channel. The other steps of groups have block -1.
    """
    messages = matched_messages(steps)
    parents, children = steps.edges()
    receives, sends = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if fuses:
        receives, sends = _find_forwarding(steps, parents, children, groups)
    block, is_pair = _assign_blocks(steps, receives, sends)
    work = _find_switched_work(steps, messages, groups)
    is_switched = work >= 0
    # A rank's block of a channel issues both its sums and its multicasts.
    block[is_switched] = -1
    issues = work == 1
    issuer = labels(steps.rank[issues], steps.channel[issues])
    block[issues] = block.max(initial=-1) + 1 + issuer
    receives, sends = receives[is_pair], sends[is_pair]
    if not has_fifos:
        has_lane = steps.lane >= 0
        block[~has_lane & (block >= 0)] = len(steps) + np.flatnonzero(~has_lane & (block >= 0))
    # The instruction of a forwarding send is that of its receive.
    leader = np.arange(len(steps))
    leader[sends] = receives
    is_leader = leader == np.arange(len(steps))
    number = np.cumsum(is_leader) - 1
    of_row = number[leader]
    count = int(is_leader.sum())
    send, receive = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    send[of_row[steps.sends]] = np.flatnonzero(steps.sends)
    receive[of_row[steps.receives]] = np.flatnonzero(steps.receives)
    ends = of_row[parents], of_row[children]
    is_between = ends[0] != ends[1]
    rows = np.flatnonzero(is_leader)
    return Instructions(
        of_row,
        steps.rank[rows].astype(np.int64),
        send,
        receive,
        block[rows],
        ends[0][is_between],
        ends[1][is_between],
        messages,
        connection_keys(
            steps.rank[messages.send].astype(np.int64),
            steps.peer[messages.send].astype(np.int64),
            steps.channel[messages.send].astype(np.int64),
        ),
        work[rows],
    )


def _find_switched_work(
    steps: StepTable, messages: Messages, groups: SwitchGroups | None
) -> npt.NDArray[np.int8]:
    """Return `Instructions.switched_work` of every row: int8.

    - -1: rows of no multicast and no sum of `groups`; all rows if `groups` is None
    - 1: rows that cost time. These are the first send of each multicast, and the receive that
      belongs to the first send of each sum. "First" means first in the order of `groups`.
    - 0: all other sends and receives of multicasts and sums, which cost nothing
    """
    work = np.full(len(steps), -1, np.int8)
    if groups is None:
        return work
    receive_of = np.full(len(steps), -1, np.int64)
    receive_of[messages.send] = messages.receive
    for members, _ in (groups.multicasts, groups.sums):
        work[members] = 0
        work[receive_of[members]] = 0
    copied, number = groups.multicasts
    work[copied[run_mask(number)]] = 1
    added, number = groups.sums
    work[receive_of[added[run_mask(number)]]] = 1
    return work


def _find_forwarding(
    steps: StepTable, parents: Int64Array, children: Int64Array, groups: SwitchGroups | None
) -> tuple[Int64Array, Int64Array]:
    """Return the pairs (receive, send) that are one instruction, as two int64 arrays.

    `parents`, `children`: dependencies; child i depends on parent i. A receive and a send that
    depends on it are a pair if all of these hold:

    - The send reads exactly the range that the receive writes, and has the same lane.
    - The receive is the last row on which the send depends.
    - With a lane, the send is the next row after the receive.
    - The send is no message of a switch (`groups`).

    If several sends fit a receive, the first one is taken. The pairs are sorted by receive.
    """
    is_pair = steps.receives[parents] & steps.sends[children]
    is_pair &= steps.count[parents] == steps.count[children]
    is_pair &= steps.dst_buffer[parents] == steps.src_buffer[children]
    is_pair &= steps.dst_offset[parents] == steps.src_offset[children]
    is_pair &= steps.lane[parents] == steps.lane[children]
    last = np.full(len(steps), -1, np.int64)
    np.maximum.at(last, children, parents)
    is_pair &= parents == last[children]
    if groups is not None:
        is_switched = np.zeros(len(steps), np.bool_)
        is_switched[groups.multicasts[0]] = True
        is_switched[groups.sums[0]] = True
        is_pair &= ~is_switched[children]
    receives, sends = parents[is_pair], children[is_pair]
    # In given lanes only neighbours, so that the order of the lane remains.
    is_near = (steps.lane[receives] < 0) | (sends == receives + 1)
    receives, sends = receives[is_near], sends[is_near]
    # Data and control dependencies may repeat a pair; a receive is forwarded at most once.
    order = np.lexsort((sends, receives))
    receives, sends = receives[order], sends[order]
    is_first = run_mask(receives)
    return receives[is_first], sends[is_first]


def _assign_blocks(
    steps: StepTable, receives: Int64Array, sends: Int64Array
) -> tuple[Int64Array, BoolArray]:
    """Return the thread block of each row (int64), and which forwarding pairs share a block (bool).

    A forwarding pair is a receive and the send that forwards its data: rows `receives[i]`,
    `sends[i]`. Rows have these blocks:

    - A row with a lane: one block per rank and lane.
    - A local row without a lane: -1.
    - A message without a lane: one block for all receives of a connection, one for all its sends.

    Receives of a connection and sends of another are one block if each has the most pairs with the
    other. On a tie, the connection with the lowest number counts. Blocks are numbered from 0
    without gaps, those of lanes first.

    The second result is True for pairs of such joined connections, and if the receive has a lane.
    """
    is_message = steps.sends | steps.receives
    rows = np.flatnonzero(is_message)
    source, destination = steps.ends(rows)
    key = 2 * connection_keys(source, destination, steps.channel[rows]) + steps.sends[rows]
    # Dense numbers of connections, so that a pair fits into 64 bits.
    connection = np.full(len(steps), -1, np.int64)
    connection[rows] = labels(key)
    width = int(connection.max(initial=0)) + 1
    code = connection[receives] * width + connection[sends]
    index = labels(code)
    counts = np.bincount(index)
    pairs = np.zeros(len(counts), np.int64)
    pairs[index] = code
    is_joined = _is_most_frequent(pairs // width, counts)
    is_joined &= _is_most_frequent(pairs % width, counts)
    has_lane = steps.lane >= 0
    joined_to = np.arange(width)
    joined_to[pairs[is_joined] // width] = pairs[is_joined] % width
    block = np.full(len(steps), -1, np.int64)
    block[rows] = joined_to[connection[rows]]
    if has_lane.any():
        given = steps.rank.astype(np.int64) * (int(steps.lane.max()) + 1) + steps.lane
        block[has_lane] = -2 - given[has_lane]
    used = block != -1
    block[used] = labels(block[used])
    return block, is_joined[index] | has_lane[receives]


def _is_most_frequent(keys: Int64Array, counts: Int64Array) -> BoolArray:
    """Return whether each entry has the largest count of its key: bool[entries].

    Exactly one entry of each key does; of equal counts the first one.
    """
    order = np.lexsort((-counts, keys))
    result = np.zeros(len(keys), np.bool_)
    result[order[run_mask(keys[order])]] = True
    return result
