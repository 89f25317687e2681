"""Device meshes, sharding specs in three notations, and the tile boundaries of tensors.

A mesh is a grid of devices with any number of axes. Notations of specs: `S0 R S1` (Alpa),
`('x', None, 'y')` (PartitionSpec of JAX) and `Shard(0), Replicate()` (DTensor of PyTorch, with
`_StridedShard(0, split_factor=2)` of FSDP2 over tensor parallelism).
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import InputError, format_ranks, parse_ranks, parse_whole

_MESH = re.compile(r"mesh\(\s*(?P<shape>[^()]*?)\s*\)\s*(?:@\s*(?P<devices>[\d,\-]+))?\Z")
# Python converts at most 4300 digits.
_AXIS = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)\s*=\s*)?(?P<size>[0-9]{1,40})\Z")
_EXAMPLE = "mesh(2,4), mesh(x=2,y=4) or mesh(2,4)@8-15"
_MOST_DEVICES = 1 << 16


@dataclass(frozen=True, slots=True)
class Mesh:
    """Grid of devices in row-major order.

    `shape`: devices along every axis. `axis_names`: one an axis, `0`, `1`, ... where none are
    stated. `devices`: the rank of every device. `hosts`: the host of every device; devices of one
    host share its network card. Raises `InputError` for what does not fit together.
    """

    shape: tuple[int, ...]
    devices: tuple[int, ...]
    hosts: tuple[int, ...]
    axis_names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise `InputError` (`invalid-mesh`) with the first rule that the fields break.

        There is an axis, and every axis has at least one device; each axis has a name, all
        different; devices and hosts have one entry per place; no device has two places.
        """
        count = math.prod(self.shape)
        reason = ""
        if not self.shape or min(self.shape) < 1:
            reason = "every axis needs at least one device"
        elif len(set(self.axis_names)) != len(self.shape):
            reason = "the axes need different names, one each"
        elif not len(self.devices) == len(self.hosts) == count:
            reason = f"{len(self.devices)} devices are named for {count} places"
        elif len(set(self.devices)) != count:
            reason = "a device stands at two places"
        if reason:
            raise InputError(f"{self}: {reason}", cure=f"write {_EXAMPLE}", code="invalid-mesh")

    def __str__(self) -> str:
        """Format the mesh as `mesh(2,4)@0-7`, with its sizes and device numbers.

        Names of axes and hosts are left out. `parse_mesh` reads the text.
        """
        # Names of axes are left out: specs are shown by number.
        sizes = ",".join(map(str, self.shape))
        return f"mesh({sizes})@{format_ranks(self.devices)}"

    @property
    def num_devices(self) -> int:
        """Return the number of devices: the product of the sizes of all axes."""
        return len(self.devices)

    def coordinates(self) -> Int64Array:
        """Return the coordinates of every device: int64[devices, axes], last axis fastest."""
        # Row major, as the devices are listed:
        # the last axis runs fastest.
        grid = np.indices(self.shape).reshape(len(self.shape), -1)
        return np.ascontiguousarray(grid.T, np.int64)

    def axis(self, name: str) -> int | None:
        """Return the number of an axis from its name or number; None if it does not exist.

        Names are compared first.
        """
        if name in self.axis_names:
            return self.axis_names.index(name)
        return parse_whole(name, len(self.shape) - 1)


def parse_mesh(text: str, first_device: int = 0, host_size: int | None = None) -> Mesh:
    """Parse a mesh such as `mesh(2,4)`, `mesh(x=2,y=4)` or `mesh(2,4)@8-15`.

    An axis without a name is called by its position from 0: the axes of `mesh(x=2,4)` are `x`
    and `1`. Devices are in row-major order, the last axis fastest. Without `@` they are
    numbered from `first_device`. `@8` numbers them from 8; `@8-15` or `@0,2,4,6` lists them in
    this order. Device d is on host d // `host_size`; the default (None or 0) is the size of the
    last axis. Blanks are allowed around the text, the axes and `@`, but not in the list.

    Raises `InputError` (`invalid-mesh`) for any other text, an axis of size 0, two axes with
    one name, more than 2^16 devices, and a list of another length than the mesh. Raises
    `UsageError` (`invalid-ranks`) for a malformed list such as `@8-`, and for a device that is
    listed twice.
    """
    match = _MESH.match(text.strip())
    if match is None:
        raise InputError(f"{text!r:.80} is no mesh", cure=f"write {_EXAMPLE}", code="invalid-mesh")
    axes = [_AXIS.match(part.strip()) for part in match["shape"].split(",")]
    if not all(axes):
        wrong = f"{text!r:.80}: an axis is no SIZE or NAME=SIZE"
        raise InputError(wrong, cure=f"write {_EXAMPLE}", code="invalid-mesh")
    shape = tuple(int(axis["size"]) for axis in axes if axis)
    names = tuple(axis["name"] or str(at) for at, axis in enumerate(axes) if axis)
    count = math.prod(shape)
    if count > _MOST_DEVICES:
        raise InputError(f"{text!r:.80} has more than {_MOST_DEVICES} devices", code="invalid-mesh")
    listed = match["devices"]
    first = first_device if listed is None else parse_whole(listed, 10**9 - 1)
    devices = tuple(parse_ranks(listed) if first is None else range(first, first + count))
    # An axis of size 0 is refused below.
    size = host_size or max(1, shape[-1])
    hosts = tuple(device // size for device in devices)
    return Mesh(shape, devices, hosts, names)


_DTENSOR = re.compile(r"\b(_StridedShard|Shard|Replicate|Partial)\(\s*([^()]*?)\s*\)")
_STRIDED = re.compile(r"(?:dim\s*=\s*)?(-?\d+)\s*,\s*(?:(?:split_factor|sf)\s*=\s*)?([0-9]{1,9})\Z")
_CURE = "write 'S0 R S1', \"('x', None, 'y')\" or 'Shard(0), Replicate()'"


@dataclass(frozen=True, slots=True)
class MeshPlacement:
    """Mesh axes that split each dimension of a tensor, major axis first.

    `partial`: axes along which devices hold summands. `is_nested`: every axis cuts the tiles of the
    axis before it, as DTensor does, else all axes of a dimension cut it at once. The two differ
    where tiles are ragged. Axes that are named nowhere replicate.
    """

    axes: tuple[tuple[int, ...], ...]
    partial: tuple[int, ...] = ()
    is_nested: bool = False

    def text(self, mesh: Mesh) -> str:
        """Format the spec as `S0 R S1`: per dimension `R`, or `S` and the mesh axes that split it.

        If there are partial axes, a word `P` with them follows, such as `P2`. Axes are numbers;
        they are separated by commas if one of them is 10 or more. A spec of DTensor that shards
        a dimension along several axes is written in the notation of DTensor. The text is parsed
        to the same tiles on `mesh`.
        """
        if self.is_nested and any(len(axes) > 1 for axes in self.axes):
            return ", ".join(self._dtensor_words(mesh))
        words = ["S" + _joined(axes) if axes else "R" for axes in self.axes]
        # Summands are no dimension of the tensor.
        if self.partial:
            words.append("P" + _joined(self.partial))
        return " ".join(words)

    def _dtensor_words(self, mesh: Mesh) -> list[str]:
        """Return the placement in DTensor's notation: one word per mesh axis, in the order of the
        axes.

        `self.axes` lists, for each dimension of the tensor, the axes that divide it, in the order
        of division. The first rule that applies to an axis:

        1. It divides dimension d, and axes with higher numbers divide d before it:
           `_StridedShard(d, split_factor=k)`. k is the product of the sizes of these earlier axes.
        2. It divides dimension d: `Shard(d)`.
        3. It is in `self.partial`: `Partial()`.
        4. Otherwise: `Replicate()`.

        Example: if first axis 1 (size 4), then axis 0 divides dimension 0, the words are
        `_StridedShard(0, split_factor=4)` and `Shard(0)`.
        """
        words = ["Replicate()"] * len(mesh.shape)
        for axis in self.partial:
            words[axis] = "Partial()"
        for dimension, axes in enumerate(self.axes):
            for position, axis in enumerate(axes):
                # Later axes of the mesh that cut the dimension before this one.
                factor = math.prod(
                    mesh.shape[earlier] for earlier in axes[:position] if earlier > axis
                )
                words[axis] = f"Shard({dimension})"
                if any(earlier > axis for earlier in axes[:position]):
                    words[axis] = f"_StridedShard({dimension}, split_factor={factor})"
        return words

    def parts(self, mesh: Mesh) -> tuple[int, ...]:
        """Return the number of tiles along every dimension: the product of the sizes of its axes.

        It is 1 for a dimension that is not sharded; partial axes do not count. A dimension that
        is shorter than this number has empty tiles.
        """
        sizes = mesh.shape
        return tuple(int(np.prod([sizes[axis] for axis in axes])) for axes in self.axes)

    def tile_coordinates(self, mesh: Mesh) -> Int64Array:
        """Return the tile of every device in each dimension: int64[devices, dimensions].

        Devices are in the order of the mesh. If several axes shard a dimension, the coordinate
        on the first axis counts most. Dimensions that are not sharded have tile 0.
        """
        places = mesh.coordinates()
        tiles = np.zeros((mesh.num_devices, len(self.axes)), np.int64)
        for dimension, axes in enumerate(self.axes):
            for axis in axes:
                tiles[:, dimension] *= mesh.shape[axis]
                tiles[:, dimension] += places[:, axis]
        return tiles

    def boundaries(self, shape: Sequence[int], mesh: Mesh) -> list[Int64Array]:
        """Return, for each dimension, the start of every tile and the end of the last one.

        Each array is int64[tiles + 1]. A dimension of length n in p tiles has tiles of ceil(n /
        p) elements; the last ones may be shorter or empty. For DTensor (`is_nested`), this rule
        applies axis by axis: each axis divides every tile of the axes before it. `shape`:
        length by dimension. Raises `ValueError` for another number of dimensions than the spec
        has.
        """
        boundaries = []
        for length, axes in zip(shape, self.axes, strict=True):
            sizes = [mesh.shape[axis] for axis in axes]
            cuts = sizes if self.is_nested else [int(np.prod(sizes))]
            cut_points = np.asarray([0, length], np.int64)
            for parts in cuts:
                starts, stops = cut_points[:-1], cut_points[1:]
                block = -(-(stops - starts) // parts)
                block_starts = starts[:, None] + block[:, None] * np.arange(parts)
                inner = np.minimum(block_starts, stops[:, None])
                cut_points = np.append(inner.reshape(-1), length)
            boundaries.append(cut_points)
        return boundaries


def parse_placement(text: str, rank: int, mesh: Mesh) -> MeshPlacement:
    """Parse a spec for a tensor of `rank` dimensions on a mesh, in one of three notations.

    Blanks around the text are ignored. The first rule that applies gives the notation:

    1. A text that contains `Shard(...)`, `_StridedShard(...)`, `Replicate(...)` or `Partial(...)`
       is DTensor's, with one placement per mesh axis (`_dtensor`).
    2. A text that begins with `(`, `P(` or `PartitionSpec(` is a partition spec of JAX, with names
       or numbers of axes (`_partition_spec`). Dimensions that it omits at the end are not split.
    3. Any other text has letters such as `S0 R`, one word per dimension (`_letters`). An empty
       text fits only `rank` 0.

    Raises `InputError` (`invalid-spec`) for a spec that its notation does not allow, for a wrong
    number of dimensions (DTensor: of mesh axes), and for an axis that the mesh lacks. It is also
    raised if a mesh axis occurs twice, whether it splits a dimension or is a partial axis.
    """
    text = stripped = text.strip()
    if _DTENSOR.search(stripped):
        placement = _dtensor(stripped, rank, mesh)
    elif stripped.startswith(("(", "P(", "PartitionSpec(")):
        placement = _partition_spec(stripped, rank, mesh)
    else:
        placement = _letters(stripped, rank, mesh)
    # Splitting and summing along one axis
    # contradict each other as well.
    named = [axis for axes in placement.axes for axis in axes] + list(placement.partial)
    # The first axis that comes twice is the one to name.
    for axis in named:
        if named.count(axis) > 1:
            name = mesh.axis_names[axis]
            raise _wrong(f"spec {text!r:.80} names the mesh axis {name!r} twice")
    return placement


def _joined(axes: Sequence[int]) -> str:
    """Format axes as digits, separated by commas if an axis has two digits."""
    # Digits alone stand for axes below ten.
    return ("" if max(axes) < 10 else ",").join(map(str, axes))


def _letters(text: str, rank: int, mesh: Mesh) -> MeshPlacement:
    """Parse a spec such as `S0 R S12 P3`: one word per tensor dimension, then the partial axes.

    Words are separated by blanks:

    - `R`: the dimension is not cut.
    - `S` and mesh axes: the dimension is cut along these axes, the major axis first.
    - `P` and mesh axes, only as the last word: the tensor is a sum over these axes. It is no
      dimension.

    Axes are single digits (`S12`: axes 1 and 2) or, with a comma, numbers (`S1,12`: axes 1 and 12).
    A mesh axis that is named like the digits has priority over the axis with that number.

    `rank`: number of dimensions. An empty text fits rank 0. Raises `InputError` (`invalid-spec`)
    for other words, axes that the mesh lacks, and another number of words than `rank`. Repeated
    axes are not checked.
    """
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
    return MeshPlacement(tuple(axes), partial)


def _axes(digits: str, text: str, mesh: Mesh) -> tuple[int, ...]:
    """Parse the mesh axes of a word, in its order: `01`, or `0,11` with two-digit numbers.

    Without a comma every character is an axis. Raise `InputError` for an axis that the mesh
    lacks, and for a comma without an axis on both sides. `text`: the spec, for the error.
    """
    names = digits.split(",") if "," in digits else list(digits)
    if "" in names:
        raise _wrong(f"spec {text!r:.80}: a comma has no axis on both sides")
    return tuple(_axis(name, text, mesh) for name in names)


def _axis(name: str, text: str, mesh: Mesh) -> int:
    """Return the position of a mesh axis in the mesh, from its name or its number.

    Names are compared first. Raise `InputError` (`invalid-spec`) if the axis does not
    exist. `text`: the spec, for the error.
    """
    axis = mesh.axis(name)
    if axis is None:
        # A mesh has few axes: all of them fit in the message.
        known = ", ".join(mesh.axis_names)
        raise _wrong(f"spec {text!r:.80}: the mesh has no axis {name!r}, only {known}")
    return axis


def _partition_spec(text: str, rank: int, mesh: Mesh) -> MeshPlacement:
    """Parse a spec of JAX such as `P('x', None, ('y', 'z'))`: the mesh axes of each dimension.

    Each entry is for one dimension: an axis or a tuple of axes. An axis is given by its name or
    number. `None` and `()` mean that the dimension is not split, and so do entries that are omitted
    at the end.

    - With the prefix `PartitionSpec` or `P`, the entries are the arguments of the call:
      `P(('x', 'y'))` has one entry, as in JAX.
    - Without it, the text is one entry or a tuple of entries, as in Python: `('x', 'y')` has two.

    `rank`: number of dimensions of the tensor. Raises `InputError` (`invalid-spec`) for other
    syntax, more entries than dimensions, and axes that the mesh lacks. An axis may occur twice
    here; the caller checks that.
    """
    try:
        tree = ast.parse(text, mode="eval").body
        if isinstance(tree, ast.Call):
            is_spec = isinstance(tree.func, ast.Name) and tree.func.id in ("P", "PartitionSpec")
            if not is_spec or tree.keywords:
                raise _wrong(f"spec {text!r:.80} is no call of P with axis names and None")
            listed = tuple(ast.literal_eval(argument) for argument in tree.args)
        else:
            entries = ast.literal_eval(tree)
            listed = entries if isinstance(entries, tuple) else (entries,)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise _wrong(f"spec {text!r:.80} is no tuple of axis names and None") from None
    axes: list[tuple[int, ...]] = []
    for entry in listed:
        names = entry if isinstance(entry, tuple) else (entry,)
        if entry is None:
            names = ()
        axes.append(tuple(_axis(str(name), text, mesh) for name in names))
    if len(axes) < rank:
        axes += [()] * (rank - len(axes))
    _check_rank(len(axes), rank, text)
    return MeshPlacement(tuple(axes))


def _dtensor(text: str, rank: int, mesh: Mesh) -> MeshPlacement:
    """Parse placements of PyTorch's DTensor: one word per mesh axis, also in brackets.

    - `Replicate()`: the axis divides no dimension.
    - `Partial()`, `Partial(sum)`: the axis is partial, its devices hold summands.
    - `Shard(d)`, `Shard(dim=d)`: it divides dimension d before all later axes. Negative
      numbers count from the last dimension.
    - `_StridedShard(d, split_factor=k)`, also `sf=k` or `k`: it divides d after the first
      later axes of d whose sizes have the product k. k = 1 is the same as `Shard(d)`.

    Returns the axes of each dimension in the order in which they divide it, and partial axes
    ascending; `is_nested` is True. Raises `InputError` (`invalid-spec`) for any other text.
    """
    words = _DTENSOR.findall(text)
    rest = _DTENSOR.sub("", text).strip(" ,[]()")
    if rest or len(words) != len(mesh.shape):
        raise _wrong(
            f"spec {text!r:.80}: expected one of Shard(d), _StridedShard(d, split_factor=k), "
            f"Replicate(), Partial() for each of the {len(mesh.shape)} mesh axes"
        )
    axes: list[list[int]] = [[] for _ in range(rank)]
    partial = []
    # From the last axis on: those that a strided shard refers to are known before it.
    for axis, (kind, argument) in reversed(list(enumerate(words))):
        if kind == "Partial":
            # `Partial()` means a sum in PyTorch as well.
            if argument.strip("'\"") not in ("", "sum"):
                raise _wrong(f"spec {text!r:.80}: only sums can be moved, not Partial({argument})")
            partial.append(axis)
        elif kind == "Shard":
            axes[_dimension(kind, argument, rank, text)].insert(0, axis)
        elif kind == "_StridedShard":
            match = _STRIDED.match(argument)
            if match is None:
                raise _wrong(f"spec {text!r:.80}: {kind}({argument}) has no split factor")
            later = axes[_dimension(kind, match[1], rank, text)]
            later.insert(_cuts_before(later, int(match[2]), mesh, text), axis)
    return MeshPlacement(tuple(map(tuple, axes)), tuple(reversed(partial)), is_nested=True)


def _cuts_before(later: Sequence[int], split_factor: int, mesh: Mesh, text: str) -> int:
    """Return the position in `later` at which an axis with `split_factor` is to be inserted.

    The axes of `later` before this position divide the dimension before the inserted axis. The
    position is the smallest number of first entries of `later` whose sizes multiply to
    `split_factor`; 0 for a factor of 1. `later`: mesh axes in the order in which they divide the
    dimension, not changed; `text`: the spec, for errors. Raises `InputError` (`invalid-spec`) if
    there is no such number.
    """
    tiles = 1
    for count, axis in enumerate((*later, None)):
        if tiles == split_factor:
            # Axes of size 1 cut nothing: of equal counts the first is as good as any.
            return count
        if axis is not None:
            tiles *= mesh.shape[axis]
    sizes = " x ".join(str(mesh.shape[axis]) for axis in later) or "no later axis"
    raise _wrong(
        f"spec {text!r:.80}: split_factor={split_factor} is not the number of tiles of the later "
        f"mesh axes that shard the same dimension ({sizes})"
    )


def _dimension(kind: str, argument: str, rank: int, text: str) -> int:
    """Return the dimension in the argument of `Shard(d)`, from 0 to `rank` - 1.

    `rank`: number of dimensions of the tensor. Negative numbers count from the end, and `dim=` may
    precede the number. `kind` (such as `Shard`) and `text` are for the message. Raises `InputError`
    for other text, and for a number outside of -`rank` to `rank` - 1.
    """
    digits = re.sub(r"dim\s*=\s*", "", argument).strip()
    number = parse_whole(digits.removeprefix("-"), rank)
    if number is not None and digits.startswith("-"):
        number = -number
    if number is None or not -rank <= number < rank:
        raise _wrong(f"spec {text!r:.80}: {kind}({argument:.40}) names no dimension of {rank}")
    return number % rank


def _check_rank(words: int, rank: int, text: str) -> None:
    """Raise `InputError` for a spec with another number of dimensions."""
    # Trailing dimensions are never guessed in this notation.
    if words != rank:
        raise _wrong(f"spec {text!r:.80} places {words} dimensions, the tensor has {rank}")


def _wrong(message: str) -> InputError:
    return InputError(message, cure=_CURE, code="invalid-spec")
