"""Determine the phases of a native collective: one algorithm in one dimension each.

Methods of ASTRA-sim: `Sys::generate_collective` and `generate_collective_phase`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

from collhub_astra_sim.workloads.machine_state import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    ANY_QUEUE,
    DIRECT,
    FIRST_QUEUES,
    HALVING_DOUBLING,
    LAST_QUEUES,
    REDUCE_SCATTER,
    RING,
    TREE,
)
from collhub_astra_sim.workloads.system import NATIVE_TYPES, Optimization, System
from hub_core.model import InputError

_NAMES = {"ring": RING, "halvingdoubling": HALVING_DOUBLING, "doublebinarytree": TREE}


class Phase(NamedTuple):
    """One phase, with the fields of `machine_state.PHASE`."""

    type: int
    algorithm: int
    width: int
    level: int
    stride: int
    size: int
    half: int


def build_system_phases(
    kind: int, system: System, sizes: Sequence[int], dimensions: int
) -> tuple[Phase, ...]:
    """Return the phases of a collective of all ranks on a network of these dimensions.

    `dimensions`: bit d is set if dimension d takes part. Raises `InputError` if ASTRA-sim aborts or
    its behaviour is undefined.
    """
    names = _get_algorithm_names(kind, system)
    if names[0].startswith("one"):
        total = 1
        for size in sizes:
            total *= size
        names, sizes = names[:1], (total,)
    if len(names) > len(sizes):
        _refuse(kind, f"{len(names)} algorithms for {len(sizes)} dimensions")
    parts = [
        _build_phase(kind, name, level, _compute_stride(sizes, level), sizes[level])
        for level, name in enumerate(names)
        if sizes[level] > 1 and dimensions >> level & 1
    ]
    phases = tuple(_order_phases(kind, parts, system))
    for phase in phases:
        _check_phase(kind, phase)
    return phases


def build_group_phases(kind: int, system: System, size: int) -> tuple[Phase, ...]:
    """Return the phases of a collective of a group smaller than the system; none for one member.

    Raises `InputError` if ASTRA-sim crashes.
    """
    names = _get_algorithm_names(kind, system)
    if size == 1:
        return ()
    phase = _build_phase(kind, names[0] if len(names) == 1 else "ring", 0, 0, size)
    if phase.algorithm == TREE:
        _refuse(kind, "ASTRA-sim crashes on doubleBinaryTree in a group")
    half = FIRST_QUEUES if _is_split(kind, system) else ANY_QUEUE
    phase = phase._replace(half=half)
    _check_phase(kind, phase)
    return (phase,)


def _get_algorithm_names(kind: int, system: System) -> tuple[str, ...]:
    """Return the native algorithms that the system names for a collective.

    Raises `InputError` if there is none.
    """
    names = system.algorithms.get(NATIVE_TYPES[kind])
    if not names:
        _refuse(kind, "the system names no algorithm for it")
    return names


def _compute_stride(sizes: Sequence[int], level: int) -> int:
    """Return the distance between neighbouring ranks of a dimension."""
    stride = 1
    for size in sizes[:level]:
        stride *= size
    return stride


def _build_phase(kind: int, name: str, level: int, stride: int, size: int) -> Phase:
    """Build the phase of a named algorithm in a dimension."""
    name = name.removeprefix("one").lower()
    direct = re.fullmatch(r"direct(\d*)", name)
    if direct:
        width = int(direct[1]) if direct[1] else -1
        return Phase(kind, DIRECT, width, level, stride, size, ANY_QUEUE)
    return Phase(kind, _NAMES[name], -1, level, stride, size, ANY_QUEUE)


def _is_split(kind: int, system: System) -> bool:
    """Return whether an all-reduce is divided into reduce-scatters and all-gathers."""
    return kind == ALL_REDUCE and system.optimization is not Optimization.BASELINE


def _order_phases(kind: int, parts: Sequence[Phase], system: System) -> Iterator[Phase]:
    """Yield the phases in the order of execution, with the halves of queues that they use."""
    if kind == ALL_GATHER:
        yield from reversed(parts)
        return
    if kind == ALL_REDUCE and len(parts) > 1 and system.optimization is None:
        _refuse(kind, "collective-optimization is missing, and ASTRA-sim guesses")
    if not parts or not _is_split(kind, system):
        yield from parts
        return
    for part in parts[:-1]:
        yield part._replace(type=REDUCE_SCATTER, half=FIRST_QUEUES)
    yield parts[-1]._replace(half=FIRST_QUEUES)
    for part in reversed(parts[:-1]):
        yield part._replace(type=ALL_GATHER, half=LAST_QUEUES)


def _check_phase(kind: int, phase: Phase) -> None:
    """Raise `InputError` for a phase that ASTRA-sim cannot run."""
    if phase.algorithm == HALVING_DOUBLING and phase.type == ALL_TO_ALL:
        _refuse(kind, "ASTRA-sim has no halvingDoubling for it")
    if phase.algorithm == TREE and phase.size & (phase.size - 1):
        _refuse(kind, f"ASTRA-sim crashes on doubleBinaryTree of {phase.size} ranks")


def _refuse(kind: int, reason: str) -> NoReturn:
    """Raise the `InputError` of a collective."""
    name = NATIVE_TYPES[kind].name.lower().replace("_", "-")
    cure = f"choose another {name}-implementation in the system JSON"
    raise InputError(f"{name}: {reason}", cure=cure, code="no-implementation")
