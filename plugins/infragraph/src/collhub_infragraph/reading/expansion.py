"""Expand an infrastructure document to vertices and edges.

Source: the schema of InfraGraph 2.4 to 3.1 and what its service makes of documents (public).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from collhub_columns import Int64Array
from collhub_networks import NetworkFindings, Value

from collhub_infragraph.graph import Annotations, LinkKind, VertexGraph
from collhub_infragraph.reading.devices import Device, DeviceList, EdgeBlock, ends_of
from collhub_infragraph.reading.edges import joined
from collhub_infragraph.reading.links import link_of
from collhub_infragraph.reading.slices import steps_of
from hub_core.network import MAX_LINKS, MAX_NODES


def expanded(
    root: Value,
    annotations: Annotations,
    findings: NetworkFindings,
) -> VertexGraph:
    """The graph of an infrastructure. Raises `InputError` with the path of what is wrong."""
    return _Expansion(root, annotations, findings).graph()


class _Expansion:
    """One document: its links by owner and name, its devices, and where its instances stand."""

    def __init__(self, root: Value, annotations: Annotations, findings: NetworkFindings) -> None:
        self._root = root
        self._annotations = annotations
        self._findings = findings
        self._links: list[LinkKind] = []
        self._rows: dict[tuple[str, str], int] = {}
        self._stated = _by_name(root, "devices")
        self._devices = DeviceList(self._stated, self._device_edge)
        # Of each instance: its device, how many there are, and the first vertex.
        self._instances: dict[str, tuple[Device, int, int]] = {}
        self._size = 0

    def graph(self) -> VertexGraph:
        """All vertices, then all edges: of devices first, as InfraGraph does."""
        self._add_links("", self._root)
        for name, device in self._stated.items():
            self._add_links(name, device)
        # Devices of which there is no instance are checked as well.
        for name, device in self._stated.items():
            self._devices.device(name, device["name"])
        for instance in self._root.items_of("instances"):
            self._add_instance(instance)
        if not self._instances:
            self._root.fail("there are no instances", "state instances of the devices")
        blocks = [*self._inner_blocks(), *self._outer_blocks()]
        names, kinds = self._vertices()
        one, other, link = _without_repeats(blocks, len(names))
        links = tuple(self._links)
        return VertexGraph(
            names,
            kinds,
            one,
            other,
            link,
            links,
            self._annotations,
        )

    def _add_links(
        self,
        owner: str,
        holder: Value,
    ) -> None:
        for value in holder.items_of("links"):
            found = link_of(value, owner, self._annotations.of_link)
            if (owner, found.name) in self._rows:
                value.fail(f"two links are named {found.name[:80]!r}")
            self._rows[owner, found.name] = len(self._links)
            self._links.append(found)

    def _link(
        self,
        edge: Value,
        owner: str,
    ) -> int:
        """The row of the link that an edge names, of the list of its owner."""
        name = edge["link"].text()
        row = self._rows.get((owner, name))
        if row is None:
            known = ", ".join(name for holder, name in self._rows if holder == owner) or "none"
            where = f"device {owner}" if owner else "the document"
            edge["link"].fail(f"{where} has no link {name[:80]!r}", f"its links are: {known}")
        return row

    def _device_edge(
        self,
        edge: Value,
        device: Device,
    ) -> EdgeBlock:
        """The edges that an entry of the list of a device makes."""
        ends = ends_of(edge, device, "ep1"), ends_of(edge, device, "ep2")
        one, other = joined(edge, *ends, self._findings)
        return one, other, self._link(edge, device.name)

    def _add_instance(self, instance: Value) -> None:
        name = instance["name"].text()
        if name in self._instances:
            instance.fail(f"two instances are named {name[:80]!r}", "give each a name of its own")
        device = self._devices.device(instance["device"].text(), instance["device"])
        count = instance["count"].count(MAX_NODES)
        self._instances[name] = device, count, self._size
        self._size += count * device.size
        if self._size > MAX_NODES:
            instance["count"].fail(f"more than {MAX_NODES} vertices", "check the counts")

    def _vertices(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names and kinds of all vertices, instance by instance."""
        names: list[str] = []
        kinds: list[str] = []
        for title, (device, count, _) in self._instances.items():
            for number in range(count):
                names += [f"{title}.{number}.{name}" for name in device.names]
                kinds += device.kinds
        return tuple(names), tuple(kinds)

    def _inner_blocks(self) -> Iterator[EdgeBlock]:
        """The edges within instances."""
        total = 0
        for device, count, first in self._instances.values():
            # The edges of one instance, once for each instance.
            starts = first + device.size * np.arange(count)
            for one, other, link in device.edges:
                total += count * len(one)
                if total > MAX_LINKS:
                    self._root.fail(f"more than {MAX_LINKS} edges", "check the counts")
                pair = np.add.outer(starts, one).ravel(), np.add.outer(starts, other).ravel()
                yield *pair, link

    def _outer_blocks(self) -> Iterator[EdgeBlock]:
        """The edges between instances."""
        total = 0
        for edge in self._root.items_of("edges"):
            ends = self._ends(edge["ep1"]), self._ends(edge["ep2"])
            one, other = joined(edge, *ends, self._findings)
            total += len(one)
            if total > MAX_LINKS:
                edge.fail(f"more than {MAX_LINKS} edges", "check the slices")
            yield one, other, self._link(edge, "")

    def _ends(self, endpoint: Value) -> Int64Array:
        """The vertices of an endpoint: those of every chosen instance, one instance by one."""
        place = endpoint["instance"]
        # InfraGraph takes what stands before the first point for the instance.
        step = steps_of(place)[0]
        if step.name not in self._instances:
            known = ", ".join(self._instances)
            place.fail(f"no instance is named {step.name[:80]!r}", f"instances are: {known}")
        device, count, first = self._instances[step.name]
        chosen = np.asarray(step.chosen(count, place), np.int64)
        component = endpoint["component"]
        inner = device.vertices(steps_of(component), component)
        return np.add.outer(first + device.size * chosen, inner).ravel()


def _by_name(
    root: Value,
    key: str,
) -> dict[str, Value]:
    """The entries of a list by their names. Raises `InputError` where two have one name."""
    found: dict[str, Value] = {}
    for value in root.items_of(key):
        name = value["name"].text()
        if name in found:
            value.fail(f"two of the {key} are named {name[:80]!r}", "give each a name of its own")
        found[name] = value
    return found


def _without_repeats(
    blocks: list[EdgeBlock],
    vertices: int,
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """All edges, a pair that is stated again where it first stood, with its last link.

    An InfraGraph is a simple graph, so that the last statement of a pair counts.
    """
    nothing = np.zeros(0, np.int64)
    one = np.concatenate([nothing, *(block[0] for block in blocks)])
    other = np.concatenate([nothing, *(block[1] for block in blocks)])
    counts = [len(block[0]) for block in blocks]
    link = np.repeat(np.asarray([block[2] for block in blocks], np.int64), counts)
    key = np.minimum(one, other) * vertices + np.maximum(one, other)
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    last = np.empty(len(first), np.int64)
    # Assignments in order: the last row of a group stays.
    last[group] = np.arange(len(key))
    order = np.argsort(first)
    kept = first[order]
    return one[kept], other[kept], link[last[order]]
