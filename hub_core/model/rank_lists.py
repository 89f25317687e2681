"""Ranks, regions and actions in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hub_core.model.diagnostics import UsageError
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.steps import StepTable

_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
# Maximum number of ranks of a collective; a longer range is an error and would fill the memory.
_MOST_RANKS = 1 << 20


def parse_ranks(text: str, noun: str = "rank", wanted: int | None = None) -> tuple[int, ...]:
    """Convert `0,2,4-7` to (0, 2, 4, 5, 6, 7), in the order of the text.

    `noun`: name of an element in messages. Raises `UsageError` for other texts, for a rank that is
    listed twice, and unless the list has `wanted` elements (None: any number).
    """
    ranks: list[int] = []
    for part in text.split(","):
        run = _run(part)
        if run is None:
            message = f"{text[:80]!r} is not a list of {noun}s"
            raise UsageError(message, cure="write for example 0,2,4-7", code="invalid-ranks")
        ranks.extend(run)
    if len(set(ranks)) < len(ranks):
        doubled = next(rank for rank in ranks if ranks.count(rank) > 1)
        message = f"{noun} {doubled} stands more than once in {text[:80]!r}"
        raise UsageError(message, cure="name each once", code="invalid-ranks")
    if wanted not in (None, len(ranks)):
        message = f"{text[:80]!r} names {len(ranks)} {noun}s for {wanted} ranks"
        raise UsageError(message, cure="name one for each", code="invalid-ranks")
    return tuple(ranks)


def _run(part: str) -> range | None:
    """Convert `4-7` or `4` to a range; None for other texts and for more than 2^20 elements."""
    match = _PART.fullmatch(part.strip())
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    return range(first, last + 1) if first <= last < first + _MOST_RANKS else None


def format_ranks(ranks: Sequence[int]) -> str:
    """Format ranks as a text for `parse_ranks`; runs of three or more are joined: `0,2,4-7`."""
    parts: list[str] = []
    start = 0
    for end in range(1, len(ranks) + 1):
        if end == len(ranks) or ranks[end] != ranks[end - 1] + 1:
            run = ranks[start:end]
            parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
            start = end
    return ",".join(parts)


# The operand of a reduction is named first.
_FORMS = {
    StepKind.SEND: "send of {src} to rank {peer}",
    StepKind.RECV: "receive from rank {peer} into {dst}",
    StepKind.RECV_REDUCE: "reducing receive from rank {peer} and {src} into {dst}",
    StepKind.COPY: "copy of {src} to {dst}",
    StepKind.REDUCE: "reduction of {src} into {dst}",
    StepKind.COMPUTE: "computation",
}


def region(buffer: int, offset: int, count: int) -> str:
    """Format a region: `OUTPUT[4:6]`, `OUTPUT[4]` for one unit; invalid buffers by number."""
    name = Buffer(buffer).name if buffer in set(Buffer) else f"buffer {buffer}"
    return f"{name}[{offset}]" if count == 1 else f"{name}[{offset}:{offset + count}]"


def action(steps: StepTable, row: int) -> str:
    """Describe the action of a row, such as `send of INPUT[0] to rank 1`."""
    kind, count = StepKind(int(steps.kind[row])), int(steps.count[row])
    source = region(int(steps.src_buffer[row]), int(steps.src_offset[row]), count)
    destination = region(int(steps.dst_buffer[row]), int(steps.dst_offset[row]), count)
    return _FORMS[kind].format(peer=int(steps.peer[row]), src=source, dst=destination)


def describe(steps: StepTable, row: int) -> str:
    """Describe the position and the action of a row."""
    line = int(steps.source_line[row])
    place = f"line {line}, " if line >= 0 else ""
    return f"{place}rank {int(steps.rank[row])}, step {steps.step_of(row)} ({action(steps, row)})"
