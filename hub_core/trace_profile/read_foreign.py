"""Convert nodes of foreign traces to steps: timing only, sizes in bytes or chunks.

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
from hub_core.trace_profile.step_chunks import Joined, StepChunk, irregular_ranks

TAG_MODULUS = 500_000_000
"""ASTRA-sim takes tags modulo this number."""
LARGEST_MESSAGE = 1 << 50
_MAX_INT32 = (1 << 31) - 1
_WORKLOAD_TYPES = (NodeType.METADATA, NodeType.MEM_LOAD, NodeType.MEM_STORE, NodeType.COMM_COLL)
_TRIPLE = ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt")
_KINDS: Mapping[str, CollectiveKind] = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
}


def foreign_chunk(fields: NodeFields, links: ResolvedLinks, num_ranks: int) -> StepChunk:
    """Convert each node of a trace without a profile to a step, in file order.

    Each message must have its peer and a tag (`refuse_workload` checks it before). Sends become
    SEND, receives RECV, all others COMPUTE. Buffers are unknown; counts have their default. The
    sizes of messages are additional columns (`_read_sizes`). The other columns:

    - channel and tag: both `comm_tag` modulo 500 million; for COMPUTE channel 0 and tag -1
    - peer: `comm_dst` of a SEND, `comm_src` of a RECV, both below `num_ranks`; else -1
    - source offset of a SEND, destination offset of a RECV: `msg_chunk_idx`; else 0
    - lane: `tb_id` of a message, else -1. Duration: micros x 1000 ns, -1 for 0 micros

    Durations, tags, sizes, sources, destinations and lanes are checked in this order. The first
    defect raises `TraceError`: `missing-attribute`, `attribute-kind` (no integer) or
    `attribute-range`.
    """
    micros = fields.micros()
    tag = fields.numbers("comm_tag", fields.is_message, 0, _MAX_INT32, -1)
    channel = np.where(fields.is_message, tag % TAG_MODULUS, 0)
    sizes = _read_sizes(fields)
    index = sizes["msg_chunk_idx"]
    source = fields.numbers("comm_src", fields.is_receive, 0, num_ranks - 1, -1)
    target = fields.numbers("comm_dst", fields.is_send, 0, num_ranks - 1, -1)
    kinds = [StepKind.SEND, StepKind.RECV]
    known: dict[str, Column] = {
        "rank": fields.rank,
        "kind": np.select([fields.is_send, fields.is_receive], kinds, StepKind.COMPUTE),
        "peer": np.where(fields.is_send, target, source),
        "channel": channel,
        "src_offset": np.where(fields.is_send, index, 0),
        "dst_offset": np.where(fields.is_receive, index, 0),
        "lane": fields.numbers("tb_id", fields.is_message, -1, _MAX_INT32, -1),
        "duration_ns": np.where(micros > 0, micros * 1000, -1),
    }
    columns: dict[str, Column] = {}
    for name, dtype in COLUMN_DTYPES.items():
        # Buffers are unknown; counts follow when the sizes of all ranks are known.
        column = known.get(name, np.full(len(tag), COLUMN_DEFAULTS.get(name, 0)))
        columns[name] = column.astype(dtype)
    columns["tag"] = np.where(fields.is_message, channel, -1)
    irregular = irregular_ranks(fields.nodes, links, np.arange(len(tag)))
    return StepChunk(columns | sizes, links.data, links.control, irregular)


def refuse_workload(fields: NodeFields) -> None:
    """Raise `TraceError` for a node that shows that a trace is not an algorithm.

    The rules are checked in this order, each for all nodes; the error is at the first node that
    violates the first violated rule:

    1. Every node is a send, a receive or COMP. A collective, memory or metadata node
       (`_WORKLOAD_TYPES`) gives the code `workload-trace`, any other node `node-type`.
    2. Every send has `comm_dst`.
    3. Every receive has `comm_src`.
    4. Every send and receive has `comm_tag`.

    Rules 2 to 4 give the code `workload-trace`, and the message names the attribute. Its values are
    not checked.
    """
    is_other = ~(fields.is_message | fields.is_comp)
    if is_other.any():
        node = int(is_other.argmax())
        if int(fields.nodes.type[node]) in _WORKLOAD_TYPES:
            raise _create_workload_error(fields, node)
        # A type that is not in the schema, or INVALID_NODE.
        expected = "only COMM_SEND_NODE, COMM_RECV_NODE and COMP_NODE are steps of an algorithm"
        message = f"{_describe_node(fields, node)}: {expected}"
        raise fields.nodes.batch.error_at(node, message, "node-type")
    # A message without peer and tag cannot be matched.
    for name, is_checked in (
        ("comm_dst", fields.is_send),
        ("comm_src", fields.is_receive),
        ("comm_tag", fields.is_message),
    ):
        lacks = is_checked & ~fields.has(name)
        if lacks.any():
            raise _create_workload_error(fields, int(lacks.argmax()), f" without {name}")


def _describe_node(fields: NodeFields, node: int) -> str:
    """Describe a node in messages, in the form `rank RANK has TYPE ID`.

    `node` is the row of the node in `fields`. TYPE is the name of its node type, and ID is
    its id in the trace.
    """
    name = type_name(int(fields.nodes.type[node]))
    return f"rank {fields.rank[node]} has {name} {fields.nodes.id[node]}"


def _create_workload_error(fields: NodeFields, node: int, lack: str = "") -> TraceError:
    message = f"a workload trace, not an algorithm: {_describe_node(fields, node)}{lack}"
    cure = "`collhub inspect` shows what is in it"
    return fields.nodes.batch.error_at(node, message, "workload-trace", cure)


def _read_sizes(fields: NodeFields) -> dict[str, Int64Array]:
    """Return the sizes of messages as the trace gives them: four columns by name, int64 by node.

    - `comm_size`: the size in bytes, 0 if absent.
    - `msg_chunk_idx`, `msg_chunk_cnt`, `total_chunk_cnt`: index, number and total number of
      chunks. They are valid only together, with index at least 0 and both numbers at least 1. All
      three are 0 if they are invalid or absent, or if the message has `comm_size`.

    All four are 0 for nodes that are no messages. Raises `TraceError` in this order: for a value
    that is no integer (`attribute-kind`) or out of range (`attribute-range`), and for the first
    message without `comm_size` and without valid chunks (`missing-attribute`). The range is 1 to
    2^50 for `comm_size`, -1 to 2^31 - 1 for the others.
    """
    size = fields.numbers("comm_size", fields.is_message, 1, LARGEST_MESSAGE, 0)
    chunks = {name: fields.numbers(name, fields.is_message, -1, _MAX_INT32, -1) for name in _TRIPLE}
    index, count, total = chunks.values()
    has_chunks = (total > 0) & (count > 0) & (index >= 0)
    lacks = fields.is_message & (size == 0) & ~has_chunks
    names = "comm_size nor msg_chunk_idx, msg_chunk_cnt and total_chunk_cnt"
    message = f"neither {names} state the size of the message"
    fields.refuse(lacks, message, "missing-attribute")
    # If both are given, bytes are exact, but chunks depend on the reader.
    use_chunks = has_chunks & (size == 0)
    used = {name: np.where(use_chunks, column, 0) for name, column in chunks.items()}
    return {"comm_size": size, **used}


@dataclass(frozen=True, slots=True)
class ForeignSizes:
    """Sizes of a complete foreign set.

    `count`: units of every row in file order; `scale`: units of a chunk of that row;
    `collective_bytes`: the given size.
    """

    collective: Collective
    count: Int64Array
    scale: Int64Array
    collective_bytes: int | None


def foreign_sizes(
    joined: Joined, num_ranks: int, metadata: Metadata, name: str, size: int | None
) -> ForeignSizes:
    """Compute the units and sizes of a trace that was not written by the hub.

    `name` is the place of errors. There are two forms of traces:

    - Absolute, if no message gives its size in chunks: a unit is one byte. The collective has
      `size` units. With None or 0, it is custom and has the maximum number of bytes that any rank
      sends or receives in total, at least 1. `collective_bytes` is this number. More than 2^62
      bytes raise `InputError` (`attribute-range`).
    - Symbolic, if messages give their size as chunk index, count and total: the collective has as
      many units as the least common multiple of all totals. A chunk of a message has units / total
      units (`scale`; 1 for local steps). `size` is ignored, and `collective_bytes` is None. More
      than 2^31 - 1 units raise `InputError` (`size-mismatch`).

    If some messages give bytes and others only chunks, `InputError` (`size-mismatch`) is raised.

    The kind is that of the metadata. It is custom if the name is unknown, and if the number of
    ranks does not divide the units (except for an all-reduce). In a symbolic all-gather with
    messages that end after the last unit, totals count the chunks of one rank's input: the
    collective then has `num_ranks` times the units.
    """
    sizes = joined.columns["comm_size"].astype(np.int64)
    total = joined.columns["total_chunk_cnt"].astype(np.int64)
    if total.any():
        if sizes.any():
            message = "some messages state their size in bytes, others only in chunks"
            raise InputError(message, location=Location(name), code="size-mismatch")
        index, count = (joined.columns[column].astype(np.int64) for column in _TRIPLE[:2])
        # Messages may divide the buffer differently; a unit divides all chunks.
        units = math.lcm(*distinct(total[total > 0]).tolist())
        if units > _MAX_INT32:
            message = "the messages disagree on total_chunk_cnt and have no small common multiple"
            raise InputError(message, location=Location(name), code="size-mismatch")
        scale = np.where(total > 0, units // np.maximum(total, 1), 1)
        highest = int(((index + count) * scale).max())
        kind = _find_kind(metadata, num_ranks, units * num_ranks)
        if highest > units and kind is CollectiveKind.ALL_GATHER:
            # For an all-gather out of place, the published converter counts chunks of a rank's
            # input.
            units *= num_ranks
        collective = _build_collective(_find_kind(metadata, num_ranks, units), num_ranks, units)
        return ForeignSizes(collective, count * scale, scale, None)
    units = size or 0
    if not size:
        rank = joined.columns["rank"]
        is_send = joined.columns["kind"] == StepKind.SEND
        # Local steps carry no bytes. Doubles, because a sum of hostile sizes must not overflow.
        sums = [np.bincount(rank[side], sizes[side].astype(float)) for side in (is_send, ~is_send)]
        units = int(max(side.max(initial=1) for side in sums))
    if units > MAX_UNITS:
        message = "the messages carry more than 2^62 bytes"
        raise InputError(message, location=Location(name), code="attribute-range")
    kind = _find_kind(metadata, num_ranks, units) if size else CollectiveKind.CUSTOM
    return ForeignSizes(
        _build_collective(kind, num_ranks, units), sizes, np.ones_like(total), units
    )


def _find_kind(metadata: Metadata, num_ranks: int, units: int) -> CollectiveKind:
    """Return the kind of collective that the metadata name in the attribute `collective`.

    Known names are all-reduce, all-gather, all-to-all and reduce-scatter; case, hyphens and
    underscores are ignored. Return CUSTOM for any other name, and if there is no name. Also
    return CUSTOM if `units` is not a multiple of `num_ranks`, except for an all-reduce.
    """
    name = metadata.text("collective").lower().replace("_", "").replace("-", "")
    kind = _KINDS.get(name, CollectiveKind.CUSTOM)
    is_whole = kind is CollectiveKind.ALL_REDUCE or units % num_ranks == 0
    return kind if is_whole else CollectiveKind.CUSTOM


def _build_collective(kind: CollectiveKind, num_ranks: int, units: int) -> Collective:
    """Build an out-of-place collective whose full buffer has `units` units.

    In a custom collective, INPUT and OUTPUT of every rank have `units` units, all of INPUT
    is defined, and no result is required. Raise `InputError` if `units` or `num_ranks` is
    out of range, or if the kind divides the buffer and `units` is not a multiple of
    `num_ranks`.
    """
    if kind is not CollectiveKind.CUSTOM:
        return Collective(kind, num_ranks, units)
    sizes = np.full(num_ranks, units, np.int64)
    contract = CustomContract(sizes, sizes, np.ones(num_ranks, np.bool_))
    return Collective(kind, num_ranks, units, contract=contract)
