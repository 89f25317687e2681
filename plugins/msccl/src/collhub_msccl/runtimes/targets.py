"""Runtimes of MSCCL-IR as targets of a synthesis: limits, and resources of an algorithm on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collhub_msccl.options import WriteOptions
from collhub_msccl.runtimes.known_runtimes import (
    MAX_NODES,
    MAX_OFFSET,
    RESIDENT_BLOCKS,
    RUNTIMES,
)
from hub_core.plugin_api import Runtime, RuntimeFit, RuntimeLimits

if TYPE_CHECKING:
    from hub_core.model import Algorithm
    from hub_core.network import Topology

_DEFAULT = "executor"
_ELEMENT_BYTES = 4
_REMAINDER = "calls of other sizes are served by NCCL's own algorithms, or padded by the caller"


def list_targets() -> tuple[Runtime, ...]:
    """Return all runtimes as targets: the writer's default first, the others by name."""
    names = sorted(RUNTIMES, key=lambda name: name != _DEFAULT)
    return tuple(_build_target(name) for name in names)


def _build_target(name: str) -> Runtime:
    runtime = RUNTIMES[name]
    return Runtime(
        name,
        runtime.title,
        RuntimeLimits(
            unit_bytes=_ELEMENT_BYTES,
            max_units=MAX_OFFSET,
            max_blocks=min(runtime.max_blocks, RESIDENT_BLOCKS),
            max_block_operations=runtime.max_steps,
            max_channels=runtime.max_channels,
            # A rank reads its thread blocks and steps as elements.
            max_operations=MAX_NODES - min(runtime.max_blocks, RESIDENT_BLOCKS) - 2,
        ),
        tuple(runtime.spelling),
        f"collhub_msccl.runtimes.targets:fit_{name}",
        {"runtime": name},
        _REMAINDER,
    )


def fit_msccl(algorithm: Algorithm, collective_bytes: int, topology: Topology) -> RuntimeFit:
    """Return the resources of an algorithm on microsoft/msccl; raises as the writer does."""
    return _fit(algorithm, collective_bytes, "msccl")


def fit_executor(algorithm: Algorithm, collective_bytes: int, topology: Topology) -> RuntimeFit:
    """Return the resources of an algorithm on Azure/msccl-executor-nccl; raises as the writer."""
    return _fit(algorithm, collective_bytes, "executor")


def fit_rccl(algorithm: Algorithm, collective_bytes: int, topology: Topology) -> RuntimeFit:
    """Return the resources of an algorithm on ROCm/rccl; raises as the writer does."""
    return _fit(algorithm, collective_bytes, "rccl")


def _fit(algorithm: Algorithm, collective_bytes: int, runtime: str) -> RuntimeFit:
    # Imported here: the offers of the plugin refer to this module, and need no writer.
    from collhub_msccl.writing.write_xml import measure_fit

    return measure_fit(algorithm, WriteOptions(runtime=runtime, max_bytes=collective_bytes))
