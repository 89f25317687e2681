"""Operations: their kinds, what each kind takes, and one record for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from collhub_coconet.program.tensors import ElementType, TensorType


class Kind(StrEnum):
    """Kinds of operation, spelt as text and documents spell them."""

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
    """Operators of reductions; REPLACE is MPI's: the value of the highest rank."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    REPLACE = "replace"

    @property
    def is_commutative(self) -> bool:
        """Whether the order of the ranks does not matter; all of them are associative."""
        return self is not Reduction.REPLACE


@dataclass(frozen=True, slots=True)
class Traits:
    """What a kind takes: number of operands, and the attributes that it needs."""

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
# Two operands and a result of their element type.
ARITHMETIC = frozenset({Kind.ADD, Kind.SUBTRACT, Kind.MULTIPLY, Kind.DIVIDE, Kind.POWER})
OF_ONE_TENSOR = frozenset({Kind.SQRT, Kind.TANH, Kind.CAST, Kind.DROPOUT})
POINTWISE = ARITHMETIC | COMPARISONS | OF_ONE_TENSOR | {Kind.SELECT}

Operand = str | float | int
"""Name of a value, or a number."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; `name` is that of its value. Attributes are None where its kind has none.

    `dimension`: counted from 0. `root`: rank within the group. `offset`: groups further in the row.
    `rate`: share of elements that are dropped. `seed`: of the random numbers. `reads`: names among
    the operands, in their order.
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
        # Asked for many times in every transformation.
        names = tuple(operand for operand in self.operands if isinstance(operand, str))
        object.__setattr__(self, "reads", names)

    @property
    def is_inner(self) -> bool:
        """Whether the value has no name of its own: text shows it where it is used."""
        return self.name.startswith("_")

    @property
    def is_communication(self) -> bool:
        """Whether data leave the rank.

        Reductions of slices to scalars are not counted: their all-reduce is within the kernel.
        """
        return self.kind in COLLECTIVES or self.kind is Kind.SEND


@dataclass(frozen=True, slots=True)
class Argument:
    """What a program is given: a tensor, or a state that Update writes.

    `whole_after`: the state is read by every rank as a whole after the program, so that it cannot
    stay sliced.
    """

    name: str
    type: TensorType
    is_state: bool = False
    whole_after: bool = False
