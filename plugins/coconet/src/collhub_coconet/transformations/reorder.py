"""Reorder: move computations from after an AllGather to before it, where they use slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collhub_coconet.program.operations import (
    CONTRACTIONS,
    POINTWISE,
    REDUCTIONS_TO_SCALARS,
    REPLICATED,
    Kind,
    Layout,
    Operation,
    distance_from_end,
    has_dimension,
    sliced,
)
from collhub_coconet.program.program import (
    Program,
    find_axis_positions,
    find_between,
    find_descendants,
)
from collhub_coconet.program.shape_rules import find_axes
from collhub_coconet.transformations.legality import (
    Conditions,
    Rewrite,
    build_program,
    choose_name,
    find_members,
    find_operation,
    replace_operands,
)

# Kinds that commute with slicing along another dimension than the one that they name.
_ROW_KINDS = frozenset({Kind.ROW_REDUCE, Kind.ARG_MAX, Kind.TOP_VALUES, Kind.TOP_INDICES})
# Kinds of operations that can commute with slicing.
_COMMUTING = POINTWISE | REDUCTIONS_TO_SCALARS | CONTRACTIONS | {Kind.UPDATE, Kind.SEND, Kind.INDEX}


def reorder(program: Program, target: str, members: Sequence[str]) -> Rewrite:
    """Move operations before an AllGather, so that they compute on slices.

    `members`: names to move, in any order. Pointwise operations with a name that begins with `_`
    become members if only members read them. Members that depend on the AllGather `target`, also
    indirectly, are moved. Their replicated operands are cut by new Slices. A moved member gets an
    AllGather if it is an output, or if an operation that is not moved reads it. Other members stay
    in place. They compute only a slice if they are pointwise, no output, and all readers compute
    slices.

    Raises `RefusedMoveError` for the first violated condition:

    1. `target`: `target` is an AllGather, and all members exist.
    2. `uses-gather`: a moved member reads `target`.
    3. `closed`: no other operation is on a path from `target` to a moved member.
    4. Each moved member meets the conditions of `_Move._find_obstacle`: no local operands, an
       AllGather over one axis, an operation that gives the same values on slices.
    5. The conditions of `build_program`, which may also raise `InputError`.
    """
    conditions = Conditions("reorder", program, {"target": target, "members": tuple(members)})
    find_operation(program, target, Kind.ALL_GATHER, conditions)
    conditions.require(True, "all-gather", target, "", "")
    chosen = find_members(program, _add_inner_operations(program, members), conditions)
    # Members that do not depend on the AllGather are sliced only if they feed members that do.
    dependent = find_descendants(program.operations, [target])
    moved = [operation for operation in chosen if operation.name in dependent]
    uses = any(target in operation.reads for operation in moved)
    message = f"no member reads {target}"
    conditions.require(uses, "uses-gather", target, message, "name a reader of it")
    # Refuse a set if an operation outside it is on a path between members or from `target`.
    names = [operation.name for operation in moved]
    left_out = find_between(program, [target, *names])
    culprit = left_out[0].name if left_out else target
    message = "it stands on a path from the AllGather to a member"
    cure = "make it a member too"
    conditions.require(not left_out, "closed", culprit, message, cure)
    move = _Move(program, target, moved, conditions)
    feeders = [operation for operation in chosen if operation.name not in dependent]
    move.select_feeders(feeders)
    operations = move.build_operations()
    result = build_program(program, operations, conditions, renamed=move.renamed)
    return Rewrite(result, conditions.to_record())


def movable(program: Program, target: str) -> list[str]:
    """Return the names of operations that `reorder` can move before the AllGather `target`.

    They can move together. Only operations that depend on the AllGather are considered. They are
    tried in program order. One is taken if it reads no rejected operation, and if the rules of
    `_Move._find_obstacle` permit it after the ones that were taken before. Otherwise it is
    rejected, and so are all operations that depend on it.

    The names are in program order, without `target`. Every prefix of the list can be moved, too.
    The list is empty if no operation can move, for example for an AllGather over several axes.
    `target` must be the name of an AllGather; `KeyError` for an unknown name. The program is not
    changed.
    """
    # The AllGather and all operations that can move; descendants of it that cannot.
    sources = {target}
    blocked: set[str] = set()
    conditions = Conditions("reorder", program, {"target": target})
    move = _Move(program, target, [], conditions)
    for operation in program.operations:
        reads = set(operation.reads)
        if reads.isdisjoint(sources | blocked):
            continue
        if reads.isdisjoint(blocked) and move.accepts(operation):
            sources.add(operation.name)
        else:
            blocked.add(operation.name)
    movable_names = sources - {target}
    return [entry.name for entry in program.operations if entry.name in movable_names]


def _add_inner_operations(program: Program, members: Sequence[str]) -> list[str]:
    """Return the names of the members and of the unnamed operations that only serve them.

    An operation is added if all of these hold:

    - it is pointwise, and its name begins with `_`
    - it has at least one reader, and all its readers are members or added

    `members`: names, which are kept even if they are unknown. The result is a new list,
    sorted alphabetically and without duplicates.
    """
    names = set(members)
    # In reverse, so that operands of added operations are considered.
    for operation in reversed(program.operations):
        readers = program.readers.get(operation.name, ())
        is_inner = operation.is_inner and operation.kind in POINTWISE
        if is_inner and readers and all(reader.name in names for reader in readers):
            names.add(operation.name)
    return sorted(names)


class _Move:
    """Rewrites a program so that one set of operations is before an AllGather.

    `renamed`: new names of operations by old name. `_members`, `_moved`: the operations to move,
    and their names. `_feeds`: sliced dimension by name of an operation that only members read.
    `_slice_of`: name of the slice of every value that is now sliced. `_distance`: its sliced
    dimension. `_gathered`: name of the complete value by name of a value whose slice was gathered.
    `_cut`: name of an emitted Slice by value and dimension. `_result`: operations emitted so far.
    `_axes`, `_positions`: names and positions of the axes of the AllGather; layouts are those on
    the first one, and nothing moves before an AllGather over several.
    Dimensions are counted from the end of the shape, as broadcasting aligns shapes; only those in
    `_cut` are counted from the start.
    """

    def __init__(
        self, program: Program, target: str, moved: list[Operation], conditions: Conditions
    ) -> None:
        gather = program.by_name[target]
        source = gather.reads[0]
        self._axes = gather.axes
        self._positions = find_axis_positions(program, gather)
        layout = program.types[source].layout.by_axis[self._positions[0]]
        rank = len(program.types[source].shape)
        self.renamed: dict[str, str] = {}
        self._program = program
        self._conditions = conditions
        self._members = moved
        self._moved = {operation.name for operation in moved}
        self._feeds: dict[str, int] = {}
        self._slice_of = {target: source}
        self._distance = {target: distance_from_end(layout.dimension, rank)}
        self._gathered = {target: target}
        self._cut: dict[tuple[str, int], str] = {}
        self._result: list[Operation] = []

    def select_feeders(self, candidates: list[Operation]) -> None:
        """Select pointwise operations that only members read, to compute only slices of them.

        `candidates` do not depend on the AllGather. They are tried from the last to the first, so
        that a selected one can make its operands eligible. A candidate is selected if all of these
        hold:

        - It is pointwise and not an output, and has at least one reader.
        - All readers are pointwise or Updates, and either members that will be sliced or candidates
          that were selected before; all are sliced along the same dimension, counted from the end.
        - The candidate has this dimension with a size other than 1.

        Stores the dimension, counted from the end, by name in `_feeds`. The move itself is not
        begun: dimensions of members come from a trial on a second `_Move`.
        """
        # Moving the members in a trial gives the sliced dimension of each of them.
        trial = _Move(self._program, next(iter(self._slice_of)), self._members, self._conditions)
        for operation in self._members:
            trial.accepts(operation)
        distances = trial._distance
        for operation in reversed(candidates):
            readers = self._program.readers.get(operation.name, ())
            reader_distances = {
                (distances.get(reader.name, 0) if reader.kind in POINTWISE | {Kind.UPDATE} else 0)
                for reader in readers
            }
            distance = reader_distances.pop() if len(reader_distances) == 1 else 0
            is_fed = operation.kind in POINTWISE and distance > 0
            shape = self._program.types[operation.name].shape
            is_output = operation.name in self._program.output_names
            if is_fed and not is_output and has_dimension(shape, distance):
                self._feeds[operation.name] = distances[operation.name] = distance

    def build_operations(self) -> list[Operation]:
        """Build all operations of the program after the move, in program order; call it once.

        For each operation of the program, the first rule that applies:

        - An operation in `_feeds` (only operations that compute on slices read it) computes on
          slices, with the same name.
        - An operation that is not moved is unchanged. This includes the AllGather, even if no
          operation reads it afterwards.
        - A moved operation with an obstacle, such as a local operand, raises `RefusedMoveError`.
        - A moved operation that reads no slices, only a scalar, is unchanged.
        - A moved Update of a complete state reads the complete value: that of an existing
          AllGather, or of a new one before the Update.
        - Any other moved operation computes on slices. A new AllGather follows if the complete
          value is needed (`_emit_on_slices`).

        New Slices of operands precede the operation. For every moved operation without an obstacle,
        the conditions `commutes` and `no-local-operand` are recorded as met.
        """
        for operation in self._program.operations:
            if operation.name in self._feeds:
                # Emit an operation of `_feeds` on slices; its complete value is not needed.
                distance = self._feeds[operation.name]
                operands = self._slice_operands(operation, distance)
                self._result.append(replace_operands(operation, operands))
                self._slice_of[operation.name] = operation.name
                self._distance[operation.name] = distance
                continue
            if operation.name not in self._moved:
                self._result.append(operation)
                continue
            # Record that an operation can move.
            obstacle = self._find_obstacle(operation)
            if obstacle is not None:
                condition, message, cure = obstacle
                raise self._conditions.build_refusal(condition, operation.name, message, cure)
            self._conditions.require(True, "commutes", operation.name, "", "")
            self._conditions.require(True, "no-local-operand", operation.name, "", "")
            if self._slice_of.keys().isdisjoint(operation.reads):
                # It depends on the AllGather only through a scalar, which is replicated as before.
                self._result.append(operation)
            elif operation.kind is Kind.UPDATE:
                self._emit_update(operation)
            else:
                self._emit_on_slices(operation)
        return self._result

    def accepts(self, operation: Operation) -> bool:
        """Check whether an operation can move before the AllGather with those accepted so far.

        `_find_obstacle` decides. If it can and reads a sliced value, its result counts as sliced in
        later calls, except for a reduction to a scalar. Otherwise the object is not changed.
        """
        if self._find_obstacle(operation) is not None:
            return False
        # A member that depends on the AllGather only through a scalar is not sliced.
        if not self._slice_of.keys().isdisjoint(operation.reads):
            self._record_slice(operation, operation.name)
        return True

    def _find_obstacle(self, operation: Operation) -> tuple[str, str, str] | None:
        """Find the first reason why an operation cannot move before the AllGather; None if it can.

        The reason is (name of the condition, message, cure). Layouts are those on the first axis of
        the AllGather. An operand is sliced if the move computes only a slice of it. The conditions
        are checked in this order:

        1. `no-local-operand`: no operand is local.
        2. An operation without a sliced operand can move; the rest is not checked.
        3. `one-axis`: the AllGather goes over a single axis.
        4. `commutes`: the kind is in `_COMMUTING`. Or it is in `_ROW_KINDS`, and its dimension
           (default 0) differs from the dimension along which its first sliced operand is sliced.
        5. A contraction must meet the conditions of `_find_contraction_obstacle`; nothing else is
           checked for it.
        6. `commutes`: all operands that the move or their layout slices are sliced along the same
           dimension, counted from the end.
        """
        for name in operation.reads:
            if self._layout(name).is_local:
                return "no-local-operand", f"{name} is local", "reduce it, or leave the reader out"
        moving = [name for name in operation.reads if name in self._slice_of]
        if not moving:
            return None
        if len(self._positions) > 1:
            message = "the AllGather goes over several axes"
            return "one-axis", message, "gather over one axis at a time"
        along = operation.dimension or 0
        rank = len(self._program.types[moving[0]].shape)
        is_row = operation.kind in _ROW_KINDS and self._distance[moving[0]] != rank - along
        if operation.kind not in _COMMUTING and not is_row:
            message = f"{operation.kind} does not commute with slicing"
            return "commutes", message, "leave it out"
        if operation.kind in CONTRACTIONS:
            return self._find_contraction_obstacle(operation)
        distances = {self._distance[name] for name in moving}
        for name in operation.reads:
            layout = self._layout(name)
            if layout.is_sliced:
                rank = len(self._program.types[name].shape)
                distances.add(distance_from_end(layout.dimension, rank))
        if len(distances) > 1:
            message = "its operands would be sliced along different dimensions"
            return "commutes", message, "leave it out"
        return None

    def _layout(self, name: str) -> Layout:
        """Return the layout of a value on the first axis of the AllGather."""
        return self._program.types[name].layout.by_axis[self._positions[0]]

    def _find_contraction_obstacle(self, operation: Operation) -> tuple[str, str, str] | None:
        """Find the reason why a contraction does not commute with slicing; None if it does.

        Its first operand must be a slice of the move along one of its row dimensions (`find_axes`;
        batch dimensions of a BatchMatMul and positions of a Conv are none). Its second operand must
        be replicated and not sliced by the move. The reason is (condition, message, cure).
        """
        x, w = operation.reads
        rank = len(self._program.types[x].shape)
        rows = find_axes(operation.kind, rank).rows
        is_row = x in self._slice_of and rank - self._distance[x] in rows
        if not is_row:
            message = f"the slice is no row of the first operand {x}"
            return "commutes", message, "split along a row dimension, or leave it out"
        if w in self._slice_of or self._layout(w) != REPLICATED:
            return "commutes", f"the second operand {w} is not replicated", "leave it out"
        return None

    def _record_slice(self, operation: Operation, slice_name: str) -> None:
        """Store the name and the sliced dimension of the result of a moved operation in the object.

        A sliced dimension is stored as its distance from the end of the shape. At least one operand
        must have a stored distance, and all stored ones must be equal (not checked). The result
        gets the same distance, except for a contraction: there the number of dimensions before the
        sliced one remains equal. A reduction to a scalar is not stored, because its result is
        replicated.
        """
        if operation.kind in REDUCTIONS_TO_SCALARS:
            return
        # All are equal: `_find_obstacle` refuses different dimensions.
        distances = [self._distance[name] for name in operation.reads if name in self._distance]
        distance = distances[0]
        if operation.kind in CONTRACTIONS:
            # A contraction keeps the index of a row as counted from the start.
            rank = len(self._program.types[operation.reads[0]].shape)
            result_rank = len(self._program.types[operation.name].shape)
            distance = result_rank - (rank - distance)
        self._slice_of[operation.name] = slice_name
        self._distance[operation.name] = distance

    def _emit_on_slices(self, operation: Operation) -> None:
        """Emit an operation on slices and, if its complete value is needed, an AllGather of it.

        The operands are replaced by slices (`_slice_operands`). The complete value is needed if all
        of these hold:

        - The operation is no reduction to a scalar.
        - Its result was not sliced before the move.
        - The result is an output of the program, or an operation that does not move reads it.

        If it is needed, the slice gets the name `NAME_LAYOUT`, such as `g_S_0`, with a number if
        that is in use. An AllGather with the old name follows. Otherwise the operation keeps its
        name. Name and dimension of the slice are stored for later operations, except for a
        reduction to a scalar.
        """
        name = operation.name
        readers = self._program.readers.get(name, ())
        is_read = any(reader.name not in self._moved for reader in readers)
        is_complete = not self._layout(name).is_sliced
        is_complete &= operation.kind not in REDUCTIONS_TO_SCALARS
        is_needed = is_complete and (is_read or name in self._program.output_names)
        self._record_slice(operation, name)
        sliced_operand = next(read for read in operation.reads if read in self._slice_of)
        operands = self._slice_operands(operation, self._distance[sliced_operand])
        if is_needed:
            self._rename(name, name)
        moved = replace_operands(operation, operands)
        self._result.append(replace(moved, name=self._slice_of.get(name, name)))
        if is_needed:
            self._emit_gather(name, name)

    def _emit_update(self, operation: Operation) -> None:
        """Emit an Update of a state, with the slice or the complete value depending on the state.

        If the state is sliced, `_emit_on_slices` emits the Update. Otherwise the Update reads the
        complete value: the result of the AllGather of this value that was emitted before, or
        `target` itself. If there is none, a new AllGather is emitted first. Its name is
        `_UPDATE_gathered`, with the name of the Update.

        Before a new AllGather, a value with a generated name (beginning with `_`) is renamed to
        `UPDATE_LAYOUT`, such as `p_S_0`, also in operations that were emitted before. A number is
        appended to new names that are in use.

        Later readers of the Update get the Update as complete value, and the slice of the written
        value as its slice.
        """
        state, value = operation.reads
        if self._layout(state).is_sliced:
            self._emit_on_slices(operation)
            return
        if value not in self._gathered:
            if value.startswith("_"):
                self._rename(value, operation.name)
                self._rename_emitted(value)
            self._emit_gather(value, choose_name(self._program, f"_{operation.name}_gathered"))
        self._result.append(replace(operation, operands=(state, self._gathered[value])))
        # The Update yields the complete new state.
        self._gathered[operation.name] = operation.name
        self._slice_of[operation.name] = self._slice_of[value]
        self._distance[operation.name] = self._distance[value]

    def _slice_operands(self, operation: Operation, distance: int) -> dict[str, str]:
        """Return the slices that an operation reads after the move: operand name to slice name.

        `distance`: the sliced dimension, counted from the end (1 is the last). An operand
        without an entry is read unchanged. The first rule that applies to an operand decides:

        - The move already computes its slice: this slice.
        - The operation is a contraction, or the operand is sliced already: no entry.
        - It has the dimension, with a size other than 1: a new Slice. It is added to the moved
          operations once per value and dimension, and reused afterwards.
        - Otherwise (no such dimension, or size 1): no entry.
        """
        new_names = {}
        for name in operation.reads:
            tensor = self._program.types[name]
            if name in self._slice_of:
                new_names[name] = self._slice_of[name]
            elif operation.kind in CONTRACTIONS or self._layout(name).is_sliced:
                continue
            elif has_dimension(tensor.shape, distance):
                # Emit the Slice of a replicated value unless it was emitted before.
                dimension = len(tensor.shape) - distance
                key = (name, dimension)
                if key not in self._cut:
                    proposal = f"_{name.removeprefix('_')}_{sliced(dimension)}"
                    cut = choose_name(self._program, proposal, self._cut.values())
                    self._cut[key] = cut
                    self._result.append(
                        Operation(cut, Kind.SLICE, (name,), dimension=dimension, axes=self._axes)
                    )
                new_names[name] = self._cut[key]
        return new_names

    def _rename(self, name: str, base: str) -> None:
        """Choose the name of the slice of a value: `base` with the layout, such as `g_S_0`.

        A number is appended if the name is in use. Stores the name in `_slice_of` and `renamed`.
        """
        rank = len(self._program.types[name].shape)
        layout = sliced(rank - self._distance[name])
        new_name = choose_name(self._program, f"{base}_{layout}", self.renamed.values())
        self._slice_of[name] = new_name
        self.renamed[name] = new_name

    def _rename_emitted(self, old: str) -> None:
        """Apply the new name of `old` to its operation and its readers among those emitted so far.

        The new name is `renamed[old]`. Changes the list of emitted operations in place.
        """
        names = {old: self.renamed[old]}
        for index, operation in enumerate(self._result):
            if operation.name == old:
                operation = replace(operation, name=names[old])
            self._result[index] = replace_operands(operation, names)

    def _emit_gather(self, name: str, gathered: str) -> None:
        """Emit the AllGather, called `gathered`, of the slice of `name`, and store its name.

        Later Updates with this value use the same AllGather.
        """
        self._gathered[name] = gathered
        self._result.append(
            Operation(gathered, Kind.ALL_GATHER, (self._slice_of[name],), axes=self._axes)
        )
