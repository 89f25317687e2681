"""Device meshes: devices in a grid of any number of axes, and the hosts that they stand in."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import InputError, format_ranks, parse_ranks

_MESH = re.compile(r"mesh\(\s*(?P<shape>[^()]*?)\s*\)\s*(?:@\s*(?P<devices>[\d,\-]+))?\Z")
_AXIS = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)\s*=\s*)?(?P<size>\d+)\Z")
_EXAMPLE = "mesh(2,4), mesh(x=2,y=4) or mesh(2,4)@8-15"
_MOST_DEVICES = 1 << 16


@dataclass(frozen=True, slots=True)
class Mesh:
    """A grid of devices, row major.

    `shape`: devices along every axis. `axis_names`: one an axis, `0`, `1`, ... where none are
    stated. `devices`: the rank of every device. `hosts`: the host of every device; devices of one
    host share its network card. Raises `InputError` for what does not fit together.
    """

    shape: tuple[int, ...]
    devices: tuple[int, ...]
    hosts: tuple[int, ...]
    axis_names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        # One place says what is wrong, whoever made the mesh.
        if reason := self._defect():
            raise InputError(f"{self}: {reason}", cure=f"write {_EXAMPLE}", code="invalid-mesh")

    def __str__(self) -> str:
        """As it would be written, devices named."""
        # Names of axes are left out: specs are shown by number.
        sizes = ",".join(map(str, self.shape))
        return f"mesh({sizes})@{format_ranks(self.devices)}"

    def _defect(self) -> str | None:
        count = math.prod(self.shape)
        if not self.shape or min(self.shape) < 1:
            return "every axis needs at least one device"
        if len(set(self.axis_names)) != len(self.shape):
            return "the axes need different names, one each"
        if not len(self.devices) == len(self.hosts) == count:
            return f"{len(self.devices)} devices are named for {count} places"
        if len(set(self.devices)) != count:
            return "a device stands at two places"
        return None

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return len(self.devices)

    def coordinates(self) -> Int64Array:
        """Place of every device along every axis: int64[devices, axes]."""
        # Row major, as the devices are listed:
        # the last axis runs fastest.
        grid = np.indices(self.shape).reshape(len(self.shape), -1)
        return np.ascontiguousarray(grid.T, np.int64)

    def axis(self, name: str) -> int | None:
        """The number of an axis by its name or number, None where there is none."""
        if name in self.axis_names:
            return self.axis_names.index(name)
        if name.isdecimal() and int(name) < len(self.shape):
            return int(name)
        return None


def parse_mesh(text: str, first_device: int = 0, host_size: int | None = None) -> Mesh:
    """A mesh from `mesh(2,4)`, `mesh(x=2,y=4)` or `mesh(2,4)@8-15`.

    Devices are numbered from `first_device` unless they are named. `host_size`: devices of one
    host, device d on host d // host_size; by default the size of the last axis. Raises
    `InputError`.
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
    devices = _devices(match["devices"], count, first_device)
    size = host_size or shape[-1]
    hosts = tuple(device // size for device in devices)
    return Mesh(shape, devices, hosts, names)


def _devices(text: str | None, count: int, first_device: int) -> tuple[int, ...]:
    """The devices that are named; `@8` alone is the first of them."""
    if text is None:
        return tuple(range(first_device, first_device + count))
    if text.isdecimal():
        return tuple(range(int(text), int(text) + count))
    return tuple(parse_ranks(text))
