"""Number the messages of traces, so that sends and receives that may be matched share a key.

ASTRA-sim matches the n-th receive posted with the n-th send issued of one key (tag modulo 5e8,
source, destination, size), in the order of simulated time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hub_core import NodeTable, NodeType
from hub_core.columns import BoolArray, Int64Array, IntArray, row_pointer

# ASTRA-sim reserves the upper part of its tag space.
TAG_MODULUS = 500_000_000
_LARGEST_CODE = (1 << 63) - 1
# Maximum size of a lookup table of codes, in entries per code.
_ROOM = 4


def compute_message_keys(
    nodes: NodeTable, rank: Int64Array, size_class: IntArray
) -> tuple[npt.NDArray[np.int32], Int64Array]:
    """Return (key of every node, -1 for local nodes; row pointer of the slots of all keys).

    `rank`, `size_class`: by node. A slot matches one send with one receive: a key has as many slots
    as sends or receives, whichever number is larger.
    """
    rows, is_send = _find_messages(nodes)
    rank_of_end, peer = rank[rows], nodes.peer[rows]
    # Both ends of a message use the same pair: from the sender to the receiver.
    source = np.where(is_send, rank_of_end, peer)
    destination = np.where(is_send, peer, rank_of_end)
    pair = compute_pair_codes(source, destination, nodes.num_ranks)
    tag = nodes.tag[rows] % TAG_MODULUS
    codes = _compute_joint_codes((pair, tag, size_class[rows]))
    key = np.full(len(nodes), -1, np.int32)
    key[rows] = codes
    return key, _count_slots(codes, is_send)


def _find_messages(nodes: NodeTable) -> tuple[Int64Array, BoolArray]:
    """Return (rows of all SENDs and RECVs, ascending, int64; which of them are SENDs, bool)."""
    is_send = nodes.type == NodeType.COMM_SEND
    is_receive = nodes.type == NodeType.COMM_RECV
    rows = np.flatnonzero(is_send | is_receive)
    return rows, is_send[rows]


def _count_slots(codes: Int64Array, is_send: BoolArray) -> Int64Array:
    """Return the row pointer of the slots of keys, from the keys of all SENDs and RECVs."""
    keys = int(codes.max(initial=-1)) + 1
    sends = np.bincount(codes[is_send], minlength=keys)
    receives = np.bincount(codes[~is_send], minlength=keys)
    return row_pointer(np.maximum(sends, receives))


def compute_pair_codes(source: IntArray, destination: IntArray, num_ranks: int) -> Int64Array:
    """Return a number for every pair of ranks, ascending by source, then by destination.

    int64, because the numbers may exceed 32 bits.
    """
    return source.astype(np.int64) * num_ranks + destination


def _compute_joint_codes(columns: Sequence[IntArray]) -> Int64Array:
    """Number the distinct combinations of non-negative columns densely, in lexicographic order.

    The first column is the most significant; the result is int64[rows], starting at 0.
    """
    codes = np.zeros(len(columns[0]), np.int64)
    span = 1
    for column in columns:
        width = int(column.max(initial=0)) + 1
        # Renumber intermediate codes only if the combination would exceed 64 bits.
        if span * width > _LARGEST_CODE:
            codes, span = compute_dense_codes(codes, span)
        codes = codes * width + column
        span *= width
        # Renumbering is inexpensive for small ranges and keeps the next step inexpensive.
        if span <= _ROOM * len(codes):
            codes, span = compute_dense_codes(codes, span)
    return compute_dense_codes(codes, span)[0]


def compute_dense_codes(codes: Int64Array, span: int) -> tuple[Int64Array, int]:
    """Return (codes renumbered without gaps in ascending order; number of distinct codes).

    All codes must be below `span`. Cost: linear if the span is not much larger than the number of
    codes, else that of a sort.
    """
    if span > _ROOM * len(codes):
        distinct, dense = np.unique(codes, return_inverse=True)
        return dense.astype(np.int64), len(distinct)
    is_present = np.zeros(span, np.bool_)
    is_present[codes] = True
    number = np.cumsum(is_present) - 1
    return number[codes], int(number[-1]) + 1 if span else 0
