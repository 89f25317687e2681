"""The topology document `collhub/topology-1`: users write it with units; the hub, byte-stable.

Source: docs/topologies.md and schemas/topology-1.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn, TypeVar

import numpy as np

from hub_core.documents.strict_json import (
    TYPE_NAMES,
    JsonObject,
    parse_json_object,
    schema_violations,
)
from hub_core.model import HubError, InputError, Location, parse_bandwidth, parse_time
from hub_core.network.construction import MAX_LINKS, MAX_NODES, grid
from hub_core.network.links import Links
from hub_core.network.topology import Dimension, DimensionKind, Link, MeasuredSwitches, Topology
from hub_core.plugin_api import Artifact, NoOptions, Source, WriteResult

SCHEMA = "collhub/topology-1"
_SCHEMA_FILE = "topology-1.json"
_LINK_KEYS = {
    *("from", "to", "duplex", "plane"),
    *("bandwidth", "bandwidth_bytes_per_s", "latency", "latency_s"),
}
_LINK_COLUMNS = ("source", "destination", "bandwidth_bytes_per_s", "latency_s", "plane")
_MAX_CONSTANT = 1e18

_Row = tuple[int, int, float, float, int]
_Result = TypeVar("_Result")


def read(source: Source, options: NoOptions) -> Topology:
    """Build the topology of a document in the format `topology-json`.

    Without `links`, the links are those of `dimensions`. Without `name`, the name is that of the
    file. Raises `InputError`, first for invalid JSON with the line. All others have the code
    `invalid-topology` and a JSON path: another schema, then all violations of the schema outside
    the links together, then the first of: too many NPUs, invalid dimensions, an invalid link,
    no links or dimensions, a group with an unknown node, values that `Topology` refuses, a switch
    list with an unknown node. Last, if there are links and dimensions, dimensions that build other
    nodes or links; the order of links, node names and groups may differ.
    """
    del options
    root = parse_json_object(source.content(), source.name)
    if root.get("schema") != SCHEMA:
        cure = f'state "schema": "{SCHEMA}"'
        _fail(source.name, "$.schema", f"this is not a {SCHEMA} document", cure)
    # Links are checked separately: a general validator needs minutes for a million of them.
    links = root.pop("links") if isinstance(root.get("links"), list) else None
    if violations := schema_violations(root, _SCHEMA_FILE):
        location = Location(source.name)
        raise InputError(
            [violation.finding(location, "invalid-topology") for violation in violations]
        )
    return _build_topology(source.name, root, links)


def write(topology: Topology, options: NoOptions) -> WriteResult:
    """Return the document of a topology as one artifact, formatted when it is read."""
    del options
    return WriteResult([Artifact("", partial(topology_to_json, topology))])


def topology_to_json(topology: Topology) -> bytes:
    """Return the JSON document of a topology in ASCII: members by name, one line per link.

    Equal topologies give equal bytes. `schema`, `name`, `npus` and `links` are always present,
    other members only if the topology has them. `npus`, `switches`: lists of names, or counts
    without names. A link has `from`, `to` (node numbers), `bandwidth_bytes_per_s`, `latency_s`, and
    `plane` in networks of several planes. A dimension has `kind`, `size`, bandwidth and latency.
    `groups`: nodes by name. `multicast`, `reduce`: lists of switches. `measured_switches`:
    `switches` and `bytes_per_s`. Bandwidths and latencies that are whole numbers have no fraction.
    """
    npus, names = topology.num_npus, list(topology.node_names)
    parts = {"schema": _format_compact(SCHEMA), "name": _format_compact(topology.name)}
    parts["npus"] = _format_compact(names[:npus] or npus)
    if topology.num_nodes > npus:
        parts["switches"] = _format_compact(names[npus:] or topology.num_nodes - npus)
    if topology.dimensions:
        parts["dimensions"] = _format_lines(map(_dimension_to_json, topology.dimensions))
    if topology.groups:
        parts["groups"] = _format_compact(dict(topology.groups))
    for key, switches in (("multicast", topology.multicast), ("reduce", topology.reduction)):
        if switches:
            parts[key] = _format_compact([int(switch) for switch in switches])
    if topology.measured_switches is not None:
        parts["measured_switches"] = _format_compact(
            {
                "switches": list(topology.measured_switches.switches),
                "bytes_per_s": topology.measured_switches.bytes_per_s,
            }
        )
    has_planes = topology.num_planes > 1
    links = (
        {"from": link.source, "to": link.destination, **_constants_to_json(link)}
        | ({"plane": plane} if has_planes else {})
        for link, plane in zip(topology.links(), topology.plane.tolist(), strict=True)
    )
    parts["links"] = _format_lines(links)
    body = ",\n".join(f'  "{key}": {parts[key]}' for key in sorted(parts))
    return f"{{\n{body}\n}}\n".encode("ascii")


def _dimension_to_json(dimension: Dimension) -> JsonObject:
    return {"kind": str(dimension.kind), "size": dimension.size, **_constants_to_json(dimension)}


def _constants_to_json(element: Link | Dimension) -> JsonObject:
    """Return the members `bandwidth_bytes_per_s` and `latency_s` of a link or dimension.

    Values without a fraction and with an absolute value below 2^53 become integers, which
    are written without a fraction and read as the same double. Other numbers stay floats.
    """
    constants = {
        "bandwidth_bytes_per_s": element.bandwidth_bytes_per_s,
        "latency_s": element.latency_s,
    }
    # Both forms are read as the same double.
    return {
        name: int(value) if value == int(value) and abs(value) < 2**53 else value
        for name, value in constants.items()
    }


def _format_compact(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _format_lines(values: Iterable[JsonObject]) -> str:
    """Return a JSON list as text, with one object per line, indented by 4; `[]` without objects.

    The members of each object are sorted by name. The closing bracket is indented by 2.
    """
    rows = ",\n    ".join(map(_format_compact, values))
    return f"[\n    {rows}\n  ]" if rows else "[]"


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Number of NPUs and nodes, and the names that links and groups may use for them."""

    npus: int
    count: int
    names: tuple[str, ...]
    numbers: Mapping[str, int]

    def number(self, value: object, limit: int) -> int:
        """Return the number of the node that `value` gives, either as a number or as a name.

        The result is in 0..`limit`-1. Raises `InputError` without a location for an unknown name,
        for a value that is neither text nor integer (booleans are none), and for a node out of this
        range.
        """
        node = self.numbers.get(value) if isinstance(value, str) else value
        if node is None and isinstance(value, str):
            cure = "name it in npus or switches"
            raise InputError(f"no node is named {value[:80]!r}", cure=cure)
        if type(node) is not int:
            raise InputError(f"expected a node's number or name, got {TYPE_NAMES[type(value)]}")
        if not 0 <= node < limit:
            shown = value if node < 2**63 else "2^63 or more"
            raise InputError(f"node {shown} is not in 0..{limit - 1}")
        return node


def _build_topology(file: str, root: JsonObject, links: list[object] | None) -> Topology:
    nodes = _read_nodes(file, root)
    name = root.get("name", file)
    dimensions = tuple(
        _build_at(file, f"$.dimensions[{row}]", _read_dimension, entry)
        for row, entry in enumerate(root.get("dimensions", []))
    )
    regular = _build_at(file, "$.dimensions", grid, name, dimensions) if dimensions else None
    if links is not None:
        link_columns = _read_links(file, links, nodes)
    elif regular is not None:
        link_columns = Links(*(getattr(regular, column) for column in _LINK_COLUMNS))
    else:
        _fail(file, "$", "links are missing", "state links, or dimensions")
    groups = {
        group: tuple(
            _build_at(file, f"$.groups.{group}[{row}]", nodes.number, member, nodes.npus)
            for row, member in enumerate(members)
        )
        for group, members in root.get("groups", {}).items()
    }
    build = partial(
        link_columns.topology, dimensions=dimensions, node_names=nodes.names, groups=groups
    )
    plain = _build_at(file, "$", build, name, nodes.npus, nodes.count)
    multicast, reduction = (
        _read_switches(file, root, key, nodes) for key in ("multicast", "reduce")
    )
    measured = _read_measured_switches(file, root, nodes)
    topology: Topology = _build_at(
        file,
        "$",
        replace,
        plain,
        multicast=multicast,
        reduction=reduction,
        measured_switches=measured,
    )
    differences = set() if regular is None else set(regular.differences(plain))
    if differences - {"link_order", "node_names", "groups"}:
        message = "these are not the nodes and links that are stated"
        _fail(file, "$.dimensions", message, "leave dimensions out")
    return topology


def _read_switches(file: str, root: JsonObject, key: str, nodes: _Nodes) -> tuple[int, ...]:
    """Return the nodes listed under `key`, ascending and without repetition.

    `true` means all switches; `false` or no key means none. NPUs in a list are not refused here.
    Raises `InputError` (`invalid-topology`) with the JSON path `$.key` for an unknown node.
    """
    listed = root.get(key, False)
    if isinstance(listed, bool):
        listed = range(nodes.npus, nodes.count) if listed else []
    path = f"$.{key}"
    return tuple(
        sorted({_build_at(file, path, nodes.number, entry, nodes.count) for entry in listed})
    )


def _read_measured_switches(file: str, root: JsonObject, nodes: _Nodes) -> MeasuredSwitches | None:
    """Return the switches that multicast and reduce at a measured rate, None without the member.

    The member `measured_switches` of `root` must match the schema. Node numbers are ascending and
    not repeated; the rate is in bytes/s, at most `_MAX_CONSTANT`, which replaces higher rates.
    Raises `InputError` with the JSON path for an entry that is no node of the topology.
    """
    entry = root.get("measured_switches")
    if entry is None:
        return None
    switches = tuple(
        sorted(
            {
                _build_at(
                    file, f"$.measured_switches.switches[{row}]", nodes.number, one, nodes.count
                )
                for row, one in enumerate(entry["switches"])
            }
        )
    )
    return MeasuredSwitches(switches, float(min(entry["bytes_per_s"], _MAX_CONSTANT)))


def _build_at(
    file: str, path: str, build: Callable[..., _Result], *arguments: object, **named: object
) -> _Result:
    """Return `build(*arguments, **named)`; a `HubError` becomes one at `path` of the document.

    The new error has message and cure of the first diagnostic only.
    """
    try:
        return build(*arguments, **named)
    except HubError as error:
        finding = error.diagnostics[0]
        _fail(file, path, finding.message, finding.cure)


def _read_nodes(file: str, root: JsonObject) -> _Nodes:
    """Read NPUs and switches of a topology document; NPUs are numbered first, from 0.

    `root` must match the schema. `npus` and `switches` are counts or lists of names; missing
    switches are 0. The result has the number of NPUs, the number of all nodes, all names in the
    order of the nodes, and the node number by name (of equal names, that of the last node).

    - If only one of both is a list, nodes of the other get default names: the number of an NPU
      (`"3"`), or `switch K` with K from 0.
    - If neither is a list, `names` is () and no node can be given by name.

    Raises `InputError` (`invalid-topology`) at `$.npus` for more than `MAX_NODES` (2^20) NPUs. The
    number of switches is not checked.
    """
    npus, switches = root["npus"], root.get("switches", 0)
    npu_count = len(npus) if isinstance(npus, list) else npus
    switch_count = len(switches) if isinstance(switches, list) else switches
    if npu_count > MAX_NODES:
        _fail(file, "$.npus", f"{npu_count} NPUs are more than {MAX_NODES}")
    names: list[str] = []
    if isinstance(npus, list) or isinstance(switches, list):
        names += npus if isinstance(npus, list) else map(str, range(npus))
        numbered = (f"switch {index}" for index in range(switch_count))
        names += switches if isinstance(switches, list) else numbered
    numbers = {name: node for node, name in enumerate(names)}
    return _Nodes(npu_count, npu_count + switch_count, tuple(names), numbers)


def _read_dimension(entry: JsonObject) -> Dimension:
    return Dimension(DimensionKind(entry["kind"]), entry["size"], *_read_constants(entry))


def _read_links(file: str, entries: list[object], nodes: _Nodes) -> Links:
    if len(entries) > MAX_LINKS:
        _fail(file, "$.links", f"{len(entries)} links are more than {MAX_LINKS}")
    rows: list[_Row] = []
    for index, entry in enumerate(entries):
        try:
            rows += _read_link(entry, nodes)
        except HubError as error:
            _fail(file, f"$.links[{index}]", str(error))
    sources, destinations, rates, latencies, planes = zip(*rows, strict=True) if rows else [()] * 5
    return Links(
        np.asarray(sources, np.int64),
        np.asarray(destinations, np.int64),
        np.asarray(rates, np.float64),
        np.asarray(latencies, np.float64),
        np.asarray(planes, np.int64),
    )


def _read_link(entry: object, nodes: _Nodes) -> list[_Row]:
    """Return the rows of one entry of the list of links: one row, or two if it is duplex.

    A row is (source, destination, bandwidth in bytes/s, latency in s, plane); source and
    destination are node numbers, the plane is 0 and `duplex` false by default. The second row of a
    duplex link is the opposite direction. Raises `InputError` without a location for the first
    defect: an entry that is no object, unknown keys, a missing `from` or `to`, unknown nodes, a
    link from a node to itself, an invalid or missing bandwidth or latency, a `duplex` that is no
    boolean, a plane that is no integer or is outside 0..`MAX_LINKS` - 1.
    """
    if not isinstance(entry, dict):
        raise InputError(f"expected an object, got {TYPE_NAMES[type(entry)]}")
    if unknown := entry.keys() - _LINK_KEYS:
        raise InputError(f"unknown key {min(unknown)[:80]!r}")
    if "from" not in entry or "to" not in entry:
        raise InputError("'from' and 'to' are needed")
    source = nodes.number(entry["from"], nodes.count)
    destination = nodes.number(entry["to"], nodes.count)
    if source == destination:
        raise InputError(f"the link joins node {source} to itself")
    constants = _read_constants(entry)
    duplex = entry.get("duplex", False)
    if type(duplex) is not bool:
        raise InputError(f"duplex: expected true or false, got {TYPE_NAMES[type(duplex)]}")
    plane = entry.get("plane", 0)
    if type(plane) is not int or not 0 <= plane < MAX_LINKS:
        raise InputError("plane: expected a number from 0 on")
    forward = (source, destination, *constants, plane)
    return [forward, (destination, source, *constants, plane)] if duplex else [forward]


def _read_constants(entry: JsonObject) -> tuple[float, float]:
    """Return (bandwidth in bytes/s, latency in s) of a link or dimension.

    The bandwidth is the member `bandwidth` (text with a unit) or `bandwidth_bytes_per_s` (number);
    the latency is `latency` or `latency_s`. Raises `InputError` without a location if both or none
    of two such members are present, for a wrong type, for a bandwidth outside ]0, 1e18[, and for a
    latency outside [0, 1e18[. Raises `UsageError` for a text that is no quantity.
    """
    bandwidth = _read_quantity(entry, "bandwidth", "bandwidth_bytes_per_s", parse_bandwidth)
    latency = _read_quantity(entry, "latency", "latency_s", parse_time)
    if not 0 < bandwidth < _MAX_CONSTANT:
        raise InputError("the bandwidth is not above 0 and below 1e18 bytes/s")
    if not 0 <= latency < _MAX_CONSTANT:
        raise InputError("the latency is negative or not below 1e18 s")
    return bandwidth, latency


def _read_quantity(
    entry: JsonObject, text_key: str, number_key: str, parse: Callable[[str], float]
) -> float:
    """Read a quantity from one of two members: a text with a unit, or a number without one.

    `text_key`, `number_key`: names of the members, of which the entry must have exactly one.
    A text is converted by `parse`, unchanged; its `UsageError` passes through. Numbers above
    `_MAX_CONSTANT` (1e18) become that limit; negative ones are not refused here.
    Raises `InputError` for none or both members, and for other types, also for booleans.
    """
    if (text_key in entry) == (number_key in entry):
        both = f"{text_key!r} (text with a unit) and {number_key!r} (number)"
        raise InputError(f"exactly one of {both} is needed")
    if text_key in entry:
        text = entry[text_key]
        if isinstance(text, str):
            return parse(text)
        raise InputError(f"{text_key}: expected a string, got {TYPE_NAMES[type(text)]}")
    number = entry[number_key]
    # A bool is an int in Python, but not in JSON.
    if type(number) not in (int, float):
        raise InputError(f"{number_key}: expected a number, got {TYPE_NAMES[type(number)]}")
    # JSON integers may have any length; the limit keeps them within a double.
    return float(min(number, _MAX_CONSTANT))


def _fail(file: str, path: str, message: str, cure: str = "") -> NoReturn:
    location = Location(file)
    raise InputError(f"{path}: {message}", location=location, cure=cure, code="invalid-topology")
