"""Programs that are wrong on purpose, for tests of executors."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from hub_core.execution.program import LevelledProgram, RecordKind

_NOT_BY_RECORD = frozenset({"rank_indptr", "layout"})


def without_send(program: LevelledProgram, message: int = 0) -> LevelledProgram:
    """The program in which a message is awaited but never sent: a deadlock, on every transport."""
    kept = (program.kind != RecordKind.SEND) | (program.message != message)
    names = [field.name for field in fields(program) if field.name not in _NOT_BY_RECORD]
    columns = {
        name: value[kept]
        for name in names
        if isinstance(value := getattr(program, name), np.ndarray)
    }
    ends = np.cumsum(np.bincount(program.rank[kept], minlength=program.num_ranks))
    return replace(program, **columns, rank_indptr=np.concatenate([[0], ends]))
