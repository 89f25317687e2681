"""Expand the devices of a document, and parse endpoints such as `nicdev[0:2].port[0]`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from collhub_networks import DocumentValue

from hub_core.columns import Int64Array
from hub_core.network import MAX_LINKS, MAX_NODES

_STEP = re.compile(r"([^.\[\]]+)(?:\[([^\[\]]*)\])?")
_INDEX = re.compile(r"-?\d{1,9}")
_MAX_PARTS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One name of an endpoint, and the content of the brackets after it."""

    name: str
    slice_text: str

    def select(
        self,
        count: int,
        endpoint: DocumentValue,
    ) -> range:
        """Return the indices of the parts of a component that the brackets of this name select.

        `count`: number of parts; indices are 0 to `count` - 1. The text in the brackets is:

        - missing or empty: all indices
        - a number: this index; a negative number counts from the end, so `[-1]` is the last part
        - a slice of Python, such as `0:2`, `::2` or `::-1` (descending): its indices. Limits may
          exceed `count`.

        Blanks around numbers are ignored. Numbers have at most 9 digits. Raises `InputError` at
        `endpoint` for a number that is no index, a slice with step 0, any other text, and if no
        index is selected (always if `count` is 0).
        """
        text = self.slice_text.strip()
        parts = [part.strip() for part in text.split(":")]
        if not all(part == "" or _INDEX.fullmatch(part) for part in parts):
            endpoint.fail(f"[{text[:40]}] is not a slice", "write for example [0], [0:2] or [::2]")
        # Empty parts are Python's defaults: `[:2]`, `[::2]`.
        numbers = [int(part) if part else None for part in parts]
        if len(parts) == 1 and numbers[0] is not None:
            # Before release 2.4, negative indices count from the end.
            number = numbers[0] + count if numbers[0] < 0 else numbers[0]
            if not 0 <= number < count:
                cure = f"use 0..{count - 1}, or raise the count of {self.name}"
                endpoint.fail(f"{self.name}[{numbers[0]}] does not exist, there are {count}", cure)
            return range(number, number + 1)
        if len(parts) > _MAX_PARTS or (len(parts) == _MAX_PARTS and numbers[2] == 0):
            endpoint.fail(f"[{text[:40]}] is not a slice", "write for example [0], [0:2] or [::2]")
        # Empty brackets select all, like missing ones.
        indices = range(count) if len(parts) == 1 else range(count)[slice(*numbers)]
        if not indices:
            endpoint.fail(f"{self.name}[{text}] is empty: there are {count}, from 0 on")
        return indices


def parse_endpoint(endpoint: DocumentValue) -> list[Step]:
    """Parse an endpoint such as `nic[0:2].port` to steps: names with the content of their brackets.

    The example gives `Step("nic", "0:2")` and `Step("port", "")`. Names are separated by points.
    Blanks around a name are removed; a name of only blanks is accepted and becomes "". The content
    of the brackets is kept as text and not checked. It is "" without brackets. An endpoint that is
    an integer is converted to text first.

    Raises `InputError` at the endpoint in these cases:

    - It is empty, or neither a text nor an integer.
    - A name has no characters, as in `a..b` or `a.`.
    - Brackets are nested, unclosed, or repeated after one name.
    - A closing bracket is followed by anything but a point or the end, also by a blank.
    """
    text = endpoint.text()
    steps: list[Step] = []
    end = 0
    while end <= len(text):
        match = _STEP.match(text, end)
        if match is None:
            endpoint.fail(f"{text[:80]!r} is not an endpoint", "write for example nic[0:2].port[0]")
        # The service ignores blanks around names, too.
        steps.append(Step(match[1].strip(), match[2] or ""))
        end = match.end() + 1
        # Names are separated by points; no other character may follow a bracket.
        if match.end() < len(text) and text[match.end()] != ".":
            endpoint.fail(f"{text[:80]!r} is not an endpoint", "write for example nic[0:2].port[0]")
    return steps


# `npu` is the name of `xpu` before release 1.0 of InfraGraph.
_KINDS = ("custom", "device", "cpu", "xpu", "npu", "nic", "memory", "port", "switch")
_MAX_DEPTH = 16

EdgeBlock = tuple[Int64Array, Int64Array, int]
"""Edges of one link: two int64 arrays of vertices of equal length, and the row of the link."""


@dataclass(frozen=True, slots=True)
class Component:
    """`count` consecutive parts of a device, from vertex `first` on.

    `inner`: the device of each part, None if a part is a single vertex.
    """

    first: int
    count: int
    inner: Device | None

    @property
    def stride(self) -> int:
        """Number of vertices per copy of the component: those of its inner device, or 1 without
        one.
        """
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
        """Number of vertices of the device, including those of nested devices."""
        return len(self.names)

    def add(
        self,
        name: str,
        count: int,
        kind: str,
        inner: Device | None,
    ) -> None:
        """Append a component of `count` parts to the device, with all their vertices and edges.

        Parts are numbered from 0, and the new vertices follow the existing ones, part by part. With
        `inner`, each part is a copy of this device: its vertices have the names
        `NAME.NUMBER.INNER_NAME` and their kinds in `inner`. Its edges are copied with the numbers
        of the new vertices and the same row of the link; `kind` is ignored. Without `inner`, a part
        is one vertex `NAME.NUMBER` of the given kind.

        Changes `components`, `names`, `kinds` and `edges`. The name must be new; this is not
        checked.
        """
        first = self.size
        self.components[name] = Component(first, count, inner)
        for number in range(count):
            title = f"{name}.{number}"
            if inner is None:
                self.names.append(title)
                self.kinds.append(kind)
                continue
            # Names of nested devices grow with their depth, as in the service's output.
            self.names += [f"{title}.{part}" for part in inner.names]
            self.kinds += inner.kinds
            # Every copy has its own edges.
            start = first + number * inner.size
            self.edges += [
                (first_vertex + start, second_vertex + start, link)
                for first_vertex, second_vertex, link in inner.edges
            ]

    def find_vertices(
        self,
        steps: Sequence[Step],
        endpoint: DocumentValue,
    ) -> Int64Array:
        """Return the numbers of the device's vertices that a path of names with brackets selects.

        `steps`: the names, at least one. Each selects parts of a component (`Step.select`). All but
        the last must be components that consist of devices, in which the next name is looked up.
        The result is int64, numbered from 0 in this device. It is in the order of nested loops with
        the first name outermost, each in the order of its slice: `nic[0:2].port` gives all ports of
        `nic` 0, then those of `nic` 1.

        Raises `InputError` at `endpoint` for an unknown component, for brackets that `Step.select`
        refuses, for a path that ends at a device, and for further names after a vertex.
        """
        step = steps[0]
        component = self.components.get(step.name)
        if component is None:
            known = ", ".join(self.components) or "none"
            cure = f"components of {self.name} are: {known}"
            endpoint.fail(f"device {self.name} has no component {step.name[:80]!r}", cure)
        indices = np.asarray(step.select(component.count, endpoint), np.int64)
        starts = component.first + indices * component.stride
        # An endpoint must end at a vertex, not at a device.
        if component.inner is None and len(steps) > 1:
            endpoint.fail(f"{step.name} is not a device, and has no {steps[1].name!r}")
        if component.inner is None:
            return starts
        if len(steps) == 1:
            inside = ", ".join(component.inner.components)
            endpoint.fail(f"{step.name} is a device", f"name one of its components: {inside}")
        inner = component.inner.find_vertices(steps[1:], endpoint)
        # Row order, so that the left slice varies slowest: ends are paired in this order.
        return np.add.outer(starts, inner).ravel()


class DeviceList:
    """The devices of a document by name, each expanded on first use.

    `join`: function that builds the edges of an entry in the list `edges` of a device.
    """

    def __init__(
        self,
        devices: Mapping[str, DocumentValue],
        join: Callable[[DocumentValue, Device], EdgeBlock],
    ) -> None:
        self._entries = devices
        self._join = join
        self._devices: dict[str, Device] = {}
        self._open_names: list[str] = []

    def get_device(
        self,
        name: str,
        endpoint: DocumentValue,
    ) -> Device:
        """Return the device of a name; it is expanded on first use and then cached.

        Expanded means that all its components, nested devices and edges are listed as vertices and
        pairs of vertices. All callers get the same object.

        Raises `InputError` at `endpoint` for an unknown name, for a device that contains itself,
        also through other devices, and for more than 17 nested levels. Defects in the entry of the
        device (components, edges, nested devices) raise `InputError` at their own path.
        """
        if name in self._devices:
            return self._devices[name]
        if name not in self._entries:
            known = ", ".join(self._entries) or "none"
            endpoint.fail(f"no device is named {name[:80]!r}", f"devices are: {known}")
        # Deep chains are refused like cycles: both would expand without bound.
        chain = " contains ".join([*self._open_names, name])[:200]
        if name in self._open_names:
            endpoint.fail(f"devices contain one another: {chain}", "a device cannot contain itself")
        if len(self._open_names) > _MAX_DEPTH:
            problem = f"devices are nested in more than {_MAX_DEPTH + 1} levels: {chain}"
            endpoint.fail(problem, "join devices of several levels in one")
        self._open_names.append(name)
        device_in_progress = Device(name)
        try:
            for component in self._entries[name]["components"].items():
                self._add_component(device_in_progress, component)
            # Edges refer to components, so that these come first.
            for edge in self._entries[name].items_of("edges"):
                device_in_progress.edges.append(self._join(edge, device_in_progress))
        finally:
            self._open_names.pop()
        self._devices[name] = device_in_progress
        return device_in_progress

    def _add_component(
        self,
        device: Device,
        component: DocumentValue,
    ) -> None:
        """Append a component of the document to a device, after checking its kind, name and size.

        The entry `choice` is the kind. A component of kind `device` consists of `count` copies of
        the device with the component's name. Any other component has `count` vertices of its
        kind. For `custom` with an entry `custom`, the kind is the `type` in that entry.

        Raises `InputError` at the entry concerned, in this order: a missing name or kind; an
        unknown kind; a name that the device has already; a count not in 1..2^20; an invalid
        nested device; more than 2^20 vertices of the device, or 2^24 edges of all copies; a
        missing `type`. The device is unchanged after an error.
        """
        name, kind = component["name"].text(), component["choice"].text()
        if kind not in _KINDS:
            problem = f"{kind[:40]!r} is not a known kind"
            component["choice"].fail(problem, f"use one of {', '.join(_KINDS)}")
        if name in device.components:
            component.fail(f"device {device.name} has two components {name!r}")
        count = component["count"].count(MAX_NODES)
        inner = self.get_device(name, component["name"]) if kind == "device" else None
        size = count if inner is None else count * inner.size
        edges = 0 if inner is None else sum(len(block[0]) for block in inner.edges)
        # Checked before the expansion, since nested counts multiply.
        if device.size + size > MAX_NODES or count * edges > MAX_LINKS:
            component["count"].fail(f"more than {MAX_NODES} vertices", "check the counts")
        # Before its release 1.0, InfraGraph wrote custom components without a type.
        if kind == "custom" and component.get("custom") is not None:
            kind = component["custom"]["type"].text()
        device.add(
            name,
            count,
            kind,
            inner,
        )


def find_ends(edge: DocumentValue, device: Device, end: str) -> Int64Array:
    """Return the vertices that one end of an edge names, within a device, as int64.

    `end`: `ep1` or `ep2`. The `component` of this endpoint is a path of names that are separated by
    points, such as `nic[0:2].port[0]`. If the endpoint also has a `device`, which is such a path
    too, its names come first. Brackets select parts of a component by an index or a Python slice;
    missing or empty brackets select all parts. If several names select several parts, the vertices
    are in the order of nested loops, with the leftmost name as the outermost loop.

    Raises `InputError` for text that is not such a path, for a component or an index that does not
    exist, for a slice that selects nothing, and for a path that ends at a nested device or
    continues after a vertex.
    """
    endpoint = edge[end]
    steps = parse_endpoint(endpoint["component"])
    # The device may be given separately from the component in it.
    holder = endpoint.get("device")
    if holder is not None:
        steps = [*parse_endpoint(holder), *steps]
    return device.find_vertices(steps, endpoint["component"])
