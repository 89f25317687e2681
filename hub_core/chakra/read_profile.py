"""Nodes of collective profile v1 back to steps, column by column."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.chakra.chunks import Chunk, irregular_ranks
from hub_core.chakra.fields import LARGEST, NodeFields
from hub_core.chakra.links import Edges, Links
from hub_core.chakra.profile import CompKind
from hub_core.model.algorithm import message_bytes
from hub_core.model.kinds import Buffer, StepKind

Int64Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Column = npt.NDArray[np.integer[Any]]

_INT32 = (1 << 31) - 1
_KIND_OF_COMP = np.asarray([StepKind.REDUCE, StepKind.COPY, StepKind.COMPUTE], np.int64)


class ProfileReader:
    """Turns batches of nodes into steps, checking them against what the metadata of rank 0 states."""

    def __init__(self, num_ranks: int, unit_count: int, size: int | None) -> None:
        self._num_ranks = num_ranks
        self._unit_count = unit_count
        self._size = size

    def chunk(self, fields: NodeFields, links: Links, step_counts: Int64Array) -> Chunk:
        """The steps of a batch. `step_counts`: per file, as its metadata states."""
        fields.refuse(
            ~(fields.is_message | fields.is_comp), "an algorithm has no such node", "node-type"
        )
        is_half, is_combine = _receive_reduce(fields, links)
        is_idle = _idle(fields, step_counts)
        columns = self._columns(fields, is_half, is_combine)
        self._check_message(fields, columns)
        is_first = ~(is_combine | is_idle)
        _check_step_counts(fields, is_first, step_counts)
        row_of_node = np.cumsum(is_first) - 1
        row_of_node[is_idle] = -1
        return Chunk(
            {name: column[is_first] for name, column in columns.items() if name != "tag"},
            columns["tag"][is_first].astype(np.int32),
            _rows(links.data, row_of_node, is_combine, fields),
            _rows(links.control, row_of_node, is_combine, fields),
            irregular=irregular_ranks(fields.nodes, links, row_of_node)
            if links.irregular.any()
            else {},
        )

    def _columns(self, fields: NodeFields, is_half: Mask, is_combine: Mask) -> dict[str, Column]:
        everywhere = np.ones(len(fields.rank), np.bool_)
        message = fields.regions("region", fields.is_message)
        sides = [fields.regions(name, fields.is_comp) for name in ("src_region", "dst_region")]
        _check_counts(fields, *sides)
        nothing = np.asarray([Buffer.UNKNOWN, 0, 0])
        src = np.where(
            fields.is_send[:, None], message, np.where(fields.is_comp[:, None], sides[0], nothing)
        )
        dst = np.where(
            fields.is_receive[:, None],
            message,
            np.where(fields.is_comp[:, None], sides[1], nothing),
        )
        # The combining half of a receive-reduce says where the message goes.
        half, combine = np.flatnonzero(is_half), np.flatnonzero(is_combine)
        src[half, :2], dst[half, :2] = sides[0][combine, :2], sides[1][combine, :2]
        duration = _durations(fields)
        duration[half] = duration[combine]
        return {
            "rank": fields.rank.astype(np.int32),
            "kind": _kinds(fields, is_half),
            "peer": self._peers(fields),
            "channel": fields.numbers("channel", everywhere, -_INT32 - 1, _INT32, 0).astype(
                np.int32
            ),
            "src_buffer": src[:, 0].astype(np.uint8),
            "src_offset": src[:, 1],
            "dst_buffer": dst[:, 0].astype(np.uint8),
            "dst_offset": dst[:, 1],
            "count": np.where(
                fields.is_message, message[:, 2], np.maximum(sides[0][:, 2], sides[1][:, 2])
            ),
            "lane": fields.numbers("lane", everywhere, -_INT32 - 1, _INT32, -1).astype(np.int32),
            "duration_ns": duration,
            "source_line": fields.numbers(
                "source_line", everywhere, -_INT32 - 1, _INT32, -1
            ).astype(np.int32),
            "tag": fields.numbers("comm_tag", fields.is_message, 0, _INT32, -1),
        }

    def _peers(self, fields: NodeFields) -> npt.NDArray[np.int32]:
        fields.require("region", fields.is_message)
        fields.require("comm_tag", fields.is_message)
        fields.require("comm_dst", fields.is_send)
        fields.require("comm_src", fields.is_receive)
        last = self._num_ranks - 1
        source = fields.numbers("comm_src", fields.is_message, 0, last, -1)
        target = fields.numbers("comm_dst", fields.is_message, 0, last, -1)
        own = np.where(fields.is_send, source, target)
        wrong = fields.is_message & (own >= 0) & (own != fields.rank)
        fields.refuse(wrong, "its own end of the message is another rank", "rank-files")
        return np.where(fields.is_send, target, source).astype(np.int32)

    def _check_message(self, fields: NodeFields, columns: dict[str, Column]) -> None:
        """The sizes in bytes and in chunks must say what the region says: a reader of either must see one algorithm."""
        count = columns["count"].astype(np.int64)
        has_size = fields.is_message & fields.has("comm_size")
        sizes = fields.numbers("comm_size", has_size, 0, LARGEST, -1)
        if has_size.any():
            if self._size is None:
                fields.refuse(
                    has_size,
                    "comm_size without collective_bytes in the metadata",
                    "missing-metadata",
                )
                return
            largest = int(count.max())
            if largest * self._size // self._unit_count > LARGEST:
                fields.refuse(
                    count == largest, "its size is more than 2^62 bytes", "attribute-range"
                )
            expected = message_bytes(self._size, self._unit_count, count)
            fields.refuse(
                has_size & (sizes != expected),
                "comm_size is not what the count in region comes to",
                "size-mismatch",
            )
        for name, expected in (
            ("total_chunk_cnt", np.full(len(count), self._unit_count)),
            ("msg_chunk_cnt", count),
        ):
            stated = fields.numbers(name, fields.is_message & fields.has(name), -1, _INT32, -1)
            fields.refuse(
                (stated != -1) & (stated != expected),
                f"{name} contradicts unit_count or region",
                "size-mismatch",
            )


def _receive_reduce(fields: NodeFields, links: Links) -> tuple[Mask, Mask]:
    """Which nodes are the receiving and the combining halves of receive-reduce steps."""
    is_half = fields.numbers("is_rrc", fields.is_receive, 0, 1, 0) == 1
    is_combine = np.concatenate([[False], is_half[:-1]])
    kind = fields.numbers("comp_kind", fields.is_comp, 0, max(CompKind), -1)
    is_pair = is_combine & fields.is_comp & (kind == CompKind.REDUCE)
    is_pair[1:] &= fields.rank[1:] == fields.rank[:-1]
    lacks = is_half & ~np.append(is_pair[1:], False)
    fields.refuse(
        lacks,
        "no COMP_NODE with comp_kind 0 follows the receiving half of a receive-reduce",
        "receive-reduce",
    )
    parents = np.bincount(links.data.children, minlength=len(is_half)) + np.bincount(
        links.control.children, minlength=len(is_half)
    )
    waits = np.zeros(len(is_half), np.bool_)
    waits[links.data.children[links.data.parents == links.data.children - 1]] = True
    fields.refuse(
        is_pair & ~(waits & (parents == 1)),
        "it must depend on its receiving half, and on nothing else",
        "receive-reduce",
    )
    for edges in (links.data, links.control):
        early = np.zeros(len(is_half), np.bool_)
        early[edges.children[is_half[edges.parents] & ~is_pair[edges.children]]] = True
        fields.refuse(
            early,
            "it depends on the receiving half of a receive-reduce instead of its COMP_NODE",
            "receive-reduce",
        )
    fields.require("comp_kind", fields.is_comp)
    return is_half, is_pair


def _idle(fields: NodeFields, step_counts: Int64Array) -> Mask:
    """The COMP nodes that stand in for the steps of ranks that have none."""
    sizes = np.diff(fields.nodes.batch.file_indptr)
    is_idle_file = (step_counts == 0) & (sizes == 1)
    is_idle: Mask = is_idle_file[fields.nodes.batch.file_of_node] & fields.is_comp
    return is_idle


def _check_step_counts(fields: NodeFields, is_first: Mask, step_counts: Int64Array) -> None:
    found = np.add.reduceat(is_first.astype(np.int64), fields.nodes.batch.file_indptr[:-1])
    for file in np.flatnonzero(found != step_counts)[:1].tolist():
        last = int(fields.nodes.batch.file_indptr[file + 1]) - 1
        message = (
            f"the file ends here with {found[file]} steps, its metadata states {step_counts[file]}"
        )
        raise fields.fail(
            last, message, "step-count", "the file is cut off or was changed: get it again"
        )


def _check_counts(fields: NodeFields, src: Int64Array, dst: Int64Array) -> None:
    both = fields.is_comp & fields.has("src_region") & fields.has("dst_region")
    fields.refuse(
        both & (src[:, 2] != dst[:, 2]),
        "src_region and dst_region differ in their count",
        "size-mismatch",
    )


def _kinds(fields: NodeFields, is_half: Mask) -> npt.NDArray[np.uint8]:
    comp = _KIND_OF_COMP[
        np.maximum(fields.numbers("comp_kind", fields.is_comp, 0, max(CompKind), 0), 0)
    ]
    receive = np.where(is_half, StepKind.RECV_REDUCE, StepKind.RECV)
    return np.where(
        fields.is_send, StepKind.SEND, np.where(fields.is_receive, receive, comp)
    ).astype(np.uint8)


def _durations(fields: NodeFields) -> Int64Array:
    everywhere = np.ones(len(fields.rank), np.bool_)
    micros = fields.micros()
    stated = np.where(micros > 0, micros * 1000, -1)
    exact = fields.numbers("duration_ns", everywhere, 0, LARGEST, -1)
    return np.where(exact >= 0, exact, stated)


def _rows(edges: Edges, row_of_node: Int64Array, is_combine: Mask, fields: NodeFields) -> Edges:
    """Edges between nodes as edges between steps; the one inside a receive-reduce goes."""
    kept = edges.only(~is_combine[edges.children])
    rows = Edges(row_of_node[kept.parents], row_of_node[kept.children])
    alone = np.zeros(len(row_of_node), np.bool_)
    alone[kept.children[rows.children < 0]] = True
    fields.refuse(
        alone,
        "the stand-in node of a rank without steps depends on something",
        "dangling-dependency",
    )
    return rows
