"""Offers of this distribution to the hub: documents of programs, read as workloads."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_coconet.lowering.options import ProgramOptions
from hub_core.plugin_api import Format, WorkloadReader, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

_PROGRAM = Format(
    "tensor-program",
    "programs of computations and collectives, typed and transformed in Python",
    (".program.json",),
    signature=rb"collhub/tensor-program-1",
)


@hookimpl
def collhub_producers() -> Sequence[WorkloadReader]:
    """Describe the reader."""
    return [
        WorkloadReader(
            _PROGRAM,
            "collhub_coconet.lowering.reading:read",
            ProgramOptions,
            samples="collhub_coconet.lowering.reading:samples",
        )
    ]
