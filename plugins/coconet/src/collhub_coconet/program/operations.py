"""Records of programs: operations, with the operands and attributes of each kind, and arguments.

Types of tensors are those of `program.tensors`, whose names this module has, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from collhub_coconet.program.tensors import (
    LOCAL,
    REPLICATED,
    Binding,
    ElementType,
    Layout,
    Placement,
    Ranges,
    Reduction,
    Shape,
    Size,
    TensorType,
    at_root,
    block_bounds,
    distance_from_end,
    format_shape,
    has_dimension,
    on_mesh,
    parse_ranges,
    partial,
    sliced,
    take_minimum_sizes,
)

__all__ = [
    "ARITHMETIC",
    "ATTRIBUTES",
    "COLLECTIVES",
    "COMPARISONS",
    "CONTRACTIONS",
    "LOCAL",
    "POINTWISE",
    "REARRANGING",
    "REDUCTIONS_TO_SCALARS",
    "REPLICATED",
    "TRAITS",
    "UNARY",
    "UNEVEN_COLLECTIVES",
    "VIEWS",
    "Argument",
    "Binding",
    "ElementType",
    "Kind",
    "Layout",
    "LayoutRule",
    "Operand",
    "Operation",
    "Placement",
    "Ranges",
    "Reduction",
    "Shape",
    "Size",
    "TensorType",
    "Traits",
    "at_root",
    "block_bounds",
    "distance_from_end",
    "format_shape",
    "has_dimension",
    "on_mesh",
    "parse_ranges",
    "partial",
    "sliced",
    "take_minimum_sizes",
]  # fmt: skip


class Kind(StrEnum):
    """Kinds of operations, with their names in text and documents."""

    ALL_REDUCE = "AllReduce"
    REDUCE_SCATTER = "ReduceScatter"
    ALL_GATHER = "AllGather"
    BROADCAST = "Broadcast"
    REDUCE = "Reduce"
    SEND = "Send"
    ALL_TO_ALL = "AllToAll"
    ALL_TO_ALL_V = "AllToAllV"
    ALL_GATHER_V = "AllGatherV"
    REDUCE_SCATTER_V = "ReduceScatterV"
    SLICE = "Slice"
    ADD = "Add"
    SUBTRACT = "Subtract"
    MULTIPLY = "Multiply"
    DIVIDE = "Divide"
    POWER = "Power"
    SQRT = "Sqrt"
    TANH = "Tanh"
    EXP = "Exp"
    LOG = "Log"
    ERF = "Erf"
    CAST = "Cast"
    LESS = "Less"
    GREATER = "Greater"
    EQUAL = "Equal"
    SELECT = "Select"
    DROPOUT = "Dropout"
    MATMUL = "MatMul"
    BATCH_MATMUL = "BatchMatMul"
    TRANSPOSE = "Transpose"
    CONV = "Conv"
    NORM = "Norm"
    SUM = "Sum"
    MAX = "Max"
    UPDATE = "Update"
    ROW_REDUCE = "RowReduce"
    ARG_MAX = "ArgMax"
    INDEX = "Index"
    GATHER = "Gather"
    SCATTER = "Scatter"
    TOP_VALUES = "TopValues"
    TOP_INDICES = "TopIndices"
    RESHAPE = "Reshape"
    CONCAT = "Concat"
    PERMUTE = "Permute"
    PART = "Part"
    OPAQUE = "Opaque"


class LayoutRule(StrEnum):
    """Layout rules of opaque operations, which the language does not describe otherwise.

    PER_RANK: every rank computes with its values; the result of replicated operands is replicated,
    else local. RANDOM: as PER_RANK, but ranks differ even for equal operands. ROWS: row i of the
    result depends only on rows i of the sliced operands, and on the other operands. A row is a
    position of the first `count` dimensions (1 if absent), such as batch and head of attention;
    each of them may be sliced. PARTS: every rank computes with its parts of the operands; the
    result is local unless all operands are replicated. TO_BLOCKS: the local values of the ranks are
    the blocks of a tensor sliced along the dimension that the operation names, or 0. TO_LOCAL: the
    part of a tensor that a rank has, in row-major order, as its local value. On a mesh of several
    axes a rule applies to each axis; ROWS is PER_RANK on axes without slices.
    """

    PER_RANK = "per_rank"
    RANDOM = "random"
    ROWS = "rows"
    PARTS = "parts"
    TO_BLOCKS = "to_blocks"
    TO_LOCAL = "to_local"


@dataclass(frozen=True, slots=True)
class Traits:
    """Number of operands of a kind (-1: any number), and its required and optional attributes."""

    operands: int
    attributes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


TRAITS = {
    Kind.ALL_REDUCE: Traits(1, ("reduction",), ("axes",)),
    Kind.REDUCE_SCATTER: Traits(1, ("reduction", "dimension"), ("axes",)),
    Kind.ALL_GATHER: Traits(1, (), ("axes",)),
    Kind.BROADCAST: Traits(1, ("root",), ("axes",)),
    Kind.REDUCE: Traits(1, ("reduction", "root"), ("axes",)),
    Kind.SEND: Traits(1, ("offset",)),
    Kind.ALL_TO_ALL: Traits(1, ("dimension",), ("axes",)),
    Kind.ALL_TO_ALL_V: Traits(1, ("counts",), ("axes",)),
    Kind.ALL_GATHER_V: Traits(1, ("counts",), ("axes",)),
    Kind.REDUCE_SCATTER_V: Traits(1, ("reduction", "counts"), ("axes",)),
    Kind.SLICE: Traits(1, ("dimension",), ("axes",)),
    Kind.ADD: Traits(2),
    Kind.SUBTRACT: Traits(2),
    Kind.MULTIPLY: Traits(2),
    Kind.DIVIDE: Traits(2),
    Kind.POWER: Traits(2),
    Kind.SQRT: Traits(1),
    Kind.TANH: Traits(1),
    Kind.EXP: Traits(1),
    Kind.LOG: Traits(1),
    Kind.ERF: Traits(1),
    Kind.CAST: Traits(1, ("element",)),
    Kind.LESS: Traits(2),
    Kind.GREATER: Traits(2),
    Kind.EQUAL: Traits(2),
    Kind.SELECT: Traits(3),
    Kind.DROPOUT: Traits(1, ("rate", "seed")),
    Kind.MATMUL: Traits(2),
    Kind.BATCH_MATMUL: Traits(2),
    Kind.TRANSPOSE: Traits(1),
    Kind.CONV: Traits(2),
    Kind.NORM: Traits(1),
    Kind.SUM: Traits(1),
    Kind.MAX: Traits(1),
    Kind.UPDATE: Traits(2),
    Kind.ROW_REDUCE: Traits(1, ("reduction", "dimension")),
    Kind.ARG_MAX: Traits(1, ("dimension",)),
    Kind.INDEX: Traits(1, ("dimension",)),
    Kind.GATHER: Traits(2),
    Kind.SCATTER: Traits(2, ("shape",)),
    Kind.TOP_VALUES: Traits(1, ("dimension", "count")),
    Kind.TOP_INDICES: Traits(1, ("dimension", "count")),
    Kind.RESHAPE: Traits(1, ("shape",)),
    Kind.CONCAT: Traits(-1, ("dimension",)),
    Kind.PERMUTE: Traits(1, ("order",)),
    Kind.PART: Traits(1, ("dimension", "start", "count")),
    Kind.OPAQUE: Traits(
        -1, ("element", "call", "shape", "rule", "work", "traffic"), ("axes", "dimension", "count")
    ),
}

ATTRIBUTES = (
    *("reduction", "dimension", "root", "offset", "element", "rate", "seed"),
    *("call", "shape", "rule", "work", "traffic", "count", "axes", "order", "start", "counts"),
)

UNEVEN_COLLECTIVES = frozenset({Kind.ALL_TO_ALL_V, Kind.ALL_GATHER_V, Kind.REDUCE_SCATTER_V})
COLLECTIVES = UNEVEN_COLLECTIVES | frozenset(
    {
        Kind.ALL_REDUCE,
        Kind.REDUCE_SCATTER,
        Kind.ALL_GATHER,
        Kind.BROADCAST,
        Kind.REDUCE,
        Kind.ALL_TO_ALL,
    }
)
REDUCTIONS_TO_SCALARS = frozenset({Kind.NORM, Kind.SUM, Kind.MAX})
VIEWS = frozenset({Kind.SLICE, Kind.RESHAPE, Kind.PART})
CONTRACTIONS = frozenset({Kind.MATMUL, Kind.BATCH_MATMUL, Kind.CONV})
COMPARISONS = frozenset({Kind.LESS, Kind.GREATER, Kind.EQUAL})
# Kinds with two operands and a result of their element type.
ARITHMETIC = frozenset({Kind.ADD, Kind.SUBTRACT, Kind.MULTIPLY, Kind.DIVIDE, Kind.POWER})
UNARY = frozenset({Kind.SQRT, Kind.TANH, Kind.EXP, Kind.LOG, Kind.ERF, Kind.CAST, Kind.DROPOUT})
# Kinds whose result needs more of an operand than the elements at the same place.
REARRANGING = frozenset(
    {
        Kind.ROW_REDUCE,
        Kind.ARG_MAX,
        Kind.INDEX,
        Kind.GATHER,
        Kind.SCATTER,
        Kind.TOP_VALUES,
        Kind.TOP_INDICES,
        Kind.RESHAPE,
        Kind.CONCAT,
        Kind.PERMUTE,
        Kind.PART,
    }
)
POINTWISE = ARITHMETIC | COMPARISONS | UNARY | {Kind.SELECT}

Operand = str | float | int
"""Name of a value, or a number."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Operation with a value of the same name; attributes that its kind does not have are None.

    `dimension`: counted from 0. `root`: rank within the group. `offset`: distance to the receiving
    group in the row. `rate`: fraction of elements that Dropout drops. `seed`: of its random
    numbers. `reads`: names among the operands, in order. `shape`: of the complete result. `count`:
    number of largest elements that a top-k selects, or of positions of a Part, which begins at
    position `start` of the dimension, or of the dimensions of a row of the rule ROWS. `axes`: of
    the mesh, over whose ranks an operation communicates, in order; None: the only axis. Of an
    opaque view: on which it changes the layout; None: all axes. `order`: dimensions of the operand
    that become the dimensions of the result. Of opaque operations: `call` names the
    operator and its other parameters as JSON, `work` the arithmetic operations and `traffic` the
    bytes of memory for the complete result. `counts`: rows of an uneven collective, by rank, or by
    pair of ranks with one row of the table after the other.
    """

    name: str
    kind: Kind
    operands: tuple[Operand, ...]
    reduction: Reduction | None = None
    dimension: int | None = None
    root: int | None = None
    offset: int | None = None
    element: ElementType | None = None
    rate: float | None = None
    seed: int | None = None
    call: str | None = None
    shape: Shape | None = None
    rule: LayoutRule | None = None
    work: int | None = None
    traffic: int | None = None
    count: int | None = None
    axes: tuple[str, ...] | None = None
    order: tuple[int, ...] | None = None
    start: int | None = None
    counts: tuple[int, ...] | None = None
    reads: tuple[str, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Stored, since transformations read it very often.
        names = tuple(operand for operand in self.operands if isinstance(operand, str))
        object.__setattr__(self, "reads", names)

    @property
    def is_inner(self) -> bool:
        """Whether the value is unnamed, so that text shows its expression in its reader."""
        return self.name.startswith("_")

    @property
    def is_free(self) -> bool:
        """Whether no kernel runs for the operation.

        True for views (Slice, Reshape and Part), and for an opaque operation (an operator outside
        of the language) whose declared work and memory traffic are 0 or missing.
        """
        is_opaque_view = self.kind is Kind.OPAQUE and not self.work and not self.traffic
        return self.kind in VIEWS or is_opaque_view

    @property
    def is_communication(self) -> bool:
        """Whether ranks exchange data.

        False for reductions of slices to scalars: their all-reduce belongs to the kernel.
        """
        return self.kind in COLLECTIVES or self.kind is Kind.SEND


@dataclass(frozen=True, slots=True)
class Argument:
    """Input of a program: a tensor, or a state that Update writes.

    `whole_after`: every rank reads the complete state after the program, so that it cannot remain
    sliced.
    """

    name: str
    type: TensorType
    is_state: bool = False
    whole_after: bool = False
