"""Steps as operations of the protocol Simple: puts, announced by signals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from collhub_mscclpp.writing.block_writer import BlockWriter, Range
from collhub_mscclpp.writing.draft import Draft
from collhub_mscclpp.writing.fusion import StepGroup
from collhub_mscclpp.writing.segments import MEMORY, PORT, SWITCH, in_eights
from hub_core.model import StepKind

_SEND = int(StepKind.SEND)
_RECEIVING = (int(StepKind.RECV), int(StepKind.RECV_REDUCE))
_MESSAGES = (_SEND, *_RECEIVING)


def write_simple(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write a group of steps, between their semaphores; messages in slices if asked for."""
    steps = draft.work.steps
    kind = int(steps.kind[group.row])
    begin_launch(draft, writer, group)
    write = partial(_WRITERS[kind], draft, writer, group)
    slice_bytes = draft.options.slices
    if slice_bytes is None or kind not in _MESSAGES:
        write()
    else:
        writer.in_slices(slice_bytes, int(steps.count[group.row]) // draft.work.unit, write)


def _send(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Put what is not pulled, and announce."""
    if draft.channel_type(group.row) == PORT:
        _put_by_port(draft, writer, group.row)
        return
    writer.meet()
    sends = group.rows
    if draft.work.switches.multicast[group.row] >= 0:
        _store(draft, writer, draft.source(group.row), group.row)
    else:
        _put(draft, writer, [draft.source(row) for row in sends], sends)
    _announce(draft, writer, sends)


def _store(draft: Draft, writer: BlockWriter, source: Range, row: int) -> None:
    """Store a range through a switch where the multicast of a send lands."""
    store = draft.stores.multicasts[int(draft.work.switches.multicast[row])]
    target = draft.group_range(store.group, store.index, row)
    for one, to in zip(draft.pieces(source), draft.pieces(target), strict=True):
        writer.move("gstore", [one], [to], SWITCH)


def _put(
    draft: Draft,
    writer: BlockWriter,
    sources: Sequence[Range],
    sends: Sequence[int],
) -> None:
    """Put these ranges, all of one buffer, where the messages of these sends land.

    What is pulled stays.
    """
    pairs: list[tuple[Range, Range]] = []
    for source, row in zip(sources, sends, strict=True):
        if not draft.landing.is_pulled[row]:
            target = draft.landing_range(row)
            pairs += zip(draft.pieces(source), draft.pieces(target), strict=True)
    for some in in_eights(pairs):
        writer.move("put", [one for one, _ in some], [to for _, to in some], MEMORY)


def _put_by_port(draft: Draft, writer: BlockWriter, row: int) -> None:
    """Put by the proxy: the last put signals, and a flush waits until the proxy has read all.

    Without the flush the source could be overwritten before, by later steps, or by the caller once
    the kernel has ended. It is an operation of its own: `pwsf` of released executors hands the
    proxy the address of their table of offsets in place of the offset (`handlePut`).
    """
    channel = draft.channel(row, writer.part)
    sources, targets = draft.pieces(draft.port_source(row)), draft.pieces(draft.landing_range(row))
    writer.meet()
    for source, target in zip(sources[:-1], targets[:-1], strict=True):
        writer.move("put", [source], [target], PORT, [channel])
    writer.move("pws", sources[-1:], targets[-1:], PORT, [channel])
    writer.flush(channel, targets[-1])


def begin_launch(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Tell senders that this launch has begun, and wait until receivers of puts have begun it."""
    steps = draft.work.steps
    for row in group.rows:
        if int(steps.kind[row]) in _RECEIVING:
            _greet_sender(draft, writer, row)
        elif int(steps.kind[row]) == _SEND and not draft.landing.is_pulled[row]:
            _await_launch(draft, writer, row)


def _await_launch(draft: Draft, writer: BlockWriter, row: int) -> None:
    """Wait once a channel: the receiver may still read what is about to be written."""
    channel_type, channel = draft.channel_type(row), draft.channel(row, writer.part)
    if channel not in writer.waited_for[channel_type]:
        writer.waited_for[channel_type].add(channel)
        writer.wait("rlxwait", channel_type, channel)


def _greet_sender(draft: Draft, writer: BlockWriter, row: int) -> None:
    """Tell the sender once a channel. Who lends what it sends is told at the end instead."""
    channel_type, channel = draft.channel_type(row), draft.channel(row, writer.part)
    if draft.landing.is_pulled[row]:
        writer.pulled[channel] = None
    elif channel not in writer.greeted[channel_type]:
        writer.greeted[channel_type].add(channel)
        writer.greet(channel_type, channel)


def _arrive(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Wait for the messages."""
    for row in group.receives:
        writer.wait("wait", draft.channel_type(row), draft.channel(row, writer.part))
    writer.meet()


def _receive(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Copy what was staged, and put it on from there."""
    _arrive(draft, writer, group)
    landed = draft.landing_range(group.row)
    if not draft.landing.is_direct[group.row]:
        copy_range(draft, writer, landed, draft.target(group.row))
    # Both only read what has landed: no meeting between them.
    _put(draft, writer, [landed] * len(group.sends), group.sends)
    _announce(draft, writer, group.sends)


def _receive_reduce(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Add what was staged, or what lies with its senders; the sum goes on in the same operation."""
    _arrive(draft, writer, group)
    is_pulled = bool(draft.landing.is_pulled[group.row])
    if draft.work.switches.total[group.row] >= 0:
        _sum_by_switch(draft, writer, group)
    else:
        add_up(draft, writer, group, ("rre", "rres") if is_pulled else ("re", "res"))
    _announce(draft, writer, group.sends)


def _sum_by_switch(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Add the ranges of all members of a group of a switch, and store the sum on all members.

    The executor has no sum through a switch that is stored locally.
    """
    number = int(draft.work.switches.total[group.row])
    operand, target = draft.source(group.row), draft.target(group.row)
    source = draft.group_range(draft.stores.sources[number], operand.index, group.row)
    store = draft.stores.results[number]
    result = draft.group_range(store.group, store.index, group.row)
    for one, to in zip(draft.pieces(source), draft.pieces(result), strict=True):
        writer.move("glres", [one], [to], SWITCH)
    own = Range(store.buffer, store.index, target.size)
    if own != target:
        writer.meet()
        copy_range(draft, writer, own, target)


def add_up(draft: Draft, writer: BlockWriter, group: StepGroup, names: tuple[str, str]) -> None:
    """Add the messages of a group to the own operand.

    `names`: of the operation without and with sends.
    """
    # The own operand first: sums keep the order of the algorithm.
    operands = [draft.source(group.row), *(draft.landing_range(row) for row in group.receives)]
    sends = [row for row in group.sends if not draft.landing.is_pulled[row]]
    targets = [draft.target(group.row), *(draft.landing_range(row) for row in sends)]
    reduce_ranges(draft, writer, operands, targets, names[1] if sends else names[0])


def _announce(draft: Draft, writer: BlockWriter, sends: Sequence[int]) -> None:
    """Signal that what these sends carry is there, or may be read here."""
    channels = [draft.channel(row, writer.part) for row in sends]
    for row, channel in zip(sends, channels, strict=True):
        if draft.landing.is_pulled[row]:
            writer.lent[channel] = None
    if channels:
        writer.signal(MEMORY, channels)


def _copy(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    writer.meet()
    copy_range(draft, writer, draft.source(group.row), draft.target(group.row))


def _reduce(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    writer.meet()
    target = draft.target(group.row)
    reduce_ranges(draft, writer, [target, draft.source(group.row)], [target], "re")


def copy_range(draft: Draft, writer: BlockWriter, source: Range, target: Range) -> None:
    """Copy within a rank."""
    for one, to in zip(draft.pieces(source), draft.pieces(target), strict=True):
        writer.move("copy", [one], [to])


def reduce_ranges(
    draft: Draft,
    writer: BlockWriter,
    operands: Sequence[Range],
    targets: Sequence[Range],
    name: str,
) -> None:
    """Add operands, and write the sum to all targets, the own one first, by this operation."""
    from_columns = [draft.pieces(operand) for operand in operands]
    to_columns = [draft.pieces(one) for one in targets]
    is_near = all(one.rank < 0 for one in [*operands, *targets])
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
