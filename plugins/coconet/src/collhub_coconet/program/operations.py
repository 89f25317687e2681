"""Operations: their kinds, the operands and attributes of each kind, and one record for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from collhub_coconet.program.tensors import ElementType, TensorType


class Kind(StrEnum):
    """Kinds of operations, with their names in text and documents."""

    ALL_REDUCE = "AllReduce"
    REDUCE_SCATTER = "ReduceScatter"
    ALL_GATHER = "AllGather"
    BROADCAST = "Broadcast"
    REDUCE = "Reduce"
    SEND = "Send"
    ALL_TO_ALL = "AllToAll"
    SLICE = "Slice"
    ADD = "Add"
    SUBTRACT = "Subtract"
    MULTIPLY = "Multiply"
    DIVIDE = "Divide"
    POWER = "Power"
    SQRT = "Sqrt"
    TANH = "Tanh"
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


class Reduction(StrEnum):
    """Operators of reductions; REPLACE as in MPI: the value of the highest rank."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    REPLACE = "replace"

    @property
    def is_commutative(self) -> bool:
        """Whether the order of the ranks is irrelevant; all operators are associative."""
        return self is not Reduction.REPLACE


@dataclass(frozen=True, slots=True)
class Traits:
    """Number of operands of a kind, and its required attributes."""

    operands: int
    attributes: tuple[str, ...] = ()


TRAITS = {
    Kind.ALL_REDUCE: Traits(1, ("reduction",)),
    Kind.REDUCE_SCATTER: Traits(1, ("reduction", "dimension")),
    Kind.ALL_GATHER: Traits(1),
    Kind.BROADCAST: Traits(1, ("root",)),
    Kind.REDUCE: Traits(1, ("reduction", "root")),
    Kind.SEND: Traits(1, ("offset",)),
    Kind.ALL_TO_ALL: Traits(1, ("dimension",)),
    Kind.SLICE: Traits(1, ("dimension",)),
    Kind.ADD: Traits(2),
    Kind.SUBTRACT: Traits(2),
    Kind.MULTIPLY: Traits(2),
    Kind.DIVIDE: Traits(2),
    Kind.POWER: Traits(2),
    Kind.SQRT: Traits(1),
    Kind.TANH: Traits(1),
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
}

ATTRIBUTES = ("reduction", "dimension", "root", "offset", "element", "rate", "seed")

COLLECTIVES = frozenset(
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
CONTRACTIONS = frozenset({Kind.MATMUL, Kind.BATCH_MATMUL, Kind.CONV})
COMPARISONS = frozenset({Kind.LESS, Kind.GREATER, Kind.EQUAL})
# Kinds with two operands and a result of their element type.
ARITHMETIC = frozenset({Kind.ADD, Kind.SUBTRACT, Kind.MULTIPLY, Kind.DIVIDE, Kind.POWER})
UNARY = frozenset({Kind.SQRT, Kind.TANH, Kind.CAST, Kind.DROPOUT})
POINTWISE = ARITHMETIC | COMPARISONS | UNARY | {Kind.SELECT}

Operand = str | float | int
"""Name of a value, or a number."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Operation with a value of the same name; attributes that its kind does not have are None.

    `dimension`: counted from 0. `root`: rank within the group. `offset`: distance to the receiving
    group in the row. `rate`: fraction of elements that Dropout drops. `seed`: of its random
    numbers. `reads`: names among the operands, in order.
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
