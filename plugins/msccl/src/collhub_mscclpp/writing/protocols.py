"""Write steps as operations of the protocols Simple (puts and signals) and LL (packets).

A put is announced by a signal. Packets carry the flag of the launch, which shows that they have
arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from collhub_mscclpp.writing.block_writer import BlockWriter, Range
from collhub_mscclpp.writing.draft import Draft
from collhub_mscclpp.writing.fusion import StepGroup
from collhub_mscclpp.writing.segments import MEMORY, PORT, SWITCH, split_into_eights
from collhub_mscclpp.writing.work import NAMES
from hub_core.model import StepKind

_SEND = int(StepKind.SEND)
_RECEIVING = (int(StepKind.RECV), int(StepKind.RECV_REDUCE))
_MESSAGES = (_SEND, *_RECEIVING)


def write_simple(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write the operations of a group of steps in protocol Simple, without its semaphores.

    Signals and waits for the begin of the launch come first. The kind of the first step determines
    the following operations. With the option `slices` (bytes), the operations of messages become a
    pipeline over their chunks.
    """
    steps = draft.work.steps
    kind = int(steps.kind[group.row])
    begin_launch(draft, writer, group)
    write = partial(_WRITERS[kind], draft, writer, group)
    slice_bytes = draft.options.slices
    if slice_bytes is None or kind not in _MESSAGES:
        write()
    else:
        writer.write_pipeline(slice_bytes, int(steps.count[group.row]) // draft.work.unit, write)


def _send(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write the operations that send the messages of a group (messages sent by one operation).

    A thread barrier comes first if the block has waited or moved data since the last one. The first
    step decides the case. If several thread blocks share the work, each chunk of data is a range,
    otherwise all data of a message.

    1. Port channel: only the first step is sent, as a `put` per range, but as a `pws` (which also
       signals) for the last. A flush waits until the proxy has read all data.
    2. Multicast: one `gstore` per range for all members, then the signals.
    3. Otherwise: `put` operations of up to eight ranges, then the signals. Messages that their
       receivers pull have no `put`.

    Cases 2 and 3 signal all messages and add channels of pulled ones to `writer.lent`.
    """
    if draft.channel_type(group.row) == PORT:
        # The last put signals, and a flush waits until the proxy has read all data.
        channel = draft.channel(group.row, writer.part)
        sources = draft.split_range(draft.port_source(group.row))
        targets = draft.split_range(draft.landing_range(group.row))
        writer.add_barrier()
        for source, target in zip(sources[:-1], targets[:-1], strict=True):
            writer.move("put", [source], [target], PORT, [channel])
        writer.move("pws", sources[-1:], targets[-1:], PORT, [channel])
        writer.flush(channel, targets[-1])
        return
    writer.add_barrier()
    sends = group.rows
    multicast = int(draft.work.switches.multicast[group.row])
    if multicast >= 0:
        store = draft.stores.multicasts[multicast]
        stored = draft.group_range(store.group, store.index, group.row)
        chunks = draft.split_range(draft.source(group.row))
        for chunk, target in zip(chunks, draft.split_range(stored), strict=True):
            writer.move("gstore", [chunk], [target], SWITCH)
    else:
        _put(draft, writer, [draft.source(row) for row in sends], sends)
    _signal_messages(draft, writer, sends)


def _put(
    draft: Draft,
    writer: BlockWriter,
    sources: Sequence[Range],
    sends: Sequence[int],
) -> None:
    """Write puts of ranges to the places where the messages of sends arrive; no signals.

    `sources`: one range per send, all of one buffer. Messages that are pulled are skipped. If
    several thread blocks share the work, each chunk of a range is a range of its own.

    All ranges form one sequence, in the order of the sends. Each operation has the next eight
    of these ranges; only the last operation may have fewer.
    """
    pairs: list[tuple[Range, Range]] = []
    for source, row in zip(sources, sends, strict=True):
        if not draft.landing.is_pulled[row]:
            target = draft.landing_range(row)
            pairs += zip(draft.split_range(source), draft.split_range(target), strict=True)
    for batch in split_into_eights(pairs):
        writer.move("put", [chunk for chunk, _ in batch], [landed for _, landed in batch], MEMORY)


def begin_launch(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write the handshakes with which a launch begins on the channels of a group, once per channel.

    The steps of the group are examined in order; steps that are no messages have no effect:

    - A receive whose data the sender writes: a signal to the sender that this rank has begun the
      launch (`writer.greet`). Before that, this rank may still read data of the last launch.
    - A send that writes the data: a wait for this signal (`rlxwait`).
    - A receive that pulls (reads from the sender's memory): the channel is only added to
      `writer.pulled`; `BlockWriter.finish` writes its handshake.
    - A send whose receiver pulls: nothing.

    A channel that had its signal, or its wait, in this thread block before gets no second one;
    `writer` records both.
    """
    steps = draft.work.steps
    for row in group.rows:
        if int(steps.kind[row]) in _RECEIVING:
            # Signal to the sender, once per channel; for pulled messages this is done at the end.
            channel_type, channel = draft.channel_type(row), draft.channel(row, writer.part)
            if draft.landing.is_pulled[row]:
                writer.pulled[channel] = None
            elif channel not in writer.greeted[channel_type]:
                writer.greeted[channel_type].add(channel)
                writer.greet(channel_type, channel)
        elif int(steps.kind[row]) == _SEND and not draft.landing.is_pulled[row]:
            # Once per channel: the receiver may still read data of the last launch.
            channel_type, channel = draft.channel_type(row), draft.channel(row, writer.part)
            if channel not in writer.waited_for[channel_type]:
                writer.waited_for[channel_type].add(channel)
                writer.wait("rlxwait", channel_type, channel)


def _wait_for_messages(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write the waits for all received messages of a group, then a block barrier.

    There is one wait per message, in the order of the receives. The first step of the group
    must be a receive (not checked). Sends of the group are ignored.
    """
    for row in group.receives:
        writer.wait("wait", draft.channel_type(row), draft.channel(row, writer.part))
    writer.add_barrier()


def _receive(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write the operations of a group that begins with a receive: wait, copy, forward.

    1. A wait for every received message of the group, then a barrier of the block's threads.
    2. A copy of the first message to its destination, unless it arrives there directly.
    3. Puts of the received data for all sends of the group, then their signals.

    All of them are appended to `writer`. Sums are not written here.
    """
    _wait_for_messages(draft, writer, group)
    landed = draft.landing_range(group.row)
    if not draft.landing.is_direct[group.row]:
        copy_range(draft, writer, landed, draft.target(group.row))
    # Both only read the landing range, so no block barrier is needed in between.
    _put(draft, writer, [landed] * len(group.sends), group.sends)
    _signal_messages(draft, writer, group.sends)


def _receive_reduce(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write the operations that add received messages and send the sum to further ranks.

    A group is a list of steps that one operation executes. There are several parts only if
    several thread blocks share the work. All messages of the group are waited for, then a
    block barrier follows. The first case that applies:

    1. The first step belongs to a sum through a switch: one `glres` per part adds the ranges
       of all ranks of the switch group and stores the sum on all of them. If the destination
       of the step is another range, a barrier and a copy to it follow.
    2. Otherwise one operation per part adds the local operand, then the messages. It stores
       the sum in the destination, and at the receivers of the group's sends that do not pull.
       It is `res` with such sends, otherwise `re`; `rres` or `rre` if the first message is
       pulled from its sender.

    Finally the channels of all sends of the group are signalled.
    """
    _wait_for_messages(draft, writer, group)
    is_pulled = bool(draft.landing.is_pulled[group.row])
    if draft.work.switches.total[group.row] >= 0:
        # The executor has no operation that stores such a sum only locally.
        number = int(draft.work.switches.total[group.row])
        operand, target = draft.source(group.row), draft.target(group.row)
        source = draft.group_range(draft.stores.sources[number], operand.index, group.row)
        store = draft.stores.results[number]
        result = draft.group_range(store.group, store.index, group.row)
        for terms, stored in zip(draft.split_range(source), draft.split_range(result), strict=True):
            writer.move("glres", [terms], [stored], SWITCH)
        local_result = Range(store.buffer, store.index, target.size)
        if local_result != target:
            writer.add_barrier()
            copy_range(draft, writer, local_result, target)
    else:
        add_messages(draft, writer, group, ("rre", "rres") if is_pulled else ("re", "res"))
    _signal_messages(draft, writer, group.sends)


def add_messages(
    draft: Draft, writer: BlockWriter, group: StepGroup, names: tuple[str, str]
) -> None:
    """Write the operations that add the messages of a group to the local operand.

    There is one operation, or one per chunk if several thread blocks share the work. Its
    operands are the local one, then the messages in the order of the receives. The sum is
    stored in the destination of the first step, and at the receivers of the group's sends
    except those that pull. `names`: names of the operation without and with such sends.
    """
    # The local operand comes first, so the sum has the order of the algorithm.
    operands = [draft.source(group.row), *(draft.landing_range(row) for row in group.receives)]
    sends = [row for row in group.sends if not draft.landing.is_pulled[row]]
    targets = [draft.target(group.row), *(draft.landing_range(row) for row in sends)]
    reduce_ranges(draft, writer, operands, targets, names[1] if sends else names[0])


def _signal_messages(draft: Draft, writer: BlockWriter, sends: Sequence[int]) -> None:
    """Write signals on the channels of sends: their data has arrived, or may now be pulled.

    If a receiver reads a message itself, the message is pulled. A block barrier comes first,
    if needed. The signals follow in the order of `sends`, at most 8 per operation. Without
    sends, there is neither a barrier nor a signal.

    All sends must use different memory channels (not checked). The channels of pulled
    messages are added to `writer.lent`, so that the block waits at its end until the data has
    been read.
    """
    channels = [draft.channel(row, writer.part) for row in sends]
    for row, channel in zip(sends, channels, strict=True):
        if draft.landing.is_pulled[row]:
            writer.lent[channel] = None
    if channels:
        writer.signal(MEMORY, channels)


def _copy(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    writer.add_barrier()
    copy_range(draft, writer, draft.source(group.row), draft.target(group.row))


def _reduce(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    writer.add_barrier()
    target = draft.target(group.row)
    reduce_ranges(draft, writer, [target, draft.source(group.row)], [target], "re")


def copy_range(draft: Draft, writer: BlockWriter, source: Range, target: Range) -> None:
    """Copy a range within a rank."""
    for chunk, copied in zip(draft.split_range(source), draft.split_range(target), strict=True):
        writer.move("copy", [chunk], [copied])


def reduce_ranges(
    draft: Draft,
    writer: BlockWriter,
    operands: Sequence[Range],
    targets: Sequence[Range],
    name: str,
) -> None:
    """Write operations that store the sum of all `operands` in every range of `targets`.

    The operands and targets are ranges with equally many chunks. A range with a negative rank
    is in the memory of the own rank; the first target must be one. `name`: name of the
    operations.

    - If one thread block does the work, there is one operation for the complete ranges.
    - If several thread blocks share the work, there is one operation per chunk.

    The channel type is empty if all ranges are in memory of the own rank, otherwise memory.
    No barrier is added before an operation.
    """
    from_columns = [draft.split_range(operand) for operand in operands]
    to_columns = [draft.split_range(operand_range) for operand_range in targets]
    is_near = all(operand_range.rank < 0 for operand_range in [*operands, *targets])
    for terms, results in zip(
        zip(*from_columns, strict=True), zip(*to_columns, strict=True), strict=True
    ):
        writer.move(name, terms, results, "" if is_near else MEMORY)


_WRITERS = {
    int(StepKind.SEND): _send,
    int(StepKind.RECV): _receive,
    int(StepKind.RECV_REDUCE): _receive_reduce,
    int(StepKind.COPY): _copy,
    int(StepKind.REDUCE): _reduce,
}


def write_packets(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write the operations of a group of steps in protocol LL, without its semaphores.

    The flags of packets show whether they have arrived. In the collectives that have a name in
    plans (`NAMES`), every rank ends a launch only after all ranks have begun it, so the two halves
    of scratch separate launches. For other collectives, the first operations let the sender wait
    for the receiver at the begin of a launch. Then a block barrier is added, if needed, and last
    the operations of the group's kind.
    """
    # Only the collectives that plans name need no handshake at the start of a launch.
    kind = int(draft.work.steps.kind[group.row])
    if draft.work.algorithm.collective.kind not in NAMES:
        begin_launch(draft, writer, group)
    writer.add_barrier()
    _PACKET_WRITERS[kind](draft, writer, group)


def _send_packets(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write the operations that send the messages of a group as packets to `writer`.

    - If the first message of the group is part of a multicast: one `cpkt` per part writes the data
      as packets to the local scratch. Then one `gstorepkt` per part stores the packets on all
      members of the multicast. The further messages of the group are not written.
    - Otherwise: `ppkt` operations of at most eight (source, destination) pairs each. The pairs are
      all parts of all messages, message by message.

    A message has several parts only if several thread blocks share the work. No barrier, wait or
    signal is written, because the flags of packets show that they have arrived.
    """
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


def _receive_packets(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write the operations that forward received packets and unpack them to their destination.

    1. If the group has sends: one `rppkt` per part forwards the packets to the receivers of all
       sends. It is first, because the receivers wait for the packets.
    2. One `upkt` per part unpacks the packets to the destination of the first step (`group.row`).

    The packets are divided into several parts only if several thread blocks share the work. No
    wait is written, because the flags of packets show that they have arrived. The operations are
    appended to `writer`.
    """
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


def _add_packets(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Add packets as they arrive; the same operation sends the sum to further ranks."""
    add_messages(draft, writer, group, ("repkt", "respkt"))


_PACKET_WRITERS = {
    int(StepKind.SEND): _send_packets,
    int(StepKind.RECV): _receive_packets,
    int(StepKind.RECV_REDUCE): _add_packets,
    int(StepKind.COPY): _copy,
    int(StepKind.REDUCE): _reduce,
}
