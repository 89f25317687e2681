"""The byte pieces of trace nodes: what every reader of messages needs, and what profile v1 adds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.chakra.attributes import Kind
from hub_core.chakra.encode import (
    Choice,
    Numbers,
    Piece,
    dependency_bytes,
    encode_records,
    list_attribute,
    number_attribute,
    number_field,
)
from hub_core.chakra.nodes import NodeTable, NodeType
from hub_core.chakra.profile import CompKind
from hub_core.model.algorithm import Algorithm, message_bytes
from hub_core.model.kinds import Buffer, StepKind

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_NAMES = ("SEND", "RECV", "RECV", "COPY", "REDUCE", "COMPUTE")
_COMBINE = len(_NAMES)
_IDLE = _COMBINE + 1
_COMP_KINDS = np.asarray(
    [0, 0, 0, CompKind.COPY, CompKind.REDUCE, CompKind.OTHER, CompKind.REDUCE, CompKind.OTHER],
    np.int64,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is written and how: nodes lowered for `bound_bytes`; `has_triple`: chunk counts mean something."""

    algorithm: Algorithm
    nodes: NodeTable
    dialect: str
    is_flat: bool
    has_triple: bool
    bound_bytes: int
    is_stated: bool


def encode_plain(nodes: NodeTable, ranks: range) -> list[bytes]:
    """The node records of consecutive ranks, with types, dependencies, durations and the attributes of messages only."""
    span = _Span(nodes, ranks)
    texts = tuple(_name_and_type("", node_type) for node_type in range(max(NodeType) + 1))
    pieces = [*span.start(texts, span.type), *span.message(with_size=True)]
    return span.split(*encode_records(pieces, 2, span.dependencies(is_flat=False)))


def encode_profile(plan: Plan, ranks: range) -> list[bytes]:
    """The node records of consecutive ranks in profile v1."""
    span = _ProfileSpan(plan, ranks)
    return span.split(*encode_records(span.pieces(), 2, span.dependencies(plan.is_flat)))


class _Span:
    """The nodes of consecutive ranks."""

    def __init__(self, nodes: NodeTable, ranks: range) -> None:
        self._nodes = nodes
        self._indptr = nodes.rank_indptr[ranks.start : ranks.stop + 1]
        self.rows = slice(int(self._indptr[0]), int(self._indptr[-1]))
        self._rank = np.repeat(np.asarray(ranks, np.int64), np.diff(self._indptr))
        self.type = nodes.type[self.rows]
        self.is_send = self.type == NodeType.COMM_SEND
        self.is_message = self.is_send | (self.type == NodeType.COMM_RECV)

    def split(self, content: bytes, sizes: Int64Array) -> list[bytes]:
        """Cut the records of all ranks into those of each."""
        cuts = np.concatenate([[0], np.cumsum(sizes)])[self._indptr - self._indptr[0]].tolist()
        return [content[low:high] for low, high in pairwise(cuts)]

    def start(self, texts: tuple[bytes, ...], codes: npt.NDArray[np.integer[Any]]) -> list[Piece]:
        """Id, then name and type: one of `texts`; then the duration in microseconds."""
        ids = self._nodes.node_id[self.rows]
        return [
            number_field(0x08, ids, ids != 0),
            Choice(texts, codes.astype(np.intp)),
            self._micros(),
        ]

    def _micros(self) -> Numbers:
        duration = self._nodes.duration_ns[self.rows]
        micros = np.where(duration > 0, duration // 1000 + (duration % 1000 >= 500), 0)
        return number_field(0x38, micros, micros > 0)

    def message(self, with_size: bool) -> list[Piece]:
        """The attributes that every reader of messages needs."""
        nodes, is_message = self._nodes, self.is_message
        peer = nodes.peer[self.rows]
        size = [number_attribute("comm_size", Kind.INT64, nodes.size[self.rows], is_message)]
        return [
            number_attribute("is_cpu_op", Kind.BOOL, np.zeros(len(peer), np.int64)),
            *(size if with_size else []),
            number_attribute(
                "comm_src", Kind.INT32, np.where(self.is_send, self._rank, peer), is_message
            ),
            number_attribute(
                "comm_dst", Kind.INT32, np.where(self.is_send, peer, self._rank), is_message
            ),
            number_attribute("comm_tag", Kind.INT32, nodes.tag[self.rows], is_message),
        ]

    def dependencies(self, is_flat: bool) -> list[tuple[npt.NDArray[np.uint8], Int64Array]]:
        """Control and data dependencies as ragged bytes; flat: one list of both."""
        nodes = self._nodes
        control = self._ids(nodes.control_indptr, nodes.control_indices)
        data = self._ids(nodes.data_indptr, nodes.data_indices)
        if not is_flat:
            return [dependency_bytes(0x22, *control), dependency_bytes(0x2A, *data)]
        return [dependency_bytes(0x2A, *_union(data, control))]

    def _ids(self, indptr: Int64Array, indices: Int64Array) -> tuple[Int64Array, UInt64Array]:
        bounds = indptr[self.rows.start : self.rows.stop + 1]
        return bounds - bounds[0], self._nodes.node_id[indices[bounds[0] : bounds[-1]]]


def _name_and_type(name: str, node_type: int) -> bytes:
    return (bytes([0x12, len(name)]) + name.encode() if name else b"") + (
        bytes([0x18, node_type]) if node_type else b""
    )


def _union(
    data: tuple[Int64Array, UInt64Array], control: tuple[Int64Array, UInt64Array]
) -> tuple[Int64Array, UInt64Array]:
    """Data dependencies, then those control dependencies that are not among them."""
    count = len(data[0]) - 1
    owner = np.concatenate(
        [np.repeat(np.arange(count), np.diff(indptr)) for indptr, _ in (data, control)]
    )
    ids = np.concatenate([data[1], control[1]])
    _, first = np.unique(np.stack([owner.astype(np.uint64), ids]), axis=1, return_index=True)
    kept = np.sort(first)
    kept = kept[np.argsort(owner[kept], kind="stable")]
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(owner[kept], minlength=count), out=indptr[1:])
    return indptr, ids[kept]


_TEXTS = tuple(
    _name_and_type(
        name,
        NodeType.COMM_SEND
        if name == "SEND"
        else NodeType.COMM_RECV
        if name == "RECV"
        else NodeType.COMP,
    )
    for name in (*_NAMES, "REDUCE", "IDLE")
)


class _ProfileSpan(_Span):
    """Nodes with what profile v1 says of them: gathers columns of the steps that the nodes belong to."""

    def __init__(self, plan: Plan, ranks: range) -> None:
        super().__init__(plan.nodes, ranks)
        self._plan = plan
        step = plan.nodes.step[self.rows]
        self._owned = step >= 0
        self._step = np.maximum(step, 0) if len(plan.algorithm.steps) else None
        kind = self._column("kind", StepKind.COMPUTE)
        self._is_combine = ~self.is_message & (kind == StepKind.RECV_REDUCE)
        self._is_first = self._owned & ~self._is_combine
        self._is_receive_half = self.is_message & (kind == StepKind.RECV_REDUCE)
        self._code = np.where(self._is_combine, _COMBINE, np.where(self._owned, kind, _IDLE))

    def pieces(self) -> list[Piece]:
        """All of a record but its dependencies, which come after the second piece."""
        message = self.message(with_size=self._plan.dialect != "symbolic")
        start = self.start(_TEXTS, self._code)
        return [
            *start,
            *message,
            *self._triple(),
            *self._placement(),
            *self._computation(),
            *self._origin(),
        ]

    def _column(self, name: str, default: int) -> Int64Array:
        """A column of the step table, one value a node."""
        if self._step is None:
            return np.full(len(self._owned), default, np.int64)
        column = getattr(self._plan.algorithm.steps, name)[self._step].astype(np.int64)
        return np.where(self._owned, column, default)

    def _triple(self) -> list[Piece]:
        if self._plan.dialect == "absolute":
            return []
        offset = np.where(
            self.is_send, self._column("src_offset", 0), self._column("dst_offset", 0)
        )
        columns = (
            offset,
            self._column("count", 0),
            np.full(len(offset), self._plan.algorithm.collective.unit_count),
        )
        if not self._plan.has_triple:
            columns = (np.full(len(offset), -1),) * 3
        names = ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt")
        return [
            number_attribute(name, Kind.INT32, column, self.is_message)
            for name, column in zip(names, columns, strict=True)
        ]

    def _placement(self) -> list[Piece]:
        lane, channel = self._column("lane", -1), self._column("channel", 0)
        half = self._is_receive_half
        buffer = np.where(
            self.is_send, self._column("src_buffer", 0), self._column("dst_buffer", 0)
        )
        offset = np.where(
            self.is_send, self._column("src_offset", 0), self._column("dst_offset", 0)
        )
        # A receive-reduce stores nothing before its combining half does.
        buffer, offset = np.where(half, Buffer.UNKNOWN, buffer), np.where(half, 0, offset)
        ones = np.ones(len(lane), np.int64)
        return [
            number_attribute(
                "channel", Kind.INT32, channel, self.is_message | (self._is_first & (channel != 0))
            ),
            number_attribute("lane", Kind.INT32, lane, self._is_first & (lane != -1)),
            number_attribute("is_rrc", Kind.BOOL, ones, half),
            list_attribute(
                "region",
                Kind.INT64_LIST,
                (buffer, offset, self._column("count", 0)),
                self.is_message,
            ),
        ]

    def _computation(self) -> list[Piece]:
        is_comp = ~self.is_message
        count = self._column("count", 0)
        pieces: list[Piece] = [
            number_attribute("comp_kind", Kind.INT32, _COMP_KINDS[self._code], is_comp)
        ]
        if self._plan.dialect != "symbolic":
            moved = message_bytes(
                self._plan.bound_bytes, self._plan.algorithm.collective.unit_count, count
            )
            is_reduction = is_comp & (_COMP_KINDS[self._code] == CompKind.REDUCE)
            # One operation for every 4 bytes: the element type is not part of an algorithm.
            pieces.append(
                number_attribute(
                    "num_ops", Kind.INT64, np.where(is_reduction, -(-moved // 4), 0), is_comp
                )
            )
            pieces.append(number_attribute("tensor_size", Kind.UINT64, moved, is_comp))
        for name, side in (("src_region", "src"), ("dst_region", "dst")):
            columns = (
                self._column(f"{side}_buffer", Buffer.UNKNOWN),
                self._column(f"{side}_offset", 0),
                count,
            )
            is_known = (columns[0] != Buffer.UNKNOWN) | (columns[1] != 0) | (columns[2] != 0)
            pieces.append(
                list_attribute(name, Kind.INT64_LIST, columns, is_comp & self._owned & is_known)
            )
        return pieces

    def _origin(self) -> list[Piece]:
        duration = self._plan.nodes.duration_ns[self.rows]
        line = self._column("source_line", -1)
        return [
            number_attribute("duration_ns", Kind.INT64, duration, duration >= 0),
            number_attribute("source_line", Kind.INT32, line, self._is_first & (line != -1)),
        ]
