"""Sharding specs in three notations, and where they cut the dimensions of a tensor.

`S0 R S1` (Alpa's), `('x', None, 'y')` (JAX's PartitionSpec) and `Shard(0), Replicate()`
(PyTorch's DTensor).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_columns import Int64Array

from collhub_shardings.meshes import Mesh
from hub_core.model import InputError

_DTENSOR = re.compile(r"(Shard|Replicate|Partial)\(\s*([^()]*?)\s*\)")
_CURE = "write 'S0 R S1', \"('x', None, 'y')\" or 'Shard(0), Replicate()'"


@dataclass(frozen=True, slots=True)
class Placement:
    """Which mesh axes split every dimension of a tensor, major axis first.

    `partial`: axes along which devices hold summands. `is_nested`: every axis cuts the tiles of the
    axis before it, as DTensor does, else all axes of a dimension cut it at once. The two differ
    where tiles are ragged. Axes that are named nowhere replicate.
    """

    axes: tuple[tuple[int, ...], ...]
    partial: tuple[int, ...] = ()
    is_nested: bool = False

    def text(self) -> str:
        """The spec as `S0 R S1`, with `P` and the axes of summands behind."""
        words = ["S" + _joined(axes) if axes else "R" for axes in self.axes]
        # Summands are no dimension of the tensor.
        if self.partial:
            words.append("P" + _joined(self.partial))
        return " ".join(words)

    def parts(self, mesh: Mesh) -> tuple[int, ...]:
        """Tiles along every dimension."""
        sizes = mesh.shape
        return tuple(int(np.prod([sizes[axis] for axis in axes])) for axes in self.axes)

    def tile_coordinates(self, mesh: Mesh) -> Int64Array:
        """Which tile every device holds, along every dimension: int64[devices, dimensions]."""
        places = mesh.coordinates()
        found = np.zeros((mesh.num_devices, len(self.axes)), np.int64)
        for dimension, axes in enumerate(self.axes):
            for axis in axes:
                found[:, dimension] *= mesh.shape[axis]
                found[:, dimension] += places[:, axis]
        return found

    def boundaries(self, shape: Sequence[int], mesh: Mesh) -> list[Int64Array]:
        """Where the tiles of every dimension begin, and where the last ends.

        Blocks of ceil(n / parts), the last shorter, later ones empty.
        """
        found = []
        for length, axes in zip(shape, self.axes, strict=True):
            sizes = [mesh.shape[axis] for axis in axes]
            cuts = sizes if self.is_nested else [int(np.prod(sizes))]
            ends = np.asarray([0, length], np.int64)
            for parts in cuts:
                ends = _cut(ends, parts)
            found.append(ends)
        return found


def parse_placement(text: str, rank: int, mesh: Mesh) -> Placement:
    """A spec for a tensor of `rank` dimensions on a mesh. Raises `InputError`, one clear line."""
    text = stripped = text.strip()
    if _DTENSOR.search(stripped):
        placement = _dtensor(stripped, rank, mesh)
    elif stripped.startswith(("(", "P(", "PartitionSpec(")):
        placement = _partition_spec(stripped, rank, mesh)
    else:
        placement = _letters(stripped, rank, mesh)
    _check_once(placement, text, mesh)
    return placement


def _joined(axes: Sequence[int]) -> str:
    """Axes as digits; with commas where one has two."""
    # Digits alone stand for axes below ten.
    return ("" if max(axes) < 10 else ",").join(map(str, axes))


def _cut(ends: Int64Array, parts: int) -> Int64Array:
    """Cut every tile in `parts` blocks of one length, the last ones shorter or empty."""
    starts, stops = ends[:-1], ends[1:]
    block = -(-(stops - starts) // parts)
    steps = block[:, None] * np.arange(parts)
    inner = np.minimum(starts[:, None] + steps, stops[:, None])
    return np.append(inner.reshape(-1), ends[-1])


def _letters(text: str, rank: int, mesh: Mesh) -> Placement:
    """`S0 R S01`: a word a dimension."""
    words = text.split()
    partial: tuple[int, ...] = ()
    if words and re.fullmatch(r"P[\d,]+", words[-1]):
        partial = _axes(words.pop()[1:], text, mesh)
    axes: list[tuple[int, ...]] = []
    for word in words:
        if word == "R":
            axes.append(())
        elif re.fullmatch(r"S[\d,]+", word):
            axes.append(_axes(word[1:], text, mesh))
        else:
            raise _wrong(f"spec {text!r:.80}: {word!r} is neither R nor S with mesh axes")
    _check_rank(len(axes), rank, text)
    return Placement(tuple(axes), partial)


def _axes(digits: str, text: str, mesh: Mesh) -> tuple[int, ...]:
    """Mesh axes of one word: `01`, or `0,11` where a number has two digits."""
    names = [name for name in digits.split(",") if name] if "," in digits else list(digits)
    return tuple(_axis(name, text, mesh) for name in names)


def _axis(name: str, text: str, mesh: Mesh) -> int:
    """The number of an axis that a spec names."""
    found = mesh.axis(name)
    if found is None:
        # A mesh has few axes: all of them fit in the message.
        known = ", ".join(mesh.axis_names)
        raise _wrong(f"spec {text!r:.80}: the mesh has no axis {name!r}, only {known}")
    return found


def _partition_spec(text: str, rank: int, mesh: Mesh) -> Placement:
    """`('x', None, ('y', 'z'))`; dimensions that are left out are whole."""
    tuple_text = text.removeprefix("PartitionSpec").removeprefix("P")
    try:
        entries = ast.literal_eval(tuple_text)
    except (ValueError, SyntaxError):
        raise _wrong(f"spec {text!r:.80} is no tuple of axis names and None") from None
    listed = entries if isinstance(entries, tuple) else (entries,)
    axes = [_entry_axes(entry, text, mesh) for entry in listed]
    if len(axes) < rank:
        axes += [()] * (rank - len(axes))
    _check_rank(len(axes), rank, text)
    return Placement(tuple(axes))


def _entry_axes(entry: object, text: str, mesh: Mesh) -> tuple[int, ...]:
    if entry is None:
        return ()
    names = entry if isinstance(entry, tuple) else (entry,)
    return tuple(_axis(str(name), text, mesh) for name in names)


def _dtensor(text: str, rank: int, mesh: Mesh) -> Placement:
    """`Shard(0), Replicate()`: a placement a mesh axis."""
    words = _DTENSOR.findall(text)
    rest = _DTENSOR.sub("", text).strip(" ,[]()")
    if rest or len(words) != len(mesh.shape):
        raise _wrong(
            f"spec {text!r:.80}: expected one of Shard(d), Replicate(), Partial() for each of the "
            f"{len(mesh.shape)} mesh axes"
        )
    axes: list[list[int]] = [[] for _ in range(rank)]
    partial = []
    for axis, (kind, argument) in enumerate(words):
        if kind == "Shard":
            axes[_dimension(argument, rank, text)].append(axis)
        elif kind == "Partial":
            partial.append(_summed_axis(axis, argument, text))
    return Placement(tuple(map(tuple, axes)), tuple(partial), is_nested=True)


def _dimension(argument: str, rank: int, text: str) -> int:
    """The dimension that `Shard(d)` names, from the end where it is negative."""
    digits = argument.removeprefix("dim=").strip()
    if not re.fullmatch(r"-?\d+", digits) or not -rank <= int(digits) < rank:
        raise _wrong(f"spec {text!r:.80}: Shard({argument}) names no dimension of {rank}")
    return int(digits) % rank


def _summed_axis(axis: int, argument: str, text: str) -> int:
    """An axis of summands; other reductions are refused."""
    # `Partial()` means a sum in PyTorch as well.
    if argument.strip("'\"") not in ("", "sum"):
        raise _wrong(f"spec {text!r:.80}: only sums can be moved, not Partial({argument})")
    return axis


def _check_rank(words: int, rank: int, text: str) -> None:
    """Refuse a spec for a tensor of other dimensions."""
    # Trailing dimensions are never guessed in this notation.
    if words != rank:
        raise _wrong(f"spec {text!r:.80} places {words} dimensions, the tensor has {rank}")


def _check_once(placement: Placement, text: str, mesh: Mesh) -> None:
    """Refuse an axis that splits twice."""
    # Splitting and summing along one axis
    # contradict each other as well.
    named = [axis for axes in placement.axes for axis in axes] + list(placement.partial)
    # The first axis that comes twice is the one to name.
    for axis in named:
        if named.count(axis) > 1:
            name = mesh.axis_names[axis]
            raise _wrong(f"spec {text!r:.80} names the mesh axis {name!r} twice")


def _wrong(message: str) -> InputError:
    return InputError(message, cure=_CURE, code="invalid-spec")
