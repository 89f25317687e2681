"""Division of a program into parts that are searched separately; equal parts are one decision.

Parts are equal if a renaming of values, arguments and seeds maps one onto the other. The search
decides once for each class of equal parts, and the program of its decisions is assembled from the
rewritten first part of each class and its renamed copies.

Tensors that share only scalars, such as a global norm, are different parts although each part reads
a scalar that depends on it. In the program of a part, a stand-in is such a scalar: an opaque
operation, which cannot be fused, with the results of the part that the scalar depends on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

from collhub_coconet.program.checking import Bounds
from collhub_coconet.program.operations import (
    ATTRIBUTES,
    CONTRACTIONS,
    POINTWISE,
    Argument,
    Kind,
    LayoutRule,
    Operation,
    TensorType,
)
from collhub_coconet.program.program import Chain, Program, Stage, order_groups
from collhub_coconet.transformations.legality import RefusedMoveError
from collhub_coconet.transformations.reorder import movable
from collhub_coconet.transformations.slicing import split

_get_attributes = attrgetter(*ATTRIBUTES)
# Operations of a connected program above which it is divided further, at collectives.
_LARGE = 40


@dataclass(frozen=True, slots=True)
class Copy:
    """One of several equal parts: names and seeds by those of the first part of the class.

    `position`: of the first operation of the part in the order of the parts.
    """

    names: Mapping[str, str]
    seeds: Mapping[int, int]
    position: int


@dataclass(frozen=True, slots=True)
class PartClass:
    """Equal parts: the program of the first one, and all of them as renamings of it."""

    program: Program
    copies: tuple[Copy, ...]


def divide(program: Program) -> list[PartClass]:
    """Divide a program into classes of equal parts, in the order of their first parts.

    A program without operations, or with stages or chains, is one part. Otherwise:
    1. `_divide_at_scalars` gives sets of operations that exchange only scalars, and the shared
       scalars, i.e. those that belong to no set that reads or computes them.
    2. Sets of more than 40 operations without shared scalars are divided at collectives.
    3. If there are shared scalars, but no two equal parts, steps 1 and 2 are replaced: operations
       that exchange a value, or read the same state, are in one set. Then step 2 applies to all.

    Parts are equal if renaming of values, arguments and seeds makes them identical. A value of
    another part is an argument of a part; values that another part or the program's outputs need
    are its outputs. If parts wait for each other's scalars, stand-ins (`is_stand_in`) replace
    these.
    """
    if program.stages or program.chains or not program.operations:
        return [PartClass(program, (_identity(program),))]
    members, shared = _divide_at_scalars(program)
    classes = _classify(program, members, shared)
    if shared and all(len(part.copies) == 1 for part in classes):
        # Without equal parts, one decision for all of them finds more.
        groups = _DisjointNames(operation.name for operation in program.operations)
        for operation in program.operations:
            for read in operation.reads:
                if read in program.by_name:
                    groups.unite(read, operation.name)
        _unite_readers_of_states(program, groups)
        classes = _classify(program, groups.list_groups(), set())
    return classes


def _classify(program: Program, members: list[list[str]], shared: set[str]) -> list[PartClass]:
    """Group sets of operations into classes of equal sets; return the classes.

    `members`: the sets. A set with more than `_LARGE` (40) operations and no scalar of
    `shared` is first divided (`_divide_at_collectives`). If one set remains, the result is
    one class with the complete program. Otherwise each set follows the sets that it reads; of
    ready sets, the one with the earliest operation is next. If sets wait in a cycle, the
    order is not changed.

    Sets are equal if renaming values, arguments and seeds makes them identical. A class has
    the program of its first set, and one copy per set, the first one included. A copy maps
    the names and seeds of the first set to those of its set, and has the position of its set.
    Classes are in the order of their first sets.
    """
    if any(len(group) > _LARGE and shared.isdisjoint(group) for group in members):
        members = _divide_at_collectives(program, members, shared)
    if len(members) == 1:
        return [PartClass(program, (_identity(program),))]
    coupled: set[str] = set()
    ordered = order_groups(program.operations, [group for group in members if len(group) > 1])
    if ordered is not None:
        members = [[operation.name for operation in group] for group in ordered]
    else:
        # Operations of sets that are in a cycle, or on a path between two cycles.
        waits, followers = _find_waits(program.operations, members)
        nodes = _find_blocked(waits, followers) & _find_blocked(followers, waits)
        coupled = {name for node in nodes for name in members[node]}
    parts: dict[str, Program] = {}
    copies: dict[str, list[Copy]] = {}
    numbering: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {}
    for position, group in enumerate(members):
        draft = _extract(program, group, coupled)
        key, names, seeds = _number_values(draft)
        if key not in parts:
            # Only the first part of a class is typed again.
            parts[key], numbering[key] = draft.create_program(program), (names, seeds)
            copies[key] = [_identity(parts[key], position)]
            continue
        first_names, first_seeds = numbering[key]
        copy = Copy(
            dict(zip(first_names, names, strict=True)),
            dict(zip(first_seeds, seeds, strict=True)),
            position,
        )
        copies[key].append(copy)
    return [PartClass(part, tuple(copies[key])) for key, part in parts.items()]


_STAND_IN = '{"operator": "collhub::stand_in"}'


def is_stand_in(operation: Operation) -> bool:
    """Whether an operation stands for a scalar of another part.

    That scalar needs results of this part.
    """
    return operation.kind is Kind.OPAQUE and operation.call == _STAND_IN


def exchanged_values(classes: Sequence[PartClass]) -> set[str]:
    """Return the names of values that one part of the program computes and another one reads.

    All copies of all `classes` are considered. Names are those of the entire program. Scalars are
    omitted: they have only one layout, so that no decision depends on them. The result is empty for
    a single part.
    """
    produced = {
        copy.names[name]
        for part in classes
        for copy in part.copies
        for name in part.program.by_name
    }
    read = {
        copy.names[argument.name]
        for part in classes
        for copy in part.copies
        for argument in part.program.arguments
        if argument.type.shape
    }
    return produced & read


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """Value of an assembled program: index of its class, its name there, and whether the copy is
    the first.
    """

    class_index: int
    name: str
    is_first: bool


def assemble(
    program: Program, classes: Sequence[PartClass], chosen: Sequence[Program]
) -> tuple[Program, dict[str, ValueOrigin]]:
    """Assemble the entire program from one rewritten program per class; also return origins.

    A class consists of equal parts (copies) of `program`; `chosen` has one rewritten program per
    class. Copies follow each other by `position`, each in the order of its chosen program.
    Stand-ins (`is_stand_in`: placeholders of scalars that another part computes) are left out. If
    there were any, all operations are sorted so that operands precede their readers.

    Values of the original part keep their names in `program`. New values and all stages have their
    name in `chosen`, or if it is taken the first free of NAME_2, NAME_3, ... Arguments are in the
    order of `program`, with the declaration of the last copy that has them, if any.

    Origins, by new name: class index, name in the chosen program, and whether it is in the first
    copy. Raises `InputError` if stages of different parts would wait for each other, and
    `ValueError` unless there is one chosen program per class.
    """
    types: dict[str, TensorType] = {}
    is_interleaved = False
    origins: dict[str, ValueOrigin] = {}
    arguments: dict[str, Argument] = {}
    pieces: list[tuple[int, list[Operation], list[Stage], list[Chain]]] = []
    taken = dict.fromkeys(program.types, 1)
    for index, (part, result) in enumerate(zip(classes, chosen, strict=True)):
        for copy in part.copies:
            names = {
                name: copy.names.get(name) or _choose_free_name(name, taken)
                for name in result.types
            }
            is_first = copy is part.copies[0]
            types |= {names[name]: kind for name, kind in result.types.items()}
            stated = [entry for entry in result.operations if not is_stand_in(entry)]
            is_interleaved |= len(stated) < len(result.operations)
            for operation in stated:
                origins[names[operation.name]] = ValueOrigin(index, operation.name, is_first)
            for argument in result.arguments:
                if names[argument.name] in program.by_name:
                    # A value of another part.
                    continue
                arguments[names[argument.name]] = replace(argument, name=names[argument.name])
            operations = [_rename(entry, names, copy.seeds) for entry in stated]
            pieces.append((copy.position, operations, *_rename_stages(result, names, taken)))
    pieces.sort(key=lambda piece: piece[0])
    operations = [entry for piece in pieces for entry in piece[1]]
    if is_interleaved:
        order = order_groups(operations, [])
        assert order is not None
        operations = [entry for (entry,) in order]
    # Arguments without readers are in no part.
    types = {entry.name: entry.type for entry in program.arguments} | types
    whole = program.with_typed_operations(
        tuple(arguments.get(entry.name, entry) for entry in program.arguments),
        tuple(operations),
        types,
    )
    all_stages = tuple(stage for piece in pieces for stage in piece[2])
    all_chains = tuple(chain for piece in pieces for chain in piece[3])
    if all_stages or all_chains:
        whole = whole.with_stages(all_stages, all_chains)
    return whole, origins


def _rename_stages(
    result: Program, names: Mapping[str, str], taken: dict[str, int]
) -> tuple[list[Stage], list[Chain]]:
    """Return the stages and chains of a rewritten part with the names of one copy, in their order.

    `names`: new name of every value of `result`. Stages get a free name (`_choose_free_name`),
    which is added to `taken`.
    """
    labels = dict(names)
    for stage in result.stages:
        labels[stage.name] = _choose_free_name(stage.name, taken)
    stages = [
        Stage(labels[stage.name], stage.family, tuple(names[name] for name in stage.members))
        for stage in result.stages
    ]
    chains = [
        replace(chain, members=tuple(labels[member] for member in chain.members))
        for chain in result.chains
    ]
    return stages, chains


class _DisjointNames:
    """Disjoint sets of names; names are listed in the order in which they were given."""

    def __init__(self, names: Iterable[str]) -> None:
        self._parent = {name: name for name in names}

    def find(self, name: str) -> str:
        """Return the representative of the set that contains a name.

        It is a name of the set, equal for all of them until `unite` is called. Paths to it are
        shortened for later calls. Raise `KeyError` for an unknown name.
        """
        root = name
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[name] != root:
            self._parent[name], name = root, self._parent[name]
        return root

    def unite(self, first: str, second: str) -> None:
        """Unite the sets of two names in place; the representative of `first` represents both.

        Raises `KeyError` for an unknown name.
        """
        self._parent[self.find(second)] = self.find(first)

    def list_groups(self) -> list[list[str]]:
        """Return the names of every set; each name is in exactly one list.

        Sets are in the order of their first names, and names in the order in which they were
        given to the constructor.
        """
        groups: dict[str, list[str]] = {}
        for name in self._parent:
            groups.setdefault(self.find(name), []).append(name)
        return list(groups.values())


def _divide_at_scalars(program: Program) -> tuple[list[list[str]], set[str]]:
    """Divide the operations into sets that exchange only scalars; return (sets, shared scalars).

    A scalar is an operation, except communication, whose result has no dimensions, such as a norm.
    At first each operation is a set. Sets are united by these rules, in this order:

    1. An operation with each operation that it reads. A pointwise operation is not united with one
       whose result has no dimensions.
    2. All readers of a state with each other, unless `whole_after` of the state is set.
    3. A scalar with the set that reads it, if there is exactly one. A pointwise scalar with the set
       that it is computed from, if there is exactly one. Paths through other scalars count.
    4. A pointwise scalar without a set by rule 3 is shared. It is united with each shared scalar
       that it reads. Its set is returned too.

    Sets list names in program order, and are in the order of their first operation.
    """
    scalars = {
        operation.name
        for operation in program.operations
        if not program.types[operation.name].shape and not operation.is_communication
    }
    computed = {name for name in scalars if program.by_name[name].kind in POINTWISE}
    groups = _DisjointNames(operation.name for operation in program.operations)
    for operation in program.operations:
        for read in operation.reads:
            is_scale = operation.kind in POINTWISE and not program.types[read].shape
            if read in program.by_name and not is_scale:
                groups.unite(read, operation.name)
    _unite_readers_of_states(program, groups)
    # The set on which a scalar depends, or that depends on it: "" for none, None for several.
    sources = _propagate(program, computed, groups, is_forward=True)
    readers = _propagate(program, scalars, groups, is_forward=False)
    for name in (operation.name for operation in program.operations if operation.name in scalars):
        for owner in filter(None, (readers[name], sources.get(name))):
            groups.unite(owner, name)
    shared = {name for name in computed if not readers[name] and not sources[name]}
    for operation in program.operations:
        for read in operation.reads:
            if {read, operation.name} <= shared:
                groups.unite(read, operation.name)
    return groups.list_groups(), shared


def _propagate(
    program: Program, scalars: set[str], groups: _DisjointNames, *, is_forward: bool
) -> dict[str, str | None]:
    """Return, for each scalar, the only set of operations that it is computed from.

    With `is_forward` False, return the only set of operations that reads the scalar.
    Dependence is direct or through other scalars of `scalars`; arguments do not count. The
    value is the representative of the set (`groups.find`), "" if there is no such set, and
    None for several. `scalars`: names of scalar operations; `groups`: the sets of all
    operations.
    """
    only: dict[str, str | None] = {}
    for operation in program.operations if is_forward else reversed(program.operations):
        name = operation.name
        if name not in scalars:
            continue
        others = [read for read in operation.reads if read in program.by_name]
        if not is_forward:
            others = [reader.name for reader in program.readers.get(name, ())]
        known = {only[other] if other in scalars else groups.find(other) for other in others} - {""}
        only[name] = known.pop() if len(known) == 1 else None if known else ""
    return only


def _unite_readers_of_states(program: Program, groups: _DisjointNames) -> None:
    """Unite all readers of a state in `groups`, since the layout of the state is one decision.

    States that must be complete after the step are skipped.
    """
    for name, state in program.states.items():
        if state.whole_after:
            continue
        readers = program.readers.get(name, ())
        for reader in readers[1:]:
            groups.unite(readers[0].name, reader.name)


def _divide_at_collectives(
    program: Program, members: list[list[str]], shared: set[str]
) -> list[list[str]]:
    """Divide large sets of operations at their collectives; return the new sets in program order.

    `members`: the sets; not changed. A set stays together if it has at most `_LARGE` (40)
    operations or a scalar of `shared`. Operations of all larger sets begin as sets of one. Then:

    1. A collective is united with the operations that `_find_neighbours` gives for it.
    2. Each of their remaining operations is united with each operand that is also one of them, if
       both have the same level (`_find_levels`) and neither is a contraction (such as a matrix
       product). Both may come from different sets.
    3. In the entire program, all readers of a state are united, unless the state must be complete
       on each rank after the step (`whole_after`).
    4. Sets that wait for each other in a cycle are united; those with a scalar of `shared` are not.
    """
    groups = _DisjointNames(operation.name for operation in program.operations)
    near: set[str] = set()
    for group in members:
        if len(group) <= _LARGE or not shared.isdisjoint(group):
            near.update(group)
            for name in group[1:]:
                groups.unite(group[0], name)
            continue
        for name in group:
            operation = program.by_name[name]
            if operation.is_communication:
                inside = _find_neighbours(program, operation)
                near |= {name, *inside}
                for other in inside:
                    groups.unite(name, other)
    # Of the remaining operations, those stay together that may be fused.
    loose = {
        operation.name
        for operation in program.operations
        if operation.name not in near and operation.kind not in CONTRACTIONS
    }
    levels = _find_levels(program, loose)
    for operation in program.operations:
        for read in operation.reads:
            if {read, operation.name} <= loose and levels[read] == levels[operation.name]:
                groups.unite(read, operation.name)
    _unite_readers_of_states(program, groups)
    _unite_cycles(program, groups, shared)
    return groups.list_groups()


def _find_levels(program: Program, loose: set[str]) -> dict[str, int]:
    """Return a level for every operation in `loose`; fusing those of one level gives no cycle.

    The first rule that applies gives the level of an operation:

    1. It is no output of the program, has readers, and all of them are in `loose`: the lowest level
       of its readers, because it can be computed together with them.
    2. Otherwise: the maximum number of operations outside of `loose` on a path of reads that ends
       at the operation. Arguments do not count.

    Keys are in reverse program order. Empty if `loose` is empty.
    """
    early: dict[str, int] = {}
    for operation in program.operations:
        early[operation.name] = max(
            (early[read] + (read not in loose) for read in operation.reads if read in early),
            default=0,
        )
    levels: dict[str, int] = {}
    for operation in reversed(program.operations):
        name = operation.name
        readers = [reader.name for reader in program.readers.get(name, ())]
        is_movable = readers and name not in program.output_names and loose.issuperset(readers)
        if name in loose:
            levels[name] = min(map(levels.__getitem__, readers)) if is_movable else early[name]
    return levels


def _find_neighbours(program: Program, operation: Operation) -> list[str]:
    """Return the names of the operations that a decision about a communication concerns.

    First come the contractions (MatMul, batched MatMul, convolution) whose results it reads
    directly. Then follow:

    - for an AllGather, the operations that can move before it together (`movable`)
    - for an AllReduce, the same after a split into ReduceScatter and AllGather, for each dimension
      of the result in ascending order; dimensions whose split is refused are skipped
    - for other communications, the direct readers of the result

    Each name occurs once, at its first position in this order. The communication itself, and
    operations that only the split creates, are left out.
    """
    names = [
        read
        for read in operation.reads
        if read in program.by_name and program.by_name[read].kind in CONTRACTIONS
    ]
    if operation.kind is Kind.ALL_REDUCE:
        for dimension in range(len(program.types[operation.name].shape)):
            try:
                scattered = split(program, operation.name, dimension).program
            except RefusedMoveError:
                continue
            names += movable(scattered, operation.name)
    elif operation.kind is Kind.ALL_GATHER:
        names += movable(program, operation.name)
    else:
        names += [reader.name for reader in program.readers.get(operation.name, ())]
    return [name for name in dict.fromkeys(names) if name in program.by_name]


def _unite_cycles(program: Program, groups: _DisjointNames, shared: set[str]) -> None:
    """Unite sets of operations in `groups`, in place, until no sets wait in a cycle.

    A set waits for another set if one of its operations reads a value of that set. Scalars in
    `shared`, and all sets that contain one, are ignored. If there is no cycle, no set changes.
    Otherwise these steps are repeated until there is none:

    1. Find the sets that are in a cycle or wait, directly or indirectly, for one in a cycle.
    2. Start at the first of them in program order. From each set, go to the first of them for
       which it waits, until a set is reached again.
    3. Unite this set with all sets after its first visit: they are the cycle.
    """
    while True:
        members = [group for group in groups.list_groups() if shared.isdisjoint(group)]
        # A set with a shared scalar is left out, and its other operations with it.
        united = {name for group in members for name in group}
        operations = [operation for operation in program.operations if operation.name in united]
        if order_groups(operations, [group for group in members if len(group) > 1]) is not None:
            return
        # Unite the sets on a cycle, found by removing sets that wait for nothing that remains.
        waits, followers = _find_waits(operations, members)
        blocked = _find_blocked(waits, followers)
        node = min(blocked)
        path: list[int] = []
        while node not in path:
            path.append(node)
            node = min(waits[node] & blocked)
        cycle = path[path.index(node) :]
        for other in cycle[1:]:
            groups.unite(members[cycle[0]][0], members[other][0])


def _find_waits(
    operations: Iterable[Operation], members: list[list[str]]
) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Return, for each set of operations, the other sets whose values it reads, and the reverse.

    `members`: names of the operations of each set. Sets are given by their index in
    `members`; every index has an entry in both results, which may be empty. Values of no set,
    such as arguments, are ignored. Raise `KeyError` for an operation that is in no set.
    """
    node_of = {name: index for index, group in enumerate(members) for name in group}
    waits: dict[int, set[int]] = {index: set() for index in range(len(members))}
    followers: dict[int, set[int]] = {index: set() for index in range(len(members))}
    for operation in operations:
        node = node_of[operation.name]
        sources = {node_of[read] for read in operation.reads if read in node_of} - {node}
        waits[node] |= sources
        for source in sources:
            followers[source].add(node)
    return waits, followers


def _find_blocked(waits: Mapping[int, set[int]], followers: Mapping[int, set[int]]) -> set[int]:
    """Return the nodes that are in a cycle, or wait directly or indirectly for one.

    `waits`: nodes that a node waits for; `followers`: the reverse. Both have all nodes as keys,
    and are not changed. The result is empty if there is no cycle. Takes linear time.
    """
    missing = {node: len(sources) for node, sources in waits.items()}
    ready = [node for node, count in missing.items() if not count]
    blocked = set(waits)
    while ready:
        node = ready.pop()
        blocked.remove(node)
        for follower in followers[node]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    return blocked


@dataclass(frozen=True, slots=True)
class _Draft:
    """Part of a program: arguments by name, operations, outputs, and bounds of its symbols."""

    arguments: Mapping[str, Argument]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, Bounds]

    def create_program(self, program: Program) -> Program:
        """Copy `program` with only the sizes, arguments, operations and outputs of this part."""
        return replace(
            program,
            sizes=self.sizes,
            arguments=tuple(self.arguments.values()),
            operations=self.operations,
            outputs=self.outputs,
        )


def _extract(program: Program, members: Sequence[str], coupled: set[str]) -> _Draft:
    """Extract a part of the program; values of other parts become arguments.

    `members`: names of the set, in program order. `coupled`: operations of parts that wait for each
    other. `program` is not changed. The draft has:

    - Operations: the members. If a member is coupled, also stand-ins (`_add_stand_ins`):
      placeholders of coupled scalars of other parts that members read.
    - Arguments, in the order in which operations other than stand-ins first read them: arguments
      and states as `program` declares them; other values from outside by name and type.
    - Outputs, in program order: members that are outputs of the program or are read by operations
      other than members. Without any, all updates of states in the part.
    - Sizes: those of the program whose symbols occur in shapes of operations or arguments.
    """
    own, inside = set(members), set(members)
    operations = tuple(program.by_name[name] for name in members)
    if not coupled.isdisjoint(members):
        operations = _add_stand_ins(program, operations, coupled)
        inside.update(operation.name for operation in operations)
    arguments: dict[str, Argument] = {}
    for operation in operations:
        for read in () if is_stand_in(operation) else operation.reads:
            if read in program.declared:
                arguments[read] = program.declared[read]
            elif read not in inside:
                arguments[read] = Argument(read, program.types[read])
    outputs = [
        name
        for name in members
        if name in program.output_names
        or any(reader.name not in own for reader in program.readers.get(name, ()))
    ]
    if not outputs:
        outputs = [entry.name for entry in operations if entry.kind is Kind.UPDATE]
    symbols = {
        size
        for name in (*inside, *arguments)
        for size in program.types[name].shape
        if isinstance(size, str)
    }
    sizes = {name: bounds for name, bounds in program.sizes.items() if name in symbols}
    return _Draft(arguments, operations, tuple(outputs), sizes)


def _add_stand_ins(
    program: Program, operations: tuple[Operation, ...], coupled: set[str]
) -> tuple[Operation, ...]:
    """Add stand-ins for scalars of other parts; return all operations in program order.

    `operations`: those of one part of the program. `coupled`: names of operations that couple
    parts. A stand-in is an opaque operation without cost, with the name and element type of a
    scalar.

    A scalar gets a stand-in if all of these hold:

    - It is in `coupled`, an operation of the part reads it, and the part does not compute it.
    - It has at least one operand. Operands are the results of the part that precede the scalar in
      the program, and that an operation in `coupled` outside of the part reads. That reader may be
      another operation than the scalar.

    Values with dimensions get no stand-in. The arguments are not changed.
    """
    inside = {operation.name for operation in operations}
    results = [
        operation.name
        for operation in operations
        if any(
            reader.name in coupled and reader.name not in inside
            for reader in program.readers.get(operation.name, ())
        )
    ]
    outside = {
        read
        for operation in operations
        for read in operation.reads
        if read in coupled and read not in inside and not program.types[read].shape
    }
    extended = list(operations)
    for name in outside:
        before = tuple(one for one in results if program.places[one] < program.places[name])
        if before:
            extended.append(
                Operation(
                    name,
                    Kind.OPAQUE,
                    before,
                    element=program.types[name].element,
                    call=_STAND_IN,
                    shape=(),
                    rule=LayoutRule.PER_RANK,
                    work=0,
                    traffic=0,
                )
            )
    return tuple(sorted(extended, key=lambda operation: program.places[operation.name]))


def _number_values(part: _Draft) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
    """Return (key, names, seeds) of a part, in an order that does not depend on names.

    `key`: SHA-256 of a row of text per value, the outputs and the sizes; equal for equal parts.
    `names`: the values that the results need, also arguments; `seeds`: those of random numbers.

    - The results that are not read within the part are sorted by a hash without names; equal
      ones stay in program order. Each is visited depth first, its operands before it, in order.
    - Numbers and seeds are given by first occurrence, from 0. The row of an argument is its hash.
      That of an operation has its kind and attributes, its operands (numbers of values, texts of
      constants), its seed (-1 without one), and whether it is `is_inner`.
    """
    by_name = {operation.name: operation for operation in part.operations}
    hashes: dict[str, str] = {}
    for argument in part.arguments.values():
        kind = f"{argument.type} {argument.is_state} {argument.whole_after}"
        hashes[argument.name] = _hash(kind)
    for operation in part.operations:
        operands = [
            hashes[operand] if isinstance(operand, str) else repr(operand)
            for operand in operation.operands
        ]
        hashes[operation.name] = _hash(f"{_describe(operation)} {operands}")
    read = {name for operation in part.operations for name in operation.reads}
    ends = sorted((name for name in by_name if name not in read), key=hashes.__getitem__)

    numbers: dict[str, int] = {}
    seeds: dict[int, int] = {}
    rows: list[str] = []
    stack = [(name, False) for name in reversed(ends)]
    while stack:
        name, are_operands_done = stack.pop()
        if name in numbers:
            continue
        if name not in by_name:
            numbers[name] = len(numbers)
            rows.append(hashes[name])
            continue
        operation = by_name[name]
        if not are_operands_done:
            stack.append((name, True))
            stack += [(operand, False) for operand in reversed(operation.reads)]
            continue
        known = [
            numbers[operand] if isinstance(operand, str) else repr(operand)
            for operand in operation.operands
        ]
        seed = -1 if operation.seed is None else seeds.setdefault(operation.seed, len(seeds))
        numbers[name] = len(numbers)
        rows.append(f"{_describe(operation)} {known} {seed} {operation.is_inner}")
    outputs = sorted(numbers[name] for name in part.outputs)
    return _hash(f"{rows} {outputs} {part.sizes}"), tuple(numbers), tuple(seeds)


def _describe(operation: Operation) -> str:
    """Return the kind and attributes of an operation as text, without names and seeds."""
    return _describe_attributes(operation.kind, *_get_attributes(operation))


@lru_cache(maxsize=1024, typed=True)
def _describe_attributes(kind: Kind, *values: object) -> str:
    """Return `kind=...` and `name=value` of all attributes that are not None, except the seed.

    The texts are joined by blanks, in the order of `ATTRIBUTES`. `values`: one per entry of
    `ATTRIBUTES`; `ValueError` is raised for another number. Results are cached.
    """
    attributes = [
        f"{name}={value}"
        for name, value in zip(ATTRIBUTES, values, strict=True)
        if name != "seed" and value is not None
    ]
    return " ".join([f"kind={kind}", *attributes])


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _identity(part: Program, position: int = 0) -> Copy:
    """Return the description (`Copy`) of a part as a copy of itself.

    A `Copy` gives the names and seeds of one of several equal parts, by those of the first one.
    Here all names of `part`, and all seeds of its operations, are mapped to themselves. `position`:
    position of the part's first operation in the order of all parts.
    """
    seeds = {entry.seed: entry.seed for entry in part.operations if entry.seed is not None}
    return Copy({name: name for name in part.types}, seeds, position)


def _choose_free_name(name: str, taken: dict[str, int]) -> str:
    """Return `name`, or NAME_2, NAME_3 ... if it is taken, and add the result to `taken`.

    The first number that gives a free name is used. `taken`: for each used name, the
    highest number that was tried for it (1: none), which is updated.
    """
    chosen, number = name, taken.get(name, 0)
    while chosen in taken:
        number += 1
        chosen = f"{name}_{number}"
    if number:
        taken[name] = number
    taken[chosen] = 1
    return chosen


def _rename(operation: Operation, names: Mapping[str, str], seeds: Mapping[int, int]) -> Operation:
    """Copy an operation; replace its name and operands by `names`, its seed by `seeds`.

    Numbers as operands and a seed of None are unchanged. Raise `KeyError` for a name or
    seed without an entry.
    """
    operands = tuple(
        names[operand] if isinstance(operand, str) else operand for operand in operation.operands
    )
    # `replace` takes most of the time of large programs.
    renamed = Operation(
        names[operation.name], operation.kind, operands, *_get_attributes(operation)
    )
    if operation.seed is None:
        return renamed
    return replace(renamed, seed=seeds[operation.seed])
