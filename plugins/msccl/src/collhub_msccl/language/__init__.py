"""The MSCCLang language.

Programs describe chunk by chunk how data moves, and are converted to algorithms of the hub. Source
of the names and their meaning: MSCCLang (Cowan et al., ASPLOS 2023; microsoft/msccl-tools,
Azure/msccl-tools).
"""

from __future__ import annotations

from collections.abc import Hashable

from collhub_msccl.language.chunks import Buffer, Chunk, ReduceChunk, Ref
from collhub_msccl.language.program import MSCCLProgram, current_program
from collhub_msccl.language.trace import (
    CURRENT_HOST,
    ChunkRef,
    Instruction,
    Op,
    ReplicationPolicy,
    ThreadblockPolicy,
)

# Names that `from msccl.language import *` imports.
__all__ = [
    "XML",
    "Buffer",
    "Check",
    "Chunk",
    "ChunkRef",
    "Instruction",
    "MSCCLProgram",
    "Op",
    "Print",
    "ReduceChunk",
    "Ref",
    "ReplicationPolicy",
    "ThreadblockPolicy",
    "chunk",
    "create_scratch",
]


def chunk(rank: int, buffer: Hashable, index: int, size: int = 1) -> Ref | None:
    """Return a reference to `size` chunks of a buffer of a rank, from `index` on, in the current
    program.

    None if the slot `index` was never written. Raises `KeyError` for an unknown buffer, and
    `IndexError` for a rank or slot out of range.
    """
    return current_program().get_ref(rank, buffer, index, size)


def create_scratch(rank: int, name: Hashable) -> None:
    """Create an empty scratch buffer `name` on a rank; an existing one stays unchanged."""
    current_program().create_scratch(rank, name)


def XML() -> None:  # noqa: N802
    """Print the current program as MSCCL-IR XML; no effect if `collhub` reads the program.

    Raise `RuntimeError` outside the `with` block of a program. Errors of the conversion to
    XML pass through.
    """
    program = current_program()
    CURRENT_HOST.get().show_xml(program)


def Check() -> bool:  # noqa: N802
    """Verify the current program and return whether it is correct.

    Print one line per error. If `collhub` reads the program, no line is printed: it reports
    the errors later. Raise `RuntimeError` outside the `with` block of a program.
    """
    program = current_program()
    return CURRENT_HOST.get().show_check(program)


def Print() -> None:  # noqa: N802
    """Print the instructions of the program, one per line."""
    for op in current_program().instr_dag:
        print(f"{op.line}: rank {op.rank}: {op.inst} {op.src} -> {op.dst}")
