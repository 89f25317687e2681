"""Report the positions of blocked ranks of a program."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_execution.levelling.program import LevelledProgram, RecordKind
from hub_core.model import Algorithm, Diagnostic, InputError, region

_LISTED_RANKS = 64


def deadlock(
    algorithm: Algorithm, program: LevelledProgram, records: Sequence[int | None], what: str
) -> InputError:
    """Return the error for a blocked program: the message `what`, then one finding per waiting
    rank.

    `records`: per rank the record for which it waits, None for ranks that have finished.
    """
    return InputError([Diagnostic("deadlock", what), *positions(algorithm, program, records)])


def positions(
    algorithm: Algorithm, program: LevelledProgram, records: Sequence[int | None]
) -> list[Diagnostic]:
    """Return one diagnostic for each of the first waiting ranks: level, peer, message, region."""
    # If thousands of ranks wait for one another, the first ones are sufficient.
    waiting = [record for record in records if record is not None]
    listed = [_blocked(algorithm, program, record) for record in waiting[:_LISTED_RANKS]]
    rest = len(waiting) - len(listed)
    if rest:
        listed.append(Diagnostic("blocked", f"and {rest} more ranks wait"))
    return listed


def _blocked(algorithm: Algorithm, program: LevelledProgram, record: int) -> Diagnostic:
    """Return the position of a rank, at the step that its record implements."""
    file = algorithm.provenance.source_name or None
    location = algorithm.steps.location(int(program.row[record]), file)
    return Diagnostic("blocked", _position(program, record), location=location)


def _position(program: LevelledProgram, record: int) -> str:
    """Return `stands at level 3 and waits for rank 1 to send message 7 into SCRATCH[0]`."""
    # Levels are counted as in the program, from 1 for messages.
    level = int(program.level[record])
    return f"stands at level {level} and waits for {_awaited(program, record)}"


def _awaited(program: LevelledProgram, record: int) -> str:
    """Describe the event for which a record waits."""
    kind = RecordKind(int(program.kind[record]))
    peer, number = int(program.peer[record]), int(program.message[record])
    if kind is RecordKind.SEND:
        return f"rank {peer} to receive message {number}, {_region_read(program, record)}"
    if kind is RecordKind.RECV:
        return f"rank {peer} to send message {number} into {_region_written(program, record)}"
    return f"its own work on {_region_written(program, record)}"


def _region_read(program: LevelledProgram, record: int) -> str:
    """Return the source, such as `INPUT[0..3]`, in blocks."""
    buffer, offset = int(program.src_buffer[record]), int(program.src_offset[record])
    return region(buffer, offset, int(program.count[record]))


def _region_written(program: LevelledProgram, record: int) -> str:
    """Return the destination, such as `OUTPUT[0..3]`, in blocks."""
    buffer, offset = int(program.dst_buffer[record]), int(program.dst_offset[record])
    return region(buffer, offset, int(program.count[record]))
