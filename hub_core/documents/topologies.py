"""The topology file `collhub/topology-1`: written by people with units, written by the hub byte-stable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import numpy as np

from hub_core.documents.schema_check import TYPE_NAMES, first_violation
from hub_core.documents.strict_json import JsonObject, parse_object
from hub_core.model.diagnostics import InputError, Location, UsageError
from hub_core.model.quantities import parse_bandwidth, parse_time
from hub_core.network.grids import MAX_LINKS, MAX_NODES, grid
from hub_core.network.links import Links
from hub_core.network.topology import Dimension, DimensionKind, Topology
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.sources import Source

SCHEMA = "collhub/topology-1"
_SCHEMA_FILE = "topology-1.json"
_CONSTANT_KEYS = {"bandwidth", "bandwidth_bytes_per_s", "latency", "latency_s"}
_LINK_KEYS = {"from", "to", "duplex", "plane", *_CONSTANT_KEYS}

_LARGEST = 1e18

_Row = tuple[int, int, float, float, int]


_Result = TypeVar("_Result")


class _DefectError(Exception):
    """What is wrong with a value, and, once known, the path of the value."""

    def __init__(self, message: str, path: str = "", cure: str = "") -> None:
        super().__init__(message)
        self.message, self.path, self.cure = message, path, cure


def read(source: Source, options: NoOptions) -> Topology:
    """Reader of the format `topology-json`; see `topology_from_json`."""
    del options
    return topology_from_json(source)


def topology_from_json(source: Source) -> Topology:
    """Build the topology that a document describes. Raises `InputError` naming the line or the `$.path`."""
    root = parse_object(source.content(), source.name)
    if root.get("schema") != SCHEMA:
        _fail(
            source.name,
            "$.schema",
            f"this is not a {SCHEMA} document",
            f'state "schema": "{SCHEMA}"',
        )
    # Links have their own check: a million of them would take a general validator minutes.
    links = root.pop("links") if isinstance(root.get("links"), list) else None
    if violation := first_violation(root, _SCHEMA_FILE):
        _fail(source.name, *violation)
    try:
        return _topology(source.name, root, links)
    except _DefectError as error:
        _fail(source.name, error.path, error.message, error.cure)


def topology_to_json(topology: Topology) -> bytes:
    """The canonical document: sorted keys, one line a link, bytes/s and s; equal topologies give equal bytes."""
    npus, names = topology.num_npus, list(topology.node_names)
    parts = {
        "schema": _compact(SCHEMA),
        "name": _compact(topology.name),
        "npus": _compact(names[:npus] or npus),
    }
    if topology.num_nodes > npus:
        parts["switches"] = _compact(names[npus:] or topology.num_nodes - npus)
    if topology.dimensions:
        parts["dimensions"] = _lines(map(_dimension_object, topology.dimensions))
    if topology.groups:
        parts["groups"] = _compact(
            {name: list(members) for name, members in topology.groups.items()}
        )
    parts["links"] = _lines(
        {
            "bandwidth_bytes_per_s": _number(link.bandwidth_bytes_per_s),
            "from": link.source,
            "latency_s": _number(link.latency_s),
            "to": link.destination,
        }
        | ({"plane": plane} if topology.num_planes > 1 else {})
        for link, plane in zip(topology.links(), topology.plane.tolist(), strict=True)
    )
    body = ",\n".join(f'  "{key}": {parts[key]}' for key in sorted(parts))
    return f"{{\n{body}\n}}\n".encode("ascii")


def _dimension_object(dimension: Dimension) -> JsonObject:
    constants = {
        "bandwidth_bytes_per_s": _number(dimension.bandwidth_bytes_per_s),
        "latency_s": _number(dimension.latency_s),
    }
    return {"kind": str(dimension.kind), "size": dimension.size, **constants}


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _lines(values: Iterable[JsonObject]) -> str:
    rows = ",\n    ".join(map(_compact, values))
    return f"[\n    {rows}\n  ]" if rows else "[]"


def _number(value: float) -> int | float:
    """Whole numbers without a fraction; either way the same double comes back."""
    return int(value) if value == int(value) and abs(value) < 2**53 else value


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
            raise _DefectError(
                f"node {value if node < 2**63 else '2^63 or more'} is not in 0..{limit - 1}"
            )
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
    found = (
        _links_of(regular) if links is None and regular is not None else _links(links or [], nodes)
    )
    groups = {
        group: _members(group, members, nodes) for group, members in root.get("groups", {}).items()
    }
    topology = _at("$", _built, name, found, nodes, dimensions, groups)
    if regular is not None and not _is_same_network(regular, topology):
        raise _DefectError(
            "these are not the nodes and links that are stated",
            "$.dimensions",
            "leave dimensions out",
        )
    return topology


def _built(
    name: str,
    links: Links,
    nodes: _Nodes,
    dimensions: tuple[Dimension, ...],
    groups: Mapping[str, tuple[int, ...]],
) -> Topology:
    return links.topology(
        name, nodes.npus, nodes.count, dimensions=dimensions, node_names=nodes.names, groups=groups
    )


def _at(path: str, build: Callable[..., _Result], *arguments: object) -> _Result:
    """Call `build`; what it finds wrong stands at `path`."""
    try:
        return build(*arguments)
    except _DefectError as error:
        raise _DefectError(error.message, error.path or path, error.cure) from None
    except (InputError, UsageError) as error:
        found = error.diagnostics[0]
        raise _DefectError(found.message, path, found.cure) from None


def _nodes(root: JsonObject) -> _Nodes:
    npus, switches = root["npus"], root.get("switches", 0)
    npu_count, switch_count = (
        len(value) if isinstance(value, list) else value for value in (npus, switches)
    )
    if npu_count > MAX_NODES:
        raise _DefectError(f"{npu_count} NPUs are more than {MAX_NODES}", "$.npus")
    if not (isinstance(npus, list) or isinstance(switches, list)):
        return _Nodes(npu_count, npu_count + switch_count, (), {})
    names = [
        *(npus if isinstance(npus, list) else map(str, range(npus))),
        *(
            switches
            if isinstance(switches, list)
            else (f"switch {index}" for index in range(switches))
        ),
    ]
    return _Nodes(
        npu_count, len(names), tuple(names), {name: node for node, name in enumerate(names)}
    )


def _members(group: str, members: list[object], nodes: _Nodes) -> tuple[int, ...]:
    return tuple(
        _at(f"$.groups.{group}[{row}]", nodes.number, member, nodes.npus)
        for row, member in enumerate(members)
    )


def _dimension(entry: JsonObject) -> Dimension:
    return Dimension(DimensionKind(entry["kind"]), entry["size"], *_constants(entry))


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
    sources, destinations, rates, latencies, planes = (
        zip(*rows, strict=True) if rows else ((), (), (), (), ())
    )
    whole = np.asarray([sources, destinations, planes], np.int64)
    constants = np.asarray([rates, latencies], np.float64)
    return Links(whole[0], whole[1], constants[0], constants[1], whole[2])


def _link_rows(entry: object, nodes: _Nodes) -> list[_Row]:
    if not isinstance(entry, dict):
        raise _DefectError(f"expected an object, got {TYPE_NAMES[type(entry)]}")
    if not entry.keys() <= _LINK_KEYS:
        raise _DefectError(f"unknown key {min(entry.keys() - _LINK_KEYS)[:80]!r}")
    if "from" not in entry or "to" not in entry:
        raise _DefectError("'from' and 'to' are needed")
    source, destination = (nodes.number(entry[end], nodes.count) for end in ("from", "to"))
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
    return [there, (destination, source, *constants, plane)] if duplex else [there]


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
    if (text_key in entry) == (number_key in entry):
        raise _DefectError(
            f"exactly one of {text_key!r} (text with a unit) and {number_key!r} (number) is needed"
        )
    if number_key not in entry:
        text = entry[text_key]
        if not isinstance(text, str):
            raise _DefectError(f"{text_key}: expected a string, got {TYPE_NAMES[type(text)]}")
        return parse(text)
    number = entry[number_key]
    if type(number) not in (int, float):
        raise _DefectError(f"{number_key}: expected a number, got {TYPE_NAMES[type(number)]}")
    return float(min(number, _LARGEST))


def _links_of(topology: Topology) -> Links:
    return Links(
        topology.source,
        topology.destination,
        topology.bandwidth_bytes_per_s,
        topology.latency_s,
        topology.plane,
    )


def _is_same_network(one: Topology, other: Topology) -> bool:
    """Whether nodes and links agree, in whatever order the links stand."""
    if (one.num_npus, one.num_nodes, one.num_links) != (
        other.num_npus,
        other.num_nodes,
        other.num_links,
    ):
        return False
    columns = []
    for topology in (one, other):
        order = np.lexsort((topology.destination, topology.source))
        columns.append([getattr(topology, name)[order] for name in Links.__dataclass_fields__])
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(*columns, strict=True))


def _fail(file: str, path: str, message: str, cure: str = "") -> NoReturn:
    raise InputError(
        f"{path}: {message}", location=Location(file), cure=cure, code="invalid-topology"
    )
