"""Expand an infrastructure document to vertices and edges.

Source: the schema of InfraGraph 2.4 to 3.1 and the results of its service (public).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from collhub_networks import DocumentValue, NetworkFindings

from collhub_infragraph.devices import (
    Device,
    DeviceList,
    EdgeBlock,
    find_ends,
    parse_endpoint,
)
from collhub_infragraph.graph import Annotations, LinkKind, VertexGraph, parse_link
from hub_core.columns import Int64Array
from hub_core.model import Location
from hub_core.network import MAX_LINKS, MAX_NODES

_SCHEMES = "one2one or many2many"


def join_endpoints(
    edge: DocumentValue,
    first_ends: Int64Array,
    second_ends: Int64Array,
    findings: NetworkFindings,
) -> tuple[Int64Array, Int64Array]:
    """Create the edges of one entry: join two lists of vertices by the entry's scheme.

    Returns both ends of all edges, two int64 arrays. `one2one` joins the lists in pairs; the
    surplus of the longer one is ignored, as in InfraGraph, with the warning `cut-edges`.
    `many2many` joins all pairs, the second end fastest. Edges from a vertex to itself are then
    dropped. Raises `InputError` for a missing or unknown scheme, for `ring` (which is not
    defined), and for more than `MAX_LINKS` (2^24) pairs of `many2many`.
    """
    scheme = edge.text_of("scheme", "")
    if scheme == "one2one":
        length = min(len(first_ends), len(second_ends))
        if len(first_ends) != len(second_ends):
            counts = f"one2one of {len(first_ends)} with {len(second_ends)} endpoints"
            message = f"{edge.path}: {counts}: {length} edges are created, as in InfraGraph"
            findings.warn(
                "cut-edges",
                Location(edge.file),
                message,
                "use slices of equal length",
            )
        pair = first_ends[:length], second_ends[:length]
    elif scheme == "many2many":
        if len(first_ends) * len(second_ends) > MAX_LINKS:
            edge.fail(f"{len(first_ends)} times {len(second_ends)} edges are more than {MAX_LINKS}")
        pair = np.repeat(first_ends, len(second_ends)), np.tile(second_ends, len(first_ends))
    elif scheme == "ring":
        message = "the scheme ring is in InfraGraph's schema, but its edges are not defined"
        edge.fail(message, f"write the edges as {_SCHEMES}")
    else:
        problem = f"{scheme[:40]!r} is not a scheme" if scheme else "the scheme is missing"
        edge.fail(problem, f"use {_SCHEMES}")
    is_pair = pair[0] != pair[1]
    return pair[0][is_pair], pair[1][is_pair]


def expand_infrastructure(
    root: DocumentValue,
    annotations: Annotations,
    findings: NetworkFindings,
) -> VertexGraph:
    """Build the graph of an infrastructure. Raises `InputError` with the path of the error."""
    return _Expansion(root, annotations, findings).build_graph()


class _Expansion:
    """Expansion of one document: its links by owner and name, its devices, and its instances."""

    def __init__(
        self, root: DocumentValue, annotations: Annotations, findings: NetworkFindings
    ) -> None:
        self._root = root
        self._annotations = annotations
        self._findings = findings
        self._links: list[LinkKind] = []
        self._rows: dict[tuple[str, str], int] = {}
        self._device_entries: dict[str, DocumentValue] = {}
        for device in root.items_of("devices"):
            name = device["name"].text()
            if name in self._device_entries:
                message = f"two of the devices are named {name[:80]!r}"
                device.fail(message, "give them different names")
            self._device_entries[name] = device
        self._devices = DeviceList(self._device_entries, self._build_device_edges)
        # Device, count and first vertex of every instance.
        self._instances: dict[str, tuple[Device, int, int]] = {}
        self._size = 0

    def build_graph(self) -> VertexGraph:
        """Build the vertices and edges of the document. Call it once, as it fills tables of `self`.

        An entry of `instances` stands for `count` copies of a device.

        - Vertices: by entry of `instances`, then by copy, then as in the device.
        - Edges: first those within copies, by entry of `instances`, entry of the device's `edges`,
          and copy. Then those between copies, by entry of the document's `edges`.
        - Repeated edges between the same two vertices, in either direction, become one. It has the
          position and direction of the first one, and the link of the last one.
        - Links: first those of the document, then those of the devices.

        Raises `InputError` with the path if there are no instances, for repeated or unknown names,
        for invalid values (also in devices without instances), and for more than `MAX_NODES`
        vertices, or `MAX_LINKS` edges within copies or between them, counted with repeated edges.
        """
        self._add_links("", self._root)
        for name, device in self._device_entries.items():
            self._add_links(name, device)
        # Devices without instances are checked as well.
        for name, device in self._device_entries.items():
            self._devices.get_device(name, device["name"])
        for instance in self._root.items_of("instances"):
            title = instance["name"].text()
            if title in self._instances:
                message = f"two instances are named {title[:80]!r}"
                instance.fail(message, "give them different names")
            device_type = self._devices.get_device(instance["device"].text(), instance["device"])
            count = instance["count"].count(MAX_NODES)
            self._instances[title] = device_type, count, self._size
            self._size += count * device_type.size
            if self._size > MAX_NODES:
                instance["count"].fail(f"more than {MAX_NODES} vertices", "check the counts")
        if not self._instances:
            self._root.fail("there are no instances", "add instances of the devices")
        blocks = [*self._generate_inner_blocks(), *self._generate_outer_blocks()]
        # Names `instance.number.component.number`, with a further pair per level of devices.
        names: list[str] = []
        kinds: list[str] = []
        for title, (device_type, count, _) in self._instances.items():
            for number in range(count):
                names += [f"{title}.{number}.{vertex}" for vertex in device_type.names]
                kinds += device_type.kinds
        first_ends, second_ends, link = _remove_repeated_edges(blocks, len(names))
        links = tuple(self._links)
        return VertexGraph(
            tuple(names),
            tuple(kinds),
            first_ends,
            second_ends,
            link,
            links,
            self._annotations,
        )

    def _add_links(
        self,
        owner: str,
        holder: DocumentValue,
    ) -> None:
        """Append the links of a device (`owner`) or of the document (empty `owner`).

        Raises `InputError` for two links of one name in the same list, and for invalid values.
        """
        for value in holder.items_of("links"):
            link = parse_link(value, owner, self._annotations.of_link)
            if (owner, link.name) in self._rows:
                value.fail(f"two links are named {link.name[:80]!r}")
            self._rows[owner, link.name] = len(self._links)
            self._links.append(link)

    def _find_link(
        self,
        edge: DocumentValue,
        owner: str,
    ) -> int:
        """Return the number of the link that an edge names at its key `link`.

        Links are numbered from 0 for the entire document. Only links of `owner` are searched: a
        device, or "" for the document itself. Raises `InputError` if the key is missing or no
        text, and if `owner` has no such link; this message lists the links of `owner`.
        """
        name = edge["link"].text()
        row = self._rows.get((owner, name))
        if row is None:
            known = ", ".join(name for holder, name in self._rows if holder == owner) or "none"
            subject = f"device {owner}" if owner else "the document"
            edge["link"].fail(f"{subject} has no link {name[:80]!r}", f"its links are: {known}")
        return row

    def _build_device_edges(
        self,
        edge: DocumentValue,
        device: Device,
    ) -> EdgeBlock:
        """Return the edges of one entry of a device: (first vertices, second vertices, link).

        Vertices are int64, numbered within the device. The endpoints `ep1` and `ep2` select
        them (`find_ends`), and the scheme of the entry joins them (`join_endpoints`). The link
        is the number of one of the device's own links, for all edges. Adds the warning
        `cut-edges` to `_findings` if a one-to-one scheme ignores vertices. Raises `InputError`
        for an unknown endpoint, scheme or link, and for too many edges.
        """
        endpoints = find_ends(edge, device, "ep1"), find_ends(edge, device, "ep2")
        first_ends, second_ends = join_endpoints(edge, *endpoints, self._findings)
        return first_ends, second_ends, self._find_link(edge, device.name)

    def _generate_inner_blocks(self) -> Iterator[EdgeBlock]:
        """Yield the edges within instances: the edges of every device, repeated for all its copies.

        A result is (first vertices, second vertices, number of the link), for one instance and
        one entry of the edges of its device. It has the edges of the first copy, then those of
        the second, and so on. Results are ordered by instance, then by entry. Vertices are
        numbered in the entire graph. Raises `InputError` as soon as the total, with repeated
        edges, exceeds `MAX_LINKS` (2^24).
        """
        total = 0
        for device, count, first in self._instances.values():
            starts = first + device.size * np.arange(count)
            for first_ends, second_ends, link in device.edges:
                total += count * len(first_ends)
                if total > MAX_LINKS:
                    self._root.fail(f"more than {MAX_LINKS} edges", "check the counts")
                pair = (
                    np.add.outer(starts, first_ends).ravel(),
                    np.add.outer(starts, second_ends).ravel(),
                )
                yield *pair, link

    def _generate_outer_blocks(self) -> Iterator[EdgeBlock]:
        """Yield the edges between instances, one block for every entry of `edges`, in order.

        A block is (first vertices, second vertices, number of the link): two int64 arrays with
        the ends of the edges, which may be empty. `ep1` and `ep2` of the entry select vertices
        (`_find_ends`), its scheme joins them (`join_endpoints`), and its link is one of the
        document. Nothing is yielded without `edges`.

        Raises `InputError` at the entry for unknown instances, components, schemes and links,
        for invalid brackets, and when the edges of all entries so far exceed `MAX_LINKS`.
        """
        total = 0
        for edge in self._root.items_of("edges"):
            endpoints = self._find_ends(edge["ep1"]), self._find_ends(edge["ep2"])
            first_ends, second_ends = join_endpoints(edge, *endpoints, self._findings)
            total += len(first_ends)
            if total > MAX_LINKS:
                edge.fail(f"more than {MAX_LINKS} edges", "check the slices")
            yield first_ends, second_ends, self._find_link(edge, "")

    def _find_ends(self, endpoint: DocumentValue) -> Int64Array:
        """Return the vertices that one end of an edge between instances selects: int64.

        The text at `instance` is a name with optional brackets, which select copies as
        `Step.select` does; without brackets all copies. Text after the first point is ignored.
        The path at `component` selects vertices in each of these copies. The result has the
        vertices of the first selected copy, then of the next one; in a copy the order is that
        of `find_vertices`.

        Raises `InputError` for a missing key, an unknown instance or component, and invalid
        brackets.
        """
        instance = endpoint["instance"]
        # InfraGraph uses only the text before the first point.
        step = parse_endpoint(instance)[0]
        if step.name not in self._instances:
            known = ", ".join(self._instances)
            instance.fail(f"no instance is named {step.name[:80]!r}", f"instances are: {known}")
        device, count, first = self._instances[step.name]
        indices = np.asarray(step.select(count, instance), np.int64)
        component = endpoint["component"]
        inner = device.find_vertices(parse_endpoint(component), component)
        return np.add.outer(first + device.size * indices, inner).ravel()


def _remove_repeated_edges(
    blocks: list[EdgeBlock],
    vertices: int,
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Concatenate all edges, and keep each pair of vertices once.

    The pair remains at its first position, with its last link. It counts as the same in both
    directions, and keeps the direction of its first edge, as in InfraGraph. `vertices`: number of
    all vertices. Returns (first vertices, second vertices, rows of links), int64 in the order of
    first positions.
    """
    empty = np.zeros(0, np.int64)
    first_ends = np.concatenate([empty, *(block[0] for block in blocks)])
    second_ends = np.concatenate([empty, *(block[1] for block in blocks)])
    counts = [len(block[0]) for block in blocks]
    link = np.repeat(np.asarray([block[2] for block in blocks], np.int64), counts)
    key = np.minimum(first_ends, second_ends) * vertices + np.maximum(first_ends, second_ends)
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    last = np.empty(len(first), np.int64)
    # Assignments are in order, so that the last row of a group remains.
    last[group] = np.arange(len(key))
    order = np.argsort(first)
    first_rows = first[order]
    return first_ends[first_rows], second_ends[first_rows], link[last[order]]
