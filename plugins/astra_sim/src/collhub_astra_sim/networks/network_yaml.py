"""ASTRA-sim's network YAML, written exactly and read back, and the networks that it can express.

Source: `NetworkParser` of ASTRA-sim's astra-network-analytical. Four keys have one entry per
dimension: its kind, its NPUs, its bandwidth in GiB/s and its latency in ns. There are no link
lists: a network is a product of rings, switches and full meshes. But a full mesh has a private link
per ordered pair of NPUs, so an algorithm that sends only along existing links of any graph with
uniform links takes the same time there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import InputError, Location, Loss, UsageError, parse_whole
from hub_core.network import Dimension, DimensionKind, Topology, grid
from hub_core.plugin_api import NoOptions, Source

if TYPE_CHECKING:
    from yaml import MappingNode

KIND_NAMES = {
    DimensionKind.RING: "Ring",
    DimensionKind.FULLY_CONNECTED: "FullyConnected",
    DimensionKind.SWITCH: "Switch",
}
_KINDS = {name: kind for kind, name in KIND_NAMES.items()}
_KEYS = ("topology", "npus_count", "bandwidth", "latency")
# The simulator calls the unit GB/s and multiplies by 2^30.
_GIB = 1 << 30
_LONGEST_FILE = 1 << 20
# Of the NPUs of a dimension; larger worlds are refused when the topology is built.
_MAX_SIZE = 10**7 - 1
_ENTRY = r"[A-Za-z0-9][A-Za-z0-9.+_-]*"
# A key with a value or a list of values, a comment, or both.
_PLAIN_LINE = re.compile(
    rf"(?:(?P<key>[A-Za-z][A-Za-z0-9_-]*): +"
    rf"(?:\[ *(?P<entries>{_ENTRY}(?: *, *{_ENTRY})*) *\]|(?P<entry>{_ENTRY})))?"
    r"(?: +| *(?:(?<= )|^)#[ -~]*)?"
)


class _Scalar(NamedTuple):
    """A value of the file as text, and its line from 1."""

    text: str
    line: int


def format_network(dimensions: Sequence[Dimension]) -> str:
    """Return a network YAML: one line each for topology, npus_count, bandwidth and latency.

    Each line is a list with one entry per dimension, in the given order, such as `topology: [ Ring,
    Switch ]`. The words of `topology` are Ring, FullyConnected and Switch. Bandwidths are in GiB/s
    (2^30 bytes/s), in the fewest digits that read back exactly. Latencies are in ns, rounded to
    1e-6 ns. Numbers have no exponent. The text ends with a newline. Raises `KeyError` for any other
    kind of dimension, such as a line.
    """
    columns = {
        "topology": [KIND_NAMES[dimension.kind] for dimension in dimensions],
        "npus_count": [str(dimension.size) for dimension in dimensions],
        # GiB/s: division by a power of two is exact, so the simulator's product is the bandwidth.
        "bandwidth": [
            _format_decimal(dimension.bandwidth_bytes_per_s / _GIB) for dimension in dimensions
        ],
        "latency": [
            _format_decimal(round(dimension.latency_s * 1e9, 6)) for dimension in dimensions
        ],
    }
    return "".join(f"{key}: [ {', '.join(values)} ]\n" for key, values in columns.items())


def _format_decimal(value: float) -> str:
    """Return the shortest digits that represent the same double, without an exponent."""
    # YAML 1.1 reads 1e-06 as text.
    return format(Decimal(repr(value)), "f")


def read(source: Source, options: NoOptions) -> Topology:
    """Return the topology that a network YAML of ASTRA-sim describes.

    Required are `topology` (Ring, FullyConnected or Switch), `npus_count`, `bandwidth` in GiB/s and
    `latency` in ns. Each has one entry per dimension, in order of the dimensions (a single value is
    a list of one). Other keys are ignored. The topology is built by `grid`; its name is that of the
    source.

    Raises `InputError` (`invalid-network-yaml`), with the line if it is known:

    - for a file above 1 MiB, or one that is no YAML mapping
    - for a missing or repeated key of these four (of several reasons, the first in the file)
    - for empty lists, and lists of different lengths
    - for invalid entries (`_build_dimension`)
    - for networks that are too large for `grid`

    Raises `UsageError` if the source has several files. `options` are ignored.
    """
    del options
    name, content = source.name, source.content()
    if len(content) > _LONGEST_FILE:
        _fail(name, None, "the file is larger than 1 MiB, a network YAML has four lines")
    values = _parse_plain_values(content) or _collect_values(name, _parse_yaml(name, content))
    lengths = {key: len(values[key]) for key in _KEYS}
    cure = "write one value per dimension in every list"
    if not any(lengths.values()):
        _fail(name, None, "the lists are empty", cure)
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {length}" for key, length in lengths.items())
        _fail(name, None, f"the lists differ in length: {listed}", cure)
    entries = zip(*(values[key] for key in _KEYS), strict=True)
    dimensions = [_build_dimension(name, *entry) for entry in entries]
    try:
        return grid(name, dimensions)
    except UsageError as error:
        diagnostic = error.diagnostics[0]
        _fail(name, None, diagnostic.message, diagnostic.cure)


def samples() -> Sequence[Source]:
    """Return small correct files for the conformance kit.

    A ring of 8 NPUs, and two such rings whose NPUs are connected in pairs by switches.
    """
    ring = Dimension(DimensionKind.RING, 8, 50.0 * _GIB, 500e-9)
    switch = Dimension(DimensionKind.SWITCH, 2, 25.0 * _GIB, 1e-6)
    texts = {
        "ring.yml": format_network([ring]),
        "ring-switch.yml": format_network([ring, switch]),
    }
    return [Source.of_bytes(name, text.encode("ascii")) for name, text in texts.items()]


def _parse_plain_values(content: bytes) -> dict[str, list[_Scalar]] | None:
    """Parse a simple network YAML without a YAML library; None if only the library can parse it.

    Importing the library takes 0.03 s. Simple lines are, each without indentation:

    - `key: value` or `key: [ value, value ]`. A key is an ASCII letter, followed by letters,
      digits and `_-`. A value is a letter or digit, followed by letters, digits and `.+_-`.
    - empty lines and comments in ASCII; a comment may also follow a value and a blank

    Returns the entries by key, each with its line from 1, in the order of the file. Keys outside
    of `_KEYS` are included. A single value is a list of one. None for any other line (such as one
    with quotes, or `key: []`), a repeated key, and if a key of `_KEYS` is missing. Raises no
    exception.
    """
    values: dict[str, list[_Scalar]] = {}
    lines = content.decode("ascii", "replace").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        match = _PLAIN_LINE.fullmatch(line)
        if match is None:
            return None
        key, entries, entry = match["key"], match["entries"], match["entry"]
        if key is None:
            continue
        if key in values:
            return None
        texts = [entry] if entries is None else [text.strip() for text in entries.split(",")]
        values[key] = [_Scalar(text, number) for text in texts]
    return values if values.keys() >= set(_KEYS) else None


def _parse_yaml(name: str, content: bytes) -> MappingNode:
    """Return the mapping at the root of the document, as YAML nodes with line numbers.

    Content that begins with "{" after white space is JSON; all its tabs are replaced by blanks,
    because YAML allows none. Keys are not checked; they may occur twice.

    Raises `InputError` (`invalid-network-yaml`) if the content is not UTF-8, not YAML (with the
    line if the parser reports one), nested too deeply for Python's recursion limit, or several
    documents. It also raises it if the root is not a mapping, as in an empty document.
    """
    # Imported here, because most conversions read no YAML.
    import yaml

    # JSON is YAML except for tabs, with which many programs indent it.
    if content.lstrip().startswith(b"{"):
        content = content.replace(b"\t", b" ")
    try:
        root = yaml.compose(content.decode("utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        _fail(name, line, f"this is not YAML: {error.problem}")
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        first_line = str(error).splitlines()[0]
        _fail(name, None, f"this is not YAML: {first_line}")
    if not isinstance(root, yaml.MappingNode):
        _fail(name, None, f"this is not a network YAML: {', '.join(_KEYS)} were expected")
    return root


def _collect_values(name: str, root: MappingNode) -> dict[str, list[_Scalar]]:
    """Return the entries of `topology`, `npus_count`, `bandwidth` and `latency`, each as a list.

    The keys are in the order of the file, each entry has its line from 1. A single value counts as
    a list of one. Other keys are ignored, as in ASTRA-sim, also if they are repeated or have any
    contents.

    Raises `InputError` (`invalid-network-yaml`), at the first of these that occurs in the file: one
    of the four keys is repeated, or an entry of its list is a list or a map. If none occurs, it is
    raised without a line if one of the four keys is missing.
    """
    entries_by_key: dict[str, list[_Scalar]] = {}
    for key_node, value_node in root.value:
        key = str(key_node.value)
        if key in entries_by_key:
            line = key_node.start_mark.line + 1
            _fail(name, line, f"the key {key[:80]!r} occurs twice")
        # Other keys are ignored, as in ASTRA-sim.
        if key not in _KEYS:
            continue
        entries_by_key[key] = []
        for entry in value_node.value if value_node.id == "sequence" else [value_node]:
            line = entry.start_mark.line + 1
            # The value of a list or a map is a list.
            if not isinstance(entry.value, str):
                _fail(name, line, f"{key}: one value, or a list of values, was expected")
            entries_by_key[key].append(_Scalar(entry.value, line))
    missing = [key for key in _KEYS if key not in entries_by_key]
    if missing:
        cure = "see `network.yml` of a folder written by the hub"
        _fail(name, None, f"missing: {', '.join(missing)}", cure)
    return entries_by_key


def _build_dimension(
    name: str, kind: _Scalar, size: _Scalar, bandwidth: _Scalar, latency: _Scalar
) -> Dimension:
    """Return the dimension that four entries describe, with bandwidth in bytes/s and latency in s.

    The entries are checked in this order; the first invalid one raises `InputError`
    (`invalid-network-yaml`) with its line:

    1. `kind` is Ring, FullyConnected or Switch; case counts.
    2. `size` is a whole number from 1 to 9 999 999 (`_MAX_SIZE`) in ASCII digits.
    3. `bandwidth` is a number above 0 and below 10^9, in GiB/s (2^30 bytes/s).
    4. `latency` is a number from 0 to below 10^18, in ns.

    The last two are parsed by `float`, so exponents are accepted; nan and inf are invalid. `name`:
    of the file, for the error.
    """
    if kind.text not in _KINDS:
        known = ", ".join(_KINDS)
        _fail(name, kind.line, f"topology {kind.text[:80]!r} is not one of {known}")
    npus = parse_whole(size.text, _MAX_SIZE)
    if not npus:
        message = f"npus_count {size.text[:80]!r} is not a whole number of at least 1"
        _fail(name, size.line, message)
    rate, delay = _parse_number(bandwidth.text), _parse_number(latency.text)
    # Written so that NaN fails, too.
    if not 0 < rate < 1e9:
        message = f"bandwidth {bandwidth.text[:80]!r} is not a number of GiB/s above 0"
        _fail(name, bandwidth.line, message)
    if not 0 <= delay < 1e18:
        message = f"latency {latency.text[:80]!r} is not a number of ns of at least 0"
        _fail(name, latency.line, message)
    return Dimension(_KINDS[kind.text], npus, rate * _GIB, delay / 1e9)


def _parse_number(text: str) -> float:
    """Return the number that a text denotes; NaN, which no range contains, if it denotes none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _fail(name: str, line: int | None, message: str, cure: str = "") -> NoReturn:
    """Raise `InputError` (`invalid-network-yaml`) about the file `name`.

    `line`: line of the error, None for the entire file. `cure`: advice, "" for none.
    """
    location = Location(name, line)
    raise InputError(message, location=location, cure=cure, code="invalid-network-yaml")


@dataclass(frozen=True, slots=True)
class AstraNetwork:
    """Dimensions for the network YAML, and the losses of this representation."""

    dimensions: tuple[Dimension, ...]
    losses: tuple[Loss, ...] = ()


def find_astra_network(
    topology: Topology, sources: Int64Array, destinations: Int64Array, *, is_congestion_aware: bool
) -> AstraNetwork:
    """Return ASTRA-sim's network on which the messages take the same times as on a topology.

    `sources`, `destinations`: NPUs of the messages, int64[messages].

    1. If possible, the result has the dimensions of the topology, and no losses. Dimensions of one
       node are left out. Lines and rings of two nodes become full meshes. At least one dimension
       must remain, and with `is_congestion_aware` exactly one. Each must be a ring, switch or full
       mesh. No switch may multicast or reduce. The messages are not examined.
    2. Otherwise it is one full mesh of all NPUs with the bandwidth and latency of the links, and
       one loss. `UsageError` (`inexpressible-topology`) names the first of these conditions that
       does not hold: there are links; no switch multicasts or reduces; there is one plane; all
       links have the same bandwidth; all have the same latency; every message has a direct link
       from its source to its destination. If all hold, but there is only one NPU, `UsageError`
       (`too-few-npus`) is raised.
    """
    dimensions: list[Dimension] = []
    is_plain = not (topology.multicast or topology.reduction)
    for dimension in topology.dimensions if is_plain else ():
        kind = dimension.kind
        # ASTRA-sim has no lines, and its rings need three nodes.
        if dimension.size == 2 and kind in (DimensionKind.LINE, DimensionKind.RING):
            kind = DimensionKind.FULLY_CONNECTED
        # Dimensions of one node do not occur in the network YAML.
        if dimension.size > 1:
            dimensions.append(replace(dimension, kind=kind))
    is_native = bool(dimensions) and all(dimension.kind in KIND_NAMES for dimension in dimensions)
    if is_native and (len(dimensions) == 1 or not is_congestion_aware):
        return AstraNetwork(tuple(dimensions))
    reason = _find_obstacle(topology, sources, destinations)
    if reason:
        raise UsageError(
            f"ASTRA-sim cannot express topology {topology.name}: {reason}",
            cure="use the simulator analytical, which takes every topology, "
            "or ring:N, fully-connected:N, switch:N",
            code="inexpressible-topology",
        )
    # Only algorithms between neighbours have correct times on a full mesh.
    loss = Loss(
        f"topology {topology.name}",
        "network.yml",
        "written as FullyConnected: the times are those of this topology, "
        "because the algorithm sends only between neighbours; "
        "other algorithms would use links that the topology does not have",
    )
    # All links have equal values.
    bandwidth_bytes_per_s = float(topology.bandwidth_bytes_per_s[0])
    latency_s = float(topology.latency_s[0])
    mesh = make_full_mesh(topology.num_npus, bandwidth_bytes_per_s, latency_s)
    return replace(mesh, losses=(loss,))


def make_full_mesh(npus: int, bandwidth_bytes_per_s: float, latency_s: float) -> AstraNetwork:
    """Return a FullyConnected network of one dimension: a link per ordered pair of NPUs.

    All links have the given bandwidth and latency, which are not checked. Raises `UsageError`
    (`too-few-npus`) for fewer than two NPUs.
    """
    if npus < 2:
        message = "ASTRA-sim needs at least two NPUs"
        raise UsageError(message, cure="name a larger topology", code="too-few-npus")
    kind = DimensionKind.FULLY_CONNECTED
    dimension = Dimension(kind, npus, bandwidth_bytes_per_s, latency_s)
    return AstraNetwork((dimension,))


def _find_obstacle(topology: Topology, sources: Int64Array, destinations: Int64Array) -> str | None:
    """Return the first reason why the network cannot be written as a full mesh, or None.

    `sources`, `destinations`: NPUs of all messages. The reasons are checked in this order:

    1. There are no links.
    2. Switches multicast or reduce.
    3. There are several planes.
    4. Links differ in bandwidth, or else in latency; values are compared exactly. The text has the
       smallest and the largest value.
    5. A message has no direct link from its source to its destination. A message to its own
       source counts, too. The text names the NPUs of the first such message.
    """
    if not topology.num_links:
        return "it has no links"
    if topology.multicast or topology.reduction:
        return "its switches multicast or reduce"
    if topology.num_planes > 1:
        planes = topology.num_planes
        return f"it has {planes} planes, and ASTRA-sim routes all messages over one network"
    columns = (
        ("bandwidth", topology.bandwidth_bytes_per_s / 1e9, "GB/s"),
        ("latency", topology.latency_ns, "ns"),
    )
    for name, values, unit in columns:
        minimum, maximum = values.min(), values.max()
        if minimum != maximum:
            return f"its links differ in {name} ({minimum:g} to {maximum:g} {unit})"
    # A number for each pair of nodes, so that pairs can be looked up in a sorted array.
    nodes = topology.num_nodes
    links = topology.source * nodes + topology.destination
    pairs = sources * nodes + destinations
    without_link = np.flatnonzero(~np.isin(pairs, links))
    if not len(without_link):
        return None
    first = int(without_link[0])
    source = topology.node_name(int(sources[first]))
    destination = topology.node_name(int(destinations[first]))
    return f"the algorithm sends from NPU {source} to NPU {destination}, which are no neighbours"
