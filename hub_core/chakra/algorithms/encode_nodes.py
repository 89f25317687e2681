"""The byte pieces of trace nodes: what every reader of messages needs, and what profile v1 adds.

Source of the attributes: docs/profile-v1.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hub_core.chakra.algorithms.profile import CompKind
from hub_core.chakra.codec.attributes import Kind
from hub_core.chakra.codec.encode import (
    Piece,
    Ragged,
    encode_records,
    list_attribute,
    number_attribute,
    number_field,
    packed_field,
)
from hub_core.chakra.codec.nodes import NodeTable, NodeType
from hub_core.chakra.codec.wire import Column, UInt64Array
from hub_core.model import (
    Algorithm,
    Buffer,
    Int64Array,
    StepKind,
    csr,
    group_of_entry,
    message_bytes,
    row_pointer,
)

# Beyond the kinds of steps: the second node of a receive-reduce, and the stand-in of an idle rank.
_COMBINE = len(StepKind)
_IDLE = _COMBINE + 1
# By kind of step: the name and the type of its nodes, and its `comp_kind`.
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What is written and how: nodes lowered for `bound_bytes`.

    `has_triple`: chunk counts mean something; `is_stated`: the size is not merely a default.
    """

    algorithm: Algorithm
    nodes: NodeTable
    dialect: str
    is_flat: bool
    has_triple: bool
    bound_bytes: int
    is_stated: bool


def encode_plain(nodes: NodeTable, ranks: range) -> list[bytes]:
    """The node records of consecutive ranks without a profile.

    They have types, dependencies, durations and the attributes of messages only.
    """
    span = _Span(nodes, ranks)
    # Without names: readers look at the types alone.
    types = [_name_and_type("", node_type) for node_type in NodeType]
    start = [span.ids(), *_chosen(types, span.type)]
    rest = [span.micros(), *span.message(with_size=True)]
    return span.split(*encode_records(start, span.dependencies(is_flat=False), rest))


def encode_profile(plan: Plan, ranks: range) -> list[bytes]:
    """The node records of consecutive ranks in profile v1."""
    span = _Span(plan.nodes, ranks)
    steps = _StepsOfNodes(plan, span)
    looks = [_name_and_type(name, node_type) for name, node_type, _ in _LOOKS]
    start = [span.ids(), *_chosen(looks, steps.code)]
    rest = [
        span.micros(),
        *span.message(with_size=plan.dialect != "symbolic"),
        # The order of attributes is part of the profile: equal algorithms give equal bytes.
        *steps.triple(),
        *steps.placement(),
        *steps.computation(),
        *steps.origin(),
    ]
    return span.split(*encode_records(start, span.dependencies(plan.is_flat), rest))


def _name_and_type(name: str, node_type: int) -> bytes:
    """Both fields; proto3 leaves out what is empty or 0."""
    text = b""
    if name:
        text += bytes([_NAME_TAG, len(name)]) + name.encode()
    if node_type:
        text += bytes([_TYPE_TAG, node_type])
    return text


def _chosen(texts: list[bytes], codes: Column) -> list[Piece]:
    """One of a few byte strings a record: `texts[codes[i]]`."""
    return [Piece(text, present=codes == code) for code, text in enumerate(texts)]


class _Span:
    """The nodes of consecutive ranks; columns by node."""

    def __init__(self, nodes: NodeTable, ranks: range) -> None:
        self._nodes = nodes
        self.ranks = ranks
        self._indptr = nodes.rank_indptr[ranks.start : ranks.stop + 1]
        self.rows = slice(int(self._indptr[0]), int(self._indptr[-1]))
        self._rank = group_of_entry(self._indptr) + ranks.start
        self.type = nodes.type[self.rows]
        self.is_send = self.type == NodeType.COMM_SEND
        self.is_message = self.is_send | (self.type == NodeType.COMM_RECV)
        self.duration_ns = nodes.duration_ns[self.rows]

    def split(self, content: bytes, sizes: Int64Array) -> list[bytes]:
        """Cut the records of all ranks into those of each."""
        cuts = row_pointer(sizes)[self._indptr - self._indptr[0]].tolist()
        return [content[low:high] for low, high in pairwise(cuts)]

    def ids(self) -> Piece:
        """The id of the node; 0 is left out."""
        ids = self._nodes.node_id[self.rows]
        return number_field(_ID_TAG, ids, ids != 0)

    def micros(self) -> Piece:
        """The duration, rounded to microseconds: the only unit of the field."""
        rounds_up = self.duration_ns % 1000 >= 500
        micros = self.duration_ns // 1000 + rounds_up
        # -1, for a duration that is not stated, becomes 0, which is left out.
        micros = np.maximum(micros, 0)
        return number_field(_MICROS_TAG, micros, micros > 0)

    def message(self, with_size: bool) -> list[Piece]:
        """The attributes that every reader of messages needs."""
        nodes, is_message = self._nodes, self.is_message
        peer = nodes.peer[self.rows]
        source = np.where(self.is_send, self._rank, peer)
        target = np.where(self.is_send, peer, self._rank)
        size = number_attribute("comm_size", Kind.INT64, nodes.size[self.rows], is_message)
        return [
            number_attribute("is_cpu_op", Kind.BOOL, np.zeros(len(peer), np.int64)),
            *([size] if with_size else []),
            number_attribute("comm_src", Kind.INT32, source, is_message),
            number_attribute("comm_dst", Kind.INT32, target, is_message),
            number_attribute("comm_tag", Kind.INT32, nodes.tag[self.rows], is_message),
        ]

    def dependencies(self, is_flat: bool) -> list[Ragged]:
        """Control and data dependencies; flat: one list of both."""
        nodes = self._nodes
        control = self._ids(nodes.control_indptr, nodes.control_indices)
        data = self._ids(nodes.data_indptr, nodes.data_indices)
        if is_flat:
            return packed_field(_DATA_TAG, *_union(data, control))
        return [*packed_field(_CONTROL_TAG, *control), *packed_field(_DATA_TAG, *data)]

    def _ids(self, indptr: Int64Array, indices: Int64Array) -> tuple[Int64Array, UInt64Array]:
        """Row pointer and ids of the parents of these nodes."""
        # Parents are rows of the whole table, the file wants their ids.
        bounds = indptr[self.rows.start : self.rows.stop + 1]
        return bounds - bounds[0], self._nodes.node_id[indices[bounds[0] : bounds[-1]]]


def _union(
    data: tuple[Int64Array, UInt64Array], control: tuple[Int64Array, UInt64Array]
) -> tuple[Int64Array, UInt64Array]:
    """Data dependencies, then those control dependencies that are not among them."""
    owner = np.concatenate([group_of_entry(data[0]), group_of_entry(control[0])])
    ids = np.concatenate([data[1], control[1]])
    both = np.stack([owner.astype(np.uint64), ids])
    _, first = np.unique(both, axis=1, return_index=True)
    # The first of equal entries is the data dependency: those were put first.
    kept = np.sort(first)
    indptr, order = csr(owner[kept], kept, len(data[0]) - 1)
    return indptr, ids[order]


class _StepsOfNodes:
    """What profile v1 says of nodes: columns of the steps that they belong to, one value a node.

    `code`: the kind of step, `_COMBINE` or `_IDLE`.
    """

    def __init__(self, plan: Plan, span: _Span) -> None:
        self._plan, self._span = plan, span
        step = plan.nodes.step[span.rows]
        self._owned = step >= 0
        # Of the step table only the rows of these ranks are looked at.
        indptr = plan.algorithm.steps.rank_indptr
        self._rows = slice(int(indptr[span.ranks.start]), int(indptr[span.ranks.stop]))
        self._step = np.where(self._owned, step - self._rows.start, -1)
        kind = self._column("kind", _IDLE)
        is_pair = kind == StepKind.RECV_REDUCE
        self._is_half = is_pair & span.is_message
        is_combine = is_pair & ~span.is_message
        self._is_first = self._owned & ~is_combine
        self.code = np.where(is_combine, _COMBINE, kind)
        self._count = self._column("count", 0)

    def _column(self, name: str, default: int) -> Int64Array:
        """A column of the step table; the stand-ins of idle ranks belong to step -1."""
        column = getattr(self._plan.algorithm.steps, name)[self._rows]
        values = np.append(column.astype(np.int64), default)
        return values[self._step]

    def _of_message(self, name: str) -> Int64Array:
        """The side of a step that a message carries: what SEND reads, what RECV writes."""
        # Of a receive-reduce this is the place of the sum; see `placement`.
        sent = self._column(f"src_{name}", 0)
        received = self._column(f"dst_{name}", 0)
        is_send = self._span.is_send
        return np.where(is_send, sent, received)

    def triple(self) -> list[Piece]:
        """Sizes in chunks, as a branch of ASTRA-sim reads them; -1 where they mean nothing."""
        if self._plan.dialect == "absolute":
            return []
        units = np.full(len(self._step), self._plan.algorithm.collective.unit_count)
        columns = {
            "msg_chunk_idx": self._of_message("offset"),
            "msg_chunk_cnt": self._count,
            "total_chunk_cnt": units,
        }
        if not self._plan.has_triple:
            columns = dict.fromkeys(columns, np.full(len(units), -1))
        return [
            number_attribute(name, Kind.INT32, column, self._span.is_message)
            for name, column in columns.items()
        ]

    def placement(self) -> list[Piece]:
        """Where a step runs, and which units a message carries."""
        is_message = self._span.is_message
        lane, channel = self._column("lane", -1), self._column("channel", 0)
        has_lane = self._is_first & (lane != -1)
        has_channel = is_message | (self._is_first & (channel != 0))
        # A receive-reduce stores nothing before its combining half does.
        buffer = np.where(self._is_half, Buffer.UNKNOWN, self._of_message("buffer"))
        offset = np.where(self._is_half, 0, self._of_message("offset"))
        region = (buffer, offset, self._count)
        ones = np.ones(len(lane), np.int64)
        return [
            number_attribute("channel", Kind.INT32, channel, has_channel),
            number_attribute("lane", Kind.INT32, lane, has_lane),
            number_attribute("is_rrc", Kind.BOOL, ones, self._is_half),
            list_attribute("region", Kind.INT64_LIST, region, is_message),
        ]

    def computation(self) -> list[Piece]:
        """What a COMP node does, to which units, at which cost."""
        is_comp = ~self._span.is_message
        comp_kind = _COMP_KINDS[self.code]
        pieces = [number_attribute("comp_kind", Kind.INT32, comp_kind, is_comp)]
        if self._plan.dialect != "symbolic":
            unit_count = self._plan.algorithm.collective.unit_count
            moved = message_bytes(self._plan.bound_bytes, unit_count, self._count)
            # One operation for every 4 bytes: the element type is not part of an algorithm.
            operations = np.where(comp_kind == CompKind.REDUCE, -(-moved // 4), 0)
            pieces.append(number_attribute("num_ops", Kind.INT64, operations, is_comp))
            pieces.append(number_attribute("tensor_size", Kind.UINT64, moved, is_comp))
        return [*pieces, self._operand("src"), self._operand("dst")]

    def _operand(self, side: str) -> Piece:
        """The region that a COMP node reads or writes."""
        buffer = self._column(f"{side}_buffer", Buffer.UNKNOWN)
        offset = self._column(f"{side}_offset", 0)
        # A side that the model leaves unknown is left out.
        is_known = (buffer != Buffer.UNKNOWN) | (offset != 0) | (self._count != 0)
        present = ~self._span.is_message & self._owned & is_known
        region = (buffer, offset, self._count)
        return list_attribute(f"{side}_region", Kind.INT64_LIST, region, present)

    def origin(self) -> list[Piece]:
        """Exact durations and places in the source, where they are stated."""
        duration = self._span.duration_ns
        line = self._column("source_line", -1)
        has_line = self._is_first & (line != -1)
        return [
            number_attribute("duration_ns", Kind.INT64, duration, duration >= 0),
            number_attribute("source_line", Kind.INT32, line, has_line),
        ]
