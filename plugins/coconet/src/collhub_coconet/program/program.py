"""Programs: typed graphs of operations, with stages and chains."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import MappingProxyType

from collhub_coconet.program.operations import REDUCTIONS_TO_SCALARS, Argument, Operation
from collhub_coconet.program.tensors import TensorType
from collhub_coconet.typing.checking import Bounds, typed
from hub_core.model import InputError, Location

Readers = Mapping[str, tuple[Operation, ...]]
"""Operations that read a value, by its name, in program order."""


def readers_of(operations: Iterable[Operation]) -> dict[str, tuple[Operation, ...]]:
    """Readers of every value; an operation that reads a value twice stands once."""
    found: dict[str, list[Operation]] = {}
    for operation in operations:
        for name in dict.fromkeys(operation.reads):
            found.setdefault(name, []).append(operation)
    return {name: tuple(readers) for name, readers in found.items()}


def descendants(operations: Sequence[Operation], sources: Iterable[str]) -> set[str]:
    """Names of the operations that a path from `sources` reaches, which are not among them."""
    reached = set(sources)
    found: set[str] = set()
    # In program order everything that is read stands before.
    for operation in operations:
        if not reached.isdisjoint(operation.reads):
            reached.add(operation.name)
            found.add(operation.name)
    return found


def ancestors(operations: Sequence[Operation], sinks: Iterable[str]) -> set[str]:
    """Names of the operations from which a path leads to `sinks`, and the sinks themselves."""
    found = set(sinks)
    for operation in reversed(operations):
        if operation.name in found:
            found.update(operation.reads)
    return found


def between(operations: Sequence[Operation], members: Iterable[str]) -> list[Operation]:
    """Operations outside a set on a path that leaves the set and enters it again."""
    inside = set(members)
    behind = descendants(operations, inside)
    before = ancestors(operations, inside)
    found = behind & before - inside
    return [one for one in operations if one.name in found]


def contracted_order(
    operations: Sequence[Operation], groups: Iterable[Sequence[str]]
) -> list[list[Operation]] | None:
    """Operations in an order in which every group stands together; None if there is none.

    Kahn's algorithm on the graph in which a group is one node; ties: the earliest in the program.
    """
    node_of = {operation.name: place for place, operation in enumerate(operations)}
    position = dict(node_of)
    for group in groups:
        first = min(position[name] for name in group)
        node_of.update(dict.fromkeys(group, first))
    content: dict[int, list[Operation]] = {}
    waits: dict[int, set[int]] = {}
    for operation in operations:
        node = node_of[operation.name]
        content.setdefault(node, []).append(operation)
        read = {node_of[name] for name in operation.reads if name in node_of}
        waits.setdefault(node, set()).update(read - {node})
    return _in_order(content, waits)


def _in_order(
    content: Mapping[int, list[Operation]], waits: Mapping[int, set[int]]
) -> list[list[Operation]] | None:
    """Nodes in an order in which each stands behind all it waits for; None for a cycle."""
    followers: dict[int, list[int]] = {node: [] for node in content}
    for node, read in waits.items():
        for source in read:
            followers[source].append(node)
    missing = {node: len(read) for node, read in waits.items()}
    ready = [node for node, count in missing.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(content[node])
        for follower in followers[node]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, follower)
    return order if len(order) == len(content) else None


@dataclass(frozen=True, slots=True)
class Stage:
    """Operations that one kernel computes; `family`: its communication, or `pointwise`."""

    name: str
    family: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Operations or stages that overlap chunk by chunk, from producer to consumer.

    `dimensions`: those along which chunks are cut, counted from the end of the tensor that goes
    from one member to the next; one entry a pair of members.
    """

    members: tuple[str, ...]
    dimensions: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """Operations in single-assignment form, run by every rank of a group, or of a row of groups.

    Operations stand in an order in which values are defined before they are used. `sizes`: bounds
    of each symbol. An argument always denotes the value before the program; `Update` gives the new
    one. Raises `InputError` with everything that is wrong: names, types, stages with a cycle.
    """

    name: str
    sizes: Mapping[str, Bounds]
    arguments: tuple[Argument, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]
    stages: tuple[Stage, ...] = ()
    chains: tuple[Chain, ...] = ()
    types: Mapping[str, TensorType] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        types = typed(self.name, self.sizes, self.arguments, self.operations, self.outputs)
        object.__setattr__(self, "types", MappingProxyType(types))
        self._check_stages()

    def __getstate__(self) -> dict[str, object]:
        """What is sent to other processes: all but what is made when it is asked for."""
        # A read-only view of a mapping cannot be pickled.
        kept = {one.name: getattr(self, one.name) for one in fields(self)}
        return kept | {"sizes": dict(self.sizes), "types": dict(self.types)}

    @cached_property
    def by_name(self) -> Mapping[str, Operation]:
        """Operations by the name of their value.

        Arguments are not among them.
        """
        return {operation.name: operation for operation in self.operations}

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Position of every operation, counted from 0, by the name of its value."""
        # Lines of messages count from 1.
        return {operation.name: place for place, operation in enumerate(self.operations)}

    @cached_property
    def readers(self) -> Readers:
        """Operations that read a value, by its name."""
        return readers_of(self.operations)

    @cached_property
    def num_groups(self) -> int:
        """Number of groups of ranks, counted up to the last one that a value names."""
        # Groups count from 0, those that nothing uses included.
        return 1 + max((kind.group for kind in self.types.values()), default=0)

    @cached_property
    def declared(self) -> Mapping[str, Argument]:
        """Arguments by name, states among them."""
        # In the order of declaration.
        return {one.name: one for one in self.arguments}

    @cached_property
    def states(self) -> Mapping[str, Argument]:
        """Arguments that `Update` may write, by name."""
        # In the order of declaration.
        return {one.name: one for one in self.arguments if one.is_state}

    def kernels(self) -> list[list[Operation]]:
        """Operations in the order of execution, those of one stage together."""
        order = contracted_order(self.operations, [stage.members for stage in self.stages])
        if order is None:
            cure = "no path may leave a stage and enter it again"
            place = Location(self.name)
            raise InputError("the stages wait for one another", location=place, cure=cure)
        return order

    def with_stages(self, stages: tuple[Stage, ...], chains: tuple[Chain, ...]) -> Program:
        """The same operations under other stages and chains.

        Nothing is typed again. Raises `InputError` for stages with a cycle.
        """
        # As a copy, with what was made already: operations and types are the same.
        result = object.__new__(Program)
        vars(result).update(vars(self))
        object.__setattr__(result, "stages", stages)
        object.__setattr__(result, "chains", chains)
        result._check_stages()
        return result

    def _check_stages(self) -> None:
        """Refuse members that are not there, or in two stages, and cycles."""
        names = [name for stage in self.stages for name in stage.members]
        known = {operation.name for operation in self.operations}
        unknown = sorted(set(names) - known)
        if unknown:
            self._refuse_stage(f"member {unknown[0]} is no operation", "name operations")
        if len(set(names)) < len(names):
            self._refuse_stage("two stages share an operation", "fuse them into one")
        labels = known | {stage.name for stage in self.stages}
        for chain in self.chains:
            missing = [name for name in chain.members if name not in labels]
            if missing:
                self._refuse_stage(f"{missing[0]} of a chain is not there", "name operations")
        if self.stages:
            self.kernels()

    def _refuse_stage(self, message: str, cure: str) -> None:
        """Raise the error of a stage or chain."""
        # Stages and chains stand in no line of the program.
        raise InputError(message, location=Location(self.name), cure=cure, code="stage")


def reduces_scalar(program: Program, operation: Operation) -> bool:
    """Whether a norm, sum or maximum is of slices, so that partial results are all-reduced."""
    # Of a replicated tensor every rank computes it alone.
    is_scalar = operation.kind in REDUCTIONS_TO_SCALARS
    return is_scalar and program.types[operation.reads[0]].layout.is_sliced
