"""Flat programs: the meaning of every node, the algorithms that the nodes contain, and launches.

Launches of kernels that communicate are nodes of the flat graph. A rank launches its communication
kernels one after another, each when its operands are ready, as the stream of an NCCL communicator
does. The order is that in which their operands become ready if collectives take no time: by the
last kernel with computations on which they depend, then as in the program. Other kernels contain
their launch in their first computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from collhub_coconet.lowering.algorithms import Contents
from collhub_coconet.lowering.grids import Grid
from collhub_coconet.lowering.nodes import NodeList, number_chunks
from collhub_coconet.program.operations import Binding, Kind, Operation
from collhub_coconet.program.program import Program
from hub_core.columns import Int64Array, distinct, positions_in, run_mask
from hub_core.model import Algorithm, InputError, NodeKind, StepTable, Workload


@dataclass(frozen=True, slots=True)
class KernelSegment:
    """Computations of one kernel. Item i computes the chunks `tiles[i]`, or everything if empty.

    `grid`: None for computations on complete values. `is_partial`: the last operation reduces a
    slice to a scalar and gives only the part of this rank. `kernel`: number of the kernel, launched
    once.
    """

    operations: tuple[Operation, ...]
    grid: Grid | None
    tiles: tuple[tuple[int, ...], ...]
    kernel: int
    is_partial: bool


@dataclass(frozen=True, slots=True)
class CollectiveRuns:
    """Collective that runs one algorithm `pieces` times.

    Item i is node i % n of piece i // n, n: number of nodes of `contents`. `grid`: chunks of its
    full buffer. `is_scalar`: it reduces the partial results of a `KernelSegment`. `others`: the
    further members of a bucket; their grids have the same number of chunks, and a message that
    carries a chunk of `operation` carries the chunk with the same number of each of them.
    """

    operation: Operation
    contents: Contents
    grid: Grid
    pieces: int
    first_rank: int
    is_scalar: bool
    others: tuple[tuple[Operation, Grid], ...] = ()

    @property
    def members(self) -> tuple[tuple[Operation, Grid], ...]:
        """Operations with the chunks of their full buffers: one, or all members of a bucket."""
        return (self.operation, self.grid), *self.others

    def find_chunk(self, piece: int, unit: int, rank: int, *, is_given: bool) -> int:
        """Return the chunk of `grid` that contains a unit of the full buffer in one piece.

        A unit is one of the equal parts on which the algorithm works; `piece` is the number of the
        run. The chunk is that of `number_chunks`. `rank`, of the job, matters only in an AllToAll:
        it is the rank that needs the unit as input, or with `is_given` the rank that receives it.
        """
        # `number_chunks` expects columns.
        units, position = np.array([unit]), np.array([rank - self.first_rank])
        chunks = number_chunks(self.grid, self.contents, units, piece, position, is_given=is_given)
        return int(chunks[0])


@dataclass(frozen=True, slots=True)
class RowRuns:
    """Chunk of an uneven collective: one algorithm for the rows of the chunk.

    Item i is node i of `contents`. `chunk`: its number, of `chunks`. `others`: the further members
    of a bucket, which have the same counts.
    """

    operation: Operation
    contents: Contents
    first_rank: int
    chunk: int
    chunks: int
    others: tuple[Operation, ...] = ()
    is_scalar: ClassVar[bool] = False

    def find_chunk(self, piece: int, unit: int, rank: int, *, is_given: bool) -> int:
        """Return the unit, since the units of an uneven collective are numbered on all ranks."""
        return unit


@dataclass(frozen=True, slots=True)
class MeshRuns:
    """Collective over axes of a mesh of several axes: one algorithm, with complete values.

    Item i is a node of the algorithm of the ranks `members` of the job.
    """

    operation: Operation
    contents: Contents
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """Send operation; item i is the message of chunk i, on both sides."""

    operation: Operation
    grid: Grid
    sender: int
    receiver: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """MARKER nodes that follow all nodes that produce a value."""

    name: str


@dataclass(frozen=True, slots=True)
class Launch:
    """COMPUTE nodes without work, one per rank: the launches of a kernel that communicates."""

    kernel: int


Part = KernelSegment | CollectiveRuns | RowRuns | MeshRuns | Message | Barrier | Launch


@dataclass(frozen=True, eq=False)
class FlatProgram:
    """Program as one flat graph of COMPUTE, SEND and RECV nodes, with the meaning of each node.

    `part`, `item`: int64 by node of the workload. `pass_through`: by name of a collective, the
    (rank, chunk) pairs of its result that equal its operand and have no node.
    """

    program: Program
    binding: Binding
    workload: Workload
    parts: tuple[Part, ...]
    part: Int64Array
    item: Int64Array
    pass_through: dict[str, frozenset[tuple[int, int]]] = field(default_factory=dict)


def find_viewed_value(program: Program, operation: Operation) -> str | None:
    """Return the name of the value of which an operation is a view; None if it is no view.

    - A Slice is a view of its operand.
    - An Update is a view of its new value if that is the result of a communication, and if all
      other operations that read the state are Slices. The communication then delivers into the
      memory of the state.
    - All other operations give None, also a Reshape and an Update with a number.
    """
    if operation.kind is Kind.SLICE:
        return operation.reads[0]
    if operation.kind is not Kind.UPDATE or len(operation.reads) < 2:
        return None
    state, value = operation.reads
    source = program.by_name.get(value)
    if source is None or not source.is_communication:
        return None
    readers = [reader for reader in program.readers.get(state, ()) if reader.name != operation.name]
    are_slices = all(reader.kind is Kind.SLICE for reader in readers)
    return value if are_slices else None


def extract_algorithm(flat: FlatProgram, name: str, piece: int = 0) -> Algorithm:
    """Extract one piece of a collective as an algorithm, to verify the flat graph.

    `name`: the collective, or a member of a bucket, which gives the algorithm of the entire
    bucket. `piece`: one run of the algorithm; for an uneven collective one of its chunks. Kinds,
    peers, tags and dependencies are those of the graph. Ranks are from 0 within the group. The tag
    of a message becomes its channel (0 for steps without a peer). Units, buffers and scratch are
    those of the original algorithm. The two nodes of a receive with a reduction are one step.
    Dependencies on nodes outside of the piece are omitted.

    Raises `InputError` (`target`) if no collective has this name, for a Send, and on a mesh of
    several axes. An uneven collective also raises it if chunk `piece` has no rows or does not
    exist. For any other collective without this piece the result has no steps.
    """
    number, part = _find_collective(flat, name, piece)
    contents, nodes = part.contents, flat.workload.nodes
    steps, count = contents.algorithm.steps, len(contents.template)
    is_piece = flat.item // count == (piece if isinstance(part, CollectiveRuns) else 0)
    rows = np.flatnonzero((flat.part == number) & is_piece)
    row_of_node = np.searchsorted(contents.last, np.arange(count))
    step = row_of_node[flat.item[rows] % count]
    # A receive with a reduction has two nodes; the first one is the message.
    is_first = run_mask(step)
    selected_rows = rows[is_first]
    selected_steps = step[is_first]
    columns = {
        column: getattr(steps, column)[selected_steps]
        for column in ("kind", "src_buffer", "src_offset", "dst_buffer", "dst_offset", "count")
    }
    peer = nodes.peer[selected_rows]
    columns["rank"] = nodes.rank[selected_rows] - part.first_rank
    columns["peer"] = np.where(peer >= 0, peer - part.first_rank, -1)
    columns["channel"] = np.where(peer >= 0, nodes.tag[selected_rows], 0)
    # Select the dependencies between these rows of the graph, as dependencies of steps.
    step = np.cumsum(is_first) - 1
    position = positions_in(rows, len(nodes))
    parents, children = (position[side] for side in nodes.edges())
    is_inside = (parents >= 0) & (children >= 0)
    parents, children = step[parents[is_inside]], step[children[is_inside]]
    is_other = parents != children
    edges = parents[is_other], children[is_other]
    table = StepTable.from_columns(contents.algorithm.num_ranks, columns, edges)
    return Algorithm(contents.algorithm.collective, table, contents.algorithm.scratch_units)


def _find_collective(
    flat: FlatProgram, name: str, piece: int
) -> tuple[int, CollectiveRuns | RowRuns]:
    """Return (index in `flat.parts`, part) of the collective `name`.

    A member of a bucket (collectives performed as one) gives the part of the entire bucket.
    An uneven collective gives the part of its chunk `piece`; for other collectives, `piece`
    is ignored. Raise `InputError` (`target`) if no collective has the name, for a Send, on
    a mesh of several axes, and for a chunk without rows or with a number that does not
    exist.
    """
    for number, part in enumerate(flat.parts):
        if isinstance(part, RowRuns):
            names = {part.operation.name, *(one.name for one in part.others)}
            if part.chunk == piece and name in names:
                return number, part
        if isinstance(part, CollectiveRuns) and name in {one.name for one, _ in part.members}:
            return number, part
    message = f"{name} is no collective of {flat.program.name}"
    raise InputError(message, cure="name a collective", code="target")


@dataclass(frozen=True, slots=True)
class _CommunicationKernel:
    """Kernel that communicates; fused ones contain computations, too.

    `level`: number of the last kernel with computations on which it depends. `nodes`: numbers of
    its nodes, with MARKERs. `is_early`: it is a member of a chain, so that it is launched before
    its operand is complete.
    """

    operations: tuple[Operation, ...]
    kernel: int
    level: int
    nodes: range
    is_early: bool


@dataclass(slots=True)
class LaunchList:
    """Kernels that communicate, collected in the order of execution.

    `levels`: by value, the number of the last kernel with computations on which it depends.
    """

    kernels: list[_CommunicationKernel] = field(default_factory=list)
    levels: dict[str, int] = field(default_factory=dict)

    def add(
        self, program: Program, operations: Sequence[Operation], kernel: int, nodes: range
    ) -> None:
        """Record the levels of a kernel's values, and the kernel itself if it needs a launch node.

        A level is the number of the last computing kernel on which a value depends; 0 for none.
        Call this in the order of execution, before `add_nodes`. `kernel`: number of the kernel;
        `nodes`: its rows in the graph. Operands: values that the kernel reads and does not compute.

        - Level of the operands: the highest one. Unknown values have level 0.
        - Level of all values of the kernel: `kernel` if some operation is neither a communication
          nor free (without cost), otherwise the level of the operands.
        - The kernel is stored with the level of its operands if it has nodes and a communication.
          It is early, i.e. its launch does not wait for operands, if its first operation, or a
          stage with this operation, is a member of a chain.
        """
        inside = {operation.name for operation in operations}
        read = {name for operation in operations for name in operation.reads} - inside
        level = max((self.levels.get(name, 0) for name in read), default=0)
        is_computing = not all(entry.is_communication or entry.is_free for entry in operations)
        self.levels |= dict.fromkeys(
            (operation.name for operation in operations), kernel if is_computing else level
        )
        if not nodes or not any(entry.is_communication for entry in operations):
            return
        is_early = False
        if chained := {member for chain in program.chains for member in chain.members}:
            labels = {stage.name for stage in program.stages if operations[0].name in stage.members}
            is_early = not chained.isdisjoint(labels | {operations[0].name})
        self.kernels.append(_CommunicationKernel(tuple(operations), kernel, level, nodes, is_early))

    def add_nodes(
        self,
        nodes: NodeList,
        parts: list[Part],
        add_name: Callable[[Sequence[Operation]], int],
    ) -> None:
        """Add a COMPUTE node per rank for the launch of each stored communication kernel.

        The ranks of a kernel are those on which it has nodes. `nodes` gets the launches with
        control dependencies, and `parts` gets one `Launch` per kernel. `add_name` adds the name for
        operations and returns its number. A MARKER in a kernel that depends on no node of the
        kernel stands for a value of another kernel; it counts as a node outside the kernel.

        - A launch waits for all nodes outside the kernel on which nodes of the kernel on its rank
          depend. It does not wait for them if the kernel is early (a member of a chain).
        - A launch waits for the previous launch on its rank. These are ordered by the level of the
          kernel, then by the order in which kernels were stored.
        - A node of the kernel that depends on no other node of it waits for the launch on its rank.

        Without stored kernels there is no change.
        """
        if not self.kernels:
            return
        rank, kind = nodes.column("rank"), nodes.column("kind")
        kernel_of = np.full(nodes.count, -1, np.int64)
        for index, kernel in enumerate(self.kernels):
            kernel_of[kernel.nodes.start : kernel.nodes.stop] = index
        parents, children = nodes.edges("data")
        # A MARKER for a value of another kernel is not a node of the kernel that reads the value.
        is_foreign = (kind == NodeKind.MARKER) & (kernel_of >= 0)
        is_foreign[children[kernel_of[parents] == kernel_of[children]]] = False
        kernel_of[is_foreign] = -1
        num_ranks = int(rank.max()) + 1
        inside = np.flatnonzero(kernel_of >= 0)
        keys = distinct(kernel_of[inside] * num_ranks + rank[inside])
        launch_of = np.full(len(self.kernels) * num_ranks, -1, np.int64)
        for index, kernel in enumerate(self.kernels):
            ranks = keys[keys // num_ranks == index] % num_ranks
            numbers = nodes.add(
                ranks, len(parts), np.zeros_like(ranks),
                kind=NodeKind.COMPUTE, name=add_name(kernel.operations),
            )  # fmt: skip
            parts.append(Launch(kernel.kernel))
            launch_of[index * num_ranks + ranks] = numbers
        has_parent = np.zeros(len(kernel_of), np.bool_)
        is_early = np.array([kernel.is_early for kernel in self.kernels])
        # Collected first, since the loop adds edges.
        for parents, children in [nodes.edges(entry) for entry in ("data", "control")]:
            is_inside = kernel_of[children] >= 0
            parents, children = parents[is_inside], children[is_inside]
            is_own = kernel_of[parents] == kernel_of[children]
            has_parent[children[is_own]] = True
            parents, children = parents[~is_own], children[~is_own]
            is_late = ~is_early[kernel_of[children]]
            parents, children = parents[is_late], children[is_late]
            keys_of_children = kernel_of[children] * num_ranks + rank[children]
            nodes.control.append((parents, launch_of[keys_of_children]))
        starts = inside[~has_parent[inside]]
        nodes.control.append((launch_of[kernel_of[starts] * num_ranks + rank[starts]], starts))
        levels = np.array([kernel.level for kernel in self.kernels])
        kernel_numbers, ranks = np.divmod(keys, num_ranks)
        order = np.lexsort((kernel_numbers, levels[kernel_numbers], ranks))
        ordered, ranks = launch_of[keys][order], ranks[order]
        is_next = ranks[1:] == ranks[:-1]
        nodes.control.append((ordered[:-1][is_next], ordered[1:][is_next]))
