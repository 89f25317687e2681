"""Steps as operations of the protocol Simple: puts, announced by signals."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_mscclpp.writing.block_writer import BlockWriter, Range
from collhub_mscclpp.writing.draft import Draft
from collhub_mscclpp.writing.rank_tables import MEMORY, PORT
from collhub_mscclpp.writing.segments import in_eights
from hub_core.model import StepKind


def write_simple(draft: Draft, writer: BlockWriter, rows: Sequence[int]) -> None:
    """Write the steps of one thread block, in this order."""
    steps = draft.work.steps
    for row in rows:
        writer.acquire(draft.numbers(draft.semaphores.acquired, row, writer.part))
        kind = int(steps.kind[row])
        _WRITERS[kind](draft, writer, row)
        writer.release(draft.numbers(draft.semaphores.released, row, writer.part))


def _send(draft: Draft, writer: BlockWriter, row: int) -> None:
    channel_type, channel = draft.channel_type(row), draft.channel(row, writer.part)
    if channel not in writer.waited_for[channel_type]:
        # The receiver may still be in its last launch, and read what is about to be written.
        writer.waited_for[channel_type].add(channel)
        writer.wait("rlxwait", channel_type, channel)
    pairs = list(
        zip(
            draft.pieces(draft.source(row)),
            draft.pieces(draft.landing_range(row)),
            strict=True,
        )
    )
    if channel_type == PORT:
        _put_by_port(writer, pairs, channel)
        return
    for some in in_eights(pairs):
        writer.move("put", [one for one, _ in some], [to for _, to in some], MEMORY)
    writer.signal(MEMORY, [channel])


def _put_by_port(writer: BlockWriter, pairs: Sequence[tuple[Range, Range]], channel: int) -> None:
    """Put by the proxy: the last put signals, and its end is waited for.

    Without the flush the source could be overwritten before the proxy has read it.
    """
    for source, target in pairs[:-1]:
        writer.move("put", [source], [target], PORT, [channel])
    source, target = pairs[-1]
    writer.move("pwsf", [source], [target], PORT, [channel])


def _greet(draft: Draft, writer: BlockWriter, row: int) -> None:
    channel_type, channel = draft.channel_type(row), draft.channel(row, writer.part)
    if channel not in writer.greeted[channel_type]:
        writer.greeted[channel_type].add(channel)
        writer.greet(channel_type, channel)


def _receive(draft: Draft, writer: BlockWriter, row: int) -> None:
    _greet(draft, writer, row)
    writer.wait("wait", draft.channel_type(row), draft.channel(row, writer.part))
    if not draft.landing.is_direct[row]:
        _copy_range(draft, writer, draft.landing_range(row), draft.target(row))


def _receive_reduce(draft: Draft, writer: BlockWriter, row: int) -> None:
    _greet(draft, writer, row)
    writer.wait("wait", draft.channel_type(row), draft.channel(row, writer.part))
    operands = [draft.source(row), draft.landing_range(row)]
    _reduce_ranges(draft, writer, operands, draft.target(row))


def _copy(draft: Draft, writer: BlockWriter, row: int) -> None:
    _copy_range(draft, writer, draft.source(row), draft.target(row))


def _reduce(draft: Draft, writer: BlockWriter, row: int) -> None:
    target = draft.target(row)
    _reduce_ranges(draft, writer, [target, draft.source(row)], target)


def _copy_range(draft: Draft, writer: BlockWriter, source: Range, target: Range) -> None:
    for one, to in zip(draft.pieces(source), draft.pieces(target), strict=True):
        writer.move("copy", [one], [to])


def _reduce_ranges(
    draft: Draft, writer: BlockWriter, operands: Sequence[Range], target: Range
) -> None:
    columns = [draft.pieces(operand) for operand in [*operands, target]]
    for *terms, to in zip(*columns, strict=True):
        writer.move("re", terms, [to])


_WRITERS = {
    int(StepKind.SEND): _send,
    int(StepKind.RECV): _receive,
    int(StepKind.RECV_REDUCE): _receive_reduce,
    int(StepKind.COPY): _copy,
    int(StepKind.REDUCE): _reduce,
}
