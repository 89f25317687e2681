"""Tensor types: element type, symbolic shape, layout on a group of ranks, and the group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hub_core.model import InputError, UsageError

Size = int | str
"""Length of a dimension: a number, or a symbol that is bound when the program is run."""

Shape = tuple[Size, ...]


class Placement(StrEnum):
    """Kinds of layout."""

    LOCAL = "local"
    REPLICATED = "replicated"
    SLICED = "sliced"


class ElementType(StrEnum):
    """Types of elements, named as numpy names them."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"

    @property
    def is_float(self) -> bool:
        """Whether values of this type are rounded.

        Integers and truth values are not.
        """
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

    LOCAL: every rank has values of its own, of the full shape. REPLICATED: every rank has the same
    values. SLICED: rank i has block i of `dimension`; blocks are ceil(n / p) long, the last ones
    shorter or empty. `dimension` is -1 where the layout is not SLICED.
    """

    placement: Placement
    dimension: int = -1

    @property
    def is_sliced(self) -> bool:
        """Whether every rank has a block."""
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
    """Type of a value; `shape` is the global one, `group` the position in the row of groups."""

    element: ElementType
    shape: Shape
    layout: Layout
    group: int = 0

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        group = f" on group {self.group}" if self.group else ""
        return f"{self.element}[{sizes}] {self.layout}{group}"


def from_end(dimension: int, rank: int) -> int:
    """Distance of a dimension from the end: what broadcasting keeps. The last one has 1."""
    return rank - dimension


def has_dimension(shape: Shape, distance: int) -> bool:
    """Whether a shape has its own values along the dimension this far from its end.

    A dimension of size 1, and one that is not there, are broadcast.
    """
    return len(shape) >= distance and shape[len(shape) - distance] != 1


def block_bounds(size: int, num_ranks: int, rank: int) -> tuple[int, int]:
    """First element of the block of a rank, and the one behind its last; nothing is dropped."""
    length = -(-size // num_ranks)
    return min(rank * length, size), min((rank + 1) * length, size)


@dataclass(frozen=True, slots=True)
class Binding:
    """Numbers for a run: ranks of each group, and the size that every symbol stands for."""

    num_ranks: int
    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        if self.num_ranks < 2:
            message = f"a group of {self.num_ranks} has nobody to communicate with"
            raise InputError(message, cure="state at least 2 ranks", code="ranks")
        # A size of zero would make blocks of nothing.
        for symbol, size in self.sizes.items():
            if size < 1:
                message = f"size {symbol} is {size}, a size is at least 1"
                raise InputError(message, cure=f"bind {symbol} to a positive number", code="size")

    def shape(self, shape: Shape) -> tuple[int, ...]:
        """The shape in numbers.

        Raises `InputError` for a symbol that is not bound.
        """
        return tuple(self._size(size) for size in shape)

    def ranks_of(self, group: int) -> range:
        """Ranks of the job in one group: group k begins at rank k * p."""
        first = group * self.num_ranks
        return range(first, first + self.num_ranks)

    def elements(self, shape: Shape) -> int:
        """Number of elements of the whole tensor."""
        count = 1
        for size in shape:
            count *= self._size(size)
        return count

    def elements_of_rank(self, kind: TensorType) -> int:
        """Elements of a tensor on one rank; of a sliced one, the longest block."""
        whole = self.elements(kind.shape)
        if not kind.layout.is_sliced:
            return whole
        size = self._size(kind.shape[kind.layout.dimension])
        return whole // size * -(-size // self.num_ranks)

    def bytes_of_rank(self, kind: TensorType) -> int:
        """Bytes of a tensor on one rank; of a sliced one, the longest block."""
        return self.elements_of_rank(kind) * kind.element.element_bytes

    def _size(self, size: Size) -> int:
        """One size in numbers."""
        if isinstance(size, int):
            return size
        if size not in self.sizes:
            message = f"symbol {size} is not bound"
            raise InputError(message, cure=f"state a number for {size}", code="symbol")
        return self.sizes[size]


Ranges = Mapping[str, tuple[int, int]]
"""Smallest and largest size of every symbol."""


def parsed_ranges(text: str) -> Ranges:
    """Sizes by symbol. Raises `UsageError` for what is no list of them.

    A symbol that is stated twice has its last size.
    """
    found = {}
    for part in filter(None, text.split(",")):
        symbol, _, numbers = (piece.strip() for piece in part.partition("="))
        low, dots, high = numbers.partition("..")
        limits = [low, high if dots else low]
        is_range = bool(symbol) and all(one.strip().isdecimal() for one in limits)
        if not is_range or int(limits[1]) < int(limits[0]):
            message = f"size {part!r} is not understood"
            raise UsageError(message, cure="write sizes as B=8,S=1024 or N=1024..1048576")
        found[symbol] = int(limits[0]), int(limits[1])
    return found


def smallest(ranges: Ranges) -> dict[str, int]:
    """The least size of every symbol."""
    return {symbol: low for symbol, (low, _) in ranges.items()}
