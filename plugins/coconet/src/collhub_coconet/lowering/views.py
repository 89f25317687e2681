"""Operations without work of their own: their values are those of another one, in its place."""

from __future__ import annotations

from collhub_coconet.program.operations import Kind, Operation
from collhub_coconet.program.program import Program


def viewed(program: Program, operation: Operation) -> str | None:
    """The value that an operation only gives another name, None for one that computes.

    A Slice is a part of what is there. A collective delivers into the memory of a state that is
    updated by its result, where nobody reads the old state but by slices: a rank's own slice is
    replaced by what was computed from it, the others are not read there.
    """
    if operation.kind is Kind.SLICE:
        return operation.reads[0]
    if operation.kind is not Kind.UPDATE or len(operation.reads) < 2:
        return None
    state, value = operation.reads
    source = program.by_name.get(value)
    if source is None or not source.is_communication:
        return None
    readers = [one for one in program.readers.get(state, ()) if one.name != operation.name]
    are_slices = all(one.kind is Kind.SLICE for one in readers)
    return value if are_slices else None
