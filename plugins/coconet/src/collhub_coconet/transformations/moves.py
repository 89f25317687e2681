"""All legal transformations of a program, each with its effect on bytes, operations and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from collhub_coconet.program.operations import POINTWISE, Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from collhub_coconet.transformations.as_slice import as_slice
from collhub_coconet.transformations.costs import Costs, costs
from collhub_coconet.transformations.fuse import fuse
from collhub_coconet.transformations.legality import RefusedMoveError, Rewrite
from collhub_coconet.transformations.overlap import overlap
from collhub_coconet.transformations.reorder import movable, reorder
from collhub_coconet.transformations.split import split

_SMALL = POINTWISE | {Kind.SLICE, Kind.NORM, Kind.SUM, Kind.MAX, Kind.UPDATE}
Attempt = Callable[[], Rewrite]


@dataclass(frozen=True, slots=True)
class Move:
    """A legal transformation of a program; `effect`: costs after it less those before."""

    rewrite: Rewrite
    effect: Costs

    def __str__(self) -> str:
        record = self.rewrite.record
        stated = ", ".join(f"{key}={_text(value)}" for key, value in record.parameters.items())
        return f"{record.transformation}({stated})"


def legal_moves(program: Program, binding: Binding) -> list[Move]:
    """Every legal move: splits, reorders of maximal sets and prefixes, states, sets, chains.

    Fused are the maximal sets around one communication, or around none; overlapped are chains of
    two and more members that follow one another in the order of execution.
    """
    # Effects are differences to this.
    before = costs(program, binding)
    return [
        Move(rewrite, costs(rewrite.program, binding) - before)
        for rewrite in legal_rewrites(program, TRANSFORMATIONS)
    ]


def legal_rewrites(program: Program, kinds: Sequence[str]) -> Iterator[Rewrite]:
    """The legal moves of some of `TRANSFORMATIONS`, without their effects."""
    for kind in TRANSFORMATIONS:
        attempts = _ATTEMPTS[kind](program) if kind in kinds else ()
        for attempt in attempts:
            try:
                rewrite = attempt()
            # Most attempts are none: the conditions decide, not this list.
            except RefusedMoveError:
                continue
            if rewrite.program != program:
                yield rewrite


def _splits(program: Program) -> Iterator[Attempt]:
    for operation in program.operations:
        if operation.kind is not Kind.ALL_REDUCE:
            continue
        for dimension in range(len(program.types[operation.name].shape)):
            name = operation.name
            yield lambda name=name, dimension=dimension: split(  # type: ignore[misc]
                program, name, dimension
            )


def _reorders(program: Program) -> Iterator[Attempt]:
    """The largest movable set of each AllGather, and its prefixes; the largest first."""
    for operation in program.operations:
        if operation.kind is not Kind.ALL_GATHER:
            continue
        # Every prefix is closed, so each is a move of its own.
        members = movable(program, operation.name)
        for count in range(len(members), 0, -1):
            name, chosen = operation.name, members[:count]
            yield lambda name=name, chosen=chosen: reorder(  # type: ignore[misc]
                program, name, chosen
            )


def _states(program: Program) -> Iterator[Attempt]:
    """States one by one: what holds for several holds for each."""
    for state in program.states:
        yield lambda state=state: as_slice(program, [state])  # type: ignore[misc]


def _fusions(program: Program) -> Iterator[Attempt]:
    """A maximal set around each communication, and around each pointwise operation in none yet."""
    # Sets that are fused already are no moves.
    seen = {frozenset(stage.members) for stage in program.stages}
    covered = {name for stage in program.stages for name in stage.members}
    talking = [one for one in program.operations if one.is_communication]
    small = [one for one in program.operations if one.kind in _SMALL]
    for operation in (*talking, *small):
        if operation.name in covered and not operation.is_communication:
            continue
        members = largest_stage(program, operation)
        key = frozenset(members)
        if operation.kind in _SMALL:
            covered |= key
        if len(members) > 1 and key not in seen:
            seen.add(key)
            yield lambda members=members: fuse(program, members)  # type: ignore[misc]


def largest_stage(program: Program, seed: Operation) -> list[str]:
    """A set around `seed` to which no operation can be added so that `fuse` takes it still."""
    members = [seed.name]
    fused = {name for stage in program.stages for name in stage.members}
    # An operation is part of one stage at most.
    is_growing = seed.name not in fused
    while is_growing:
        is_growing = False
        for name in _neighbours(program, members):
            wider = [*members, name]
            if name not in fused and _is_stage(program, wider):
                members, is_growing = wider, True
    return [one.name for one in program.operations if one.name in set(members)]


def _neighbours(program: Program, members: list[str]) -> list[str]:
    inside = set(members)
    return [
        operation.name
        for operation in program.operations
        if operation.name not in inside
        and (
            not inside.isdisjoint(operation.reads)
            or any(one.name in inside for one in program.readers.get(operation.name, ()))
        )
    ]


def _is_stage(program: Program, members: list[str]) -> bool:
    try:
        # The transformation itself is the test.
        fuse(program, members)
    except RefusedMoveError:
        return False
    return True


def _overlaps(program: Program) -> Iterator[Attempt]:
    """Chains of kernels, each of which reads the one before, as long as they can be made."""
    stage_of = {name: stage.name for stage in program.stages for name in stage.members}
    # A slice is a view, which nobody waits for.
    working = [one for one in program.operations if one.kind is not Kind.SLICE]
    labels = list(dict.fromkeys(stage_of.get(one.name, one.name) for one in working))
    found: list[list[str]] = []
    for start in labels:
        chain = [start]
        while (follower := _follower(program, chain, labels)) is not None:
            chain = [*chain, follower]
        # Suffixes of a longer chain gain less than the chain.
        is_part = any(longer[-len(chain) :] == chain for longer in found)
        if len(chain) > 1 and not is_part:
            found.append(chain)
            yield lambda chain=chain: overlap(program, chain)  # type: ignore[misc]


def _follower(program: Program, chain: list[str], labels: list[str]) -> str | None:
    """The first member that a chain can be continued by."""
    last = _operations_in(program, chain[-1])
    readers = {reader.name for name in last for reader in program.readers.get(name, ())}
    for label in labels:
        # Whoever reads nothing of the last member is refused anyway.
        if label in chain or readers.isdisjoint(_operations_in(program, label)):
            continue
        try:
            overlap(program, [*chain, label])
        except RefusedMoveError:
            continue
        return label
    return None


def _operations_in(program: Program, label: str) -> tuple[str, ...]:
    """Names of the operations of a stage, or of the operation itself."""
    found = [stage.members for stage in program.stages if stage.name == label]
    return found[0] if found else (label,)


def _text(value: object) -> str:
    """A parameter as a word."""
    # As the options of passes have them.
    return "+".join(value) if isinstance(value, tuple) else str(value)


_ATTEMPTS: dict[str, Callable[[Program], Iterator[Attempt]]] = {
    "split": _splits,
    "reorder": _reorders,
    "as-slice": _states,
    "fuse": _fusions,
    "overlap": _overlaps,
}
TRANSFORMATIONS = tuple(_ATTEMPTS)
"""Transformations in their order of use: one gains nothing from an earlier kind behind it."""
