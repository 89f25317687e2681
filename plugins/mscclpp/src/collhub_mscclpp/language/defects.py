"""Where the package makes something else of a program than ours: defects of release 1f5f065d.

A program that is right here is to be right with the package too, or its author is to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from collhub_mscclpp.language.fusion import MOST_CHANNELS, MOST_ENTRIES, fused_by_package
from collhub_mscclpp.language.recorded import Recorded, ReplicationPolicy

if TYPE_CHECKING:
    from collhub_mscclpp.language.program import CollectiveProgram

_MOST_BARRIERS = 16
_APART = "part them by another operation, or set instr_fusion=False"
_PACKET_SUMS = ("repkt", "respkt", "recpkt", "recspkt")


def defects_of(
    program: CollectiveProgram,
    earlier: Sequence[CollectiveProgram] = (),
) -> Iterator[str]:
    """What the package does wrong with a program, the first place of each kind for every rank.

    `earlier`: programs of the same process before it.
    """
    if program.replication_policy is ReplicationPolicy.none:
        yield "replication_policy none always fails with a TypeError there: leave it out"
    yield from _barrier_defects(program, earlier)
    for rank, blocks in enumerate(program.blocks):
        found: dict[str, str] = {}
        for number, recorded in sorted(blocks.items()):
            for kind, text in _block_defects(program, recorded):
                found.setdefault(kind, f"rank {rank}, thread block {number}: {text}")
        yield from found.values()


def _barrier_defects(
    program: CollectiveProgram, earlier: Sequence[CollectiveProgram]
) -> Iterator[str]:
    """Barriers are counted through all programs of a process."""
    own, before = _barriers(program), sum(_barriers(one) for one in earlier)
    if own and before:
        is_over = before + own > _MOST_BARRIERS
        more = f", beyond the {_MOST_BARRIERS} of the executor" if is_over else ""
        yield (
            f"its barriers are numbered from {before} on there, behind those of the programs "
            f"before it{more}: make each program in a process of its own"
        )


def _barriers(program: CollectiveProgram) -> int:
    """The most barriers of a rank."""
    meetings = [
        {frozenset(one.barrier) for one in _all(blocks) if one.name == "barrier"}
        for blocks in program.blocks
    ]
    meetings = [
        {frozenset(one.barrier) for one in _all(blocks) if one.name == "barrier"}
        for blocks in program.blocks
    ]
    return max(map(len, meetings), default=0)


def _all(blocks: dict[int, list[Recorded]]) -> Iterator[Recorded]:
    """The operations of a rank, those in pipelines too."""
    for recorded in blocks.values():
        for one in recorded:
            yield one
            yield from one.body


def _block_defects(
    program: CollectiveProgram, recorded: Sequence[Recorded]
) -> Iterator[tuple[str, str]]:
    """(kind of defect, text) of the operations of a thread block, or of a pipeline."""
    for one in recorded:
        yield from _block_defects(program, one.body)
    yield from _switch_defects(recorded)
    if program.instr_fusion:
        yield from _fusion_defects(recorded, program.instances)
    if program.auto_sync:
        yield from _meeting_defects(recorded)


def _switch_defects(recorded: Iterable[Recorded]) -> Iterator[tuple[str, str]]:
    for one in recorded:
        if one.name == "glres" and one.src[0].index != one.dst[0].index:
            summed, stored = one.src[0].index, one.dst[0].index
            text = f"a sum of chunk {summed} that is broadcast to chunk {stored} is stored at"
            yield "switch", f"{text} {summed} there: use equal chunks"


def _fusion_defects(recorded: Iterable[Recorded], instances: int) -> Iterator[tuple[str, str]]:
    for one in fused_by_package(recorded):
        buffers = list(dict.fromkeys(chunk.buffer.value for chunk in one.src))
        if one.name in ("put", "ppkt") and len(buffers) > 1:
            text = f"neighbouring {one.name} of buffers {', '.join(buffers)} become one there"
            yield "buffers", f"{text}, which copies all from {buffers[0]}: {_APART}"
        ranges = max(len(one.src), len(one.dst))
        if len(one.channels) > MOST_CHANNELS or ranges > MOST_ENTRIES:
            text = f"neighbours become one {one.name} of {len(one.channels)} channels and"
            room = f"executors have room for {MOST_CHANNELS} and {MOST_ENTRIES}"
            yield "size", f"{text} {ranges} ranges there, and {room}: {_APART}"
        if one.name in ("recpkt", "recspkt") and instances > 1:
            text = f"all {instances} instances of {one.name} write one copy of the packets there"
            yield "packets", f"{text}: {_APART}"


def _meeting_defects(recorded: Sequence[Recorded]) -> Iterator[tuple[str, str]]:
    """The plain operand of a sum of packets is not tracked."""
    for before, one in pairwise(recorded):
        if one.conflicts(before) and not _tracked(one).conflicts(_tracked(before)):
            text = f"threads do not meet between {before.name} and {one.name} there, though both"
            cure = "add a barrier of the block"
            yield "meeting", f"{text} touch the plain operand of the sum of packets: {cure}"


def _tracked(one: Recorded) -> Recorded:
    """What the package knows of an operation."""
    return replace(one, src=one.src[1:]) if one.name in _PACKET_SUMS else one
