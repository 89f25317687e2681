"""Number the messages of traces, so that sends and receives that may meet share a key.

ASTRA-sim pairs the n-th receive posted with the n-th send issued of one key (tag modulo 5e8,
source, destination, size), in the order of simulated time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hub_core import NodeTable, NodeType
from hub_core.columns import BoolArray, Int64Array, IntArray, row_pointer

# ASTRA-sim keeps the upper part of its tag space for itself.
TAG_MODULUS = 500_000_000
_LARGEST_CODE = (1 << 63) - 1
# Entries of a table of all codes for every code that there is.
_ROOM = 4


def message_keys(
    nodes: NodeTable, rank: Int64Array, size_class: IntArray
) -> tuple[npt.NDArray[np.int32], Int64Array]:
    """(key of every node, -1 for local ones; row pointer of the slots of all keys).

    `rank`, `size_class`: by node. A slot is where one send meets one receive: a key has as many as
    it has sends or receives, whichever are more.
    """
    rows, is_send = _messages(nodes)
    own, peer = rank[rows], nodes.peer[rows]
    # Both ends of a message name it by the same pair, from the sender to the receiver.
    source = np.where(is_send, own, peer)
    destination = np.where(is_send, peer, own)
    pair = pair_codes(source, destination, nodes.num_ranks)
    tag = nodes.tag[rows] % TAG_MODULUS
    codes = _joint_codes((pair, tag, size_class[rows]))
    key = np.full(len(nodes), -1, np.int32)
    key[rows] = codes
    return key, _slots(codes, is_send)


def _messages(nodes: NodeTable) -> tuple[Int64Array, BoolArray]:
    """(rows of all ends of messages, which of these are sends).

    The rows ascend, int64[ends]; bool[ends] goes with them.
    """
    is_send = nodes.type == NodeType.COMM_SEND
    is_receive = nodes.type == NodeType.COMM_RECV
    rows = np.flatnonzero(is_send | is_receive)
    return rows, is_send[rows]


def _slots(codes: Int64Array, is_send: BoolArray) -> Int64Array:
    """Row pointer of the slots of keys, from the keys of all ends of messages."""
    keys = int(codes.max(initial=-1)) + 1
    sends = np.bincount(codes[is_send], minlength=keys)
    receives = np.bincount(codes[~is_send], minlength=keys)
    return row_pointer(np.maximum(sends, receives))


def pair_codes(source: IntArray, destination: IntArray, num_ranks: int) -> Int64Array:
    """A number for every pair of ranks.

    Codes ascend by source, then by destination; int64, as their number may exceed 32 bits.
    """
    return source.astype(np.int64) * num_ranks + destination


def _joint_codes(columns: Sequence[IntArray]) -> Int64Array:
    """Number the distinct combinations of non-negative columns densely, in their order.

    The first column counts most; the result is int64[rows], from 0 on.
    """
    codes = np.zeros(len(columns[0]), np.int64)
    span = 1
    for column in columns:
        width = int(column.max(initial=0)) + 1
        # Only what does not fit in 64 bits has to be numbered anew on the way.
        if span * width > _LARGEST_CODE:
            codes, span = dense_codes(codes, span)
        codes = codes * width + column
        span *= width
        # What is cheap to number keeps the next step cheap, too.
        if span <= _ROOM * len(codes):
            codes, span = dense_codes(codes, span)
    return dense_codes(codes, span)[0]


def dense_codes(codes: Int64Array, span: int) -> tuple[Int64Array, int]:
    """(codes below `span` numbered without gaps, in their order; how many there are).

    Cost: linear where the span is not much larger than the number of codes, else that of a sort.
    """
    if span > _ROOM * len(codes):
        distinct, dense = np.unique(codes, return_inverse=True)
        return dense.astype(np.int64), len(distinct)
    is_there = np.zeros(span, np.bool_)
    is_there[codes] = True
    number = np.cumsum(is_there) - 1
    return number[codes], int(number[-1]) + 1 if span else 0
