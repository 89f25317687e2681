"""Read the network JSON of ASTRA-sim 1, which also its analytical backend of 2020 to 2023 reads.

Every list has one entry per dimension. Sources: the README files, `NetworkConfigParser` and
`HierarchicalTopology` of astra-sim/astra-network-analytical (MIT); its networks in astra-sim 1.0.

- `topologies-per-dim`: Ring, FullyConnected (earlier: AllToAll) or Switch. Earlier files have the
  kinds in `topology-name` (`Ring_AllToAll_Switch`, `Torus2D`) instead.
- `units-count` (earlier `nodes-per-dim`): NPUs; `dimensions-count` (earlier `dims-count`).
- `link-bandwidth`: of one link in GB/s, 10^9 bytes (the simulator divides bytes by it to get ns).
- `links-count`: links of an NPU in the dimension. A ring has half of them to each neighbour, a full
  mesh an equal number to each other NPU, a switch all of them. Without it there is one link.
- `link-latency`, `nic-latency`, `router-latency` in ns. A message has the latency of every link of
  its route, the NIC latency at both ends, and at a switch the latency of the router.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from collhub_networks import DocumentValue, NetworkFindings, document_of

from hub_core.model import Location, UsageError
from hub_core.network import Dimension, DimensionKind, Topology, grid
from hub_core.plugin_api import NoOptions, Source

CODE = "invalid-network-json"
_KINDS = {
    "ring": DimensionKind.RING,
    "fullyconnected": DimensionKind.FULLY_CONNECTED,
    "alltoall": DimensionKind.FULLY_CONNECTED,
    "switch": DimensionKind.SWITCH,
}
_KIND_NAMES = "Ring, FullyConnected (or AllToAll), Switch"
_TORUS = re.compile(r"torus([1-9])d\Z|torus\Z")
# `topology-name` of files with `topologies-per-dim`.
_HIERARCHICAL = "hierarchical"
_MAX_SIZE = 10**7 - 1
_MAX_LINKS_PER_NPU = 10**6
_MAX_BANDWIDTH = 1e9  # GB/s
_MAX_LATENCY = 1e18  # ns
_KNOWN_KEYS = frozenset(
    (
        "topology-name", "topologies-per-dim", "dimension-type", "dimensions-count", "dims-count",
        "units-count", "nodes-per-dim", "links-count", "link-latency", "link-bandwidth",
        "nic-latency", "router-latency", "hbm-latency", "hbm-bandwidth", "hbm-scale",
        "use-fast-version",
    )
)  # fmt: skip


class _DimensionRow(NamedTuple):
    """One dimension as the file states it; values that are missing are None."""

    kind: DimensionKind
    units: int
    bandwidth: DocumentValue
    latency: DocumentValue | None
    links: DocumentValue | None
    nic_latency: DocumentValue | None
    router_latency: DocumentValue | None


def read(source: Source, options: NoOptions) -> Topology:
    """Read the topology that a network JSON of ASTRA-sim 1 describes.

    The network is the product of the dimensions of the file, or of its `topology-configuration` if
    it has one. Parallel links become one link with the sum of their bandwidths. Latencies of NICs
    and routers are added to those of links (`_build_dimension`).

    The report of `source` gets a note if a ring of more than 2 NPUs states its links: the simulator
    gives a message the bandwidth of all links of an NPU, the topology only that of the links to one
    neighbour. Warnings: links that do not divide evenly among neighbours (the rest is dropped), NIC
    latency in a ring of more than 3 NPUs, memory (`hbm-scale` not 0), unknown keys.

    Raises `InputError` (`invalid-network-json`) for `logical-dims`, which have no links, for
    missing or invalid values, and for networks that are too large for `grid`.
    """
    del options
    root = document_of(source, CODE)
    root = root.get("topology-configuration") or root
    if root.get("logical-dims") is not None:
        message = "logical dimensions for ASTRA-sim with ns-3 are no network"
        root.fail(message, "read the text file with nodes and links that TOPOLOGY_FILE names")
    findings = NetworkFindings()
    dimensions = [
        _build_dimension(index, row, root, findings) for index, row in enumerate(_rows(root))
    ]
    _warn_of_ignored(root, findings)
    try:
        topology = grid(source.name, dimensions)
    except UsageError as error:
        root.fail(error.diagnostics[0].message, error.diagnostics[0].cure)
    findings.tell(source.report)
    return topology


def samples() -> Sequence[Source]:
    """Return two small valid files in memory, as samples for the conformance tests of the reader.

    1. `nodes.json`: two dimensions, groups of 4 fully connected NPUs, and switches that join the 2
       groups; with bandwidths and latencies per dimension
    2. `torus.json`: a square torus of 9 NPUs in the older form of the file
    """
    hierarchical = (
        '{\n  "topology-name": "Hierarchical",\n'
        '  "topologies-per-dim": ["FullyConnected", "Switch"],\n  "dimension-type": ["N", "P"],\n'
        '  "dimensions-count": 2,\n  "units-count": [4, 2],\n  "links-count": [6, 1],\n'
        '  "link-latency": [300, 700],\n  "link-bandwidth": [20, 12.5]\n}\n'
    )
    torus = (
        '{\n  "topology-name": "Torus2D",\n  "dims-count": 1,\n  "nodes-per-dim": 9,\n'
        '  "link-bandwidth": 25,\n  "link-latency": 500,\n  "hbm-scale": 0\n}\n'
    )
    texts = {"nodes.json": hierarchical, "torus.json": torus}
    return [Source.of_bytes(name, text.encode("ascii")) for name, text in texts.items()]


def _rows(root: DocumentValue) -> Iterator[_DimensionRow]:
    """Yield the dimensions of the network in the order of the file; values are not converted.

    A torus of n dimensions in a single entry gives n equal rows, rings of a side each: 9 NPUs of
    `Torus2D` give two rings of 3. Missing optional values (latency, links, NIC and router latency)
    are None.

    Raises `InputError` for missing keys, for an unknown kind, for a torus whose NPUs form no square
    or cube, for a wrong number of dimensions (`dimensions-count`, `dims-count`), and for lists with
    another number of entries than the file has dimensions.
    """
    is_old = root.get("units-count") is None and root.get("nodes-per-dim") is not None
    units = _entries(root, "nodes-per-dim" if is_old else "units-count")
    count = len(units)
    for key in ("dimensions-count", "dims-count"):
        stated = root.get(key)
        if stated is not None and stated.count(_MAX_SIZE) != count:
            stated.fail(f"{stated.raw} dimensions, and {count} numbers of NPUs", "correct one")
    columns: list[Sequence[DocumentValue | None]] = []
    for key in ("link-latency", "links-count", "nic-latency", "router-latency"):
        is_missing = root.get(key) is None
        columns.append([None] * count if is_missing else _entries(root, key, count))
    bandwidths = _entries(root, "link-bandwidth", count)
    for index, name in enumerate(_kind_names(root, count)):
        latency, links, nic, router = (column[index] for column in columns)
        size = units[index].count(_MAX_SIZE)
        for kind, side in _parse_kind(name, size, units[index]):
            yield _DimensionRow(kind, side, bandwidths[index], latency, links, nic, router)


def _kind_names(root: DocumentValue, count: int) -> list[DocumentValue]:
    """Return the name of the kind of each of `count` dimensions, with its place in the file.

    1. The entries of `topologies-per-dim`, if the file has this member.
    2. If `topology-name` is `Torus`, or `Torus1D` to `Torus9D`, in any case of letters, and
       `count` is above 1: `Ring` for every dimension.
    3. Otherwise the parts of `topology-name` between underscores.

    The names are not checked here. Raises `InputError` in these cases:

    - Both members are missing.
    - `topologies-per-dim` is missing, and `topology-name` is `hierarchical`, in any case of
      letters.
    - The number of entries or parts, or the number in the name of the torus, is not `count`.
    """
    if root.get("topologies-per-dim") is not None:
        return _entries(root, "topologies-per-dim", count)
    name = root["topology-name"]
    if name.text().lower() == _HIERARCHICAL:
        root.fail("'topologies-per-dim' is missing", f"list the kinds: {_KIND_NAMES}")
    parts = name.text().split("_")
    torus = _TORUS.match(parts[0].lower()) if len(parts) == 1 else None
    if torus is not None and count > 1:
        if torus[1] is not None and int(torus[1]) != count:
            name.fail(f"{name.raw} has {torus[1]} dimensions, and the file {count}", "correct one")
        parts = ["Ring"] * count
    if len(parts) != count:
        message = f"{len(parts)} kinds of networks for {count} dimensions"
        name.fail(message, f"name one per dimension, joined by underscores: {_KIND_NAMES}")
    return [DocumentValue(name.file, part, name.path, name.code) for part in parts]


def _parse_kind(
    name: DocumentValue, size: int, units: DocumentValue
) -> list[tuple[DimensionKind, int]]:
    """Return kind and size of the dimensions that a name stands for.

    Names are Ring, FullyConnected, AllToAll (the same) and Switch, for one dimension of `size`
    NPUs; case, `-` and `_` are ignored. `TorusND` (N from 1 to 9, any case) gives N rings of equal
    size, `Torus` gives two: 9 NPUs of `Torus2D` are two rings of 3. Raises `InputError` at `name`
    for other names, and at `units` if `size` is no N-th power.
    """
    text = name.text()
    kind = _KINDS.get(text.lower().replace("-", "").replace("_", ""))
    if kind is not None:
        return [(kind, size)]
    torus = _TORUS.match(text.lower())
    if torus is None:
        name.fail(f"{text[:40]!r} is no kind of network", f"use one of {_KIND_NAMES}")
    rings = int(torus[1] or 2)
    side = round(size ** (1 / rings))
    if side**rings != size:
        message = f"{size} NPUs do not form a torus with {rings} sides of equal length"
        units.fail(message, "write Ring once per dimension, with the length of each side")
    return [(DimensionKind.RING, side)] * rings


def _build_dimension(
    index: int, row: _DimensionRow, root: DocumentValue, findings: NetworkFindings
) -> Dimension:
    """Convert a dimension from GB/s and ns to bytes/s and s.

    The bandwidth is multiplied by the number of parallel links to each neighbour
    (`_parallel_links`; 1 if links are not given). The latency is that of the link, plus on a switch
    the NIC latency and half the router latency, otherwise twice the NIC latency. A missing latency
    is 0.

    `findings` get, in this order, `index` naming the dimension:

    - a warning if a ring of more than 3 units has NIC latency
    - a warning if links do not divide evenly among the neighbours
    - a note for a ring of more than 2 units with links

    Raises `InputError` for a bandwidth that is not above 0 and below 1e9 GB/s, a latency that is
    negative or at least 1e18 ns, a value that is no number, and fewer links than neighbours.
    """
    bandwidth = float(row.bandwidth.number())
    # Written so that NaN fails, too.
    if not 0 < bandwidth < _MAX_BANDWIDTH:
        row.bandwidth.fail("a bandwidth in GB/s above 0 was expected", "correct the number")
    latency = _latency(row.latency)
    nic, router = _latency(row.nic_latency), _latency(row.router_latency)
    if row.kind is DimensionKind.SWITCH:
        latency += nic + router / 2
    else:
        latency += 2 * nic
        if nic and row.kind is DimensionKind.RING and row.units > 3:
            message = (
                f"dimension {index}: the NIC latency is part of every link of the ring, and counts "
                "once per link of a route; ASTRA-sim counts it once per message"
            )
            findings.warn("nic-latency", Location(root.file), message, subject=str(index))
    scale = _parallel_links(row, findings)
    if row.links is not None and row.kind is DimensionKind.RING and row.units > 2:
        message = (
            f"dimension {index}: a message has the bandwidth of the links to one neighbour; "
            "ASTRA-sim 1 gives it that of all links of the NPU"
        )
        findings.note("ring-bandwidth", Location(root.file), message, subject="ring")
    return Dimension(row.kind, row.units, bandwidth * 1e9 * scale, latency / 1e9)


def _parallel_links(row: _DimensionRow, findings: NetworkFindings) -> int:
    """Return the number of parallel links between two neighbours, from the links of an NPU.

    It is the number of links divided by the number of neighbours, rounded down. In a
    dimension of n units, an NPU has this number of neighbours:
    - switch: 1
    - ring: 2, or 1 if n is 2
    - other kinds: n - 1

    If links do not divide evenly, the rest is left out, and the warning `links-count` is
    added to `findings`. Returns 1 if the file has no number of links or n is 1. Raises
    `InputError` for fewer links than neighbours, and for a number of links that is no
    integer up to 10^6.
    """
    if row.links is None or row.units == 1:
        return 1
    links = row.links.count(_MAX_LINKS_PER_NPU)
    neighbours = {DimensionKind.SWITCH: 1, DimensionKind.RING: min(2, row.units - 1)}.get(
        row.kind, row.units - 1
    )
    parallel, rest = divmod(links, neighbours)
    if not parallel:
        message = f"{links} links of an NPU for {neighbours} neighbours"
        row.links.fail(message, f"write a multiple of {neighbours}")
    if rest:
        message = (
            f"{row.links.path}: {links} links do not divide among {neighbours} neighbours: "
            f"{rest} are left out, as in ASTRA-sim"
        )
        cure = f"write a multiple of {neighbours}"
        findings.warn("links-count", Location(row.links.file), message, cure)
    return parallel


def _latency(value: DocumentValue | None) -> float:
    """Return a latency in ns as a float; 0.0 if `value` is None.

    Numbers and texts of numbers are accepted. Raises `InputError` unless 0 <= latency <
    1e18, and for a value that is no number.
    """
    if value is None:
        return 0.0
    latency = float(value.number())
    if not 0 <= latency < _MAX_LATENCY:
        value.fail("a latency in ns of at least 0 was expected", "correct the number")
    return latency


def _warn_of_ignored(root: DocumentValue, findings: NetworkFindings) -> None:
    """Add warnings to `findings` for keys that are unknown or have no effect here, in this order.

    - `unknown-keys`: all keys of the file outside `_KNOWN_KEYS`, in one warning. The list of names
      is cut to 200 characters.
    - `memory`: a number of `hbm-scale` (a number or a list) is not 0. In ASTRA-sim the memory then
      limits the time of messages, but a topology has no memory.

    Both are at the file, without a line. Raises `InputError` if `hbm-scale` is an empty list, or
    has a value that is no number before any number other than 0; later values are not read.
    """
    place = Location(root.file)
    unknown = [key for key, _ in root.entries() if key not in _KNOWN_KEYS]
    if unknown:
        findings.warn("unknown-keys", place, f"keys without effect: {', '.join(unknown)[:200]}")
    scale = root.get("hbm-scale")
    if scale is not None and any(value.number() for value in _entries(root, "hbm-scale")):
        message = (
            "hbm-scale is not 0: in ASTRA-sim a message takes at least the time of the memory; a "
            "topology has no memory"
        )
        findings.warn("memory", place, message)


def _entries(root: DocumentValue, key: str, count: int | None = None) -> list[DocumentValue]:
    """Return the values at a key; a value that is no list gives a list of this one value.

    Raises `InputError` if the key is absent or its value is null, and for an empty list. With
    `count`, any other number of values is also an error.
    """
    value = root[key]
    entries = list(value.items()) if isinstance(value.raw, list) else [value]
    if not entries or (count is not None and len(entries) != count):
        expected = "at least one" if count is None else str(count)
        value.fail(f"{len(entries)} values; {expected} expected", "write one value per dimension")
    return entries
