"""Nodes of traces by others to steps: timing only, sizes in bytes (absolute) or chunks (symbolic).

Sources: the converter and the reader of the collectiveapi project, and ASTRA-sim's trace feeder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hub_core.chakra import (
    Column,
    Metadata,
    NodeFields,
    NodeType,
    ResolvedLinks,
    TraceError,
    type_name,
)
from hub_core.columns import Int64Array, distinct
from hub_core.model import (
    COLUMN_DEFAULTS,
    COLUMN_DTYPES,
    MAX_UNITS,
    Collective,
    CollectiveKind,
    CustomContract,
    InputError,
    Location,
    StepKind,
)
from hub_core.trace_profile.algorithms.chunks import Chunk, Joined, irregular_ranks

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


def foreign_chunk(fields: NodeFields, links: ResolvedLinks, num_ranks: int) -> Chunk:
    """One step a node, in file order. Raises `InputError` for what is no trace of an algorithm."""
    micros = fields.micros()
    tag = fields.numbers("comm_tag", fields.is_message, 0, _INT32, -1)
    channel = np.where(fields.is_message, tag % TAG_MODULUS, 0)
    sizes = _sizes(fields)
    index = sizes["msg_chunk_idx"]
    source = fields.numbers("comm_src", fields.is_receive, 0, num_ranks - 1, -1)
    target = fields.numbers("comm_dst", fields.is_send, 0, num_ranks - 1, -1)
    kinds = [StepKind.SEND, StepKind.RECV]
    found: dict[str, Column] = {
        "rank": fields.rank,
        "kind": np.select([fields.is_send, fields.is_receive], kinds, StepKind.COMPUTE),
        "peer": np.where(fields.is_send, target, source),
        "channel": channel,
        "src_offset": np.where(fields.is_send, index, 0),
        "dst_offset": np.where(fields.is_receive, index, 0),
        "lane": fields.numbers("tb_id", fields.is_message, -1, _INT32, -1),
        "duration_ns": np.where(micros > 0, micros * 1000, -1),
    }
    columns: dict[str, Column] = {}
    for name, dtype in COLUMN_DTYPES.items():
        # The buffers are not known; counts follow when the sizes of all ranks are there.
        column = found.get(name, np.full(len(tag), COLUMN_DEFAULTS.get(name, 0)))
        columns[name] = column.astype(dtype)
    columns["tag"] = np.where(fields.is_message, channel, -1)
    remembered = irregular_ranks(fields.nodes, links, np.arange(len(tag)))
    return Chunk(columns | sizes, links.data, links.control, remembered)


def refuse_workload(fields: NodeFields) -> None:
    """Refuse traces with collective, memory or metadata nodes, or messages that name no peer."""
    other = ~(fields.is_message | fields.is_comp)
    if other.any():
        node = int(other.argmax())
        if int(fields.nodes.type[node]) in _WORKLOAD_TYPES:
            raise _workload(fields, node)
        # A type that the schema has not, or INVALID_NODE.
        expected = "only COMM_SEND_NODE, COMM_RECV_NODE and COMP_NODE stand in an algorithm"
        message = f"{_subject(fields, node)}: {expected}"
        raise fields.nodes.batch.error_at(node, message, "node-type")
    # Without its peer and tag a message can be paired with none.
    for name, where in (
        ("comm_dst", fields.is_send),
        ("comm_src", fields.is_receive),
        ("comm_tag", fields.is_message),
    ):
        lacks = where & ~fields.has(name)
        if lacks.any():
            raise _workload(fields, int(lacks.argmax()), f" without {name}")


def _subject(fields: NodeFields, node: int) -> str:
    """How complaints name a node."""
    name = type_name(int(fields.nodes.type[node]))
    return f"rank {fields.rank[node]} has {name} {fields.nodes.id[node]}"


def _workload(fields: NodeFields, node: int, lack: str = "") -> TraceError:
    message = f"a workload trace, not an algorithm: {_subject(fields, node)}{lack}"
    cure = "`collhub inspect` shows what is in it"
    return fields.nodes.batch.error_at(node, message, "workload-trace", cure)


def _sizes(fields: NodeFields) -> dict[str, Int64Array]:
    """Sizes as stated, 0 where they are not; bytes go before chunks, and -1 chunks say nothing."""
    size = fields.numbers("comm_size", fields.is_message, 1, LARGEST_MESSAGE, 0)
    chunks = {name: fields.numbers(name, fields.is_message, -1, _INT32, -1) for name in _TRIPLE}
    index, count, total = chunks.values()
    has_chunks = (total > 0) & (count > 0) & (index >= 0)
    lacks = fields.is_message & (size == 0) & ~has_chunks
    names = "comm_size nor msg_chunk_idx, msg_chunk_cnt and total_chunk_cnt"
    message = f"neither {names} state the size of the message"
    fields.refuse(lacks, message, "missing-attribute")
    # A trace may state both; its bytes are exact, its chunks depend on the reader.
    use_chunks = has_chunks & (size == 0)
    used = {name: np.where(use_chunks, column, 0) for name, column in chunks.items()}
    return {"comm_size": size, **used}


@dataclass(frozen=True, slots=True)
class ForeignSizes:
    """The sizes of a whole foreign set.

    `count`: units of every row in file order; `scale`: units of a chunk of that row;
    `collective_bytes`: the stated size.
    """

    collective: Collective
    count: Int64Array
    scale: Int64Array
    collective_bytes: int | None


def foreign_sizes(
    joined: Joined, num_ranks: int, metadata: Metadata, name: str, size: int | None
) -> ForeignSizes:
    """Work out units. Absolute: one is one byte. Symbolic: chunks, on a common denominator.

    `size`: the size that an absolute trace was made for; without it the collective counts as
    custom, and unit_count is the most bytes that one rank sends or receives.
    """
    sizes = joined.columns["comm_size"].astype(np.int64)
    total = joined.columns["total_chunk_cnt"].astype(np.int64)
    if total.any():
        if sizes.any():
            message = "some messages state their size in bytes, others only in chunks"
            raise InputError(message, location=Location(name), code="size-mismatch")
        return _symbolic(joined, num_ranks, metadata, name)
    units = size or _traffic(joined, sizes)
    if units > MAX_UNITS:
        message = "the messages carry more than 2^62 bytes"
        raise InputError(message, location=Location(name), code="attribute-range")
    kind = _kind(metadata, num_ranks, units) if size else CollectiveKind.CUSTOM
    return ForeignSizes(_collective(kind, num_ranks, units), sizes, np.ones_like(total), units)


def _symbolic(joined: Joined, num_ranks: int, metadata: Metadata, name: str) -> ForeignSizes:
    index, count, total = (joined.columns[column].astype(np.int64) for column in _TRIPLE)
    # Messages may cut the buffer differently; a unit is what divides all their chunks.
    units = math.lcm(*distinct(total[total > 0]).tolist())
    if units > _INT32:
        message = "the messages disagree on total_chunk_cnt and have no small common multiple"
        raise InputError(message, location=Location(name), code="size-mismatch")
    scale = np.where(total > 0, units // np.maximum(total, 1), 1)
    highest = int(((index + count) * scale).max())
    kind = _kind(metadata, num_ranks, units * num_ranks)
    if highest > units and kind is CollectiveKind.ALL_GATHER:
        # For an all-gather out of place, the published converter counts chunks of a rank's input.
        units *= num_ranks
    collective = _collective(_kind(metadata, num_ranks, units), num_ranks, units)
    return ForeignSizes(collective, count * scale, scale, None)


def _traffic(joined: Joined, sizes: Int64Array) -> int:
    """The most bytes that one rank sends or receives, at least 1."""
    rank = joined.columns["rank"]
    is_send = joined.columns["kind"] == StepKind.SEND
    # What a rank reduces or computes in between carries no bytes. In doubles: a sum of many hostile
    # sizes must not wrap around.
    sums = [np.bincount(rank[side], sizes[side].astype(float)) for side in (is_send, ~is_send)]
    return int(max(side.max(initial=1) for side in sums))


def _kind(metadata: Metadata, num_ranks: int, units: int) -> CollectiveKind:
    """The collective of the metadata, custom where it has no such units."""
    name = metadata.text("collective").lower().replace("_", "").replace("-", "")
    kind = _KINDS.get(name, CollectiveKind.CUSTOM)
    is_whole = kind is CollectiveKind.ALL_REDUCE or units % num_ranks == 0
    return kind if is_whole else CollectiveKind.CUSTOM


def _collective(kind: CollectiveKind, num_ranks: int, units: int) -> Collective:
    """A collective; of a custom one only the size is known, so that it promises nothing."""
    if kind is not CollectiveKind.CUSTOM:
        return Collective(kind, num_ranks, units)
    whole = np.full(num_ranks, units, np.int64)
    contract = CustomContract(whole, whole, np.ones(num_ranks, np.bool_))
    return Collective(kind, num_ranks, units, contract=contract)
