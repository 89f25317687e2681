"""Types of tensors: elements, shapes, meshes of ranks, and layouts on every axis of a mesh.

The p ranks of a group form a mesh. Its axes have names, the first one varies slowest: rank
`i * size(second) + j` has the coordinates (i, j). A program without named axes has one axis, the
group itself. A group of a row is one stage of a pipeline, with a mesh of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import product
from math import prod

from hub_core.model import InputError, UsageError, parse_whole

Size = int | str
"""Length of a dimension: a number, or a symbol to which `Binding` assigns a number."""

Shape = tuple[Size, ...]


class ElementType(StrEnum):
    """Element types, with the names of numpy and of `ml_dtypes`."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3 = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    INT8 = "int8"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"

    @property
    def is_float(self) -> bool:
        """Whether arithmetic on this type rounds."""
        return self in _FLOATS

    @property
    def element_bytes(self) -> int:
        """Bytes of one element in memory."""
        return _ELEMENT_BYTES[self]


_ELEMENT_BYTES = {
    ElementType.FLOAT16: 2,
    ElementType.FLOAT32: 4,
    ElementType.FLOAT64: 8,
    ElementType.BFLOAT16: 2,
    ElementType.FLOAT8_E4M3: 1,
    ElementType.FLOAT8_E5M2: 1,
    ElementType.INT8: 1,
    ElementType.INT32: 4,
    ElementType.INT64: 8,
    ElementType.BOOL: 1,
}
_FLOATS = frozenset(element for element in ElementType if "float" in element)


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


class Placement(StrEnum):
    """Distribution of a tensor over the ranks of a group, or of one axis, without parameters."""

    LOCAL = "local"
    REPLICATED = "replicated"
    SLICED = "sliced"
    PARTIAL = "partial"
    ROOT = "root"
    MESH = "mesh"


@dataclass(frozen=True, slots=True)
class Layout:
    """Distribution of a tensor over the p ranks of a group, or of one axis of its mesh.

    LOCAL: the values of the ranks differ, each of the full shape. REPLICATED: all ranks have the
    same values. SLICED: rank i has block i of `dimension`; blocks have ceil(n / p) elements, the
    last ones fewer or none. PARTIAL: the tensor is the `reduction` of the values of the ranks, each
    of the full shape. ROOT: only rank `root` has the tensor, the result of a Reduce. MESH: one
    layout per axis of a mesh of several axes, `axes`; slices of one dimension along several axes
    nest, a block of the first axis is cut into blocks of the next one. Other fields have their
    default unless the placement uses them.
    """

    placement: Placement
    dimension: int = -1
    reduction: Reduction | None = None
    root: int = -1
    axes: tuple[Layout, ...] = ()

    @property
    def is_sliced(self) -> bool:
        """Whether every rank has one block; False for a layout on several axes, even if one slices
        it.
        """
        return self.placement is Placement.SLICED

    @property
    def is_local(self) -> bool:
        """Whether ranks have different values of the full shape: LOCAL, PARTIAL or ROOT.

        False for a mesh of several axes.
        """
        return self.placement in _DIFFERING

    @property
    def by_axis(self) -> tuple[Layout, ...]:
        """Layouts of all axes, in the order of the mesh; the layout itself for a single axis."""
        return self.axes or (self,)

    def __str__(self) -> str:
        return _format_layout(self)


_DIFFERING = frozenset({Placement.LOCAL, Placement.PARTIAL, Placement.ROOT})


@cache
def _format_layout(layout: Layout) -> str:
    """Format a layout: S_d if sliced along dimension d, P(op) if partial, @r on root r.

    L is local, R replicated. A mesh of several axes has their layouts in parentheses, in
    its order: (S_0, R).
    """
    match layout.placement:
        case Placement.SLICED:
            return f"S_{layout.dimension}"
        case Placement.PARTIAL:
            return f"P({layout.reduction})"
        case Placement.ROOT:
            return f"@{layout.root}"
        case Placement.MESH:
            return f"({', '.join(map(str, layout.axes))})"
    return layout.placement[0].upper()


LOCAL = Layout(Placement.LOCAL)
REPLICATED = Layout(Placement.REPLICATED)


@cache
def sliced(dimension: int) -> Layout:
    """Layout in which rank i has block i of this dimension, counted from 0."""
    return Layout(Placement.SLICED, dimension)


@cache
def partial(reduction: str = "sum") -> Layout:
    """Layout in which the tensor is the reduction of the values of all ranks."""
    return Layout(Placement.PARTIAL, reduction=Reduction(reduction))


@cache
def at_root(root: int) -> Layout:
    """Layout in which only one rank has the tensor; `root`: its coordinate on the axis."""
    return Layout(Placement.ROOT, root=root)


def on_mesh(*layouts: Layout) -> Layout:
    """Create the layout on a mesh from the layouts on its axes, in order; at least one is needed.

    A single layout is returned itself. Several layouts, also equal ones, become the `axes` of
    one layout with the placement MESH. The arguments are not checked.
    """
    if len(layouts) == 1:
        return layouts[0]
    return Layout(Placement.MESH, axes=layouts)


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


def format_shape(shape: Shape) -> str:
    """Format a shape in brackets."""
    return f"[{', '.join(map(str, shape))}]"


def distance_from_end(dimension: int, rank: int) -> int:
    """Distance of a dimension from the end, 1 for the last one; broadcasting preserves it."""
    return rank - dimension


def has_dimension(shape: Shape, distance: int) -> bool:
    """Whether a shape has a size other than 1 at this distance from its end.

    Dimensions of size 1, and missing ones, are broadcast.
    """
    return len(shape) >= distance and shape[len(shape) - distance] != 1


def block_bounds(size: int, num_ranks: int, rank: int) -> tuple[int, int]:
    """Return (first, end) of a rank's block along a dimension of `size` elements; end exclusive.

    Blocks have size / num_ranks elements, rounded up; the last ones are shorter or empty.
    """
    length = -(-size // num_ranks)
    return min(rank * length, size), min((rank + 1) * length, size)


@dataclass(frozen=True, slots=True)
class Binding:
    """Number of ranks of each group, the number for every symbol, and the sizes of the mesh.

    `mesh`: ranks along each axis, in the order of the program's axes; empty: one axis with all
    ranks.
    """

    num_ranks: int
    sizes: Mapping[str, int]
    mesh: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_ranks < 2:
            message = f"a group of {self.num_ranks} has nobody to communicate with"
            raise InputError(message, cure="state at least 2 ranks", code="ranks")
        for symbol, size in self.sizes.items():
            if size < 1:
                message = f"size {symbol} is {size}, a size is at least 1"
                raise InputError(message, cure=f"bind {symbol} to a positive number", code="size")
        if self.mesh and (min(self.mesh) < 1 or prod(self.mesh) != self.num_ranks):
            sizes = " x ".join(map(str, self.mesh))
            message = f"a mesh of {sizes} has not {self.num_ranks} ranks"
            cure = "state sizes of at least 1 whose product is the number of ranks"
            raise InputError(message, cure=cure, code="mesh")

    @classmethod
    def of_mesh(cls, mesh: Sequence[int], sizes: Mapping[str, int]) -> Binding:
        """Bind symbols on a mesh with these numbers of ranks along its axes."""
        return cls(prod(mesh), sizes, tuple(mesh))

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        """Ranks along each axis; all ranks of a group if the mesh has a single axis."""
        return self.mesh or (self.num_ranks,)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the position of a rank of a group on every axis of the mesh, in its order.

        The last axis varies fastest.
        """
        result = []
        for size in reversed(self.axis_sizes):
            rank, coordinate = divmod(rank, size)
            result.append(coordinate)
        return tuple(reversed(result))

    def subgroups(self, axes: Sequence[int]) -> list[list[int]]:
        """Return the lists of ranks that differ only in their coordinates on the given axes.

        `axes`: positions in the mesh. There is one list for each combination of the other
        coordinates. Ranks count from 0 within a group and ascend in each list; lists are in the
        order of their first ranks. Without axes, every list has one rank; with all axes there
        is one list.
        """
        by_others: dict[tuple[int, ...], list[int]] = {}
        for rank, coordinates in enumerate(product(*map(range, self.axis_sizes))):
            others = tuple(
                coordinate for axis, coordinate in enumerate(coordinates) if axis not in axes
            )
            by_others.setdefault(others, []).append(rank)
        return list(by_others.values())

    def shape(self, shape: Shape) -> tuple[int, ...]:
        """Replace symbols by numbers. Raises `InputError` for a symbol without a number."""
        return tuple(self._size(size) for size in shape)

    def ranks_of(self, group: int) -> range:
        """Return the ranks of the job in one group, as a range; group k begins at rank k * p.

        p is the number of ranks per group. That the group exists is not checked.
        """
        first = group * self.num_ranks
        return range(first, first + self.num_ranks)

    def bounds(self, kind: TensorType, rank: int) -> list[tuple[int, int]]:
        """Return (first, end) of a rank's block in every dimension; end exclusive.

        `rank`: within its group. Dimensions that are not sliced are complete. A dimension of n
        elements that k ranks share has blocks of n / k elements, rounded up; the last ones are
        shorter or empty. If several axes slice a dimension, the later axis divides the block of
        the earlier one. A scalar has []. Raises `InputError` (`symbol`) for a symbol without a
        number.
        """
        bounds = [(0, size) for size in self.shape(kind.shape)]
        if kind.layout.is_sliced:
            dimension = kind.layout.dimension
            bounds[dimension] = block_bounds(bounds[dimension][1], self.num_ranks, rank)
            return bounds
        if not kind.layout.axes:
            return bounds
        axes = zip(kind.layout.axes, self.axis_sizes, self.coordinates(rank), strict=True)
        for layout, count, coordinate in axes:
            if layout.is_sliced:
                low, high = bounds[layout.dimension]
                first, stop = block_bounds(high - low, count, coordinate)
                bounds[layout.dimension] = low + first, low + stop
        return bounds

    def elements(self, shape: Shape) -> int:
        """Return the number of elements of the complete tensor; 1 for a scalar.

        Raises `InputError` (`symbol`) for a symbol without a number.
        """
        count = 1
        for size in shape:
            count *= size if isinstance(size, int) else self._size(size)
        return count

    def elements_of_rank(self, kind: TensorType) -> int:
        """Return the number of elements that one rank stores of a tensor.

        For a sliced tensor these are the elements of the longest block: each axis that slices a
        dimension divides its size by the ranks of the axis, rounded up, in the order of the
        axes. Any other layout counts the complete tensor, also a root. Raise `InputError`
        (`symbol`) for a symbol without a number.
        """
        if not kind.layout.axes and not kind.layout.is_sliced:
            return self.elements(kind.shape)
        sizes = list(self.shape(kind.shape))
        for layout, count in zip(kind.layout.by_axis, self.axis_sizes, strict=False):
            if layout.is_sliced:
                sizes[layout.dimension] = -(-sizes[layout.dimension] // count)
        return prod(sizes)

    def bytes_of_rank(self, kind: TensorType) -> int:
        """Number of bytes of a tensor on one rank; of a sliced one, the longest block."""
        return self.elements_of_rank(kind) * kind.element.element_bytes

    def _size(self, size: Size) -> int:
        """Return a size as a number: the number itself, or the one that is bound to the symbol.

        Raises `InputError` (`symbol`) for a symbol without a number.
        """
        if isinstance(size, int):
            return size
        if size not in self.sizes:
            message = f"symbol {size} is not bound"
            raise InputError(message, cure=f"state a number for {size}", code="symbol")
        return self.sizes[size]


Ranges = Mapping[str, tuple[int, int]]
"""Smallest and largest size of every symbol."""


def parse_ranges(text: str) -> Ranges:
    """Return (smallest, largest) size by symbol, from text such as `B=8,N=1024..1048576`.

    `B=8` is the range 8..8. Sizes are integers from 0 to 2^63 - 1 in ASCII digits. Blanks
    around symbols and sizes are ignored. Empty entries (as in `B=8,,N=4`) are skipped; the
    empty text gives {}. Of a repeated symbol the last entry is used. Raise `UsageError` for
    any other entry, also one of blanks only, and for a range whose end is below its start.
    """
    ranges = {}
    for part in filter(None, text.split(",")):
        symbol, _, numbers = (piece.strip() for piece in part.partition("="))
        low, dots, high = numbers.partition("..")
        texts = (low, high if dots else low)
        first, last = (parse_whole(limit.strip(), (1 << 63) - 1) for limit in texts)
        if not symbol or first is None or last is None or last < first:
            message = f"size {part!r:.60} is not understood"
            raise UsageError(message, cure="write sizes as B=8,S=1024 or N=1024..1048576")
        ranges[symbol] = first, last
    return ranges


def take_minimum_sizes(ranges: Ranges) -> dict[str, int]:
    """Return the minimum size of every symbol by name; `ranges` has (minimum, maximum)."""
    return {symbol: low for symbol, (low, _) in ranges.items()}
