"""Programs: typed graphs of operations, with stages and chains."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import prod
from types import MappingProxyType

from collhub_coconet.program.checking import Bounds, type_program
from collhub_coconet.program.operations import (
    REDUCTIONS_TO_SCALARS,
    UNEVEN_COLLECTIVES,
    Argument,
    Binding,
    ElementType,
    Kind,
    Operation,
    Reduction,
    TensorType,
)
from collhub_coconet.program.uneven_rows import read_counts
from hub_core.model import InputError, Location

Readers = Mapping[str, tuple[Operation, ...]]
"""Operations that read a value, by its name, in program order."""


def collect_readers(operations: Iterable[Operation]) -> dict[str, tuple[Operation, ...]]:
    """Collect the readers of every value by name, in the order of `operations`.

    An operation that reads a value twice occurs once. Values without readers are missing.
    """
    readers_by_name: dict[str, list[Operation]] = {}
    for operation in operations:
        for name in dict.fromkeys(operation.reads):
            readers_by_name.setdefault(name, []).append(operation)
    return {name: tuple(readers) for name, readers in readers_by_name.items()}


def find_descendants(operations: Sequence[Operation], sources: Iterable[str]) -> set[str]:
    """Return the names of all operations that depend on `sources`, directly or through others.

    `operations` must be in program order; paths through operations outside of it do not count. A
    source is included only if it depends on a source.
    """
    reached = set(sources)
    names: set[str] = set()
    # In program order, operands precede their readers.
    for operation in operations:
        if not reached.isdisjoint(operation.reads):
            reached.add(operation.name)
            names.add(operation.name)
    return names


def find_ancestors(operations: Sequence[Operation], sinks: Iterable[str]) -> set[str]:
    """Return the names of `sinks` and of all values on which they depend, directly or not.

    Arguments are included if they are read on these paths. A name in `sinks` that is no
    operation is included without ancestors. `operations` must be in program order, so that
    operands precede their readers; this is not checked.
    """
    names = set(sinks)
    for operation in reversed(operations):
        if operation.name in names:
            names.update(operation.reads)
    return names


def find_between(program: Program, members: Iterable[str]) -> list[Operation]:
    """Return the operations on paths that leave a set of operations and enter it again.

    `members`: names of the operations in the set, at least one. An operation is returned if
    it is no member, depends on a member, and a member depends on it (both also indirectly).
    The order is that of the program; [] without such operations. Raise `KeyError` for a
    name that is no operation, such as an argument.
    """
    inside = set(members)
    positions = [program.places[name] for name in inside]
    # Values are defined before they are read: these paths pass no other operations.
    operations = program.operations[min(positions) : max(positions) + 1]
    if len(operations) == len(inside):
        return []
    names = find_descendants(operations, inside) & find_ancestors(operations, inside) - inside
    return [operation for operation in operations if operation.name in names]


def order_groups(
    operations: Sequence[Operation], groups: Iterable[Sequence[str]]
) -> list[list[Operation]] | None:
    """Order operations so that those of each group are adjacent; None if this is impossible.

    `groups`: names of operations, disjoint (not checked). The result has one list of operations per
    group, and one for each other operation. A list that reads a value of another list comes after
    it. Among the lists that may come next, the one whose first operation is earliest in
    `operations` is taken (Kahn's algorithm). The result is None if lists read each other in a
    cycle.

    Within a list, operations keep their order in `operations`, also if they read each other in
    another order. Reads of names that are no operations are ignored. Raises `KeyError` for an
    unknown name in a group, and `ValueError` for an empty group.
    """
    node_of = {operation.name: index for index, operation in enumerate(operations)}
    position = dict(node_of)
    for group in groups:
        first = min(map(position.__getitem__, group))
        node_of.update(dict.fromkeys(group, first))
    content: list[list[Operation]] = [[] for _ in operations]
    # A node that reads another one several times waits once for each time.
    followers: list[list[int]] = [[] for _ in operations]
    missing = [0] * len(operations)
    for operation in operations:
        node = node_of[operation.name]
        content[node].append(operation)
        for name in operation.reads:
            source = node_of.get(name, node)
            if source != node:
                followers[source].append(node)
                missing[node] += 1
    ready = [node for node, entries in enumerate(content) if entries and not missing[node]]
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(content[node])
        for follower in followers[node]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, follower)
    return order if sum(map(len, order)) == len(operations) else None


@dataclass(frozen=True, slots=True)
class Stage:
    """Operations of one kernel; `family`: its communication, or `pointwise`.

    The members of the family `BUCKET` are collectives that run as one: a single message carries a
    chunk of every member.
    """

    name: str
    family: str
    members: tuple[str, ...]


BUCKET = "bucket"
BUCKET_KINDS = UNEVEN_COLLECTIVES | {Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER}
"""Kinds of the collectives that may share a bucket."""

BucketClass = tuple[
    Kind, Reduction | None, tuple[str, ...] | None, ElementType, int, tuple[int, ...] | None
]
"""Kind, reduction, axes, element type, group and counts of rows (None for an even collective).

Collectives of a bucket agree in all of them.
"""


@dataclass(frozen=True, slots=True)
class Chain:
    """Operations or stages that overlap chunk by chunk, from producer to consumer.

    `dimensions`: one entry per pair of members, the dimension along which the tensor between them
    is cut into chunks, counted from the end.
    """

    members: tuple[str, ...]
    dimensions: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """Operations in single-assignment form, run by every rank of a group or of a row of groups.

    Values are defined before they are used. `sizes`: bounds of each symbol. An argument always
    denotes its value before the program; `Update` gives the new value of a state. `mesh`: names of
    the axes of a group, the slowest first; empty for one axis without a name. Raises
    `InputError` with all violations of names, types and stages.
    """

    name: str
    sizes: Mapping[str, Bounds]
    arguments: tuple[Argument, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]
    stages: tuple[Stage, ...] = ()
    chains: tuple[Chain, ...] = ()
    mesh: tuple[str, ...] = ()
    types: Mapping[str, TensorType] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        types = type_program(
            self.name, self.sizes, self.arguments, self.operations, self.outputs, self.mesh
        )
        object.__setattr__(self, "types", MappingProxyType(types))
        self._check_stages()

    def __getstate__(self) -> dict[str, object]:
        """Return the fields for pickling, without cached properties, which are computed again.

        `sizes` and `types` are copied to plain dictionaries, since read-only views cannot be
        pickled.
        """
        # A read-only view of a mapping cannot be pickled.
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        return values | {"sizes": dict(self.sizes), "types": dict(self.types)}

    @cached_property
    def by_name(self) -> Mapping[str, Operation]:
        """Operations by the name of their value; arguments are not included."""
        return {operation.name: operation for operation in self.operations}

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Position of every operation, counted from 0, by the name of its value."""
        return {operation.name: position for position, operation in enumerate(self.operations)}

    @cached_property
    def readers(self) -> Readers:
        """Operations that read a value, by its name."""
        return collect_readers(self.operations)

    @cached_property
    def num_groups(self) -> int:
        """Number of groups of ranks: one more than the highest group of a value."""
        return 1 + max((kind.group for kind in self.types.values()), default=0)

    @cached_property
    def declared(self) -> Mapping[str, Argument]:
        """Arguments by name, including states, in the order of declaration."""
        return {argument.name: argument for argument in self.arguments}

    @cached_property
    def states(self) -> Mapping[str, Argument]:
        """States by name, in the order of declaration."""
        return {argument.name: argument for argument in self.arguments if argument.is_state}

    @cached_property
    def output_names(self) -> frozenset[str]:
        """Names of the outputs as a set, for programs with thousands of them."""
        return frozenset(self.outputs)

    @cached_property
    def buckets(self) -> Mapping[str, tuple[Operation, ...]]:
        """Members of a bucket in program order, by the name of each of its collectives.

        A bucket is a stage of collectives that are performed together as one. All its members map
        to the same tuple. Collectives outside of buckets have no entry. Computed once.
        """
        buckets: dict[str, tuple[Operation, ...]] = {}
        for stage in self.stages:
            if stage.family == BUCKET:
                names = sorted(stage.members, key=self.places.__getitem__)
                members = tuple(self.by_name[name] for name in names)
                buckets |= dict.fromkeys(names, members)
        return buckets

    def classify_for_bucket(self, operation: Operation) -> BucketClass | None:
        """Return the kind, reduction, axes, element type, group and counts of a collective.

        Only collectives that agree in all of them may share a bucket (be performed together as
        one). Element type and group are those of the result. Reduction, axes and counts (of uneven
        collectives) are as in the operation, None if it names none. Return None for an operation
        whose kind is not in `BUCKET_KINDS`, such as a Broadcast: it cannot be in a bucket.
        """
        if operation.kind not in BUCKET_KINDS:
            return None
        kind = self.types[operation.name]
        call = operation.kind, operation.reduction, operation.axes
        return *call, kind.element, kind.group, operation.counts

    @cached_property
    def _kernels(self) -> list[list[Operation]]:
        """Kernels, as lists of operations, in an order that respects all dependencies.

        Each stage is one kernel, with its operations in program order. Each operation outside
        the stages is a kernel of its own. Among the kernels that are ready, the one with the
        earliest first operation in the program is next. Computed once per program. Raises
        `InputError` (`stage`) if stages wait for each other, and `ValueError` for a stage
        without members.
        """
        order = order_groups(self.operations, [stage.members for stage in self.stages])
        if order is None:
            cure = "no path may leave a stage and enter it again"
            location = Location(self.name)
            raise InputError(
                "the stages wait for one another", location=location, cure=cure, code="stage"
            )
        return order

    def kernels(self) -> list[list[Operation]]:
        """Order the operations for execution, as one list per kernel (a stage is one kernel).

        The lists must not be changed. Raises `InputError` if stages wait for each other.
        """
        return self._kernels

    def with_stages(self, stages: tuple[Stage, ...], chains: tuple[Chain, ...]) -> Program:
        """Copy the program with other stages and chains, without typing it again.

        The program itself is unchanged. Raise `InputError` (`stage`) for the first of these
        mistakes: a member of a stage is no operation; an operation is in two stages, or twice
        in one; a member of a chain is neither an operation nor a stage; a bucket (collectives
        performed as one) is invalid; stages wait for each other.
        """
        # A copy of all fields and cached properties except for those of stages: operations and
        # types are the same.
        result = object.__new__(Program)
        vars(result).update(vars(self))
        if stages != self.stages:
            for name in ("buckets", "_kernels"):
                vars(result).pop(name, None)
        object.__setattr__(result, "stages", stages)
        object.__setattr__(result, "chains", chains)
        result._check_stages()
        return result

    def with_typed_operations(
        self,
        arguments: tuple[Argument, ...],
        operations: tuple[Operation, ...],
        types: Mapping[str, TensorType],
    ) -> Program:
        """Copy the program with other arguments and operations whose types are known.

        `types`: by name, for all arguments and operations. No check is performed, not even of the
        outputs, which remain those of this program. Use it only for operations that were typed
        before, for example under other names. The copy has no stages (kernels of several
        operations) and no chains (stages that overlap in time); all other fields are equal.
        """
        result = object.__new__(Program)
        vars(result).update({entry.name: getattr(self, entry.name) for entry in fields(self)})
        changed = {"arguments": arguments, "operations": operations, "stages": (), "chains": ()}
        read_only: Mapping[str, TensorType] = MappingProxyType(dict(types))
        vars(result).update({**changed, "types": read_only})
        return result

    def _check_stages(self) -> None:
        """Raise `InputError` (`stage`) for the first mistake in the stages and chains.

        The mistakes, in this order:

        1. A member of a stage is no operation; the alphabetically first one is named.
        2. An operation is a member of two stages, or twice of one.
        3. A member of a chain is neither an operation nor the name of a stage.
        4. A bucket is invalid: its members are not AllReduces, ReduceScatters or AllGathers of
           equal kind, reduction, axes, element type and group, or one depends on another one.
        5. Stages wait for each other.
        """
        names = [name for stage in self.stages for name in stage.members]
        unknown = sorted(set(names) - self.places.keys())
        if unknown:
            self._refuse_stage(f"member {unknown[0]} is no operation", "name operations")
        if len(set(names)) < len(names):
            self._refuse_stage("two stages share an operation", "fuse them into one")
        labels = {stage.name for stage in self.stages}
        for chain in self.chains:
            missing = [
                name for name in chain.members if name not in labels and name not in self.places
            ]
            if missing:
                self._refuse_stage(f"{missing[0]} of a chain is not there", "name operations")
        for stage in self.stages:
            if stage.family == BUCKET:
                self._check_bucket(stage)
        if self.stages:
            self.kernels()

    def _check_bucket(self, stage: Stage) -> None:
        """Raise `InputError` unless one collective can replace all members of a bucket.

        All members must be of `BUCKET_KINDS`, and equal in kind, reduction, mesh axes, counts, and
        element type and group of the result. No member may depend on
        another one, also indirectly. `stage`: the bucket.
        """
        operations = [self.by_name[name] for name in stage.members]
        classes = [self.classify_for_bucket(operation) for operation in operations]
        if None in classes or len(set(classes)) > 1:
            message = f"the collectives of bucket {stage.name} differ"
            cure = "one kind, reduction, group, mesh axis, element type and counts for a bucket"
            self._refuse_stage(message, cure)
        dependent = find_descendants(self.operations, stage.members).intersection(stage.members)
        if dependent:
            message = f"{min(dependent)} depends on another collective of bucket {stage.name}"
            self._refuse_stage(message, "put independent collectives into a bucket")

    def _refuse_stage(self, message: str, cure: str) -> None:
        """Raise `InputError` with the code `stage` at the program, without a line."""
        raise InputError(message, location=Location(self.name), cure=cure, code="stage")


def check_binding(program: Program, binding: Binding) -> None:
    """Raise `InputError` for the first violation, unless a program fits the ranks of a mesh.

    `binding`: the ranks along every axis of the mesh, and the sizes of the symbols. First, without
    a line:

    - `mesh`: another number of axes than the program, which has one axis without a mesh
    - `root`: an argument whose layout has a root that is no rank of its axis

    Then by operation in program order; its line is its position, from 1:

    - `count`: `start` + `count` (of TopValues, TopIndices or Part) exceeds the size of the
      dimension of the first operand; `start` and dimension are 0 if not declared
    - `counts`: an uneven collective has counts of another number of ranks than its axes
    - `root`: a root that is no rank of the operation's axes
    - `placement`: a Reshape changes the size of a sliced dimension, and the ranks that slice it do
      not divide the size before and after (`_check_divisible`)

    Errors of `read_counts` and of a symbol without a size pass through.
    """
    location = Location(program.name)
    if len(binding.axis_sizes) != max(1, len(program.mesh)):
        message = f"{len(binding.axis_sizes)} axis sizes for the mesh {', '.join(program.mesh)}"
        cure = "state the number of ranks along every axis"
        raise InputError(message, location=location, cure=cure, code="mesh")
    for argument in program.arguments:
        for layout, ranks in zip(argument.type.layout.by_axis, binding.axis_sizes, strict=True):
            if layout.root >= ranks:
                message = f"argument {argument.name}: root {layout.root} is no rank of {ranks}"
                raise InputError(message, location=location, cure="count ranks from 0", code="root")
    for line, operation in enumerate(program.operations, 1):
        # The count of an opaque operation is a number of dimensions, which its typing rule checks.
        if operation.count is not None and operation.kind is not Kind.OPAQUE:
            shape = program.types[operation.reads[0]].shape
            (length,) = binding.shape(shape[operation.dimension or 0 :][:1])
            start = operation.start or 0
            if start + operation.count > length:
                location = Location(program.name, line)
                message = f"{operation.name}: the {operation.count} largest of {length} elements"
                if operation.kind is Kind.PART:
                    message = f"{operation.name}: {operation.count} positions from {start}"
                    message += f" of {length} elements"
                cure = "state a larger size, or a smaller count"
                raise InputError(message, location=location, cure=cure, code="count")
        if operation.kind in UNEVEN_COLLECTIVES:
            ranks = count_ranks(program, binding, operation)
            counts = read_counts(operation)
            if counts.num_ranks != ranks:
                location = Location(program.name, line)
                message = f"{operation.name}: counts of {counts.num_ranks} ranks, not of {ranks}"
                cure = f"choose {counts.num_ranks} ranks, or state counts of {ranks}"
                raise InputError(message, location=location, cure=cure, code="counts")
        if operation.root is not None:
            ranks = count_ranks(program, binding, operation)
            # Checked here, since a program does not determine the number of ranks.
            if not 0 <= operation.root < ranks:
                location = Location(program.name, line)
                message = f"{operation.name}: root {operation.root} is no rank of {ranks}"
                raise InputError(message, location=location, cure="count ranks from 0", code="root")
        if operation.kind is Kind.RESHAPE:
            _check_divisible(program, binding, operation, line)


def _check_divisible(program: Program, binding: Binding, operation: Operation, line: int) -> None:
    """Raise `InputError` (`placement`) if a Reshape would divide blocks of a sliced dimension.

    Each axis of the mesh that slices the operand slices one dimension before and one after the
    Reshape. Axes with the same two dimensions are taken together; their ranks are multiplied.
    Such a pair of dimensions is accepted if both sizes are equal, or if both are multiples of
    the ranks. Axes that slice nothing are ignored. `operation`: the Reshape. `line`: its line,
    for the error.
    """
    before, after = program.types[operation.reads[0]], program.types[operation.name]
    axes = zip(before.layout.by_axis, after.layout.by_axis, binding.axis_sizes, strict=True)
    parts: dict[tuple[int, int], int] = {}
    for old, new, ranks in axes:
        if old.is_sliced:
            key = old.dimension, new.dimension
            parts[key] = parts.get(key, 1) * ranks
    for (old_dimension, new_dimension), ranks in parts.items():
        sizes = binding.shape((before.shape[old_dimension], after.shape[new_dimension]))
        if sizes[0] != sizes[1] and any(size % ranks for size in sizes):
            message = f"{operation.name}: {ranks} ranks do not divide the sizes {sizes[0]} and "
            message += f"{sizes[1]} of the sliced dimension"
            location = Location(program.name, line)
            cure = "AllGather the operand first, or use ranks that divide both"
            raise InputError(message, location=location, cure=cure, code="placement")


def find_axis_positions(program: Program, operation: Operation) -> tuple[int, ...]:
    """Return the positions in the mesh of the axes along which an operation communicates.

    They ascend. A communication or Slice that names no axis uses the first axis: (0,), also without
    a mesh. For any other operation, such as a reduction of slices to a scalar, they are the axes
    along which its first operand is sliced; empty if there are none. Raise `ValueError` for an axis
    that the mesh does not have.
    """
    if operation.is_communication or operation.kind is Kind.SLICE:
        mesh = program.mesh
        return tuple(sorted(mesh.index(name) for name in operation.axes or mesh[:1])) or (0,)
    layouts = program.types[operation.reads[0]].layout.by_axis
    return tuple(axis for axis, layout in enumerate(layouts) if layout.is_sliced)


def count_ranks(program: Program, binding: Binding, operation: Operation) -> int:
    """Count the ranks among which an operation communicates: the product of its axes' sizes.

    The axes are those of `find_axis_positions`; 1 if there are none.
    """
    return prod(binding.axis_sizes[axis] for axis in find_axis_positions(program, operation))


def reduces_scalar(program: Program, operation: Operation) -> bool:
    """Check whether an operation reduces a sliced tensor to a scalar, such as a norm of slices.

    It must then be completed by an all-reduce of the ranks' partial results. False for operations
    of other kinds, and for operands that are sliced on no axis.
    """
    is_scalar = operation.kind in REDUCTIONS_TO_SCALARS
    layouts = program.types[operation.reads[0]].layout.by_axis if is_scalar else ()
    return any(layout.is_sliced for layout in layouts)
