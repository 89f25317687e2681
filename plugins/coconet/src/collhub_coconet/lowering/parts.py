"""Parts of a flat program: what its nodes do, for whoever executes or times them."""

from __future__ import annotations

from dataclasses import dataclass, field

from collhub_coconet.lowering.contents import Contents
from collhub_coconet.lowering.grids import Grid
from collhub_coconet.program.operations import Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from hub_core.columns import Int64Array
from hub_core.model import Workload


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
