"""Convert nodes of collective profile v1 to steps, column by column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hub_core.chakra import LARGEST, Column, Edges, NodeFields, ResolvedLinks, Triple
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import COLUMN_DTYPES, Buffer, StepKind, message_bytes
from hub_core.trace_profile.metadata import CompKind
from hub_core.trace_profile.step_chunks import StepChunk, irregular_ranks

_MAX_INT32 = (1 << 31) - 1
_MIN_INT32 = -_MAX_INT32 - 1
_KIND_OF_COMP = np.zeros(len(CompKind), np.int64)
_KIND_OF_COMP[CompKind.REDUCE] = StepKind.REDUCE
_KIND_OF_COMP[CompKind.COPY] = StepKind.COPY
_KIND_OF_COMP[CompKind.OTHER] = StepKind.COMPUTE
_REGION = Triple(
    ("buffer", "offset", "count"), (max(Buffer), LARGEST, LARGEST), (Buffer.UNKNOWN, 0, 0)
)


class StatedSizes(NamedTuple):
    """Sizes in the metadata of rank 0; `size`: for comm_size, None without sizes in bytes."""

    num_ranks: int
    unit_count: int
    size: int | None


def profile_chunk(
    fields: NodeFields, links: ResolvedLinks, step_counts: Int64Array, sizes: StatedSizes
) -> StepChunk:
    """Convert a batch of nodes to steps and their dependencies, in the order of the nodes.

    Each node is a step, with two exceptions. A receive with `is_rrc` 1 and the next node, a COMP,
    are one step (receive-reduce). A COMP that is the only node of a file that declares 0 steps is
    none (a placeholder). Dependencies become pairs of steps of the batch, from 0. Those between
    the two nodes of a receive-reduce are dropped. `step_counts`: declared steps by file.

    Raises `TraceError` for the first defect. The checks, in this order:

    - `node-type`: a node is no send, receive or COMP
    - the codes of `_find_receive_reduces`, then of invalid attributes, then of `_check_bytes`
    - `size-mismatch`: `total_chunk_cnt` or `msg_chunk_cnt` contradicts units or region
    - `step-count`: a file has another number of steps than declared; at its last node
    - `dangling-dependency`: a placeholder has a dependency
    """
    is_unknown = ~(fields.is_message | fields.is_comp)
    fields.refuse(is_unknown, "an algorithm has no such node", "node-type")
    is_half, is_combine = _find_receive_reduces(fields, links)
    # One COMP is the placeholder of a rank that declares no steps.
    batch = fields.nodes.batch
    is_idle_file = (step_counts == 0) & (np.diff(batch.file_indptr) == 1)
    is_idle = is_idle_file[batch.file_of_node] & fields.is_comp
    columns = _build_columns(fields, is_half, is_combine, sizes.num_ranks)
    _check_bytes(fields, columns["count"], sizes)
    # Chunks are units in this profile; -1 is no size.
    expected_chunks = {"total_chunk_cnt": sizes.unit_count, "msg_chunk_cnt": columns["count"]}
    for name, expected in expected_chunks.items():
        values = fields.numbers(name, fields.is_message, -1, _MAX_INT32, -1)
        wrong = (values != -1) & (values != expected)
        fields.refuse(wrong, f"{name} contradicts unit_count or region", "size-mismatch")
    is_first = ~(is_combine | is_idle)
    # Every file has nodes, so no segment is empty.
    counts_of_files = np.add.reduceat(is_first.astype(np.int64), batch.file_indptr[:-1])
    wrong_files = np.flatnonzero(counts_of_files != step_counts)
    if len(wrong_files):
        file = int(wrong_files[0])
        counts = f"{counts_of_files[file]} steps, its metadata states {step_counts[file]}"
        message = f"the file ends here with {counts}"
        cure = "the file is cut off or was changed: get it again"
        raise fields.fail(int(batch.file_indptr[file + 1]) - 1, message, "step-count", cure)
    row_of_node = np.cumsum(is_first) - 1
    # A placeholder is no step; dependencies on it are refused with the edges.
    row_of_node[is_idle] = -1
    return StepChunk(
        {name: column[is_first] for name, column in columns.items()},
        _convert_edges(links.data, row_of_node, is_combine, fields),
        _convert_edges(links.control, row_of_node, is_combine, fields),
        irregular_ranks(fields.nodes, links, row_of_node),
    )


def _build_columns(
    fields: NodeFields, is_half: BoolArray, is_combine: BoolArray, num_ranks: int
) -> dict[str, Column]:
    """Return the columns of `StepTable` and `tag` with one entry per node, checked for range.

    - `rank`: that of the file. Operands and `count`: those of `_read_regions`.
    - `kind`: SEND, RECV, or RECV_REDUCE for a receiving half (`is_half`). A COMP gets REDUCE, COPY
      or COMPUTE for comp_kind 0, 1 or 2. A combining half (`is_combine`) keeps its row.
    - `duration_ns`: `duration_ns` of the node, otherwise its microseconds x 1000, -1 without
      both. A receiving half gets that of its combining half.
    - `peer`: the other end of a message, -1 for COMP.
    - `channel` (default 0), `lane` (-1), `source_line` (-1): any int32.
    - `tag`: `comm_tag` of a message, 0 to 2^31 - 1; -1 for other nodes.

    The dtypes are those of the model (`COLUMN_DTYPES`), int32 for `tag`.

    Raises `TraceError`: `attribute-kind` or `attribute-range` for a wrong value, `size-mismatch`
    (see `_read_regions`), `missing-attribute` for a message without region, `comm_tag` or other
    end, `rank-files` for a message whose own end is given and is not the rank of its file. An end
    must be below `num_ranks`.
    """
    columns: dict[str, Column] = {"rank": fields.rank, **_read_regions(fields, is_half, is_combine)}
    micros = fields.micros()
    # proto3 does not distinguish 0 from absent.
    rounded = np.where(micros > 0, micros * 1000, -1)
    # The attribute has no rounding error.
    exact = fields.numbers("duration_ns", fields.everywhere, 0, LARGEST, -1)
    duration = np.where(exact >= 0, exact, rounded)
    duration[is_half] = duration[is_combine]
    comp_kind = fields.numbers("comp_kind", fields.is_comp, 0, max(CompKind), 0)
    # The first condition decides, so halves precede receives.
    conditions = [fields.is_send, is_half, fields.is_receive]
    kinds = [StepKind.SEND, StepKind.RECV_REDUCE, StepKind.RECV]
    columns["duration_ns"] = duration
    columns["kind"] = np.select(conditions, kinds, _KIND_OF_COMP[comp_kind])
    columns["peer"] = _read_peers(fields, num_ranks - 1)
    for name, default in (("channel", 0), ("lane", -1), ("source_line", -1)):
        columns[name] = fields.numbers(name, fields.everywhere, _MIN_INT32, _MAX_INT32, default)
    columns["tag"] = fields.numbers("comm_tag", fields.is_message, 0, _MAX_INT32, -1)
    # All values were checked against the dtypes of the model.
    return {
        name: column.astype(COLUMN_DTYPES.get(name, np.int32)) for name, column in columns.items()
    }


def _read_peers(fields: NodeFields, last: int) -> Int64Array:
    """Return the peer of every message: int64[nodes], -1 for nodes that are no message.

    The peer is `comm_dst` of a send and `comm_src` of a receive, from 0 to `last`. The opposite
    attribute (`comm_src` of a send, `comm_dst` of a receive) is optional and names the rank itself.

    Raises `TraceError` in this order:

    - `missing-attribute`: a message has no region, tag or peer.
    - `attribute-kind`, `attribute-range`: `comm_src`, then `comm_dst`, of a message is no integer,
      or not in 0..`last`.
    - `rank-files`: the opposite attribute is present and differs from the rank of the file.
    """
    fields.require("region", fields.is_message)
    fields.require("comm_tag", fields.is_message)
    fields.require("comm_dst", fields.is_send)
    fields.require("comm_src", fields.is_receive)
    # A message may contain both ends; only the other end is required.
    source = fields.numbers("comm_src", fields.is_message, 0, last, -1)
    target = fields.numbers("comm_dst", fields.is_message, 0, last, -1)
    own_end = np.where(fields.is_send, source, target)
    wrong = fields.is_message & (own_end >= 0) & (own_end != fields.rank)
    fields.refuse(wrong, "its own end of the message is another rank", "rank-files")
    return np.where(fields.is_send, target, source)


def _check_bytes(fields: NodeFields, count: Column, sizes_of_set: StatedSizes) -> None:
    """Raise `TraceError` for a message whose `comm_size` is not the number of bytes of its units.

    `count`: units of each node. The expected size is ceil(count x S / U), with S = bytes of the
    collective (`size`) and U = `unit_count` of the metadata. Messages without `comm_size` are not
    checked. The codes, in the order of the checks:

    - `attribute-kind`: a `comm_size` is not an integer.
    - `attribute-range`: a `comm_size` is negative or above 2^62. If no message has a `comm_size`,
      the checks end here.
    - `missing-metadata`: the metadata have no size of the collective (`size` is None).
    - `attribute-range`: the largest count of all nodes, also of COMP, has more than 2^62 bytes.
    - `size-range` (an `InputError` of `message_bytes`): the distinct counts have together about
      2^63 bytes or more.
    - `size-mismatch`: a `comm_size` is wrong.
    """
    has_size = fields.is_message & fields.has("comm_size")
    sizes = fields.numbers("comm_size", has_size, 0, LARGEST, -1)
    if not has_size.any():
        return
    if sizes_of_set.size is None:
        message = "comm_size without collective_bytes in the metadata"
        raise fields.fail(int(has_size.argmax()), message, "missing-metadata")
    largest = int(count.max())
    # Python integers, because the product may exceed 64 bits.
    if largest * sizes_of_set.size // sizes_of_set.unit_count > LARGEST:
        fields.refuse(count == largest, "its size is more than 2^62 bytes", "attribute-range")
    # Each distinct count once, because the sum over all messages has a limit that does not apply
    # here.
    counts, position = np.unique(count.astype(np.int64), return_inverse=True)
    expected = message_bytes(sizes_of_set.size, sizes_of_set.unit_count, counts)[position]
    message = "comm_size differs from the bytes of the count in region"
    fields.refuse(has_size & (sizes != expected), message, "size-mismatch")


def _read_regions(
    fields: NodeFields, is_half: BoolArray, is_combine: BoolArray
) -> dict[str, Int64Array]:
    """Return buffer and offset of both operands of every node, and its count in units.

    The columns are `src_buffer`, `src_offset`, `dst_buffer`, `dst_offset` and `count`, int64 with
    one entry per node. A region is a list [buffer, offset, count].

    - A send has its `region` as source, a receive as destination. The other operand is unused.
    - A COMP has `src_region` and `dst_region`; its count is the larger of their counts.
    - A receiving half (`is_half`) gets both operands of its combining half (`is_combine`, the next
      node), but the count of its own region.

    An unused operand, and one whose attribute is missing, is (UNKNOWN, 0); a missing region counts
    0 units. Raises `TraceError`: first `attribute-kind` for a region that is no list of three
    integers, and `attribute-range` for a negative or too large entry. Then `size-mismatch` if both
    regions of a COMP are given with different counts, or if a region of a combining half is given
    with another count than the region of its receiving half.
    """
    message = fields.triple("region", fields.is_message, _REGION)
    src = fields.triple("src_region", fields.is_comp, _REGION)
    dst = fields.triple("dst_region", fields.is_comp, _REGION)
    both = fields.is_comp & fields.has("src_region") & fields.has("dst_region")
    differs = both & (src[2] != dst[2])
    fields.refuse(differs, "src_region and dst_region differ in their count", "size-mismatch")
    for name, region in (("src_region", src), ("dst_region", dst)):
        # The second half is the node after the first.
        unequal = np.zeros(len(is_half), np.bool_)
        is_stated = fields.has(name)[is_combine] & fields.has("region")[is_half]
        unequal[is_half] = is_stated & (region[2][is_combine] != message[2][is_half])
        text = f"{name} of its COMP_NODE has another count than its region"
        fields.refuse(unequal, text, "size-mismatch")
    columns: dict[str, Int64Array] = {}
    for side, region, carries in (("src", src, fields.is_send), ("dst", dst, fields.is_receive)):
        buffer = np.where(carries, message[0], region[0])
        offset = np.where(carries, message[1], region[1])
        # The combining half of a receive-reduce contains the destination.
        buffer[is_half], offset[is_half] = buffer[is_combine], offset[is_combine]
        columns |= {f"{side}_buffer": buffer, f"{side}_offset": offset}
    columns["count"] = np.where(fields.is_message, message[2], np.maximum(src[2], dst[2]))
    return columns


def _find_receive_reduces(fields: NodeFields, links: ResolvedLinks) -> tuple[BoolArray, BoolArray]:
    """Return the masks of the receiving and of the combining halves of receive-reduce steps.

    Both are bool[nodes]. A receive whose attribute `is_rrc` is 1 is a receiving half (0 or missing:
    it is not). The next node of its file is its combining half.

    Raises `TraceError` at the first faulty node. The checks, in this order:

    - `attribute-kind`, `attribute-range`: `is_rrc` of a receive is not 0 or 1, or comp_kind of a
      COMP not 0, 1 or 2.
    - `receive-reduce`: the node after a receiving half is no COMP with comp_kind 0, or is of
      another file, or there is none.
    - `receive-reduce`: the combining half has not exactly one dependency, a data dependency on its
      receiving half.
    - `receive-reduce`: a node other than a combining half depends on a receiving half, by data or
      control.
    - `missing-attribute`: a COMP, of any step, has no comp_kind.
    """
    is_half = fields.numbers("is_rrc", fields.is_receive, 0, 1, 0) == 1
    kind = fields.numbers("comp_kind", fields.is_comp, 0, max(CompKind), -1)
    is_pair: BoolArray = fields.is_comp & (kind == CompKind.REDUCE)
    # The first node of a batch has no predecessor; that of another file has one of another rank.
    is_pair[:1] = False
    is_pair[1:] &= is_half[:-1]
    is_pair[1:] &= fields.rank[1:] == fields.rank[:-1]
    lacks = is_half & ~np.append(is_pair[1:], False)
    message = "no COMP_NODE with comp_kind 0 follows the receiving half of a receive-reduce"
    fields.refuse(lacks, message, "receive-reduce")
    nodes = len(is_pair)
    # A dependency that is listed twice counts twice.
    dependencies = np.zeros(nodes, np.int64)
    for edges in (links.data, links.control):
        dependencies += np.bincount(edges.children, minlength=nodes)
    is_next = links.data.parents == links.data.children - 1
    depends_on_previous = _build_mask(links.data.children[is_next], nodes)
    unfit = is_pair & ~((dependencies == 1) & depends_on_previous)
    message = "it must depend on its receiving half, and on nothing else"
    fields.refuse(unfit, message, "receive-reduce")
    message = "it depends on the receiving half of a receive-reduce instead of its COMP_NODE"
    for edges in (links.data, links.control):
        is_early = is_half[edges.parents] & ~is_pair[edges.children]
        fields.refuse(_build_mask(edges.children[is_early], nodes), message, "receive-reduce")
    fields.require("comp_kind", fields.is_comp)
    return is_half, is_pair


def _build_mask(rows: Int64Array, count: int) -> BoolArray:
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return mask


def _convert_edges(
    edges: Edges, row_of_node: Int64Array, is_combine: BoolArray, fields: NodeFields
) -> Edges:
    """Convert edges between nodes to edges between steps, in the same order.

    `row_of_node`: step of every node, -1 for the placeholder of a rank without steps. Edges
    to combining halves (`is_combine`) are dropped: they only connect the two halves of a
    receive-reduce, which are one step. Raise `TraceError` (`dangling-dependency`) if a
    placeholder has a dependency.
    """
    external = edges.only(~is_combine[edges.children])
    rows = Edges(row_of_node[external.parents], row_of_node[external.children])
    # The placeholder of a rank without steps has no row.
    is_placeholder_child = _build_mask(external.children[rows.children < 0], len(row_of_node))
    message = "the placeholder node of a rank without steps depends on something"
    fields.refuse(is_placeholder_child, message, "dangling-dependency")
    return rows
