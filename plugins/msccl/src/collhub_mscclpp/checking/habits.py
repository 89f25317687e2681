"""Check for operations that the executor interprets differently than a plan suggests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collhub_mscclpp.checking.lowering import Ranges
from collhub_mscclpp.checking.memory import PlanMemory
from collhub_mscclpp.checking.report import PlanFindings
from collhub_mscclpp.options import ALIGNMENT
from collhub_mscclpp.plans.operations import CHANNEL_TYPES, KNOWN, Role, Scope
from collhub_mscclpp.plans.records import Plan
from hub_core.columns import BoolArray, expanded_ranges
from hub_core.model import Buffer

_MEMORY = CHANNEL_TYPES.index("memory")
# Operations that make earlier stores visible to other ranks.
_RELEASES = frozenset(("signal", "sem_release", "barrier"))


def check_habits(
    plan: Plan,
    findings: PlanFindings,
) -> None:
    """Warn of operations whose effect differs from their members."""
    table, operands = plan.operations, plan.operands
    first_of: dict[int, int] = {}
    indices: dict[tuple[int, int], int] = {}
    for row, position, is_dst, buffer, index in zip(
        operands.operation.tolist(),
        operands.position.tolist(),
        operands.is_dst.tolist(),
        operands.buffer.tolist(),
        operands.index.tolist(),
        strict=True,
    ):
        operation = plan.operation(row)
        name = operation.name if operation else ""
        is_memory = table.channel_type[row] == _MEMORY
        is_source_of_put = name in ("put", "ppkt") and is_memory and not is_dst
        if is_source_of_put and first_of.setdefault(row, buffer) != buffer:
            message = "the executor takes the buffer of src_buff[0] for all of its sources"
            findings.warn_at("put-sources", row, message, "use one operation a buffer")
        if name == "get" and indices.setdefault((row, position), index) != index:
            message = "the executor swaps the indices of both sides of a get"
            findings.warn_at("get-indices", row, message, "use equal indices")
    named = np.bincount(plan.items.operation, minlength=len(table))
    for row in range(len(table)):
        operation = plan.operation(row)
        if operation and operation.signals and table.channel_type[row] == _MEMORY:
            message = "on memory channels it does not signal"
            findings.warn_at("memory-signal", row, message, "write put, nop, signal")
        if operation and operation.role is Role.FLUSH and table.flushed[row] < named[row]:
            message = (
                f"the executor counts the channels of a flush by dst_buff, which has"
                f" {table.flushed[row]} entries for {named[row]} channels: it does not wait for all"
            )
            cure = "list one entry in dst_buff for each channel"
            findings.warn_at("flush-count", row, message, cure)
    if plan.header.alignment % ALIGNMENT and len(operands):
        message = (
            f"with buffer_alignment {plan.header.alignment} ranges may start or end between"
            f" multiples of {ALIGNMENT} bytes, where sums, packets and copies take other addresses"
        )
        row = int(operands.operation[0])
        findings.warn_at("alignment", row, message, f"use a multiple of {ALIGNMENT}")


def check_relaxed_signals(plan: Plan, findings: PlanFindings) -> None:
    """Warn of relaxed signals to a rank to which the thread block has stored plain data before.

    A relaxed signal does not order stores, so the peer may see it before the data. Packets are
    ordered by their flags. A signal, a release or a barrier in between orders the stores.
    """
    table, items = plan.operations, plan.items
    stored: dict[int, set[int]] = {}
    for row, peer in _plain_remote_stores(plan):
        stored.setdefault(row, set()).add(peer)
    relaxed: dict[int, set[int]] = {}
    is_relaxed = np.asarray([operation.name == "rlxsignal" for operation in KNOWN] + [False])
    for row, item in zip(items.operation.tolist(), items.item.tolist(), strict=True):
        if is_relaxed[table.code[row]]:
            kind = CHANNEL_TYPES[int(table.channel_type[row])]
            gpu = plan.gpus[plan.blocks[int(table.block[row])].rank]
            relaxed.setdefault(row, set()).add(gpu.peers[kind][item])
    is_release = np.asarray([operation.name in _RELEASES for operation in KNOWN] + [False])[
        table.code
    ]
    rows = sorted({*stored, *relaxed, *np.flatnonzero(is_release).tolist()})
    pending: set[int] = set()
    block = -1
    for row in rows:
        if table.block[row] != block:
            block, pending = int(table.block[row]), set()
        if is_release[row]:
            pending = set()
        pending |= stored.get(row, set())
        for peer in sorted(relaxed.get(row, set()) & pending):
            message = f"a relaxed signal does not order the data stored at rank {peer} before"
            findings.warn_at("relaxed-signal", row, message, "use signal and wait")


def _plain_remote_stores(plan: Plan) -> Iterator[tuple[int, int]]:
    """Yield (row, rank) of every destination that is stored over a memory channel without flags."""
    table, operands = plan.operations, plan.operands
    is_remote = (operands.is_dst == 1) & (operands.scope == Scope.REMOTE)
    is_remote &= table.channel_type[operands.operation] == _MEMORY
    for at in np.flatnonzero(is_remote).tolist():
        row = int(operands.operation[at])
        operation = plan.operation(row)
        if operation and not operation.has_packets(True, int(operands.position[at])):
            gpu = plan.gpus[plan.blocks[int(table.block[row])].rank]
            yield row, gpu.remote_buffers[int(operands.reference[at])].rank


def check_pipelines(
    plan: Plan,
    findings: PlanFindings,
) -> None:
    """Report operations in pipelines with other sizes than the pipeline or with `tbg_info`."""
    table, operands = plan.operations, plan.operands
    outer = table.pipeline[operands.operation]
    is_inside = outer >= 0
    is_odd = operands.size != table.slice_chunks[outer]
    is_odd |= table.parts[operands.operation] > 1
    for row in np.unique(operands.operation[is_inside & is_odd]).tolist():
        slice_chunks = int(table.slice_chunks[table.pipeline[row]])
        message = f"in this pipeline ranges have {slice_chunks} chunks, and no tbg_info"
        findings.at("pipeline-range", row, message, "the executor's sizes wrap otherwise")


def check_scratch(
    plan: Plan,
    memory: PlanMemory,
    ranges: Ranges,
    findings: PlanFindings,
) -> None:
    """Report packets outside scratch, packets without space, and chunks used in both forms."""
    operands = plan.operands
    buffer = operands.buffer[ranges.operand]
    is_scratch = buffer == Buffer.SCRATCH
    row = operands.operation[ranges.operand]
    for operation_row in np.unique(row[(ranges.is_packet == 1) & ~is_scratch]).tolist():
        findings.at(
            "packet-buffer", operation_row, "packets lie in scratch only", "name a scratch buffer"
        )
    start = ranges.base - memory.layout.base[ranges.rank, Buffer.SCRATCH]
    is_packet = (ranges.is_packet == 1) & is_scratch
    packet_start = start - memory.halves * memory.half[ranges.rank]
    # A packet has as many flag words as data words, so packet k is stored at 2 k.
    room = memory.half[ranges.rank] * (2 if plan.header.protocol == "LL" else 1)
    overruns = is_packet & (2 * (packet_start + ranges.cells) > room)
    for operation_row in np.unique(row[overruns]).tolist():
        message = "packets take twice the room, which the scratch of a Simple plan does not have"
        findings.at("packet-room", operation_row, message, 'state protocol "LL"')
    _check_mixture(plan, memory, ranges, is_scratch & ~is_packet, is_packet, findings)


def _check_mixture(
    plan: Plan,
    memory: PlanMemory,
    ranges: Ranges,
    is_plain: BoolArray,
    is_packet: BoolArray,
    findings: PlanFindings,
) -> None:
    """Report packets in scratch cells that plain data uses too."""
    base = memory.layout.base[:, Buffer.SCRATCH]
    room = int(2 * memory.half.max(initial=0)) + 1
    used = np.zeros((plan.num_ranks, room), np.bool_)
    for at in np.flatnonzero(is_plain).tolist():
        rank = int(ranges.rank[at])
        start = int(ranges.base[at] - base[rank])
        used[rank, start : start + int(ranges.cells[at])] = True
    for at in np.flatnonzero(is_packet).tolist():
        rank = int(ranges.rank[at])
        start = int(ranges.base[at] - base[rank] - memory.halves * memory.half[rank])
        if used[rank, 2 * start : 2 * (start + int(ranges.cells[at]))].any():
            row = int(plan.operands.operation[ranges.operand[at]])
            message = f"packets where plain data lies in the scratch of rank {rank}"
            findings.at("scratch-forms", row, message, "give packets scratch of their own")


def check_overlaps(
    plan: Plan,
    ranges: Ranges,
    findings: PlanFindings,
) -> None:
    """Report operations that read and write ranges that overlap but are not equal.

    Threads of one operation access their elements without an order.
    """
    operation = plan.operands.operation[ranges.operand]
    key = operation * (int(ranges.move.max(initial=0)) + 1) + ranges.move
    reads = np.flatnonzero(ranges.is_dst == 0)
    reads = reads[np.argsort(key[reads], kind="stable")]
    writes = np.flatnonzero(ranges.is_dst == 1)
    # Pair every written range with every range that its move reads.
    first = np.searchsorted(key[reads], key[writes])
    count = np.searchsorted(key[reads], key[writes], side="right") - first
    read = reads[expanded_ranges(first, count)]
    write = np.repeat(writes, count)
    distance = np.abs(ranges.base[read] - ranges.base[write])
    overlaps = (distance > 0) & (distance < ranges.cells[write])
    for row in np.unique(operation[write[overlaps]]).tolist():
        message = "reads and writes ranges that overlap, by threads without an order"
        findings.at("overlap", row, message, "use ranges apart, or equal")
