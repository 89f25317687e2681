"""Steps as operations of the protocol LL: packets, which carry the flag of the launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collhub_mscclpp.writing.block_writer import BlockWriter, Range
from collhub_mscclpp.writing.draft import Draft
from collhub_mscclpp.writing.fusion import StepGroup
from collhub_mscclpp.writing.segments import MEMORY, SWITCH, in_eights
from collhub_mscclpp.writing.simple import (
    add_up,
    begin_launch,
    copy_range,
    reduce_ranges,
)
from collhub_mscclpp.writing.work import NAMES
from hub_core.model import StepKind


def write_packets(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write a group of steps, between their semaphores.

    Packets tell by themselves whether they are there. Where every rank ends a launch only after
    each other one has begun it, the halves of the scratch keep two launches apart: a sender of
    launch k + 2 has seen all others in launch k + 1. Elsewhere the receiver is waited for.
    """
    # Collectives of the executor keep launches apart, others need the handshake.
    kind = int(draft.work.steps.kind[group.row])
    if draft.work.algorithm.collective.kind not in NAMES:
        begin_launch(draft, writer, group)
    writer.meet()
    _WRITERS[kind](draft, writer, group)


def _send(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    if draft.work.switches.multicast[group.row] >= 0:
        _store_packets(draft, writer, group.row)
        return
    pairs: list[tuple[Range, Range]] = []
    for row in group.rows:
        source, target = draft.source(row), draft.landing_range(row)
        pairs += zip(draft.pieces(source), draft.pieces(target), strict=True)
    # An operation names eight channels at most.
    for some in in_eights(pairs):
        writer.move("ppkt", [one for one, _ in some], [to for _, to in some], MEMORY)


def _store_packets(draft: Draft, writer: BlockWriter, row: int) -> None:
    """Make packets in the own scratch, and store them through a switch in that of all members."""
    store = draft.stores.multicasts[int(draft.work.switches.multicast[row])]
    own = replace(draft.landing_range(row), rank=-1)
    target = draft.group_range(store.group, store.index, row)
    for one, slot in zip(draft.pieces(draft.source(row)), draft.pieces(own), strict=True):
        writer.move("cpkt", [one], [slot])
    for slot, to in zip(draft.pieces(own), draft.pieces(target), strict=True):
        writer.move("gstorepkt", [slot], [to], SWITCH)


def _receive(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Send packets on as they come, and unpack them."""
    landed = draft.landing_range(group.row)
    # Packets are sent on before they are unpacked: the next rank waits for them.
    if group.sends:
        _forward(draft, writer, landed, group.sends)
    for one, to in zip(draft.pieces(landed), draft.pieces(draft.target(group.row)), strict=True):
        writer.move("upkt", [one], [to])


def _forward(draft: Draft, writer: BlockWriter, landed: Range, sends: Sequence[int]) -> None:
    columns = [draft.pieces(draft.landing_range(row)) for row in sends]
    for one, targets in zip(draft.pieces(landed), zip(*columns, strict=True), strict=True):
        writer.move("rppkt", [one], targets, MEMORY)


def _receive_reduce(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    add_up(draft, writer, group, ("repkt", "respkt"))


def _copy(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    copy_range(draft, writer, draft.source(group.row), draft.target(group.row))


def _reduce(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    target = draft.target(group.row)
    reduce_ranges(draft, writer, [target, draft.source(group.row)], [target], "re")


_WRITERS = {
    int(StepKind.SEND): _send,
    int(StepKind.RECV): _receive,
    int(StepKind.RECV_REDUCE): _receive_reduce,
    int(StepKind.COPY): _copy,
    int(StepKind.REDUCE): _reduce,
}
