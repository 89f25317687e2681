"""The topology file `collhub/topology-1`: people write it with units, the hub byte-stable.

Source: docs/topologies.md and schemas/topology-1.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

import numpy as np

from hub_core.documents.schema_check import TYPE_NAMES, first_violation
from hub_core.documents.strict_json import JsonObject, parse_object
from hub_core.model import InputError, Location, UsageError, parse_bandwidth, parse_time
from hub_core.network.grids import MAX_LINKS, MAX_NODES, grid
from hub_core.network.links import Links
from hub_core.network.topology import Dimension, DimensionKind, Topology
from hub_core.plugin_api import Artifact, NoOptions, Source, WriteResult

SCHEMA = "collhub/topology-1"
_SCHEMA_FILE = "topology-1.json"
_LINK_KEYS = {
    *("from", "to", "duplex", "plane"),
    *("bandwidth", "bandwidth_bytes_per_s", "latency", "latency_s"),
}
_LINK_COLUMNS = ("source", "destination", "bandwidth_bytes_per_s", "latency_s", "plane")
_LARGEST = 1e18

_Row = tuple[int, int, float, float, int]
_Result = TypeVar("_Result")


class _DefectError(Exception):
    """What is wrong with a value, and, once known, the path of the value."""

    def __init__(self, message: str, path: str = "", cure: str = "") -> None:
        super().__init__(message)
        self.message = message
        # Where a value is looked at, its path is not known yet: `_at` adds it.
        self.path = path
        self.cure = cure


def read(source: Source, options: NoOptions) -> Topology:
    """Reader of the format `topology-json`; see `topology_from_json`."""
    del options
    return topology_from_json(source)


def topology_from_json(source: Source) -> Topology:
    """Build the topology that a document describes. Raises `InputError` naming line or `$.path`."""
    root = parse_object(source.content(), source.name)
    if root.get("schema") != SCHEMA:
        cure = f'state "schema": "{SCHEMA}"'
        _fail(source.name, "$.schema", f"this is not a {SCHEMA} document", cure)
    # Links have their own check: a million of them would take a general validator minutes.
    links = root.pop("links") if isinstance(root.get("links"), list) else None
    if violation := first_violation(root, _SCHEMA_FILE):
        path, message = violation
        _fail(source.name, path, message)
    try:
        return _topology(source.name, root, links)
    except _DefectError as error:
        _fail(source.name, error.path, error.message, error.cure)


def write(topology: Topology, options: NoOptions) -> WriteResult:
    """Writer of the format `topology-json`; see `topology_to_json`."""
    del options
    return WriteResult([Artifact("", partial(topology_to_json, topology))])


def topology_to_json(topology: Topology) -> bytes:
    """The canonical document: sorted keys, one line a link, bytes/s and s.

    Equal topologies give equal bytes.
    """
    npus, names = topology.num_npus, list(topology.node_names)
    parts = {"schema": _compact(SCHEMA), "name": _compact(topology.name)}
    parts["npus"] = _compact(names[:npus] or npus)
    if topology.num_nodes > npus:
        parts["switches"] = _compact(names[npus:] or topology.num_nodes - npus)
    if topology.dimensions:
        parts["dimensions"] = _lines(map(_dimension_object, topology.dimensions))
    if topology.groups:
        groups = {name: list(members) for name, members in topology.groups.items()}
        parts["groups"] = _compact(groups)
    parts["links"] = _lines(_link_objects(topology))
    body = ",\n".join(f'  "{key}": {parts[key]}' for key in sorted(parts))
    return f"{{\n{body}\n}}\n".encode("ascii")


def _link_objects(topology: Topology) -> Iterable[JsonObject]:
    """The links in order; the plane is stated where there is more than one."""
    for link, plane in zip(topology.links(), topology.plane.tolist(), strict=True):
        found = {"from": link.source, "to": link.destination}
        found |= _numbers(link)
        if topology.num_planes > 1:
            found["plane"] = plane
        yield found


def _dimension_object(dimension: Dimension) -> JsonObject:
    found: JsonObject = {"kind": str(dimension.kind), "size": dimension.size}
    constants = _numbers(dimension)
    return found | constants


def _numbers(of: object) -> JsonObject:
    """The constants of a link or dimension; whole numbers without a fraction."""
    found = {}
    for name in ("bandwidth_bytes_per_s", "latency_s"):
        value: float = getattr(of, name)
        # Either way the same double comes back.
        is_whole = value == int(value) and abs(value) < 2**53
        found[name] = int(value) if is_whole else value
    return found


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _lines(values: Iterable[JsonObject]) -> str:
    """A list with one object a line."""
    rows = ",\n    ".join(map(_compact, values))
    if not rows:
        return "[]"
    return f"[\n    {rows}\n  ]"


@dataclass(frozen=True, slots=True)
class _Nodes:
    """How many NPUs and nodes there are, and the names that links and groups may use for them."""

    npus: int
    count: int
    names: tuple[str, ...]
    numbers: Mapping[str, int]

    def number(self, value: object, limit: int) -> int:
        """The node that a number below `limit`, or a name, means."""
        node = self.numbers.get(value) if isinstance(value, str) else value
        if node is None and isinstance(value, str):
            raise _DefectError(f"no node is named {value[:80]!r}")
        if type(node) is not int:
            raise _DefectError(f"expected a node's number or name, got {TYPE_NAMES[type(value)]}")
        if not 0 <= node < limit:
            shown = value if node < 2**63 else "2^63 or more"
            raise _DefectError(f"node {shown} is not in 0..{limit - 1}")
        return node


def _topology(file: str, root: JsonObject, links: list[object] | None) -> Topology:
    nodes = _nodes(root)
    name = root.get("name", file)
    dimensions = tuple(
        _at(f"$.dimensions[{row}]", _dimension, entry)
        for row, entry in enumerate(root.get("dimensions", []))
    )
    regular = _at("$.dimensions", grid, name, dimensions) if dimensions else None
    if links is None and regular is None:
        raise _DefectError("links are missing", "$", "state links, or dimensions")
    if links is None and regular is not None:
        found = Links(*(getattr(regular, column) for column in _LINK_COLUMNS))
    else:
        found = _links(links or [], nodes)
    groups = {}
    for group, members in root.get("groups", {}).items():
        groups[group] = _members(group, members, nodes)
    build = partial(found.topology, dimensions=dimensions, node_names=nodes.names, groups=groups)
    topology = _at("$", build, name, nodes.npus, nodes.count)
    if regular is not None and not _is_same_network(regular, topology):
        message = "these are not the nodes and links that are stated"
        raise _DefectError(message, "$.dimensions", "leave dimensions out")
    return topology


def _at(path: str, build: Callable[..., _Result], *arguments: object) -> _Result:
    """Call `build`; what it finds wrong stands at `path`."""
    try:
        return build(*arguments)
    except _DefectError as error:
        raise _DefectError(error.message, error.path or path, error.cure) from None
    except (InputError, UsageError) as error:
        # The model and the units complain without a path.
        found = error.diagnostics[0]
        raise _DefectError(found.message, path, found.cure) from None


def _nodes(root: JsonObject) -> _Nodes:
    """NPUs come first, then switches; where one side has names, the other gets some."""
    npus, switches = root["npus"], root.get("switches", 0)
    npu_count = len(npus) if isinstance(npus, list) else npus
    switch_count = len(switches) if isinstance(switches, list) else switches
    if npu_count > MAX_NODES:
        raise _DefectError(f"{npu_count} NPUs are more than {MAX_NODES}", "$.npus")
    names: list[str] = []
    if isinstance(npus, list) or isinstance(switches, list):
        names += npus if isinstance(npus, list) else map(str, range(npus))
        numbered = (f"switch {index}" for index in range(switch_count))
        names += switches if isinstance(switches, list) else numbered
    numbers = {name: node for node, name in enumerate(names)}
    return _Nodes(npu_count, npu_count + switch_count, tuple(names), numbers)


def _members(group: str, members: list[object], nodes: _Nodes) -> tuple[int, ...]:
    """The NPUs of a group; switches are no members."""
    found = []
    for row, member in enumerate(members):
        path = f"$.groups.{group}[{row}]"
        found.append(_at(path, nodes.number, member, nodes.npus))
    return tuple(found)


def _dimension(entry: JsonObject) -> Dimension:
    kind = DimensionKind(entry["kind"])
    size: int = entry["size"]
    bandwidth, latency = _constants(entry)
    return Dimension(kind, size, bandwidth, latency)


def _links(entries: list[object], nodes: _Nodes) -> Links:
    if len(entries) > MAX_LINKS:
        raise _DefectError(f"{len(entries)} links are more than {MAX_LINKS}", "$.links")
    rows: list[_Row] = []
    for index, entry in enumerate(entries):
        try:
            rows += _link_rows(entry, nodes)
        except (_DefectError, UsageError) as error:
            message = error.message if isinstance(error, _DefectError) else str(error)
            raise _DefectError(message, f"$.links[{index}]") from None
    sources, destinations, rates, latencies, planes = zip(*rows, strict=True) if rows else [()] * 5
    return Links(
        np.asarray(sources, np.int64),
        np.asarray(destinations, np.int64),
        np.asarray(rates, np.float64),
        np.asarray(latencies, np.float64),
        np.asarray(planes, np.int64),
    )


def _link_rows(entry: object, nodes: _Nodes) -> list[_Row]:
    """The links that an entry states: one, or both directions where it is duplex."""
    if not isinstance(entry, dict):
        raise _DefectError(f"expected an object, got {TYPE_NAMES[type(entry)]}")
    if unknown := entry.keys() - _LINK_KEYS:
        raise _DefectError(f"unknown key {min(unknown)[:80]!r}")
    if "from" not in entry or "to" not in entry:
        raise _DefectError("'from' and 'to' are needed")
    source = nodes.number(entry["from"], nodes.count)
    destination = nodes.number(entry["to"], nodes.count)
    if source == destination:
        raise _DefectError(f"the link joins node {source} to itself")
    constants = _constants(entry)
    duplex = entry.get("duplex", False)
    if type(duplex) is not bool:
        raise _DefectError(f"duplex: expected true or false, got {TYPE_NAMES[type(duplex)]}")
    plane = entry.get("plane", 0)
    if type(plane) is not int or not 0 <= plane < MAX_LINKS:
        raise _DefectError("plane: expected a number from 0 on")
    there = (source, destination, *constants, plane)
    back = (destination, source, *constants, plane)
    return [there, back] if duplex else [there]


def _constants(entry: JsonObject) -> tuple[float, float]:
    """Bandwidth in bytes/s and latency in s of a link or dimension."""
    bandwidth = _quantity(entry, "bandwidth", "bandwidth_bytes_per_s", parse_bandwidth)
    latency = _quantity(entry, "latency", "latency_s", parse_time)
    if not 0 < bandwidth < _LARGEST:
        raise _DefectError("the bandwidth is not above 0 and below 1e18 bytes/s")
    if not 0 <= latency < _LARGEST:
        raise _DefectError("the latency is negative or not below 1e18 s")
    return bandwidth, latency


def _quantity(
    entry: JsonObject, text_key: str, number_key: str, parse: Callable[[str], float]
) -> float:
    """A quantity as a text with a unit, or as a number in the unit that its key names."""
    if (text_key in entry) == (number_key in entry):
        both = f"{text_key!r} (text with a unit) and {number_key!r} (number)"
        raise _DefectError(f"exactly one of {both} is needed")
    if text_key in entry:
        text = entry[text_key]
        if isinstance(text, str):
            return parse(text)
        found = TYPE_NAMES[type(text)]
        raise _DefectError(f"{text_key}: expected a string, got {found}")
    number = entry[number_key]
    # A bool is an int to Python, not to whoever reads the file.
    if type(number) not in (int, float):
        found = TYPE_NAMES[type(number)]
        raise _DefectError(f"{number_key}: expected a number, got {found}")
    # Integers of any length are JSON; the limit keeps them within a double.
    return float(min(number, _LARGEST))


def _is_same_network(one: Topology, other: Topology) -> bool:
    """Whether nodes and links agree, in whatever order the links stand."""
    for count in ("num_npus", "num_nodes", "num_links"):
        if getattr(one, count) != getattr(other, count):
            return False
    orders = [np.lexsort((each.destination, each.source)) for each in (one, other)]
    for name in _LINK_COLUMNS:
        mine, theirs = getattr(one, name)[orders[0]], getattr(other, name)[orders[1]]
        if not np.array_equal(mine, theirs):
            return False
    return True


def _fail(file: str, path: str, message: str, cure: str = "") -> NoReturn:
    raise InputError(
        f"{path}: {message}",
        location=Location(file),
        cure=cure,
        code="invalid-topology",
    )
