"""Write algorithms as Chakra execution traces, collective profile v1, and node tables as plain traces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.algorithm import Algorithm, message_bytes
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
from hub_core.chakra.metadata import encode_metadata
from hub_core.chakra.nodes import NodeTable, NodeType, lower
from hub_core.chakra.profile import LARGEST, VERSION, CompKind, default_bytes, metadata_entries
from hub_core.collectives import Buffer
from hub_core.diagnostics import UsageError
from hub_core.losses import Loss
from hub_core.plugins.contract import Artifact, Options, WriteResult
from hub_core.steps import StepKind

__all__ = ["write", "write_nodes"]

Int64Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_LARGEST_TRIPLE = (1 << 31) - 1
_NAMES = ("SEND", "RECV", "RECV", "COPY", "REDUCE", "COMPUTE")
_COMBINE = len(_NAMES)
_IDLE = _COMBINE + 1
_COMP_KINDS = np.asarray([0, 0, 0, CompKind.COPY, CompKind.REDUCE, CompKind.OTHER, CompKind.REDUCE, CompKind.OTHER], np.int64)


def write(algorithm: Algorithm, options: Options) -> WriteResult:
    """Write one trace a rank, encoded when its artifact's content is asked for.

    Options: see `formats.CHAKRA_WRITER`. Raises `UsageError` for the symbolic dialect of an algorithm whose sizes
    are bytes or whose unit_count exceeds int32.
    """
    size = options.get("size")
    dialect = str(options.get("dialect") or "both")
    stated = size if isinstance(size, int) else algorithm.collective_bytes
    if dialect == "symbolic" and not _has_triple(algorithm):
        raise UsageError(
            "the symbolic dialect states sizes in chunks, but this algorithm's sizes are bytes or exceed 2^31 - 1 chunks",
            cure="choose the dialect absolute or both",
        )
    bound = stated if stated is not None else default_bytes(algorithm)
    _check_bytes(algorithm, bound)
    plan = _Plan(
        algorithm,
        lower(algorithm, bound),
        dialect,
        is_flat=bool(options.get("flatten")),
        has_triple=_has_triple(algorithm),
        bound_bytes=bound,
        is_stated=stated is not None,
    )
    artifacts = (Artifact(f".{rank}.et", partial(_rank_file, plan, rank)) for rank in range(algorithm.num_ranks))
    return WriteResult(artifacts, _losses(plan))


def write_nodes(nodes: NodeTable, *, version: str = VERSION) -> list[bytes]:
    """Write a table of nodes as plain traces, one a rank, with its own ids, order and tags and no profile.

    Durations are rounded to microseconds, the only unit that a plain trace has.
    """
    start = encode_metadata(version, ())
    return [start + _plain_rank(nodes, rank) for rank in range(nodes.num_ranks)]


def _check_bytes(algorithm: Algorithm, size: int) -> None:
    largest = int(algorithm.steps.count.max(initial=0))
    if largest * size // algorithm.collective.unit_count > LARGEST:
        raise UsageError(f"a step of {largest} units comes to more than 2^62 bytes", cure="choose a smaller size")


@dataclass(frozen=True, slots=True)
class _Plan:
    algorithm: Algorithm
    nodes: NodeTable
    dialect: str
    is_flat: bool
    has_triple: bool
    bound_bytes: int
    is_stated: bool


def _has_triple(algorithm: Algorithm) -> bool:
    """Whether chunk counts mean something: not where one unit is one byte of a timing-only trace."""
    steps = algorithm.steps
    is_bytes = not algorithm.has_contents and algorithm.collective_bytes == algorithm.collective.unit_count
    numbers = (steps.src_offset[steps.sends], steps.dst_offset[steps.receives], steps.count[steps.sends | steps.receives])
    largest = max(algorithm.collective.unit_count, *(int(column.max(initial=0)) for column in numbers))
    return not is_bytes and largest <= _LARGEST_TRIPLE


def _losses(plan: _Plan) -> list[Loss]:
    steps = plan.algorithm.steps
    losses = []
    if plan.is_flat and len(steps.control_indices):
        consequence = "they cannot be told from data dependencies any more"
        losses.append(Loss("control dependencies", f"{len(steps.control_indices)} dependencies", consequence))
    uneven = int(np.count_nonzero((steps.duration_ns >= 0) & (steps.duration_ns % 1000 != 0)))
    if uneven:
        consequence = "duration_micros is rounded; only readers of the attribute duration_ns see the exact time"
        losses.append(Loss("durations below a microsecond", f"{uneven} steps", consequence))
    return losses


def _rank_file(plan: _Plan, rank: int) -> bytes:
    steps = plan.algorithm.steps
    count = int(steps.rank_indptr[rank + 1] - steps.rank_indptr[rank])
    size = plan.bound_bytes if plan.dialect != "symbolic" or plan.is_stated else None
    entries = metadata_entries(plan.algorithm, rank, count, size, plan.is_stated)
    return encode_metadata(VERSION, entries) + _Rank(plan, rank).encode()


def _plain_rank(nodes: NodeTable, rank: int) -> bytes:
    rows = slice(int(nodes.rank_indptr[rank]), int(nodes.rank_indptr[rank + 1]))
    types = nodes.type[rows]
    texts = tuple(_name_and_type("", node_type) for node_type in range(max(NodeType) + 1))
    pieces = [*_start(nodes, rows, texts, types), _micros(nodes, rows)]
    pieces += _message(nodes, rows, rank)
    return encode_records(pieces, 2, _dependencies(nodes, rows, is_flat=False))


def _start(nodes: NodeTable, rows: slice, texts: tuple[bytes, ...], codes: npt.NDArray[np.integer[Any]]) -> list[Piece]:
    """Id, then name and type: one of `texts`."""
    ids = nodes.node_id[rows]
    return [number_field(0x08, ids, ids != 0), Choice(texts, codes.astype(np.intp))]


def _name_and_type(name: str, node_type: int) -> bytes:
    return (bytes([0x12, len(name)]) + name.encode() if name else b"") + (bytes([0x18, node_type]) if node_type else b"")


def _micros(nodes: NodeTable, rows: slice) -> Numbers:
    duration = nodes.duration_ns[rows]
    micros = np.where(duration > 0, duration // 1000 + (duration % 1000 >= 500), 0)
    return number_field(0x38, micros, micros > 0)


def _message(nodes: NodeTable, rows: slice, rank: int, with_size: bool = True) -> list[Piece]:
    """The attributes that every reader of messages needs."""
    is_send = nodes.type[rows] == NodeType.COMM_SEND
    is_message = is_send | (nodes.type[rows] == NodeType.COMM_RECV)
    peer = nodes.peer[rows]
    pieces = [
        number_attribute("is_cpu_op", Kind.BOOL, np.zeros(len(peer), np.int64)),
        number_attribute("comm_src", Kind.INT32, np.where(is_send, rank, peer), is_message),
        number_attribute("comm_dst", Kind.INT32, np.where(is_send, peer, rank), is_message),
        number_attribute("comm_tag", Kind.INT32, nodes.tag[rows], is_message),
    ]
    size = number_attribute("comm_size", Kind.INT64, nodes.size[rows], is_message)
    return [pieces[0], size, *pieces[1:]] if with_size else list(pieces)


def _dependencies(nodes: NodeTable, rows: slice, is_flat: bool) -> list[tuple[npt.NDArray[np.uint8], Int64Array]]:
    control = _dependency_ids(nodes, nodes.control_indptr, nodes.control_indices, rows)
    data = _dependency_ids(nodes, nodes.data_indptr, nodes.data_indices, rows)
    if not is_flat:
        return [dependency_bytes(0x22, *control), dependency_bytes(0x2A, *data)]
    return [dependency_bytes(0x2A, *_union(data, control))]


def _dependency_ids(
    nodes: NodeTable, indptr: Int64Array, indices: Int64Array, rows: slice
) -> tuple[Int64Array, npt.NDArray[np.uint64]]:
    bounds = indptr[rows.start : rows.stop + 1]
    return bounds - bounds[0], nodes.node_id[indices[bounds[0] : bounds[-1]]]


def _union(
    data: tuple[Int64Array, npt.NDArray[np.uint64]], control: tuple[Int64Array, npt.NDArray[np.uint64]]
) -> tuple[Int64Array, npt.NDArray[np.uint64]]:
    """Data dependencies, then those control dependencies that are not among them."""
    count = len(data[0]) - 1
    owner = np.concatenate([np.repeat(np.arange(count), np.diff(indptr)) for indptr, _ in (data, control)])
    ids = np.concatenate([data[1], control[1]])
    _, first = np.unique(np.stack([owner.astype(np.uint64), ids]), axis=1, return_index=True)
    kept = np.sort(first)
    kept = kept[np.argsort(owner[kept], kind="stable")]
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(owner[kept], minlength=count), out=indptr[1:])
    return indptr, ids[kept]


_TEXTS = tuple(
    _name_and_type(name, NodeType.COMM_SEND if name == "SEND" else NodeType.COMM_RECV if name == "RECV" else NodeType.COMP)
    for name in (*_NAMES, "REDUCE", "IDLE")
)


class _Rank:
    """The nodes of one rank on their way to bytes: gathers columns of the steps that the nodes belong to."""

    def __init__(self, plan: _Plan, rank: int) -> None:
        nodes = plan.nodes
        self._plan = plan
        self._rank = rank
        self._rows = slice(int(nodes.rank_indptr[rank]), int(nodes.rank_indptr[rank + 1]))
        self._type = nodes.type[self._rows]
        step = nodes.step[self._rows]
        self._owned = step >= 0
        self._step = np.maximum(step, 0) if len(plan.algorithm.steps) else None
        kind = self._column("kind", StepKind.COMPUTE)
        is_comp = self._type == NodeType.COMP
        self._is_combine = is_comp & (kind == StepKind.RECV_REDUCE)
        self._is_message = ~is_comp
        self._is_first = self._owned & ~self._is_combine
        self._is_receive_half = self._is_message & (kind == StepKind.RECV_REDUCE)
        self._code = np.where(self._is_combine, _COMBINE, np.where(self._owned, kind, _IDLE))

    def encode(self) -> bytes:
        """All records of the rank's nodes."""
        plan, rows = self._plan, self._rows
        pieces = [*_start(plan.nodes, rows, _TEXTS, self._code), _micros(plan.nodes, rows)]
        pieces += _message(plan.nodes, rows, self._rank, plan.dialect != "symbolic")
        pieces += [*self._triple(), *self._placement(), *self._computation(), *self._origin()]
        return encode_records(pieces, 2, _dependencies(plan.nodes, rows, plan.is_flat))

    def _column(self, name: str, default: int) -> Int64Array:
        """A column of the step table, one value a node."""
        if self._step is None:
            return np.full(len(self._owned), default, np.int64)
        column = getattr(self._plan.algorithm.steps, name)[self._step].astype(np.int64)
        return np.where(self._owned, column, default)

    def _triple(self) -> list[Piece]:
        if self._plan.dialect == "absolute":
            return []
        is_send = self._type == NodeType.COMM_SEND
        offset = np.where(is_send, self._column("src_offset", 0), self._column("dst_offset", 0))
        columns = (offset, self._column("count", 0), np.full(len(offset), self._plan.algorithm.collective.unit_count))
        if not self._plan.has_triple:
            columns = (np.full(len(offset), -1),) * 3
        names = ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt")
        return [number_attribute(name, Kind.INT32, column, self._is_message) for name, column in zip(names, columns, strict=True)]

    def _placement(self) -> list[Piece]:
        lane, channel = self._column("lane", -1), self._column("channel", 0)
        is_send = self._type == NodeType.COMM_SEND
        half = self._is_receive_half
        buffer = np.where(half, Buffer.UNKNOWN, np.where(is_send, self._column("src_buffer", 0), self._column("dst_buffer", 0)))
        offset = np.where(half, 0, np.where(is_send, self._column("src_offset", 0), self._column("dst_offset", 0)))
        ones = np.ones(len(lane), np.int64)
        return [
            number_attribute("channel", Kind.INT32, channel, self._is_message | (self._is_first & (channel != 0))),
            number_attribute("lane", Kind.INT32, lane, self._is_first & (lane != -1)),
            number_attribute("is_rrc", Kind.BOOL, ones, half),
            list_attribute("region", Kind.INT64_LIST, (buffer, offset, self._column("count", 0)), self._is_message),
        ]

    def _computation(self) -> list[Piece]:
        is_comp = ~self._is_message
        count = self._column("count", 0)
        pieces: list[Piece] = [number_attribute("comp_kind", Kind.INT32, _COMP_KINDS[self._code], is_comp)]
        if self._plan.dialect != "symbolic":
            moved = message_bytes(self._plan.bound_bytes, self._plan.algorithm.collective.unit_count, count)
            is_reduction = is_comp & (_COMP_KINDS[self._code] == CompKind.REDUCE)
            # One operation for every 4 bytes: the element type is not part of an algorithm.
            pieces.append(number_attribute("num_ops", Kind.INT64, np.where(is_reduction, -(-moved // 4), 0), is_comp))
            pieces.append(number_attribute("tensor_size", Kind.UINT64, moved, is_comp))
        for name, side in (("src_region", "src"), ("dst_region", "dst")):
            columns = (self._column(f"{side}_buffer", Buffer.UNKNOWN), self._column(f"{side}_offset", 0), count)
            is_known = (columns[0] != Buffer.UNKNOWN) | (columns[1] != 0) | (columns[2] != 0)
            pieces.append(list_attribute(name, Kind.INT64_LIST, columns, is_comp & self._owned & is_known))
        return pieces

    def _origin(self) -> list[Piece]:
        duration = self._plan.nodes.duration_ns[self._rows]
        line = self._column("source_line", -1)
        return [
            number_attribute("duration_ns", Kind.INT64, duration, duration >= 0),
            number_attribute("source_line", Kind.INT32, line, self._is_first & (line != -1)),
        ]
