"""Steps as operations of the protocol LL: packets, which carry the flag of the launch."""

from __future__ import annotations

from dataclasses import replace

from collhub_mscclpp.writing.block_writer import BlockWriter, Range
from collhub_mscclpp.writing.draft import Draft
from collhub_mscclpp.writing.fusion import StepGroup
from collhub_mscclpp.writing.segments import MEMORY, SWITCH, split_into_eights
from collhub_mscclpp.writing.simple import (
    add_messages,
    begin_launch,
    copy_range,
    reduce_ranges,
)
from collhub_mscclpp.writing.work import NAMES
from hub_core.model import StepKind


def write_packets(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write the operations of a group of steps; the caller adds its semaphores.

    The flags of packets show whether they have arrived. In the collectives that plans name, every
    rank ends a launch only after all ranks have begun it, so the two halves of the scratch separate
    launches: a sender of launch k + 2 has seen all ranks in launch k + 1. For other collectives the
    sender waits for the receiver.
    """
    # Only the collectives that plans name need no handshake at the start of a launch.
    kind = int(draft.work.steps.kind[group.row])
    if draft.work.algorithm.collective.kind not in NAMES:
        begin_launch(draft, writer, group)
    writer.add_barrier()
    _WRITERS[kind](draft, writer, group)


def _send(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Send the messages of a group as packets: to each receiver, or through a switch to all."""
    if draft.work.switches.multicast[group.row] >= 0:
        # Packets are written to the local scratch and stored through the switch on all members.
        store = draft.stores.multicasts[int(draft.work.switches.multicast[group.row])]
        scratch = replace(draft.landing_range(group.row), rank=-1)
        target = draft.group_range(store.group, store.index, group.row)
        for chunk, slot in zip(
            draft.split_range(draft.source(group.row)), draft.split_range(scratch), strict=True
        ):
            writer.move("cpkt", [chunk], [slot])
        for slot, stored in zip(draft.split_range(scratch), draft.split_range(target), strict=True):
            writer.move("gstorepkt", [slot], [stored], SWITCH)
        return
    pairs: list[tuple[Range, Range]] = []
    for row in group.rows:
        source_range, target = draft.source(row), draft.landing_range(row)
        pairs += zip(draft.split_range(source_range), draft.split_range(target), strict=True)
    # An operation has at most eight channels.
    for batch in split_into_eights(pairs):
        writer.move(
            "ppkt", [source for source, _ in batch], [target for _, target in batch], MEMORY
        )


def _receive(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Forward packets as they arrive, and unpack them to their destination."""
    landed = draft.landing_range(group.row)
    # Forwarding comes first because the next rank waits for the packets.
    if group.sends:
        columns = [draft.split_range(draft.landing_range(row)) for row in group.sends]
        for packet, targets in zip(
            draft.split_range(landed), zip(*columns, strict=True), strict=True
        ):
            writer.move("rppkt", [packet], targets, MEMORY)
    for packet, chunk in zip(
        draft.split_range(landed), draft.split_range(draft.target(group.row)), strict=True
    ):
        writer.move("upkt", [packet], [chunk])


def _receive_reduce(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    add_messages(draft, writer, group, ("repkt", "respkt"))


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
