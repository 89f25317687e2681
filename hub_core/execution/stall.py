"""Say where the ranks of a program stand that cannot go on."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.execution.program import LevelledProgram, RecordKind
from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import Diagnostic, InputError
from hub_core.model.wording import region

_LISTED_RANKS = 64


def deadlock(
    algorithm: Algorithm, program: LevelledProgram, records: Sequence[int | None], what: str
) -> InputError:
    """The error for a program that stands still: `what` happened, then one diagnostic a rank that waits.

    `records`: per rank the record for which it waits, None for ranks that are done.
    """
    return InputError([Diagnostic("deadlock", what), *positions(algorithm, program, records)])


def positions(
    algorithm: Algorithm, program: LevelledProgram, records: Sequence[int | None]
) -> list[Diagnostic]:
    """One diagnostic for each of the first ranks that wait: level, peer, message, region."""
    waiting = [record for record in records if record is not None]
    file = algorithm.provenance.source_name or None
    listed = [
        Diagnostic(
            "blocked",
            _position(program, record),
            location=algorithm.steps.location(int(program.row[record]), file),
        )
        for record in waiting[:_LISTED_RANKS]
    ]
    rest = len(waiting) - len(listed)
    return [*listed, Diagnostic("blocked", f"and {rest} more ranks wait")] if rest else listed


def _position(program: LevelledProgram, record: int) -> str:
    """`stands at level 3 and waits for rank 1 to send message 7 into SCRATCH[0]`."""
    count, peer, number = (
        int(program.count[record]),
        int(program.peer[record]),
        int(program.message[record]),
    )
    read = region(int(program.src_buffer[record]), int(program.src_offset[record]), count)
    written = region(int(program.dst_buffer[record]), int(program.dst_offset[record]), count)
    waits = {
        RecordKind.SEND: f"rank {peer} to receive message {number}, {read}",
        RecordKind.RECV: f"rank {peer} to send message {number} into {written}",
    }
    what = waits.get(RecordKind(int(program.kind[record])), f"its own work on {written}")
    return f"stands at level {int(program.level[record])} and waits for {what}"
