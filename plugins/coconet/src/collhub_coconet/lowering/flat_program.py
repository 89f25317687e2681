"""Flat programs: the meaning of every node, and the algorithms that the nodes contain."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from collhub_coconet.lowering.contents import Contents
from collhub_coconet.lowering.grids import Grid
from collhub_coconet.program.operations import Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from hub_core.columns import Int64Array, positions_in
from hub_core.model import Algorithm, InputError, StepTable, Workload


@dataclass(frozen=True, slots=True)
class Segment:
    """Computations in one kernel. Item i computes the chunks `tiles[i]`, of the whole where empty.

    `grid`: None where they work on whole values. `partial`: a reduction to a scalar at the end, of
    slices, gives this rank's part alone. `kernel`: number of the kernel, which is launched once.
    """

    operations: tuple[Operation, ...]
    grid: Grid | None
    tiles: tuple[tuple[int, ...], ...]
    kernel: int
    is_partial: bool


@dataclass(frozen=True, slots=True)
class Collected:
    """A collective in `pieces` runs of one algorithm.

    Item i is node i % n of piece i // n, n: nodes of `contents`. `grid`: chunks of its full buffer.
    `is_scalar`: it reduces what a `Segment` left as a part.
    """

    operation: Operation
    contents: Contents
    grid: Grid
    pieces: int
    first_rank: int
    is_scalar: bool


@dataclass(frozen=True, slots=True)
class Message:
    """A Send; item i is the message of chunk i on both sides."""

    operation: Operation
    grid: Grid
    sender: int
    receiver: int


@dataclass(frozen=True, slots=True)
class Junction:
    """MARKERs behind all nodes that make a value."""

    name: str


Part = Segment | Collected | Message | Junction


@dataclass(frozen=True, eq=False)
class FlatProgram:
    """A program as one flat graph of COMPUTE, SEND and RECV nodes, and what each node does.

    `part`, `item`: int64 by node of the workload. `pass_through`: chunks of a collective's result
    that are its operand, as they stand: (rank, chunk) by name.
    """

    program: Program
    binding: Binding
    workload: Workload
    parts: tuple[Part, ...]
    part: Int64Array
    item: Int64Array
    pass_through: dict[str, frozenset[tuple[int, int]]] = field(default_factory=dict)


def viewed(program: Program, operation: Operation) -> str | None:
    """The value that an operation only gives another name, None for one that computes.

    A Slice is a part of what is there. A collective delivers into the memory of a state that is
    updated by its result, where nobody reads the old state but by slices: a rank's own slice is
    replaced by what was computed from it, the others are not read there.
    """
    if operation.kind is Kind.SLICE:
        return operation.reads[0]
    if operation.kind is not Kind.UPDATE or len(operation.reads) < 2:
        return None
    state, value = operation.reads
    source = program.by_name.get(value)
    if source is None or not source.is_communication:
        return None
    readers = [one for one in program.readers.get(state, ()) if one.name != operation.name]
    are_slices = all(one.kind is Kind.SLICE for one in readers)
    return value if are_slices else None


def extracted(flat: FlatProgram, name: str, piece: int = 0) -> Algorithm:
    """A piece of a collective with the peers, tags and dependencies of the flat graph.

    Regions are those of the algorithm that was laid out; a tag is a channel. `hub_core.verify` then
    says whether every contribution arrives exactly once in the graph as it is. Raises `InputError`
    where no collective has this name.
    """
    number, part = _part(flat, name)
    contents, nodes = part.contents, flat.workload.nodes
    steps, count = contents.algorithm.steps, len(contents.template)
    rows = np.flatnonzero((flat.part == number) & (flat.item // count == piece))
    row_of_node = np.searchsorted(contents.last, np.arange(count))
    step = row_of_node[flat.item[rows] % count]
    # Of a receive that reduces, the message is the first node.
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = step[1:] != step[:-1]
    chosen = rows[is_first]
    kept = step[is_first]
    columns = {
        column: getattr(steps, column)[kept]
        for column in ("kind", "src_buffer", "src_offset", "dst_buffer", "dst_offset", "count")
    }
    peer = nodes.peer[chosen]
    columns["rank"] = nodes.rank[chosen] - part.first_rank
    columns["peer"] = np.where(peer >= 0, peer - part.first_rank, -1)
    columns["channel"] = np.where(peer >= 0, nodes.tag[chosen], 0)
    edges = _edges(nodes.edges(), rows, np.cumsum(is_first) - 1, len(nodes))
    table = StepTable.from_columns(contents.algorithm.num_ranks, columns, edges)
    return Algorithm(contents.algorithm.collective, table, contents.algorithm.scratch_units)


def _part(flat: FlatProgram, name: str) -> tuple[int, Collected]:
    """The part of a collective, and its number."""
    for number, part in enumerate(flat.parts):
        if isinstance(part, Collected) and part.operation.name == name:
            return number, part
    message = f"{name} is no collective of {flat.program.name}"
    raise InputError(message, cure="name a collective", code="target")


def _edges(
    edges: tuple[Int64Array, Int64Array], rows: Int64Array, step: Int64Array, count: int
) -> tuple[Int64Array, Int64Array]:
    """Dependencies between these rows of the graph, as those of steps."""
    place = positions_in(rows, count)
    parents, children = (place[side] for side in edges)
    is_inside = (parents >= 0) & (children >= 0)
    parents, children = step[parents[is_inside]], step[children[is_inside]]
    is_other = parents != children
    return parents[is_other], children[is_other]
