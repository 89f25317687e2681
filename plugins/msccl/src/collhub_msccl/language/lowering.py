"""Lower a trace to an algorithm.

Operations become messages and local steps, in an order that keeps every rank busy, with their
dependencies. Source of the order: the scheduler of MSCCLang (Cowan et al., ASPLOS 2023, section
on lowering); fusion and thread blocks are left to the writer of the runtime's file.
"""

from __future__ import annotations

import numpy as np
from collhub_columns import BoolArray, Int64Array, group_of_entry, row_pointer, run_mask

from collhub_msccl.conflicts.accesses import Edges, find_accesses, find_conflicts_within_blocks
from collhub_msccl.language.instances import Instances
from collhub_msccl.language.lowered_collective import lowered_collective
from collhub_msccl.language.priorities import execution_order
from collhub_msccl.language.stated_blocks import stated_blocks
from collhub_msccl.language.trace import COPY, OPERATION_FIELDS, Trace
from collhub_msccl.provenance import build_provenance
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    JsonValue,
    Provenance,
    StepKind,
    StepTable,
)

Columns = dict[str, Int64Array]


def lower(trace: Trace, file: str, provenance: Provenance | None = None) -> Algorithm:
    """Return the algorithm of a trace, all instances of it.

    Messages match in row order; rows of a rank follow the longest chains of the dataflow, as the
    public compiler's do. Lanes and control dependencies are there only where the program states
    thread blocks. Raises `InputError` with the line where the stated ones cannot be.
    """
    columns = stated_blocks(_columns(trace), trace.is_manual, file)
    # The order is that of one instance, whose copies depend on each other in nothing.
    order, depth = _order(columns, Instances(trace, columns, 1))
    columns["depth"] = depth
    columns = {name: column[order] for name, column in columns.items()}
    instances = Instances(trace, columns, trace.instances)
    collective = lowered_collective(trace, instances)
    rows = _sends_first(instances.replicated(columns))
    data = _conflicts(rows, collective, instances.scratch_units)
    control = _program_order(rows)
    return Algorithm(
        collective,
        StepTable.from_columns(trace.num_ranks, rows, data, control, file),
        instances.scratch_units,
        provenance or build_provenance(file),
        extensions={"msccl": _extension(trace)},
    )


def _extension(trace: Trace) -> JsonValue:
    """Attributes of the file to write, and whether its channels are for the writer to choose."""
    header: JsonValue = {"name": trace.name, "proto": trace.protocol}
    channel = OPERATION_FIELDS.index("channel")
    states_any = any(operation[channel] >= 0 for operation in trace.operations)
    if trace.is_manual or states_any:
        return {"algo": header}
    return {"algo": header, "channels": "unstated"}


def _columns(trace: Trace) -> Columns:
    """The operations of a trace as columns."""
    rows = np.asarray(trace.operations, np.int64).reshape(-1, len(OPERATION_FIELDS))
    return dict(zip(OPERATION_FIELDS, rows.T, strict=True))


def _order(columns: Columns, single: Instances) -> tuple[Int64Array, Int64Array]:
    """The order of operations, and their depths.

    It is a valid sequential run in which the longest chains go first.
    """
    rows, operation = _rows(single.replicated(columns))
    collective = lowered_collective(single.trace, single)
    parents, children = _conflicts(rows, collective, single.scratch_units)
    return execution_order(len(columns["kind"]), operation[parents], operation[children])


def _sends_first(columns: Columns) -> Columns:
    """Step columns of operations; of equal depth, sends go before receives.

    Operations of equal depth never depend on each other. This keeps a receive next to the send that
    passes it on, where the runtimes can fuse the two.
    """
    rows, operation = _rows(columns)
    is_receive = np.isin(rows["kind"], (StepKind.RECV, StepKind.RECV_REDUCE))
    order = np.lexsort((is_receive, columns["depth"][operation]))
    return {name: column[order] for name, column in rows.items()}


def _rows(columns: Columns) -> tuple[Columns, Int64Array]:
    """Step columns of operations in order, and the operation that each row belongs to.

    A message has two rows, that of the sender first; a local operation has one.
    """
    is_message = columns["src_rank"] != columns["dst_rank"]
    operation = group_of_entry(row_pointer(1 + is_message))
    is_second = ~run_mask(operation)
    first = _first_rows(columns, is_message)
    second = _second_rows(columns)
    rows = {
        name: np.where(is_second, second[name][operation], first[name][operation]) for name in first
    }
    for name, field in (("channel", "channel"), ("count", "size"), ("source_line", "line")):
        rows[name] = columns[field][operation]
    return rows, operation


def _first_rows(columns: Columns, is_message: BoolArray) -> Columns:
    """What a rank does that sends, or that works on its own data."""
    is_copy = columns["kind"] == COPY
    local = np.where(is_copy, StepKind.COPY, StepKind.REDUCE)
    return {
        "rank": columns["src_rank"],
        "kind": np.where(is_message, StepKind.SEND, local),
        "peer": np.where(is_message, columns["dst_rank"], -1),
        "src_buffer": columns["src_buffer"],
        "src_offset": columns["src_index"],
        "dst_buffer": np.where(is_message, Buffer.UNKNOWN, columns["dst_buffer"]),
        "dst_offset": np.where(is_message, 0, columns["dst_index"]),
        "lane": columns["send_block"],
    }


def _second_rows(columns: Columns) -> Columns:
    """What a rank does that receives."""
    is_copy = columns["kind"] == COPY
    return {
        "rank": columns["dst_rank"],
        "kind": np.where(is_copy, StepKind.RECV, StepKind.RECV_REDUCE),
        "peer": columns["src_rank"],
        # The local operand of a reducing receive is what it writes.
        "src_buffer": np.where(is_copy, Buffer.UNKNOWN, columns["dst_buffer"]),
        "src_offset": np.where(is_copy, 0, columns["dst_index"]),
        "dst_buffer": columns["dst_buffer"],
        "dst_offset": columns["dst_index"],
        "lane": columns["receive_block"],
    }


def _conflicts(rows: Columns, collective: Collective, scratch_units: Int64Array) -> Edges:
    """Pairs (earlier row, later row) of a rank that touch the same memory, one of them writing.

    In any mode, in place or out of place, that the collective claims.
    """
    parents, children = [], []
    for in_place, is_claimed in ((True, collective.in_place), (False, collective.out_of_place)):
        if is_claimed:
            layout = collective.memory_layout(in_place, scratch_units)
            earlier, later = _conflicts_in(rows, layout.base)
            parents.append(earlier)
            children.append(later)
    return np.concatenate(parents), np.concatenate(children)


def _conflicts_in(rows: Columns, base: Int64Array) -> Edges:
    """Conflicts where the buffers of a rank begin at `base`: int64[ranks, 3]."""
    accesses = find_accesses(rows, rows["rank"], base)
    # Where steps touch more units than can be looked at, all of a rank's order is kept.
    if accesses is None:
        return _chain(rows["rank"])
    return find_conflicts_within_blocks(accesses)


def _program_order(rows: Columns) -> Edges:
    """The order of steps in each stated thread block."""
    has_lane = np.flatnonzero(rows["lane"] >= 0)
    lane = rows["lane"][has_lane]
    lanes = int(rows["lane"].max(initial=0)) + 1
    # One number for a thread block of a rank.
    parents, children = _chain(rows["rank"][has_lane] * lanes + lane)
    return has_lane[parents], has_lane[children]


def _chain(key: Int64Array) -> Edges:
    """Each entry with the next one of the same key."""
    order = np.argsort(key, kind="stable")
    # A stable sort keeps the entries of a key in their order.
    is_same = key[order[1:]] == key[order[:-1]]
    return order[:-1][is_same], order[1:][is_same]
