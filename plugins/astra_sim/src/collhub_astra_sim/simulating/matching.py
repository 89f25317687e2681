"""Number the messages of traces, so that sends and receives that may meet share a key.

ASTRA-sim pairs the n-th receive posted with the n-th send issued of one key (tag modulo 5e8,
source, destination, size), in the order of simulated time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hub_core import NodeTable, NodeType
from hub_core.model import BoolArray, Int64Array, IntArray, row_pointer

# ASTRA-sim keeps the upper part of its tag space for itself.
TAG_MODULUS = 500_000_000
_LARGEST_CODE = (1 << 63) - 1


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
    """(rows of all ends of messages, which of these are sends)."""
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
    """A number for every pair of ranks."""
    return source.astype(np.int64) * num_ranks + destination


def _joint_codes(columns: Sequence[IntArray]) -> Int64Array:
    """Number the distinct combinations of non-negative columns densely."""
    codes = np.zeros(len(columns[0]), np.int64)
    span = 1
    for column in columns:
        width = int(column.max(initial=0)) + 1
        # Only what does not fit in 64 bits is numbered anew on the way: that takes a sort.
        if span * width > _LARGEST_CODE:
            distinct, codes = np.unique(codes, return_inverse=True)
            span = len(distinct)
        codes = codes * width + column
        span *= width
    _, dense = np.unique(codes, return_inverse=True)
    return dense.astype(np.int64)
