"""Steps as operations of the protocol Simple: puts, announced by signals."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_mscclpp.writing.block_writer import BlockWriter, Range
from collhub_mscclpp.writing.draft import Draft
from collhub_mscclpp.writing.fusion import StepGroup
from collhub_mscclpp.writing.rank_tables import MEMORY, PORT
from collhub_mscclpp.writing.segments import in_eights
from hub_core.model import StepKind


def write_simple(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Write a group of steps, between their semaphores."""
    _WRITERS[int(draft.work.steps.kind[group.row])](draft, writer, group)


def _send(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Put, and announce."""
    for row in group.rows:
        await_launch(draft, writer, row)
    if draft.channel_type(group.row) == PORT:
        _put_by_port(draft, writer, group.row)
        return
    sources = [draft.source(row) for row in group.rows]
    _put(draft, writer, sources, group.rows, meets=True)
    writer.signal(MEMORY, [draft.channel(row, writer.part) for row in group.rows])


def _put(
    draft: Draft,
    writer: BlockWriter,
    sources: Sequence[Range],
    sends: Sequence[int],
    *,
    meets: bool,
) -> None:
    """Put these ranges, all of one buffer, where the messages of these sends land."""
    pairs: list[tuple[Range, Range]] = []
    for source, row in zip(sources, sends, strict=True):
        target = draft.landing_range(row)
        pairs += zip(draft.pieces(source), draft.pieces(target), strict=True)
    if meets:
        writer.meet()
    for some in in_eights(pairs):
        writer.move("put", [one for one, _ in some], [to for _, to in some], MEMORY)


def _put_by_port(draft: Draft, writer: BlockWriter, row: int) -> None:
    """Put by the proxy: the last put signals, and its end is waited for.

    Without the flush the source could be overwritten before the proxy has read it.
    """
    channel = draft.channel(row, writer.part)
    sources, targets = draft.pieces(draft.source(row)), draft.pieces(draft.landing_range(row))
    writer.meet()
    for source, target in zip(sources[:-1], targets[:-1], strict=True):
        writer.move("put", [source], [target], PORT, [channel])
    writer.move("pwsf", sources[-1:], targets[-1:], PORT, [channel])


def await_launch(draft: Draft, writer: BlockWriter, row: int) -> None:
    """Before the first message on a channel, wait until the receiver has begun this launch."""
    channel_type, channel = draft.channel_type(row), draft.channel(row, writer.part)
    # It may still read, in its last launch, what is about to be written.
    if channel not in writer.waited_for[channel_type]:
        writer.waited_for[channel_type].add(channel)
        writer.wait("rlxwait", channel_type, channel)


def greet_sender(draft: Draft, writer: BlockWriter, row: int) -> None:
    """Tell the sender of a message, once a channel, that this launch has begun."""
    channel_type, channel = draft.channel_type(row), draft.channel(row, writer.part)
    if channel not in writer.greeted[channel_type]:
        writer.greeted[channel_type].add(channel)
        writer.greet(channel_type, channel)


def _arrive(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Wait for the message, and for the receivers of what is sent on."""
    greet_sender(draft, writer, group.row)
    for row in group.sends:
        await_launch(draft, writer, row)
    writer.wait("wait", draft.channel_type(group.row), draft.channel(group.row, writer.part))
    writer.meet()


def _receive(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Copy what was staged, and put it on from there."""
    _arrive(draft, writer, group)
    landed = draft.landing_range(group.row)
    if not draft.landing.is_direct[group.row]:
        copy_range(draft, writer, landed, draft.target(group.row))
    # Both only read what has landed: no meeting between them.
    _put(draft, writer, [landed] * len(group.sends), group.sends, meets=False)
    _announce(draft, writer, group)


def _receive_reduce(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    """Add what was staged; the sum goes on in the same operation."""
    _arrive(draft, writer, group)
    # The own operand first: sums keep the order of the algorithm.
    operands = [draft.source(group.row), draft.landing_range(group.row)]
    reduce_ranges(draft, writer, operands, draft.target(group.row), group.sends)
    _announce(draft, writer, group)


def _announce(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    if group.sends:
        writer.signal(MEMORY, [draft.channel(row, writer.part) for row in group.sends])


def _copy(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    writer.meet()
    copy_range(draft, writer, draft.source(group.row), draft.target(group.row))


def _reduce(draft: Draft, writer: BlockWriter, group: StepGroup) -> None:
    writer.meet()
    target = draft.target(group.row)
    reduce_ranges(draft, writer, [target, draft.source(group.row)], target, [])


def copy_range(draft: Draft, writer: BlockWriter, source: Range, target: Range) -> None:
    """Copy within a rank."""
    for one, to in zip(draft.pieces(source), draft.pieces(target), strict=True):
        writer.move("copy", [one], [to])


def reduce_ranges(
    draft: Draft,
    writer: BlockWriter,
    operands: Sequence[Range],
    target: Range,
    sends: Sequence[int],
    names: tuple[str, str] = ("re", "res"),
) -> None:
    """Add operands into a target, and put the sum where these sends land too.

    `names`: of the operation without and with sends.
    """
    # The own place comes first: the executor takes it for the local one.
    targets = [target, *(draft.landing_range(row) for row in sends)]
    from_columns = [draft.pieces(operand) for operand in operands]
    to_columns = [draft.pieces(one) for one in targets]
    name, channel_type = (names[1], MEMORY) if sends else (names[0], "")
    for terms, results in zip(
        zip(*from_columns, strict=True), zip(*to_columns, strict=True), strict=True
    ):
        writer.move(name, terms, results, channel_type)


_WRITERS = {
    int(StepKind.SEND): _send,
    int(StepKind.RECV): _receive,
    int(StepKind.RECV_REDUCE): _receive_reduce,
    int(StepKind.COPY): _copy,
    int(StepKind.REDUCE): _reduce,
}
