"""Enumerate the legal transformations of a program, with their effects on its costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from collhub_coconet.program.operations import POINTWISE, VIEWS, Binding, Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.transformations.buckets import coalesce, find_largest_buckets
from collhub_coconet.transformations.costs import Costs, costs
from collhub_coconet.transformations.grouping import fuse, overlap
from collhub_coconet.transformations.legality import RefusedMoveError, Rewrite
from collhub_coconet.transformations.reorder import movable, reorder
from collhub_coconet.transformations.slicing import as_slice, split

FUSIBLE = POINTWISE | {Kind.SLICE, Kind.NORM, Kind.SUM, Kind.MAX, Kind.UPDATE}
"""Kinds of the computations that a stage may contain."""

Attempt = Callable[[], Rewrite]
"""A transformation with its arguments, not yet applied; may raise `RefusedMoveError`."""


@dataclass(frozen=True, slots=True)
class Move:
    """A legal transformation of a program; `effect`: costs after it minus costs before it."""

    rewrite: Rewrite
    effect: Costs

    def __str__(self) -> str:
        record = self.rewrite.record
        arguments = []
        for key, value in record.parameters.items():
            # As in an option of a pass, a list of names is joined by `+`.
            text = "+".join(value) if isinstance(value, tuple) else str(value)
            arguments.append(f"{key}={text}")
        return f"{record.transformation}({', '.join(arguments)})"


def legal_moves(program: Program, binding: Binding) -> list[Move]:
    """List the legal moves of a program with their effects on the costs.

    Moves that are refused or do not change the program are left out. They come in the order
    of `TRANSFORMATIONS`:

    - split: every AllReduce along every dimension;
    - reorder: for every AllGather, the largest movable set and its prefixes, longest first;
    - as-slice: every single state;
    - fuse: the maximal set around each communication, and maximal sets without communication;
    - coalesce: the maximal sets of independent collectives of one kind and group;
    - overlap: maximal chains of at least two operations or stages, in the order of execution.

    Raises `InputError` (`symbol`) if `binding` lacks the number of a symbol.
    """
    before = costs(program, binding)
    return [
        Move(rewrite, costs(rewrite.program, binding) - before)
        for rewrite in legal_rewrites(program, TRANSFORMATIONS)
    ]


def legal_rewrites(program: Program, kinds: Sequence[str]) -> Iterator[Rewrite]:
    """Yield the results of the legal moves of some `kinds`, in the order of `legal_moves`.

    `kinds`: a subset of `TRANSFORMATIONS`. Moves that do not change the program are left out.
    """
    for kind in TRANSFORMATIONS:
        attempts = _ATTEMPTS[kind](program) if kind in kinds else ()
        for attempt in attempts:
            try:
                rewrite = attempt()
            # Attempts are generous: the conditions of the transformation decide.
            except RefusedMoveError:
                continue
            if rewrite.program != program:
                yield rewrite


def _attempt_splits(program: Program) -> Iterator[Attempt]:
    """Yield a function per AllReduce and dimension that attempts to split it along the dimension.

    AllReduces are in the order of the program, dimensions ascending. Nothing is tested here: a
    function returns the rewritten program or raises if the split is refused.
    """
    for operation in program.operations:
        if operation.kind is not Kind.ALL_REDUCE:
            continue
        for dimension in range(len(program.types[operation.name].shape)):
            yield partial(split, program, operation.name, dimension)


def _attempt_reorders(program: Program) -> Iterator[Attempt]:
    """Yield a function per prefix of the movable set of each AllGather that attempts the reorder.

    AllGathers are in the order of the program; for each the longest prefix comes first, and the
    shortest has one operation. An AllGather is skipped if no operation can move before it. Each
    function returns the rewritten program or raises if the reorder is refused.
    """
    for operation in program.operations:
        if operation.kind is not Kind.ALL_GATHER:
            continue
        # Every prefix is closed under the paths from the AllGather, so that it can be moved.
        members = movable(program, operation.name)
        for count in range(len(members), 0, -1):
            yield partial(reorder, program, operation.name, members[:count])


def _attempt_fusions(program: Program) -> Iterator[Attempt]:
    """Yield attempts to fuse maximal sets: first around communications, then around computations.

    An attempt is a function without arguments that returns the `Rewrite` of `fuse`, or raises
    `RefusedMoveError`; the caller calls it. Seeds are all communications in program order, then all
    operations of the kinds in `FUSIBLE` (pointwise ones and further computations of a stage) in
    program order. A set is that of `grow_stage`; only around communications it may contain further
    communications.

    A computation is no seed if it is in a stage of the program, or in a set around an earlier
    computation. Sets around communications do not count for this. A set is left out if it has one
    member, is equal to a stage, or was yielded before.
    """
    seen = {frozenset(stage.members) for stage in program.stages}
    covered = {name for stage in program.stages for name in stage.members}
    communications = [entry for entry in program.operations if entry.is_communication]
    pointwise = [entry for entry in program.operations if entry.kind in FUSIBLE]
    for operation in (*communications, *pointwise):
        if operation.name in covered and not operation.is_communication:
            continue
        members = grow_stage(program, operation, allows_communication=operation.is_communication)
        member_set = frozenset(members)
        if operation.kind in FUSIBLE:
            covered |= member_set
        if len(members) > 1 and member_set not in seen:
            seen.add(member_set)
            yield partial(fuse, program, members)


def grow_stage(
    program: Program, seed: Operation, *, allows_communication: bool = True
) -> list[str]:
    """Grow a set around the operation `seed` until `fuse` accepts no further neighbour.

    Neighbours read a member or are read by one. In each round, the neighbours of the members at its
    start are tried in program order, and each is added if `fuse` accepts the set with it.
    Operations of existing stages are never added, and communications (other than the seed) only if
    `allows_communication`. Returns the names in program order, at least the seed; only the seed if
    it is in a stage already. The program is not changed.
    """
    members = [seed.name]
    fused = {name for stage in program.stages for name in stage.members}
    excluded = set(fused)
    if not allows_communication:
        excluded |= {entry.name for entry in program.operations if entry.is_communication}
    is_growing = seed.name not in fused
    while is_growing:
        is_growing = False
        neighbours: set[str] = set()
        for member in members:
            neighbours.update(program.by_name[member].reads)
            neighbours.update(reader.name for reader in program.readers.get(member, ()))
        candidates = neighbours & program.places.keys() - excluded - set(members)
        for name in sorted(candidates, key=program.places.__getitem__):
            try:
                fuse(program, [*members, name])
            except RefusedMoveError:
                continue
            members, is_growing = [*members, name], True
    return sorted(members, key=program.places.__getitem__)


def fuse_scalars(program: Program) -> Rewrite | None:
    """Fuse the entire program into one stage if all operations are pointwise and on scalars.

    This is always the fastest arrangement, since kernels on scalars cost only their launches.
    Returns None for any other program, for one with stages, for one with fewer than two operations,
    and if `fuse` refuses the operations, for example because their layouts differ.
    """
    is_scalar = all(
        operation.kind in POINTWISE and not program.types[operation.name].shape
        for operation in program.operations
    )
    if not is_scalar or program.stages or len(program.operations) < 2:
        return None
    try:
        return fuse(program, [operation.name for operation in program.operations])
    except RefusedMoveError:
        return None


def _attempt_overlaps(program: Program) -> Iterator[Attempt]:
    """Yield attempts to overlap maximal chains: one from each kernel, in program order.

    An attempt is a function without arguments that returns the `Rewrite` of `overlap`, or raises
    `RefusedMoveError`; the caller calls it. Kernels are the stages, by name, and the operations in
    no stage. Views and opaque operations are no kernels. A stage has the place of its first
    operation that is neither.

    A chain is extended by `_find_follower` as long as that finds a kernel. A chain is left out if
    it has one kernel, or if it is equal to the end of a chain that was yielded before: A, B, C
    excludes B, C.
    """
    stage_of = {name: stage.name for stage in program.stages for name in stage.members}
    # A slice is a view without a kernel; opaque operations have no chunks.
    computing = [entry for entry in program.operations if entry.kind not in VIEWS | {Kind.OPAQUE}]
    labels = list(dict.fromkeys(stage_of.get(entry.name, entry.name) for entry in computing))
    chains: list[list[str]] = []
    for start in labels:
        chain = [start]
        while (follower := _find_follower(program, chain, labels)) is not None:
            chain = [*chain, follower]
        is_suffix = any(longer[-len(chain) :] == chain for longer in chains)
        if len(chain) > 1 and not is_suffix:
            chains.append(chain)
            yield partial(overlap, program, chain)


def _find_follower(program: Program, chain: list[str], labels: list[str]) -> str | None:
    """Return the first of `labels` by which `overlap` can extend a chain; None if there is none.

    Labels are names of stages or of single operations, and `chain` has at least one. A label is
    tried, in the order of `labels`, if it is not in the chain and one of its operations reads a
    value of the chain's last member. It is returned if `overlap` accepts the chain with it as the
    new last member. The program is not changed.
    """
    last = _operations_in(program, chain[-1])
    readers = {reader.name for name in last for reader in program.readers.get(name, ())}
    for label in labels:
        # Saves an attempt: `overlap` refuses a member that does not read its predecessor.
        if label in chain or readers.isdisjoint(_operations_in(program, label)):
            continue
        try:
            overlap(program, [*chain, label])
        except RefusedMoveError:
            continue
        return label
    return None


def _operations_in(program: Program, label: str) -> tuple[str, ...]:
    """Return the names of the operations of the stage `label`, in its order.

    If no stage has this name, it is taken as the name of an operation, without a check: the result
    is only `label`.
    """
    members = [stage.members for stage in program.stages if stage.name == label]
    return members[0] if members else (label,)


_ATTEMPTS: dict[str, Callable[[Program], Iterator[Attempt]]] = {
    "split": _attempt_splits,
    "reorder": _attempt_reorders,
    # Every single state: several states can be sliced one after another.
    "as-slice": lambda program: (partial(as_slice, program, [name]) for name in program.states),
    "fuse": _attempt_fusions,
    "coalesce": lambda program: (
        partial(coalesce, program, members) for members in find_largest_buckets(program)
    ),
    "overlap": _attempt_overlaps,
}
TRANSFORMATIONS = tuple(_ATTEMPTS)
"""Names of the transformations in their order of use.

Applying an earlier kind after a later one gains nothing.
"""
