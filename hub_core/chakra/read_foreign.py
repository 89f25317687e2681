"""Nodes of traces by others to steps: timing only, sizes in bytes (absolute) or in chunks (symbolic)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.chakra.chunks import Chunk, irregular_ranks
from hub_core.chakra.fields import NodeFields, type_name
from hub_core.chakra.links import Links
from hub_core.chakra.metadata import Metadata
from hub_core.chakra.nodes import NodeType
from hub_core.model.collectives import MAX_UNITS, Collective, CustomContract
from hub_core.model.diagnostics import InputError, Location
from hub_core.model.kinds import Buffer, CollectiveKind, StepKind

Int64Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

TAG_MODULUS = 500_000_000
"""ASTRA-sim takes tags modulo this number."""
LARGEST_MESSAGE = 1 << 50
_INT32 = (1 << 31) - 1
_WORKLOAD_TYPES = (NodeType.METADATA, NodeType.MEM_LOAD, NodeType.MEM_STORE, NodeType.COMM_COLL)
_TRIPLE = ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt")
_KINDS: Mapping[str, CollectiveKind] = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
}


def foreign_chunk(fields: NodeFields, links: Links, num_ranks: int) -> Chunk:
    """One step a node, in file order. Raises `InputError` for what is not a trace of an algorithm."""
    micros = fields.micros()
    tag = fields.numbers("comm_tag", fields.is_message, 0, _INT32, -1)
    channel = np.where(fields.is_message, tag % TAG_MODULUS, 0)
    extra = _sizes(fields)
    rows = np.arange(len(tag))
    columns: dict[str, npt.NDArray[np.generic]] = {
        "rank": fields.rank.astype(np.int32),
        "kind": np.select(
            [fields.is_send, fields.is_receive], [StepKind.SEND, StepKind.RECV], StepKind.COMPUTE
        ).astype(np.uint8),
        "peer": _peers(fields, num_ranks).astype(np.int32),
        "channel": channel.astype(np.int32),
        "src_buffer": np.full(len(tag), Buffer.UNKNOWN, np.uint8),
        "src_offset": np.where(fields.is_send, extra["msg_chunk_idx"], 0),
        "dst_buffer": np.full(len(tag), Buffer.UNKNOWN, np.uint8),
        "dst_offset": np.where(fields.is_receive, extra["msg_chunk_idx"], 0),
        "count": np.zeros(len(tag), np.int64),
        "lane": fields.numbers("tb_id", fields.is_message, -1, _INT32, -1).astype(np.int32),
        "duration_ns": np.where(micros > 0, micros * 1000, -1),
        "source_line": np.full(len(tag), -1, np.int32),
    }
    remembered = irregular_ranks(fields.nodes, links, rows) if links.irregular.any() else {}
    tags = np.where(fields.is_message, channel, -1).astype(np.int32)
    return Chunk(columns, tags, links.data, links.control, extra, remembered)


def refuse_workload(fields: NodeFields) -> None:
    """Refuse traces with collective, memory or metadata nodes, or with messages that name no peer."""
    other = ~(fields.is_message | fields.is_comp)
    if other.any():
        node = int(other.argmax())
        node_type = int(fields.nodes.type[node])
        subject = f"rank {fields.rank[node]} has {type_name(node_type)} {fields.nodes.id[node]}"
        if node_type in _WORKLOAD_TYPES:
            raise _workload(fields, node, subject)
        message = (
            f"{subject}: only COMM_SEND_NODE, COMM_RECV_NODE and COMP_NODE stand in an algorithm"
        )
        raise InputError(message, location=fields.nodes.batch.place(node), code="node-type")
    for name, where in (
        ("comm_dst", fields.is_send),
        ("comm_src", fields.is_receive),
        ("comm_tag", fields.is_message),
    ):
        lacks = where & ~fields.has(name)
        if lacks.any():
            node = int(lacks.argmax())
            subject = f"rank {fields.rank[node]} has {type_name(int(fields.nodes.type[node]))} {fields.nodes.id[node]}"
            raise _workload(fields, node, f"{subject} without {name}")


def _workload(fields: NodeFields, node: int, reason: str) -> InputError:
    return InputError(
        f"a workload trace, not an algorithm: {reason}",
        location=fields.nodes.batch.place(node),
        code="workload-trace",
        cure="`collhub inspect` shows what is in it",
    )


def _peers(fields: NodeFields, num_ranks: int) -> Int64Array:
    source = fields.numbers("comm_src", fields.is_receive, 0, num_ranks - 1, -1)
    return np.where(
        fields.is_send, fields.numbers("comm_dst", fields.is_send, 0, num_ranks - 1, -1), source
    )


def _sizes(fields: NodeFields) -> dict[str, Int64Array]:
    """Sizes as stated, 0 where they are not; messages with (-1, -1, -1) chunks have their size in bytes only."""
    size = fields.numbers("comm_size", fields.is_message, 1, LARGEST_MESSAGE, 0)
    index, count, total = (
        fields.numbers(name, fields.is_message, -1, _INT32, -1) for name in _TRIPLE
    )
    has_chunks = (total > 0) & (count > 0) & (index >= 0)
    message = "neither comm_size nor msg_chunk_idx, msg_chunk_cnt and total_chunk_cnt state the size of the message"
    fields.refuse(fields.is_message & (size == 0) & ~has_chunks, message, "missing-attribute")
    use_chunks = has_chunks & (size == 0)
    return {
        "comm_size": size,
        "msg_chunk_idx": np.where(use_chunks, index, 0),
        "msg_chunk_cnt": np.where(use_chunks, count, 0),
        "total_chunk_cnt": np.where(use_chunks, total, 0),
    }


@dataclass(frozen=True, slots=True)
class ForeignSizes:
    """The sizes of a whole foreign set: what the collective is, units of every row (file order), the stated size."""

    collective: Collective
    count: Int64Array
    scale: Int64Array
    collective_bytes: int | None


def foreign_collective(
    chunks: Sequence[Chunk], num_ranks: int, metadata: Metadata, name: str, size: int | None
) -> ForeignSizes:
    """Work out units. Absolute: one is one byte. Symbolic: chunks, on a common denominator.

    `size`: the size that an absolute trace was made for; without it the collective counts as custom, and
    unit_count is the most bytes that one rank sends or receives.
    """
    column = {
        key: np.concatenate([chunk.extra[key] for chunk in chunks]) for key in chunks[0].extra
    }
    total = column["total_chunk_cnt"]
    if not total.any():
        units = size or _traffic(chunks, column["comm_size"])
        if units > MAX_UNITS:
            raise InputError(
                "the messages carry more than 2^62 bytes",
                location=Location(name),
                code="attribute-range",
            )
        kind = _kind(metadata, num_ranks, units) if size else CollectiveKind.CUSTOM
        collective = _collective(kind, num_ranks, units)
        return ForeignSizes(collective, column["comm_size"], np.ones_like(total), units)
    if column["comm_size"].any():
        message = "some messages state their size in bytes, others only in chunks"
        raise InputError(message, location=Location(name), code="size-mismatch")
    units = math.lcm(*np.unique(total[total > 0]).tolist())
    if units > _INT32:
        message = "the messages disagree on total_chunk_cnt and have no small common multiple"
        raise InputError(message, location=Location(name), code="size-mismatch")
    scale = np.where(total > 0, units // np.maximum(total, 1), 1)
    highest = int(((column["msg_chunk_idx"] + column["msg_chunk_cnt"]) * scale).max())
    # The published converter counts the chunks of one rank's input for an all-gather that is not in place.
    units *= (
        num_ranks
        if highest > units
        and _kind(metadata, num_ranks, units * num_ranks) is CollectiveKind.ALL_GATHER
        else 1
    )
    collective = _collective(_kind(metadata, num_ranks, units), num_ranks, units)
    return ForeignSizes(collective, column["msg_chunk_cnt"] * scale, scale, None)


def _traffic(chunks: Sequence[Chunk], sizes: Int64Array) -> int:
    rank = np.concatenate([chunk.columns["rank"] for chunk in chunks]).astype(np.int64)
    is_send = np.concatenate([chunk.columns["kind"] for chunk in chunks]) == StepKind.SEND
    both = [
        np.bincount(rank[side], sizes[side].astype(np.float64)).max(initial=1)
        for side in (is_send, ~is_send)
    ]
    return int(max(both))


def _kind(metadata: Metadata, num_ranks: int, units: int) -> CollectiveKind:
    name = metadata.text("collective").lower().replace("_", "").replace("-", "")
    kind = _KINDS.get(name, CollectiveKind.CUSTOM)
    return (
        kind
        if kind is CollectiveKind.ALL_REDUCE or units % num_ranks == 0
        else CollectiveKind.CUSTOM
    )


def _collective(kind: CollectiveKind, num_ranks: int, units: int) -> Collective:
    if kind is not CollectiveKind.CUSTOM:
        return Collective(kind, num_ranks, units)
    whole = np.full(num_ranks, units, np.int64)
    return Collective(
        kind, num_ranks, units, contract=CustomContract(whole, whole, np.ones(num_ranks, np.bool_))
    )
