"""Refuse runs for which this host has too little memory, before any allocation."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from collhub_execution.levelling.program import LevelledProgram
from hub_core.model import Buffer, UsageError, format_bytes


def check_memory(program: LevelledProgram, elements: int, dtype: np.dtype[Any]) -> None:
    """Raise `UsageError` if inputs and the memory of all ranks exceed the memory of this host.

    `elements`: per block.
    """
    blocks = program.layout.total + int(program.layout.size[:, Buffer.INPUT].sum())
    needed = blocks * elements * dtype.itemsize
    available = machine_memory_bytes()
    if available is not None and needed > available:
        raise UsageError(
            f"{program.num_ranks} ranks need {format_bytes(needed)} of memory, "
            f"this machine has {format_bytes(available)}",
            cure="use a smaller size",
            code="too-large",
        )


def machine_memory_bytes() -> int | None:
    """Return the memory of this host in bytes, None if the system does not report it."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
