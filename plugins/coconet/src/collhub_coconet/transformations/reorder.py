"""Reorder: computations move from behind an AllGather to before it, onto slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from collhub_coconet.program.graph import between, descendants
from collhub_coconet.program.operations import (
    CONTRACTIONS,
    POINTWISE,
    REDUCTIONS_TO_SCALARS,
    Kind,
    Operation,
)
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import (
    LOCAL,
    REPLICATED,
    from_end,
    has_dimension,
    sliced,
)
from collhub_coconet.transformations.legality import Conditions, Rewrite
from collhub_coconet.transformations.rewriting import (
    fresh,
    members_of,
    operation_of,
    rewritten,
    with_operands,
)
from collhub_coconet.typing.contraction import axes_of

_COMMUTING = POINTWISE | REDUCTIONS_TO_SCALARS | CONTRACTIONS | {Kind.UPDATE, Kind.SEND}


def reorder(program: Program, target: str, members: Sequence[str]) -> Rewrite:
    """Let `members` work on the slice that `target`, an AllGather, collects.

    A member comes with the parts of its statement that have no name of their own. Replicated
    operands are sliced, every live-out gets an AllGather of its own, and an Update of a replicated
    state writes the gathered value. Raises `RefusedMoveError`.
    """
    conditions = Conditions("reorder", program, {"target": target, "members": tuple(members)})
    operation_of(program, target, Kind.ALL_GATHER, conditions)
    conditions.require(True, "all-gather", target, "", "")
    chosen = members_of(program, _with_parts(program, members), conditions)
    # Members that do not read the AllGather only feed those that do.
    behind = descendants(program.operations, [target])
    moved = [operation for operation in chosen if operation.name in behind]
    uses = any(target in operation.reads for operation in moved)
    message = f"no member reads {target}"
    conditions.require(uses, "uses-gather", target, message, "name a reader of it")
    _check_closed(program, target, moved, conditions)
    # The rewriting stands for itself: a refusal leaves the program as it was.
    move = _Move(program, target, moved, conditions)
    feeders = [operation for operation in chosen if operation.name not in behind]
    move.take_feeders(feeders)
    operations = move.operations()
    result = rewritten(program, operations, conditions, renamed=move.renamed)
    return Rewrite(result, conditions.record())


def movable(program: Program, target: str) -> list[str]:
    """The largest set that `reorder` may move before an AllGather, in program order.

    Every prefix of it is closed as well: what a member reads of it stands before.
    """
    # What may move, and what ends every path through it.
    sources = {target}
    stopped: set[str] = set()
    conditions = Conditions("reorder", program, {"target": target})
    move = _Move(program, target, [], conditions)
    for operation in program.operations:
        reads = set(operation.reads)
        # Off all paths from the AllGather.
        if reads.isdisjoint(sources | stopped):
            continue
        if reads.isdisjoint(stopped) and move.accepts(operation):
            sources.add(operation.name)
        else:
            stopped.add(operation.name)
    return [one.name for one in program.operations if one.name in sources - {target}]


def _with_parts(program: Program, members: Sequence[str]) -> list[str]:
    """Members, and the inner operations that they alone read."""
    found = set(members)
    # Backwards, so that parts of parts are found too.
    for operation in reversed(program.operations):
        readers = program.readers.get(operation.name, ())
        is_part = operation.is_inner and operation.kind in POINTWISE
        if is_part and readers and all(reader.name in found for reader in readers):
            found.add(operation.name)
    return sorted(found)


def _check_closed(
    program: Program, target: str, moved: Iterable[Operation], conditions: Conditions
) -> None:
    """Refuse a set that a path leaves and enters again."""
    # Between two members, or between the AllGather and one.
    names = [operation.name for operation in moved]
    left_out = between(program.operations, [target, *names])
    who = left_out[0].name if left_out else target
    message = "it stands on a path from the AllGather to a member"
    cure = "make it a member too"
    conditions.require(not left_out, "closed", who, message, cure)


class _Move:
    """The rewriting of one set of operations, in program order.

    `_slice_of`: new name of the slice of every value that is sliced now. `_distance`: the sliced
    dimension of each, counted from the end, which broadcasting keeps.
    """

    def __init__(
        self, program: Program, target: str, moved: list[Operation], conditions: Conditions
    ) -> None:
        # The slice that the AllGather collects is there already.
        source = program.by_name[target].reads[0]
        layout = program.types[source].layout
        rank = len(program.types[source].shape)
        self.renamed: dict[str, str] = {}
        self._program = program
        self._conditions = conditions
        self._members = moved
        self._moved = {operation.name for operation in moved}
        self._feeds: dict[str, int] = {}
        self._slice_of = {target: source}
        self._distance = {target: from_end(layout.dimension, rank)}
        self._gathered = {target: target}
        self._cut: dict[tuple[str, int], str] = {}
        self._result: list[Operation] = []

    def take_feeders(self, candidates: list[Operation]) -> None:
        """Let operations that do not read the AllGather, but that members alone read, be sliced."""
        # A trial of the move tells the dimension at every member.
        trial = _Move(self._program, next(iter(self._slice_of)), self._members, self._conditions)
        for operation in self._members:
            trial.accepts(operation)
        distances = trial._distance
        for operation in reversed(candidates):
            # All readers have to agree on one dimension.
            readers = self._program.readers.get(operation.name, ())
            found = {_fed(reader, distances) for reader in readers}
            distance = found.pop() if len(found) == 1 else 0
            is_fed = operation.kind in POINTWISE and distance > 0
            shape = self._program.types[operation.name].shape
            is_output = operation.name in self._program.outputs
            if is_fed and not is_output and has_dimension(shape, distance):
                self._feeds[operation.name] = distances[operation.name] = distance

    def operations(self) -> list[Operation]:
        """The operations of the whole program after the move."""
        for operation in self._program.operations:
            if operation.name in self._feeds:
                self._feed(operation)
                continue
            # Everything else stays where it stands.
            if operation.name not in self._moved:
                self._result.append(operation)
                continue
            self._check(operation)
            if self._slice_of.keys().isdisjoint(operation.reads):
                # Behind a reduction to a scalar everything is replicated as it was.
                self._result.append(operation)
            elif operation.kind is Kind.UPDATE:
                self._move_update(operation)
            else:
                self._move(operation)
        return self._result

    def accepts(self, operation: Operation) -> bool:
        """Whether an operation may move, with all accepted before; it counts as moved then."""
        if self._refusal(operation) is not None:
            return False
        # Members behind a scalar have no slice.
        if not self._slice_of.keys().isdisjoint(operation.reads):
            self._note(operation, operation.name)
        return True

    def _check(self, operation: Operation) -> None:
        """Refuse an operation that cannot move, and note the conditions otherwise."""
        refusal = self._refusal(operation)
        if refusal is not None:
            condition, message, cure = refusal
            raise self._conditions.refusal(condition, operation.name, message, cure)
        # The record says what held, not only what failed.
        self._conditions.require(True, "commutes", operation.name, "", "")
        self._conditions.require(True, "no-local-operand", operation.name, "", "")

    def _refusal(self, operation: Operation) -> tuple[str, str, str] | None:
        """(condition, message, cure) of what keeps an operation behind the AllGather."""
        for name in operation.reads:
            if self._program.types[name].layout == LOCAL:
                return "no-local-operand", f"{name} is local", "reduce it, or leave the reader out"
        # Nothing of it is sliced: nothing has to commute.
        moving = [name for name in operation.reads if name in self._slice_of]
        if not moving:
            return None
        if operation.kind not in _COMMUTING:
            message = f"{operation.kind} does not commute with slicing"
            return "commutes", message, "leave it out"
        if operation.kind in CONTRACTIONS:
            return self._contraction_refusal(operation)
        # Counted from the end, as broadcasting aligns shapes.
        distances = {self._distance[name] for name in moving}
        distances |= {self._sliced_already(name) for name in operation.reads} - {0}
        if len(distances) > 1:
            message = "its operands would be sliced along different dimensions"
            return "commutes", message, "leave it out"
        return None

    def _sliced_already(self, name: str) -> int:
        """Distance from the end of the sliced dimension of an operand from outside; 0: none."""
        kind = self._program.types[name]
        return from_end(kind.layout.dimension, len(kind.shape)) if kind.layout.is_sliced else 0

    def _contraction_refusal(self, operation: Operation) -> tuple[str, str, str] | None:
        """A contraction commutes along rows of its first operand, the second one replicated."""
        # Sums run over the other dimensions of the first operand.
        x, w = operation.reads
        rank = len(self._program.types[x].shape)
        rows = axes_of(operation.kind, rank).rows
        is_row = x in self._slice_of and rank - self._distance[x] in rows
        if not is_row:
            message = f"the slice is no row of the first operand {x}"
            return "commutes", message, "split along a row dimension, or leave it out"
        if w in self._slice_of or self._program.types[w].layout != REPLICATED:
            return "commutes", f"the second operand {w} is not replicated", "leave it out"
        return None

    def _note(self, operation: Operation, new_name: str) -> None:
        """Enter the value of a moved operation, unless it is a scalar, which is replicated."""
        if operation.kind in REDUCTIONS_TO_SCALARS:
            return
        # They are equal, or the move was refused.
        distances = [self._distance[name] for name in operation.reads if name in self._distance]
        self._slice_of[operation.name] = new_name
        self._distance[operation.name] = self._of_result(operation, distances[0])

    def _of_result(self, operation: Operation, distance: int) -> int:
        """The sliced dimension of a result, from the end."""
        if operation.kind not in CONTRACTIONS:
            return distance
        rank = len(self._program.types[operation.reads[0]].shape)
        result_rank = len(self._program.types[operation.name].shape)
        # A row stands at the same place from the start.
        return result_rank - (rank - distance)

    def _move(self, operation: Operation) -> None:
        """Emit an operation on slices, and the AllGather of its value where it lives on."""
        name = operation.name
        is_scalar = operation.kind in REDUCTIONS_TO_SCALARS
        lives_on = not is_scalar and self._lives_on(name)
        self._note(operation, name)
        # Any sliced operand tells the dimension.
        moving = next(read for read in operation.reads if read in self._slice_of)
        operands = self._operands(operation, self._distance[moving])
        if lives_on:
            self._rename(name, name)
        moved = with_operands(operation, operands)
        self._result.append(replace(moved, name=self._slice_of.get(name, name)))
        if lives_on:
            self._gather(name, name)

    def _feed(self, operation: Operation) -> None:
        """Emit an operation that only members read, on slices."""
        # Nobody needs its whole: it gets no AllGather.
        distance = self._feeds[operation.name]
        operands = self._operands(operation, distance)
        self._result.append(with_operands(operation, operands))
        self._slice_of[operation.name] = operation.name
        self._distance[operation.name] = distance

    def _move_update(self, operation: Operation) -> None:
        """Value on the slice, AllGather, then the Update of the replicated state."""
        state, value = operation.reads
        # A sliced state takes the slice as it is.
        if self._program.types[state].layout.is_sliced:
            self._move(operation)
            return
        if value not in self._gathered:
            if value.startswith("_"):
                self._rename(value, operation.name)
                self._rename_emitted(value)
            self._gather(value, fresh(self._program, f"_{operation.name}_gathered"))
        self._result.append(replace(operation, operands=(state, self._gathered[value])))
        # The new state is replicated: it is its own gathered value.
        self._gathered[operation.name] = operation.name
        self._slice_of[operation.name] = self._slice_of[value]
        self._distance[operation.name] = self._distance[value]

    def _operands(self, operation: Operation, distance: int) -> dict[str, str]:
        """New names of operands: slices of what moves, and of whole ones with the dimension."""
        found = {}
        for name in operation.reads:
            kind = self._program.types[name]
            if name in self._slice_of:
                found[name] = self._slice_of[name]
            elif operation.kind in CONTRACTIONS or kind.layout.is_sliced:
                continue
            elif has_dimension(kind.shape, distance):
                found[name] = self._cut_of(name, len(kind.shape) - distance)
        return found

    def _cut_of(self, name: str, dimension: int) -> str:
        """The name of a slice of a replicated value, which is emitted once."""
        # Several members may read the same slice.
        key = (name, dimension)
        if key not in self._cut:
            wanted = f"_{name.removeprefix('_')}_{sliced(dimension)}"
            cut = fresh(self._program, wanted, self._cut.values())
            self._cut[key] = cut
            self._result.append(Operation(cut, Kind.SLICE, (name,), dimension=dimension))
        return self._cut[key]

    def _lives_on(self, name: str) -> bool:
        """Whether a value that is a slice now is needed as a whole."""
        if self._program.types[name].layout.is_sliced:
            # It was a slice before: whoever reads it goes on to.
            return False
        readers = self._program.readers.get(name, ())
        is_read = any(reader.name not in self._moved for reader in readers)
        return is_read or name in self._program.outputs

    def _rename(self, name: str, base: str) -> None:
        """Give the slice of a value a name of its own."""
        # The name says along which dimension it is cut.
        rank = len(self._program.types[name].shape)
        layout = sliced(rank - self._distance[name])
        new_name = fresh(self._program, f"{base}_{layout}", self.renamed.values())
        self._slice_of[name] = new_name
        self.renamed[name] = new_name

    def _rename_emitted(self, old: str) -> None:
        """Give a slice that stands already a name of its own, with all that reads it."""
        # Only what was emitted so far can read it.
        names = {old: self.renamed[old]}
        for place, operation in enumerate(self._result):
            if operation.name == old:
                operation = replace(operation, name=names[old])
            self._result[place] = with_operands(operation, names)

    def _gather(self, name: str, gathered: str) -> None:
        """Emit the AllGather of a slice."""
        # Later Updates write this value.
        self._gathered[name] = gathered
        self._result.append(Operation(gathered, Kind.ALL_GATHER, (self._slice_of[name],)))


def _fed(reader: Operation, distances: dict[str, int]) -> int:
    """Distance from the end of the dimension along which a reader is sliced; 0 where it is not."""
    return distances.get(reader.name, 0) if reader.kind in POINTWISE | {Kind.UPDATE} else 0
