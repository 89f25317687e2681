"""A tensor with the mesh and spec that it has and those that it is to get."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from collhub_shardings.meshes import Mesh, parse_mesh
from collhub_shardings.placements import Placement, parse_placement
from hub_core.model import InputError

# Bytes of an element by the names that numpy and torch use.
_ELEMENT_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
_MOST_ELEMENTS = 1 << 50


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type. Raises `InputError` for one that nobody has."""

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in _ELEMENT_BYTES:
            known = ", ".join(_ELEMENT_BYTES)
            raise InputError(f"there is no dtype {self.dtype!r}", cure=f"use one of {known}")
        if not self.shape or min(self.shape) < 0 or math.prod(self.shape) > _MOST_ELEMENTS:
            raise InputError(f"shape {self.shape} is not that of a tensor", code="invalid-tensor")

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return _ELEMENT_BYTES[self.dtype]

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.element_bytes

    def __str__(self) -> str:
        return "x".join(map(str, self.shape)) + f":{self.dtype}"


@dataclass(frozen=True, slots=True)
class Side:
    """One end of a move: a mesh and the placement on it."""

    mesh: Mesh
    placement: Placement

    def __str__(self) -> str:
        # As --from and --to take it.
        return f"{self.mesh}: {self.placement.text(self.mesh)}"


@dataclass(frozen=True, slots=True)
class Move:
    """A tensor on its way from one side to the other.

    A dimension may be cut in more tiles than it has elements: the last devices then hold no
    elements, as `torch.chunk` and DTensor leave them.

    `release_s`: when its producer is done. `due_s`: when its consumer starts, None for any time.
    """

    tensor: TensorType
    source: Side
    destination: Side
    name: str = "tensor"
    release_s: float = 0.0
    due_s: float | None = None

    def __post_init__(self) -> None:
        if self.destination.placement.partial:
            raise InputError(
                f"{self.name}: the destination {self.destination} is Partial",
                cure="move to Shard or Replicate; summands exist on the source side alone",
                code="invalid-spec",
            )


def parse_tensor(text: str) -> TensorType:
    """`1024x1024x512:float32`. Raises `InputError`."""
    match = re.fullmatch(r"(\d+(?:x\d+)*):(\w+)", text.strip())
    if match is None:
        cure = "write for example 1024x1024x512:float32"
        raise InputError(f"{text!r:.80} is no tensor", cure=cure, code="invalid-tensor")
    # Zero is a length too.
    shape = tuple(map(int, match[1].split("x")))
    return TensorType(shape, match[2])


def parse_side(text: str, rank: int, first_device: int = 0, host_size: int | None = None) -> Side:
    """`mesh(2,4): S0 R R` for a tensor of `rank` dimensions. Raises `InputError`."""
    # Neither meshes nor specs hold a colon.
    mesh_text, colon, spec = text.partition(":")
    if not colon:
        cure = "write for example 'mesh(2,4): S0 R R'"
        raise InputError(f"{text!r:.80} has no spec behind its mesh", cure=cure)
    # The axes of the mesh say what the spec may name.
    mesh = parse_mesh(mesh_text, first_device, host_size)
    return Side(mesh, parse_placement(spec, rank, mesh))


def parse_move(
    tensor: str,
    source: str,
    destination: str,
    *,
    name: str = "tensor",
    host_size: int | None = None,
    release_s: float = 0.0,
    due_s: float | None = None,
) -> Move:
    """A move from three texts; devices of the destination follow those of the source.

    Unless `@` names them: then the meshes may share devices. Raises `InputError`.
    """
    made = parse_tensor(tensor)
    rank = len(made.shape)
    start = parse_side(source, rank, 0, host_size)
    behind = max(start.mesh.devices) + 1
    if "@" in destination.partition(":")[0]:
        # Devices with numbers of their own stand on hosts of one size, whatever their mesh.
        size = host_size or start.mesh.shape[-1]
        end = parse_side(destination, rank, behind, size)
        return Move(made, start, end, name, release_s, due_s)
    end = parse_side(destination, rank, behind, host_size)
    if host_size is None:
        end = _on_other_hosts(end, max(start.mesh.hosts) + 1)
    return Move(made, start, end, name, release_s, due_s)


def _on_other_hosts(side: Side, first_host: int) -> Side:
    """The side on hosts of its own, numbered from `first_host`."""
    mesh = side.mesh
    size = mesh.shape[-1]
    hosts = tuple(first_host + place // size for place in range(mesh.num_devices))
    moved = Mesh(mesh.shape, mesh.devices, hosts, mesh.axis_names)
    return Side(moved, side.placement)
