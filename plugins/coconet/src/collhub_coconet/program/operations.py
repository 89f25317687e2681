"""Records of programs: tensor types, operations, and the operands and attributes of each kind.

A tensor type has an element type, a symbolic shape, a layout on a group of ranks, and the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hub_core.model import InputError, UsageError

Size = int | str
"""Length of a dimension: a number, or a symbol to which `Binding` assigns a number."""

Shape = tuple[Size, ...]


class Placement(StrEnum):
    """Distribution of a tensor over the ranks of a group, without the dimension."""

    LOCAL = "local"
    REPLICATED = "replicated"
    SLICED = "sliced"


class ElementType(StrEnum):
    """Element types, with the names of numpy."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"

    @property
    def is_float(self) -> bool:
        """Whether arithmetic on this type rounds."""
        return self in (ElementType.FLOAT16, ElementType.FLOAT32, ElementType.FLOAT64)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element in memory."""
        return _ELEMENT_BYTES[self]


_ELEMENT_BYTES = {
    ElementType.FLOAT16: 2,
    ElementType.FLOAT32: 4,
    ElementType.FLOAT64: 8,
    ElementType.INT32: 4,
    ElementType.INT64: 8,
    ElementType.BOOL: 1,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Distribution of a tensor over the p ranks of a group.

    LOCAL: the values of the ranks differ, each of the full shape. REPLICATED: all ranks have the
    same values. SLICED: rank i has block i of `dimension`; blocks have ceil(n / p) elements, the
    last ones fewer or none. `dimension` is -1 unless the layout is SLICED.
    """

    placement: Placement
    dimension: int = -1

    @property
    def is_sliced(self) -> bool:
        """Whether every rank has one block."""
        return self.placement is Placement.SLICED

    def __str__(self) -> str:
        return f"S_{self.dimension}" if self.is_sliced else self.placement[0].upper()


LOCAL = Layout(Placement.LOCAL)
REPLICATED = Layout(Placement.REPLICATED)


def sliced(dimension: int) -> Layout:
    """Layout in which rank i has block i of this dimension, counted from 0."""
    return Layout(Placement.SLICED, dimension)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Type of a value; `shape`: of the complete tensor; `group`: position in the row of groups."""

    element: ElementType
    shape: Shape
    layout: Layout
    group: int = 0

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        group = f" on group {self.group}" if self.group else ""
        return f"{self.element}[{sizes}] {self.layout}{group}"


def distance_from_end(dimension: int, rank: int) -> int:
    """Distance of a dimension from the end, 1 for the last one; broadcasting preserves it."""
    return rank - dimension


def has_dimension(shape: Shape, distance: int) -> bool:
    """Whether a shape has a size other than 1 at this distance from its end.

    Dimensions of size 1, and missing ones, are broadcast.
    """
    return len(shape) >= distance and shape[len(shape) - distance] != 1


def block_bounds(size: int, num_ranks: int, rank: int) -> tuple[int, int]:
    """Return the first element of a rank's block, and its end (exclusive).

    Blocks have equal lengths, rounded up; the last ones are shorter or empty.
    """
    length = -(-size // num_ranks)
    return min(rank * length, size), min((rank + 1) * length, size)


@dataclass(frozen=True, slots=True)
class Binding:
    """Number of ranks of each group, and the number for every symbol."""

    num_ranks: int
    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        if self.num_ranks < 2:
            message = f"a group of {self.num_ranks} has nobody to communicate with"
            raise InputError(message, cure="state at least 2 ranks", code="ranks")
        for symbol, size in self.sizes.items():
            if size < 1:
                message = f"size {symbol} is {size}, a size is at least 1"
                raise InputError(message, cure=f"bind {symbol} to a positive number", code="size")

    def shape(self, shape: Shape) -> tuple[int, ...]:
        """Replace symbols by numbers. Raises `InputError` for a symbol without a number."""
        return tuple(self._size(size) for size in shape)

    def ranks_of(self, group: int) -> range:
        """Ranks of the job in one group; group k begins at rank k * p."""
        first = group * self.num_ranks
        return range(first, first + self.num_ranks)

    def elements(self, shape: Shape) -> int:
        """Return the number of elements of the complete tensor; 1 for a scalar.

        Raises as `_size`.
        """
        count = 1
        for size in shape:
            count *= self._size(size)
        return count

    def elements_of_rank(self, kind: TensorType) -> int:
        """Return the number of elements of a tensor on one rank.

        That is all elements, or of a sliced tensor those of the longest block: the sliced dimension
        divided by the ranks of a group, rounded up.
        """
        total = self.elements(kind.shape)
        if not kind.layout.is_sliced:
            return total
        size = self._size(kind.shape[kind.layout.dimension])
        return total // size * -(-size // self.num_ranks)

    def bytes_of_rank(self, kind: TensorType) -> int:
        """Number of bytes of a tensor on one rank; of a sliced one, the longest block."""
        return self.elements_of_rank(kind) * kind.element.element_bytes

    def _size(self, size: Size) -> int:
        """Return a size as a number. Raises `InputError` for a symbol without a number."""
        if isinstance(size, int):
            return size
        if size not in self.sizes:
            message = f"symbol {size} is not bound"
            raise InputError(message, cure=f"state a number for {size}", code="symbol")
        return self.sizes[size]


Ranges = Mapping[str, tuple[int, int]]
"""Smallest and largest size of every symbol."""


def parse_ranges(text: str) -> Ranges:
    """Return smallest and largest size by symbol, from text such as `B=8,N=1024..1048576`.

    `B=8` is the range 8..8. The last entry of a symbol counts; empty entries are skipped. Raises
    `UsageError` for any other entry, and for a range whose end is below its start.
    """
    ranges = {}
    for part in filter(None, text.split(",")):
        symbol, _, numbers = (piece.strip() for piece in part.partition("="))
        low, dots, high = numbers.partition("..")
        limits = [low, high if dots else low]
        is_range = bool(symbol) and all(limit.strip().isdecimal() for limit in limits)
        if not is_range or int(limits[1]) < int(limits[0]):
            message = f"size {part!r} is not understood"
            raise UsageError(message, cure="write sizes as B=8,S=1024 or N=1024..1048576")
        ranges[symbol] = int(limits[0]), int(limits[1])
    return ranges


def take_minimum_sizes(ranges: Ranges) -> dict[str, int]:
    """Take the minimum size of every symbol."""
    return {symbol: low for symbol, (low, _) in ranges.items()}


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
    OPAQUE = "Opaque"


class Rule(StrEnum):
    """Layout rules of opaque operations, which the language does not describe otherwise.

    PER_RANK: every rank computes with its values; the result of replicated operands is replicated,
    else local. RANDOM: as PER_RANK, but ranks differ even for equal operands. ROWS: row i of the
    result depends only on rows i of the sliced operands and on replicated ones. TO_BLOCKS: the
    local values of the ranks are the blocks of a tensor sliced along dimension 0. TO_LOCAL: the
    block of a rank as its local value.
    """

    PER_RANK = "per_rank"
    RANDOM = "random"
    ROWS = "rows"
    TO_BLOCKS = "to_blocks"
    TO_LOCAL = "to_local"


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
    """Number of operands of a kind (-1: any number), and its required attributes."""

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
    Kind.OPAQUE: Traits(-1, ("element", "call", "shape", "rule", "work", "traffic")),
}

ATTRIBUTES = (
    *("reduction", "dimension", "root", "offset", "element", "rate", "seed"),
    *("call", "shape", "rule", "work", "traffic"),
)

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
    numbers. `reads`: names among the operands, in order. Of opaque operations: `call` names the
    operator and its other parameters as JSON, `shape` is that of the complete result, `work` the
    arithmetic operations and `traffic` the bytes of memory for the complete result.
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
    rule: Rule | None = None
    work: int | None = None
    traffic: int | None = None
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
        """Whether no kernel runs: a Slice, or an opaque view of its operand."""
        is_opaque_view = self.kind is Kind.OPAQUE and not self.work and not self.traffic
        return self.kind is Kind.SLICE or is_opaque_view

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
