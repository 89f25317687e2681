"""Devices of a document, expanded: what one instance of each has as vertices and edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from collhub_columns import Int64Array
from collhub_networks import Value

from collhub_infragraph.reading.slices import Step, steps_of
from hub_core.network import MAX_LINKS, MAX_NODES

_KINDS = ("custom", "device", "cpu", "xpu", "nic", "memory", "port", "switch")
_DEEPEST = 16

EdgeBlock = tuple[Int64Array, Int64Array, int]
"""Edges of one link: int64 vertices of equal length at either end, and the row of the link."""


@dataclass(frozen=True, slots=True)
class Component:
    """`count` parts of a device one behind the other, from vertex `first` on.

    `inner`: the device that each of them is, None for a single vertex each.
    """

    first: int
    count: int
    inner: Device | None

    @property
    def stride(self) -> int:
        """Vertices of one part."""
        return 1 if self.inner is None else self.inner.size


@dataclass(slots=True)
class Device:
    """One instance of a device: names and kinds of its vertices, its components and edges."""

    name: str
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    components: dict[str, Component] = field(default_factory=dict)
    edges: list[EdgeBlock] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of vertices."""
        return len(self.names)

    def add(
        self,
        name: str,
        count: int,
        kind: str,
        inner: Device | None,
    ) -> None:
        """Add a component at the end."""
        first = self.size
        self.components[name] = Component(first, count, inner)
        for number in range(count):
            title = f"{name}.{number}"
            if inner is None:
                self.names.append(title)
                self.kinds.append(kind)
                continue
            # Names of nested devices grow with their depth, as the service writes them.
            self.names += [f"{title}.{part}" for part in inner.names]
            self.kinds += inner.kinds
            # Every copy brings its edges, moved to its own vertices.
            start = first + number * inner.size
            self.edges += [(one + start, other + start, link) for one, other, link in inner.edges]

    def vertices(
        self,
        steps: Sequence[Step],
        place: Value,
    ) -> Int64Array:
        """The vertices that the steps of an endpoint name, the leftmost index slowest.

        Raises `InputError` for a component that does not exist, and for one that is a device where
        its vertices are meant.
        """
        step = steps[0]
        component = self.components.get(step.name)
        if component is None:
            known = ", ".join(self.components) or "none"
            cure = f"components of {self.name} are: {known}"
            place.fail(f"device {self.name} has no component {step.name[:80]!r}", cure)
        chosen = np.asarray(step.chosen(component.count, place), np.int64)
        starts = component.first + chosen * component.stride
        # Leaves end an endpoint, devices may not.
        if component.inner is None and len(steps) > 1:
            place.fail(f"{step.name} is no device, and has no {steps[1].name!r}")
        if component.inner is None:
            return starts
        if len(steps) == 1:
            inside = ", ".join(component.inner.components)
            place.fail(f"{step.name} is a device", f"name one of its components: {inside}")
        inner = component.inner.vertices(steps[1:], place)
        # Flattened by rows, the left slice varies slowest: that is how ends are paired.
        return np.add.outer(starts, inner).ravel()


class DeviceList:
    """The devices of a document by name, each expanded when it is first asked for.

    `join`: what makes a block of edges of an entry of the list `edges` of a device.
    """

    def __init__(
        self, devices: Mapping[str, Value], join: Callable[[Value, Device], EdgeBlock]
    ) -> None:
        self._stated = devices
        self._join = join
        self._made: dict[str, Device] = {}
        self._in_work: list[str] = []

    def device(
        self,
        name: str,
        place: Value,
    ) -> Device:
        """The device of a name, with the edges of devices in it before its own.

        Raises `InputError` where there is none, and where devices hold one another.
        """
        if name in self._made:
            return self._made[name]
        if name not in self._stated:
            known = ", ".join(self._stated) or "none"
            place.fail(f"no device is named {name[:80]!r}", f"devices are: {known}")
        # Deep chains are refused like circles: both would expand without bound.
        if name in self._in_work or len(self._in_work) > _DEEPEST:
            cycle = " holds ".join([*self._in_work, name])
            place.fail(f"devices hold one another: {cycle[:200]}", "a device cannot hold itself")
        self._in_work.append(name)
        made = Device(name)
        for component in self._stated[name]["components"].items():
            self._add(made, component)
        # Edges name components, so that these come first.
        for edge in self._stated[name].items_of("edges"):
            made.edges.append(self._join(edge, made))
        self._in_work.pop()
        self._made[name] = made
        return made

    def _add(
        self,
        device: Device,
        component: Value,
    ) -> None:
        name, kind = component["name"].text(), component["choice"].text()
        if kind not in _KINDS:
            component["choice"].fail(f"{kind[:40]!r} is no kind", f"use one of {', '.join(_KINDS)}")
        if name in device.components:
            component.fail(f"device {device.name} has two components {name!r}")
        count = component["count"].count(MAX_NODES)
        inner = self.device(name, component["name"]) if kind == "device" else None
        size = count if inner is None else count * inner.size
        edges = 0 if inner is None else sum(len(block[0]) for block in inner.edges)
        # Counted before anything is expanded: counts within counts multiply.
        if device.size + size > MAX_NODES or count * edges > MAX_LINKS:
            component["count"].fail(f"more than {MAX_NODES} vertices", "check the counts")
        if kind == "custom":
            kind = component["custom"]["type"].text()
        device.add(
            name,
            count,
            kind,
            inner,
        )


def ends_of(edge: Value, device: Device, end: str) -> Int64Array:
    """The vertices of one end of an edge within a device."""
    endpoint = edge[end]
    steps = steps_of(endpoint["component"])
    # A device may be named apart from the component in it.
    holder = endpoint.get("device")
    if holder is not None:
        steps = [*steps_of(holder), *steps]
    return device.vertices(steps, endpoint["component"])
