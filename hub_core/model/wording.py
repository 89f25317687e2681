"""Describe steps in messages."""

from __future__ import annotations

from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.steps import StepTable

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
    lead = f"line {line}, " if line >= 0 else ""
    return f"{lead}rank {int(steps.rank[row])}, step {steps.step_of(row)} ({action(steps, row)})"
