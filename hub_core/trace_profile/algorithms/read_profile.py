"""Nodes of collective profile v1 back to steps, column by column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hub_core.chakra import LARGEST, Column, Edges, NodeFields, ResolvedLinks, Triple
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import COLUMN_DTYPES, Buffer, StepKind, message_bytes
from hub_core.trace_profile.algorithms.chunks import Chunk, irregular_ranks
from hub_core.trace_profile.algorithms.profile import CompKind

_INT32 = (1 << 31) - 1
_LEAST_INT32 = -_INT32 - 1
_KIND_OF_COMP = np.zeros(len(CompKind), np.int64)
_KIND_OF_COMP[CompKind.REDUCE] = StepKind.REDUCE
_KIND_OF_COMP[CompKind.COPY] = StepKind.COPY
_KIND_OF_COMP[CompKind.OTHER] = StepKind.COMPUTE
_REGION = Triple(
    ("buffer", "offset", "count"), (max(Buffer), LARGEST, LARGEST), (Buffer.UNKNOWN, 0, 0)
)


class StatedSizes(NamedTuple):
    """What the metadata of rank 0 state; `size`: what comm_size is for, None without sizes."""

    num_ranks: int
    unit_count: int
    size: int | None


def profile_chunk(
    fields: NodeFields, links: ResolvedLinks, step_counts: Int64Array, stated: StatedSizes
) -> Chunk:
    """The steps of a batch of nodes. `step_counts`: per file, as its metadata states."""
    is_other = ~(fields.is_message | fields.is_comp)
    fields.refuse(is_other, "an algorithm has no such node", "node-type")
    is_half, is_combine = _receive_reduce(fields, links)
    # One COMP stands in for the steps of a rank that states none.
    batch = fields.nodes.batch
    is_idle_file = (step_counts == 0) & (np.diff(batch.file_indptr) == 1)
    is_idle = is_idle_file[batch.file_of_node] & fields.is_comp
    columns = _columns(fields, is_half, is_combine, stated.num_ranks)
    _check_bytes(fields, columns["count"], stated)
    _check_chunks(fields, columns["count"], stated.unit_count)
    is_first = ~(is_combine | is_idle)
    _check_step_counts(fields, is_first, step_counts)
    row_of_node = np.cumsum(is_first) - 1
    # A stand-in is no step; that nothing depends on it is checked with the edges.
    row_of_node[is_idle] = -1
    return Chunk(
        {name: column[is_first] for name, column in columns.items()},
        _rows(links.data, row_of_node, is_combine, fields),
        _rows(links.control, row_of_node, is_combine, fields),
        irregular_ranks(fields.nodes, links, row_of_node),
    )


def _columns(
    fields: NodeFields, is_half: BoolArray, is_combine: BoolArray, num_ranks: int
) -> dict[str, Column]:
    """The columns of `StepTable` and `tag`, one entry a node."""
    columns: dict[str, Column] = {"rank": fields.rank, **_regions(fields, is_half, is_combine)}
    duration = _durations(fields)
    duration[is_half] = duration[is_combine]
    comp_kind = fields.numbers("comp_kind", fields.is_comp, 0, max(CompKind), 0)
    # The first condition that holds decides, so that halves go before receives.
    conditions = [fields.is_send, is_half, fields.is_receive]
    kinds = [StepKind.SEND, StepKind.RECV_REDUCE, StepKind.RECV]
    columns["duration_ns"] = duration
    columns["kind"] = np.select(conditions, kinds, _KIND_OF_COMP[comp_kind])
    columns["peer"] = _peers(fields, num_ranks - 1)
    for name, default in (("channel", 0), ("lane", -1), ("source_line", -1)):
        columns[name] = fields.numbers(name, fields.everywhere, _LEAST_INT32, _INT32, default)
    columns["tag"] = fields.numbers("comm_tag", fields.is_message, 0, _INT32, -1)
    # Everything was held within the dtypes of the model.
    return {
        name: column.astype(COLUMN_DTYPES.get(name, np.int32)) for name, column in columns.items()
    }


def _peers(fields: NodeFields, last: int) -> Int64Array:
    """The other end of every message; the own end, where it is stated, must be this rank."""
    fields.require("region", fields.is_message)
    fields.require("comm_tag", fields.is_message)
    fields.require("comm_dst", fields.is_send)
    fields.require("comm_src", fields.is_receive)
    # A message states both ends; only the other one must be there.
    source = fields.numbers("comm_src", fields.is_message, 0, last, -1)
    target = fields.numbers("comm_dst", fields.is_message, 0, last, -1)
    own = np.where(fields.is_send, source, target)
    wrong = fields.is_message & (own >= 0) & (own != fields.rank)
    fields.refuse(wrong, "its own end of the message is another rank", "rank-files")
    return np.where(fields.is_send, target, source)


def _check_bytes(fields: NodeFields, count: Column, stated: StatedSizes) -> None:
    """The size in bytes must say what the region says: readers of either see one algorithm."""
    has_size = fields.is_message & fields.has("comm_size")
    sizes = fields.numbers("comm_size", has_size, 0, LARGEST, -1)
    if not has_size.any():
        return
    if stated.size is None:
        message = "comm_size without collective_bytes in the metadata"
        raise fields.fail(int(has_size.argmax()), message, "missing-metadata")
    largest = int(count.max())
    # In Python's integers: the product may not fit 64 bits.
    if largest * stated.size // stated.unit_count > LARGEST:
        fields.refuse(count == largest, "its size is more than 2^62 bytes", "attribute-range")
    # Each count once: the sum over all messages, which has its own limit, is no matter here.
    counts, position = np.unique(count.astype(np.int64), return_inverse=True)
    expected = message_bytes(stated.size, stated.unit_count, counts)[position]
    message = "comm_size is not what the count in region comes to"
    fields.refuse(has_size & (sizes != expected), message, "size-mismatch")


def _check_chunks(fields: NodeFields, count: Column, unit_count: int) -> None:
    """The same of sizes in chunks; -1 says nothing."""
    # Chunks are units: the profile knows no other size of a chunk.
    for name, expected in (("total_chunk_cnt", unit_count), ("msg_chunk_cnt", count)):
        stated = fields.numbers(name, fields.is_message, -1, _INT32, -1)
        wrong = (stated != -1) & (stated != expected)
        fields.refuse(wrong, f"{name} contradicts unit_count or region", "size-mismatch")


def _regions(
    fields: NodeFields, is_half: BoolArray, is_combine: BoolArray
) -> dict[str, Int64Array]:
    """What every node reads and writes; the unused side of a step is (UNKNOWN, 0)."""
    message = fields.triple("region", fields.is_message, _REGION)
    src = fields.triple("src_region", fields.is_comp, _REGION)
    dst = fields.triple("dst_region", fields.is_comp, _REGION)
    both = fields.is_comp & fields.has("src_region") & fields.has("dst_region")
    differs = both & (src[2] != dst[2])
    fields.refuse(differs, "src_region and dst_region differ in their count", "size-mismatch")
    columns: dict[str, Int64Array] = {}
    for side, region, carries in (("src", src, fields.is_send), ("dst", dst, fields.is_receive)):
        buffer = np.where(carries, message[0], region[0])
        offset = np.where(carries, message[1], region[1])
        # The combining half of a receive-reduce says where the message goes.
        buffer[is_half], offset[is_half] = buffer[is_combine], offset[is_combine]
        columns |= {f"{side}_buffer": buffer, f"{side}_offset": offset}
    columns["count"] = np.where(fields.is_message, message[2], np.maximum(src[2], dst[2]))
    return columns


def _receive_reduce(fields: NodeFields, links: ResolvedLinks) -> tuple[BoolArray, BoolArray]:
    """Which nodes are the receiving and the combining halves of receive-reduce steps.

    The halves stand side by side; the second waits for the first alone, all others for the second.
    """
    is_half = fields.numbers("is_rrc", fields.is_receive, 0, 1, 0) == 1
    is_pair = _follows_half(fields, is_half)
    lacks = is_half & ~np.append(is_pair[1:], False)
    message = "no COMP_NODE with comp_kind 0 follows the receiving half of a receive-reduce"
    fields.refuse(lacks, message, "receive-reduce")
    unfit = is_pair & ~_waits_for_the_one_before(links, len(is_pair))
    message = "it must depend on its receiving half, and on nothing else"
    fields.refuse(unfit, message, "receive-reduce")
    message = "it depends on the receiving half of a receive-reduce instead of its COMP_NODE"
    for edges in (links.data, links.control):
        is_early = is_half[edges.parents] & ~is_pair[edges.children]
        fields.refuse(_mask(edges.children[is_early], len(is_half)), message, "receive-reduce")
    fields.require("comp_kind", fields.is_comp)
    return is_half, is_pair


def _follows_half(fields: NodeFields, is_half: BoolArray) -> BoolArray:
    """Reductions right behind a receiving half of their rank."""
    kind = fields.numbers("comp_kind", fields.is_comp, 0, max(CompKind), -1)
    is_pair: BoolArray = fields.is_comp & (kind == CompKind.REDUCE)
    # The first node of a batch has none before it; in other files another rank stands there.
    is_pair[:1] = False
    is_pair[1:] &= is_half[:-1]
    is_pair[1:] &= fields.rank[1:] == fields.rank[:-1]
    return is_pair


def _waits_for_the_one_before(links: ResolvedLinks, nodes: int) -> BoolArray:
    """Nodes whose only dependency is a data dependency on the node right before them."""
    parents = np.zeros(nodes, np.int64)
    for edges in (links.data, links.control):
        parents += np.bincount(edges.children, minlength=nodes)
    is_next = links.data.parents == links.data.children - 1
    is_only: BoolArray = parents == 1
    is_only &= _mask(links.data.children[is_next], nodes)
    return is_only


def _mask(rows: Int64Array, count: int) -> BoolArray:
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return mask


def _check_step_counts(fields: NodeFields, is_first: BoolArray, step_counts: Int64Array) -> None:
    """Every file must hold as many steps as its metadata states."""
    indptr = fields.nodes.batch.file_indptr
    # No file is without nodes, so that no segment is empty.
    found = np.add.reduceat(is_first.astype(np.int64), indptr[:-1])
    wrong = np.flatnonzero(found != step_counts)
    if len(wrong):
        file = int(wrong[0])
        counts = f"{found[file]} steps, its metadata states {step_counts[file]}"
        message = f"the file ends here with {counts}"
        cure = "the file is cut off or was changed: get it again"
        raise fields.fail(int(indptr[file + 1]) - 1, message, "step-count", cure)


def _durations(fields: NodeFields) -> Int64Array:
    """The attribute in nanoseconds, else the field in microseconds, else -1."""
    micros = fields.micros()
    # proto3 does not tell 0 from absent.
    rounded = np.where(micros > 0, micros * 1000, -1)
    # Whoever reads the attribute loses nothing to rounding.
    exact = fields.numbers("duration_ns", fields.everywhere, 0, LARGEST, -1)
    return np.where(exact >= 0, exact, rounded)


def _rows(
    edges: Edges, row_of_node: Int64Array, is_combine: BoolArray, fields: NodeFields
) -> Edges:
    """Edges between nodes as edges between steps; the one inside a receive-reduce goes."""
    kept = edges.only(~is_combine[edges.children])
    rows = Edges(row_of_node[kept.parents], row_of_node[kept.children])
    # The stand-in of a rank without steps has no row.
    alone = _mask(kept.children[rows.children < 0], len(row_of_node))
    message = "the stand-in node of a rank without steps depends on something"
    fields.refuse(alone, message, "dangling-dependency")
    return rows
