"""Records of trace nodes in profile v1, assembled from byte pieces for many nodes at once.

Source of the attributes: docs/profile-v1.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hub_core.chakra import (
    AttributeKind,
    NodeTable,
    NodeType,
    Ragged,
    RecordPiece,
    UInt64Array,
    encode_records,
    list_attribute,
    number_attribute,
    number_field,
    packed_field,
)
from hub_core.columns import Int64Array, csr, group_of_entry, row_pointer
from hub_core.model import Algorithm, Buffer, StepKind, message_bytes
from hub_core.trace_profile.metadata import CompKind

# Codes after the kinds of steps: the second node of a receive-reduce, and the placeholder of an
# idle rank.
_COMBINE = len(StepKind)
_IDLE = _COMBINE + 1
# By kind of step: name and type of its nodes, and their `comp_kind`.
_LOOKS = (
    ("SEND", NodeType.COMM_SEND, 0),
    ("RECV", NodeType.COMM_RECV, 0),
    ("RECV", NodeType.COMM_RECV, 0),
    ("COPY", NodeType.COMP, CompKind.COPY),
    ("REDUCE", NodeType.COMP, CompKind.REDUCE),
    ("COMPUTE", NodeType.COMP, CompKind.OTHER),
    ("REDUCE", NodeType.COMP, CompKind.REDUCE),
    ("IDLE", NodeType.COMP, CompKind.OTHER),
)
_COMP_KINDS = np.asarray([comp_kind for _, _, comp_kind in _LOOKS], np.int64)
_ID_TAG, _NAME_TAG, _TYPE_TAG, _MICROS_TAG = 0x08, 0x12, 0x18, 0x38
_CONTROL_TAG, _DATA_TAG = 0x22, 0x2A
_Lists = tuple[Int64Array, UInt64Array]


@dataclass(frozen=True, slots=True)
class EncodingPlan:
    """Nodes to write, lowered for `bound_bytes`, and how to write them.

    `has_triple`: chunk counts are meaningful. `is_stated`: the size is given, not a default.
    """

    algorithm: Algorithm
    nodes: NodeTable
    dialect: str
    is_flat: bool
    has_triple: bool
    bound_bytes: int
    is_stated: bool


def encode_nodes(plan: EncodingPlan, ranks: range) -> list[bytes]:
    """Encode the node records of consecutive ranks; return the bytes of each rank, in order.

    `ranks`: not empty, with step 1. The metadata record is not included. The order of attributes is
    fixed by the profile, so that equal algorithms give equal bytes. Raises `InputError`
    (`size-range`) if the messages and local steps of these ranks have 2^63 bytes or more in total;
    not in the symbolic dialect, which has no bytes.
    """
    nodes = _ProfileNodes(plan, ranks)
    start = [nodes.ids(), *nodes.looks()]
    # The order of attributes is part of the profile, so that equal algorithms give equal bytes.
    rest = [
        nodes.micros(),
        *nodes.message(),
        *nodes.triple(),
        *nodes.placement(),
        *nodes.computation(),
        *nodes.origin(),
    ]
    content, sizes = encode_records(start, nodes.dependencies(), rest)
    indptr = plan.nodes.rank_indptr[ranks.start : ranks.stop + 1]
    cuts = row_pointer(sizes)[indptr - indptr[0]].tolist()
    return [content[low:high] for low, high in pairwise(cuts)]


class _ProfileNodes:
    """Nodes of consecutive ranks, and columns of their steps, by node."""

    def __init__(self, plan: EncodingPlan, ranks: range) -> None:
        self._plan, self._nodes = plan, plan.nodes
        indptr = plan.nodes.rank_indptr[ranks.start : ranks.stop + 1]
        self._rows = slice(int(indptr[0]), int(indptr[-1]))
        self._rank = group_of_entry(indptr) + ranks.start
        types = plan.nodes.type[self._rows]
        self._is_send = types == NodeType.COMM_SEND
        self._is_message = self._is_send | (types == NodeType.COMM_RECV)
        # Only the rows of these ranks are used.
        first, after = plan.algorithm.steps.rank_indptr[[ranks.start, ranks.stop]].tolist()
        self._step_rows = slice(first, after)
        step = plan.nodes.step[self._rows]
        self._owned = step >= 0
        self._step = np.where(self._owned, step - first, -1)
        kind = self._get_column("kind", _IDLE)
        is_pair = kind == StepKind.RECV_REDUCE
        self._is_half = is_pair & self._is_message
        is_combine = is_pair & ~self._is_message
        self._is_first = self._owned & ~is_combine
        self._look = np.where(is_combine, _COMBINE, kind)
        self._count = self._get_column("count", 0)

    def _get_column(self, name: str, default: int) -> Int64Array:
        """Return the column `name` of the step table for the nodes of these ranks: int64[nodes].

        A node has the value of its step; both nodes of a receive-reduce have the same value.
        The placeholder node of a rank without steps has `default`.
        """
        column = getattr(self._plan.algorithm.steps, name)[self._step_rows]
        values = np.append(column.astype(np.int64), default)
        return values[self._step]

    def _get_message_operand(self, name: str) -> Int64Array:
        """Return the buffers (`name` "buffer") or offsets ("offset") of messages: int64[nodes].

        A send has the buffer or offset that it reads. Every other node has the one that its
        step writes, which for a receive-reduce is the location of the sum. A placeholder node
        has 0.
        """
        # For a receive-reduce this is the location of the sum; see `placement`.
        sent, received = self._get_column(f"src_{name}", 0), self._get_column(f"dst_{name}", 0)
        return np.where(self._is_send, sent, received)

    def ids(self) -> RecordPiece:
        """Return the encoded field of the node id, by node; an id of 0 is omitted, as in proto3."""
        ids = self._nodes.node_id[self._rows]
        return number_field(_ID_TAG, ids, ids != 0)

    def looks(self) -> list[RecordPiece]:
        """Return the encoded names and types of nodes, one piece per entry of `_LOOKS`.

        The mask `present` of a piece selects the nodes of that entry: steps of one kind, the
        second nodes of receive-reduces, or placeholders. Every node is in one mask. A mask may
        be all False.
        """
        texts = [
            bytes([_NAME_TAG, len(name)]) + name.encode() + bytes([_TYPE_TAG, node_type])
            for name, node_type, _ in _LOOKS
        ]
        return [RecordPiece(text, present=self._look == look) for look, text in enumerate(texts)]

    def micros(self) -> RecordPiece:
        """Return the encoded duration of the nodes in integer microseconds, halves rounded up.

        The field is omitted for durations below 0.5 us and for unknown ones (-1 ns).
        """
        duration = self._nodes.duration_ns[self._rows]
        rounds_up = duration % 1000 >= 500
        # An unknown duration, -1, becomes 0, which is omitted.
        micros = np.maximum(duration // 1000 + rounds_up, 0)
        return number_field(_MICROS_TAG, micros, micros > 0)

    def message(self) -> list[RecordPiece]:
        """Return the attributes that all readers of messages need, in the order of the profile.

        Every node has `is_cpu_op` with the value False. Only messages have the other attributes:

        - `comm_size` (INT64): size in bytes; omitted for all nodes in the symbolic dialect.
        - `comm_src`, `comm_dst` (INT32): sending and receiving rank.
        - `comm_tag` (INT32): tag.
        """
        nodes, is_message = self._nodes, self._is_message
        peer = nodes.peer[self._rows]
        source = np.where(self._is_send, self._rank, peer)
        target = np.where(self._is_send, peer, self._rank)
        size = number_attribute(
            "comm_size", AttributeKind.INT64, nodes.size[self._rows], is_message
        )
        return [
            number_attribute("is_cpu_op", AttributeKind.BOOL, np.zeros(len(peer), np.int64)),
            *([] if self._plan.dialect == "symbolic" else [size]),
            number_attribute("comm_src", AttributeKind.INT32, source, is_message),
            number_attribute("comm_dst", AttributeKind.INT32, target, is_message),
            number_attribute("comm_tag", AttributeKind.INT32, nodes.tag[self._rows], is_message),
        ]

    def dependencies(self) -> list[Ragged]:
        """Return the encoded data and control dependencies of all nodes, in parts.

        A part is (bytes of all nodes, number of bytes by node). The parts are tags, lengths and
        entries of the control dependencies, then those of the data dependencies. A node without
        dependencies of one sort has no bytes in its parts.

        If the plan is flat, there are only the three parts of the data dependencies. The list
        of a node then has its data dependencies followed by its control dependencies, and an id
        that occurs more than once is written only at its first position.
        """
        nodes = self._nodes
        control = self._ids(nodes.control_indptr, nodes.control_indices)
        data = self._ids(nodes.data_indptr, nodes.data_indices)
        if not self._plan.is_flat:
            return [*packed_field(_CONTROL_TAG, *control), *packed_field(_DATA_TAG, *data)]
        owner = np.concatenate([group_of_entry(data[0]), group_of_entry(control[0])])
        ids = np.concatenate([data[1], control[1]])
        both = np.stack([owner.astype(np.uint64), ids])
        _, first = np.unique(both, axis=1, return_index=True)
        # The first of equal entries is the data dependency.
        selected = np.sort(first)
        indptr, order = csr(owner[selected], selected, len(data[0]) - 1)
        return packed_field(_DATA_TAG, indptr, ids[order])

    def _ids(self, indptr: Int64Array, indices: Int64Array) -> _Lists:
        """Return the ids of the parents of this batch of nodes: (row pointer, ids as uint64).

        `indptr`, `indices`: CSR table of the parents of all nodes, as row numbers. The returned row
        pointer has one entry per node of the batch plus one, and starts at 0.
        """
        # Parents are rows of the full table; the file needs their ids.
        bounds = indptr[self._rows.start : self._rows.stop + 1]
        return bounds - bounds[0], self._nodes.node_id[indices[bounds[0] : bounds[-1]]]

    def triple(self) -> list[RecordPiece]:
        """Return the encoded attributes (INT32) that give the chunks of each message.

        They are, in this order, for every SEND and receive, and for no other node:

        - `msg_chunk_idx`: offset in units, at the sender for a send, at the receiver for a receive
        - `msg_chunk_cnt`: number of units of the message
        - `total_chunk_cnt`: number of units of the collective

        A branch of ASTRA-sim reads them. All values are -1 if the plan has no meaningful chunk
        counts (`has_triple`). The list is empty in the absolute dialect, whose sizes are in bytes.
        """
        if self._plan.dialect == "absolute":
            return []
        units = np.full(len(self._step), self._plan.algorithm.collective.unit_count)
        columns = {
            "msg_chunk_idx": self._get_message_operand("offset"),
            "msg_chunk_cnt": self._count,
            "total_chunk_cnt": units,
        }
        if not self._plan.has_triple:
            columns = dict.fromkeys(columns, np.full(len(units), -1))
        return [
            number_attribute(name, AttributeKind.INT32, column, self._is_message)
            for name, column in columns.items()
        ]

    def placement(self) -> list[RecordPiece]:
        """Return the attributes for channel and lane of a step, and the region of a message.

        In this order; a node without the condition lacks the attribute:

        - `channel` (INT32): every message, and every other first node of a step with a channel
          other than 0.
        - `lane` (INT32): the first node of a step with a lane other than -1.
        - `is_rrc` (True): the receiving node of a receive-reduce, which is the first of its two
          nodes.
        - `region` (buffer, offset, units): every message. A send has the region that it reads, a
          receive the one that it writes. The receiving node of a receive-reduce has (UNKNOWN, 0,
          units), because it stores no data.

        The placeholder node of a rank without steps has none of them.
        """
        is_message = self._is_message
        lane, channel = self._get_column("lane", -1), self._get_column("channel", 0)
        has_lane = self._is_first & (lane != -1)
        has_channel = is_message | (self._is_first & (channel != 0))
        # The receiving half of a receive-reduce stores no data.
        buffer = np.where(self._is_half, Buffer.UNKNOWN, self._get_message_operand("buffer"))
        offset = np.where(self._is_half, 0, self._get_message_operand("offset"))
        region = (buffer, offset, self._count)
        ones = np.ones(len(lane), np.int64)
        return [
            number_attribute("channel", AttributeKind.INT32, channel, has_channel),
            number_attribute("lane", AttributeKind.INT32, lane, has_lane),
            number_attribute("is_rrc", AttributeKind.BOOL, ones, self._is_half),
            list_attribute("region", AttributeKind.INT64_LIST, region, is_message),
        ]

    def computation(self) -> list[RecordPiece]:
        """Return the encoded attributes of COMP nodes, in the order that the profile defines.

        1. `comp_kind` (INT32): the `CompKind` of the node. COPY and REDUCE are steps of that
           kind, and the second node of a receive-reduce is REDUCE. All other nodes are OTHER.
        2. `num_ops` (INT64): for REDUCE ceil(bytes / 4), because an algorithm does not define
           the element type; otherwise 0. Omitted in the symbolic dialect.
        3. `tensor_size` (UINT64): the bytes of the step's units as `message_bytes` rounds them
           up. Omitted in the symbolic dialect.
        4. `src_region` and `dst_region`: (buffer, offset, units) of the step. Each is omitted
           if it is (UNKNOWN, 0, 0), and for the placeholder node of an idle rank.

        SEND and RECV nodes get none of these attributes. Raises `InputError` (`size-range`) if
        the sizes of all nodes of the ranks, also messages, reach 2^63 bytes in total; not in
        the symbolic dialect.
        """
        is_comp = ~self._is_message
        comp_kind = _COMP_KINDS[self._look]
        pieces = [number_attribute("comp_kind", AttributeKind.INT32, comp_kind, is_comp)]
        if self._plan.dialect != "symbolic":
            unit_count = self._plan.algorithm.collective.unit_count
            moved = message_bytes(self._plan.bound_bytes, unit_count, self._count)
            # One operation per 4 bytes, because an algorithm does not define the element type.
            operations = np.where(comp_kind == CompKind.REDUCE, -(-moved // 4), 0)
            pieces.append(number_attribute("num_ops", AttributeKind.INT64, operations, is_comp))
            pieces.append(number_attribute("tensor_size", AttributeKind.UINT64, moved, is_comp))
        return [*pieces, self._encode_operand("src"), self._encode_operand("dst")]

    def _encode_operand(self, side: str) -> RecordPiece:
        """Return the attribute for the region that a COMP node reads ("src") or writes ("dst").

        The region is (buffer, offset, units) of the step of the node. The attribute is omitted
        if the region is (UNKNOWN, 0, 0), for messages, and for the placeholder of a rank
        without steps.
        """
        buffer = self._get_column(f"{side}_buffer", Buffer.UNKNOWN)
        offset = self._get_column(f"{side}_offset", 0)
        is_known = (buffer != Buffer.UNKNOWN) | (offset != 0) | (self._count != 0)
        present = ~self._is_message & self._owned & is_known
        region = (buffer, offset, self._count)
        return list_attribute(f"{side}_region", AttributeKind.INT64_LIST, region, present)

    def origin(self) -> list[RecordPiece]:
        """Return the encoded attributes `duration_ns` (INT64) and `source_line` (INT32).

        A node lacks the duration if it is unknown (negative); 0 is written. It lacks the line
        if it is unknown (-1). If a step has two nodes (receive-reduce), the line is at the
        first node only.
        """
        duration = self._nodes.duration_ns[self._rows]
        line = self._get_column("source_line", -1)
        has_line = self._is_first & (line != -1)
        return [
            number_attribute("duration_ns", AttributeKind.INT64, duration, duration >= 0),
            number_attribute("source_line", AttributeKind.INT32, line, has_line),
        ]
