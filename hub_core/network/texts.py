"""Builders of well-known networks, and the one text form in which the command line names them."""

from __future__ import annotations

import difflib
import itertools
import math
import operator
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hub_core.model.diagnostics import UsageError
from hub_core.model.quantities import parse_bandwidth, parse_time
from hub_core.model.rank_lists import parse_ranks
from hub_core.network.machines import (
    DGX1P,
    DGX1V,
    DGX1V_SMI,
    Lanes,
    direct_machine,
    mi250,
    nic_cluster,
    nvswitch_cluster,
    pcie_dgx1,
)
from hub_core.network.switched import Constants, dragonfly, fat_tree, rail
from hub_core.network.topology import PLANE_SEPARATOR, Dimension, DimensionKind, Links, Topology

Int64Array = npt.NDArray[np.int64]

DEFAULT_BANDWIDTH_BYTES_PER_S = 50e9
DEFAULT_LATENCY_S = 500e-9
MAX_NODES = 1 << 20
MAX_LINKS = 1 << 24
MAX_TEXT = 1000
MAX_DIMENSIONS = 32
MAX_ORDER = 19
_CLASSES = "classes of links"

_Builder = Callable[["_Request"], Topology]

_DIMENSIONS = {
    "line": DimensionKind.LINE,
    "ring": DimensionKind.RING,
    "fully-connected": DimensionKind.FULLY_CONNECTED,
    "fc": DimensionKind.FULLY_CONNECTED,
    "switch": DimensionKind.SWITCH,
}


class _Request:
    """A parsed topology text: builder name, its argument, and the stated bandwidths and latencies."""

    def __init__(self, text: str) -> None:
        self.text = _without_npus(text)
        shape, _, query = text.partition("?")
        self.name, _, self.argument = shape.partition(":")
        stated = self._stated(query)
        self.bandwidths = tuple(parse_bandwidth(part) for part in stated.get("bandwidth", []))
        self.latencies = tuple(parse_time(part) for part in stated.get("latency", []))
        self.npus = parse_ranks(",".join(stated["npus"])) if "npus" in stated else None

    def _stated(self, query: str) -> dict[str, list[str]]:
        stated: dict[str, list[str]] = {}
        for item in filter(None, query.split("&")):
            key, _, value = item.partition("=")
            if key not in ("bandwidth", "latency", "npus"):
                raise self.error(
                    f"unknown key {key!r}", "use bandwidth=..., latency=... and npus=..."
                )
            if key in stated:
                raise self.error(
                    f"{key} is stated twice", "separate the values of several dimensions by commas"
                )
            stated[key] = value.split(",")
        return stated

    def error(self, message: str, cure: str) -> UsageError:
        """An error that names the topology."""
        return UsageError(
            f"topology {self.text!r}: {message}", cure=cure, code="invalid-topology-text"
        )

    def sizes(
        self, text: str | None = None, separator: str = "x", example: str = ""
    ) -> tuple[int, ...]:
        """Sizes such as `8x8`. Raises `UsageError` unless each is a whole number of at least 1."""
        argument = self.argument if text is None else text
        parts = argument.split(separator)
        if not all(
            part.isascii() and part.isdecimal() and len(part) <= 7 and int(part) >= 1
            for part in parts
        ):
            wrong = f"{argument!r} is not a size" if argument else "the size is missing"
            raise self.error(wrong, f"write for example {example or self.name + ':8'}")
        return tuple(int(part) for part in parts)

    def parameters(self, count: int, separator: str, example: str) -> tuple[int, ...]:
        """Exactly `count` sizes."""
        found = self.sizes(None, separator, example)
        if len(found) != count:
            raise self.error(
                f"{len(found)} numbers where {count} were expected",
                f"write for example {example or self.name + ':8'}",
            )
        return found

    def machines(self, gpus: int) -> int:
        """How many machines of `gpus` GPUs are joined; one where no number is stated."""
        if not self.argument:
            return 1
        (count,) = self.parameters(1, "x", f"{self.name}:2 for two machines")
        if count * gpus > MAX_NODES // 2:
            raise self.error("too large", f"stay below {MAX_NODES // 2} NPUs")
        return count

    def per_dimension(
        self,
        count: int,
        default_bandwidths: Sequence[float] = (DEFAULT_BANDWIDTH_BYTES_PER_S,),
        what: str = "dimensions",
    ) -> list[tuple[float, float]]:
        """(bandwidth, latency) of each dimension, or whatever `what` counts; one stated value holds for all."""
        columns = []
        for values, defaults, name in (
            (self.bandwidths, default_bandwidths, "bandwidths"),
            (self.latencies, (DEFAULT_LATENCY_S,), "latencies"),
        ):
            stated = values or tuple(defaults)
            if len(stated) not in (1, count):
                raise self.error(
                    f"{len(stated)} {name} for {count} {what}", f"state one value, or {count}"
                )
            columns.append(stated * count if len(stated) == 1 else stated)
        return list(zip(*columns, strict=True))


def parse_topology(text: str) -> Topology:
    """Build the topology that a text such as `torus:4x4?bandwidth=50GB/s&latency=500ns` names.

    One value of bandwidth or latency holds for all dimensions, a comma-separated list states one each.
    Several regular dimensions are joined by `*`: `ring:4*switch:2`, or by `-` with the sizes behind:
    `ring-switch:4x2`. Defaults: 50GB/s and 500ns per link. `npus=0,2,4-7` keeps these NPUs alone, renumbered in
    that order. `dgx1v+dgx1-pcie` puts networks on the same NPUs, one plane each (`side_by_side`). Raises `UsageError`
    naming the closest builder.
    """
    if len(text) > MAX_TEXT:
        raise UsageError(
            f"topology {text[:40]!r}...: more than {MAX_TEXT} characters",
            cure="write a topology file",
        )
    parts = PLANE_SEPARATOR.split(text)
    return (
        _parsed(text) if len(parts) == 1 else side_by_side(text, [_parsed(part) for part in parts])
    )


def _parsed(text: str) -> Topology:
    request = _Request(text)
    topology = _built(request)
    return topology if request.npus is None else topology.subset(request.npus)


def side_by_side(name: str, parts: Sequence[Topology]) -> Topology:
    """Several networks of one plane on the same NPUs: part i becomes plane i, its switches follow those before it.

    Names of NPUs and groups are those of the first part that has them. Parts without links make no plane. Raises
    `UsageError` for parts of different numbers of NPUs.
    """
    npus = parts[0].num_npus
    for part in parts:
        if part.num_npus != npus:
            message = f"topology {name!r}: {parts[0].name} has {npus} NPUs, {part.name} has {part.num_npus}"
            cure = "join networks of as many NPUs by +, with npus=... for each of them"
            raise UsageError(message, cure=cure, code="invalid-topology-text")
    nodes, links = npus, []
    names = [parts[0].node_name(npu) for npu in range(npus)]
    for number, part in enumerate([part for part in parts if part.num_links] or parts[:1]):
        source, destination = (
            np.where(end < npus, end, end - npus + nodes) for end in (part.source, part.destination)
        )
        plane = np.full(part.num_links, number, np.int64)
        links.append(Links(source, destination, part.bandwidth_bytes_per_s, part.latency_s, plane))
        nodes += part.num_nodes - npus
        for switch in range(npus, part.num_nodes):
            stated = part.node_names[switch] if part.node_names else f"switch {len(names) - npus}"
            names.append(f"{stated} of plane {number}" if stated in names else stated)
    groups = {group: members for part in reversed(parts) for group, members in part.groups.items()}
    has_names = any(part.node_names for part in parts)
    return Links.joined(links).topology(
        name, npus, nodes, node_names=tuple(names) if has_names else (), groups=groups
    )


def _without_npus(text: str) -> str:
    """A topology text less its `npus=...`."""
    shape, _, query = text.partition("?")
    kept = "&".join(item for item in query.split("&") if item and not item.startswith("npus="))
    return f"{shape}?{kept}" if kept else shape


def _built(request: _Request) -> Topology:
    shape = request.text.partition("?")[0]
    if "*" in shape:
        return _product(request, [tuple(factor.split(":", 1)) for factor in shape.split("*")])
    kinds = request.name.split("-")
    if len(kinds) > 1 and all(kind in _DIMENSIONS for kind in kinds):
        sizes = request.parameters(len(kinds), "x", f"{request.name}:{'x'.join('4' * len(kinds))}")
        return _product(
            request, [(kind, str(size)) for kind, size in zip(kinds, sizes, strict=True)]
        )
    builder = BUILDERS.get(request.name)
    if builder is None:
        close = difflib.get_close_matches(request.name, BUILDERS, 1, 0.5)
        hint = (
            f"did you mean {close[0]!r}?"
            if close
            else f"use one of {', '.join(sorted(BUILDERS))}, or a file"
        )
        raise UsageError(f"unknown topology {request.name!r}", cure=hint, code="unknown-topology")
    return builder(request)


def grid(name: str, dimensions: Sequence[Dimension]) -> Topology:
    """The product of regular dimensions: node id = a0 + n0 * (a1 + n1 * ...), as ASTRA-sim numbers them.

    Links are listed NPU by NPU, dimension by dimension, the next higher (clockwise) neighbour first, the links
    of the switches last. A switch dimension adds one switch per group of NPUs that differ in it alone.
    """
    sizes = [dimension.size for dimension in dimensions]
    npus = math.prod(sizes)
    links = sum(npus * _links_per_npu(dimension) for dimension in dimensions)
    if npus > MAX_NODES or links > MAX_LINKS:
        raise UsageError(
            f"topology {name!r} is too large",
            cure=f"stay below {MAX_NODES} NPUs and {MAX_LINKS} links",
        )
    parts: list[Links] = []
    nodes = npus
    for dimension, stride in zip(
        dimensions, itertools.accumulate([1, *sizes], operator.mul), strict=False
    ):
        source, destination = _dimension_links(dimension, stride, npus, nodes)
        parts.append(
            Links.uniform(source, destination, dimension.bandwidth_bytes_per_s, dimension.latency_s)
        )
        nodes = max(nodes, int(source.max(initial=0)) + 1)
    joined = Links.joined(parts)
    order = np.argsort(np.minimum(joined.source, npus), kind="stable")
    return joined.topology(name, npus, nodes, order=order, dimensions=tuple(dimensions))


def _links_per_npu(dimension: Dimension) -> int:
    if dimension.kind is DimensionKind.SWITCH:
        return 2
    others = dimension.size - 1
    return others if dimension.kind is DimensionKind.FULLY_CONNECTED else min(2, others)


def _dimension_links(
    dimension: Dimension, stride: int, npus: int, first_switch: int
) -> tuple[Int64Array, Int64Array]:
    node = np.arange(npus, dtype=np.int64)
    here = node // stride % dimension.size
    if dimension.kind is DimensionKind.SWITCH:
        switch = first_switch + np.unique(node - here * stride, return_inverse=True)[1]
        return np.stack([node, switch], 1).ravel(), np.stack([switch, node], 1).ravel()
    there = _neighbours(dimension.kind, here, dimension.size)
    is_link = (there >= 0) & (there < dimension.size) & (there != here[:, None])
    row, column = np.nonzero(is_link)
    return node[row], node[row] + (there[row, column] - here[row]) * stride


def _neighbours(kind: DimensionKind, here: Int64Array, size: int) -> Int64Array:
    """Candidates, one row a node, in link order; those outside 0..size-1 and the node itself are none."""
    if kind is DimensionKind.FULLY_CONNECTED:
        return np.broadcast_to(np.arange(size, dtype=np.int64), (len(here), size))
    steps: Int64Array = here[:, None] + np.asarray([1, -1], np.int64)
    if kind is DimensionKind.LINE:
        return steps
    around: Int64Array = steps % size
    # Both directions of a ring of two lead to the same neighbour over the same link.
    return around[:, :1] if size == 2 else around


def _regular(kind: DimensionKind, max_dimensions: int = MAX_DIMENSIONS) -> _Builder:
    def build(request: _Request) -> Topology:
        sizes = request.sizes()
        if len(sizes) > max_dimensions:
            cure = (
                f"join dimensions by *, as in {request.name}:4*{request.name}:4"
                if max_dimensions == 1
                else "use fewer"
            )
            raise request.error(f"{len(sizes)} dimensions where {max_dimensions} can be", cure)
        constants = request.per_dimension(len(sizes))
        return grid(
            request.text,
            [Dimension(kind, n, *pair) for n, pair in zip(sizes, constants, strict=True)],
        )

    return build


def _hypercube(request: _Request) -> Topology:
    (order,) = request.parameters(1, "x", "hypercube:3 for 8 NPUs")
    if order > MAX_ORDER:
        raise request.error(f"the order is not in 1..{MAX_ORDER}", "hypercube:3 has 8 NPUs")
    constants = request.per_dimension(order)
    return grid(request.text, [Dimension(DimensionKind.LINE, 2, *pair) for pair in constants])


def _product(request: _Request, factors: Sequence[tuple[str, ...]]) -> Topology:
    if len(factors) > MAX_DIMENSIONS:
        raise request.error(f"more than {MAX_DIMENSIONS} dimensions", "use fewer")
    constants = request.per_dimension(len(factors))
    dimensions = []
    for (name, *argument), pair in zip(factors, constants, strict=True):
        if name not in _DIMENSIONS:
            raise request.error(
                f"{name!r} is no dimension", f"join {', '.join(sorted(_DIMENSIONS))} by *"
            )
        sizes = request.sizes("".join(argument), example="ring:4*switch:2")
        if len(sizes) > 1:
            raise request.error(
                f"{name}:{argument[0]} is more than one dimension",
                "write one size a factor: ring:4*ring:4",
            )
        dimensions.append(Dimension(_DIMENSIONS[name], sizes[0], *pair))
    return grid(request.text, dimensions)


def _direct(lanes: Lanes, lane_bandwidth: float) -> _Builder:
    def build(request: _Request) -> Topology:
        _without_argument(request)
        return direct_machine(request.text, lanes, 8, request.per_dimension(1, (lane_bandwidth,)))

    return build


def _nvswitch(gpus: int, bandwidth_per_gpu: float) -> _Builder:
    def build(request: _Request) -> Topology:
        _without_argument(request)
        (pair,) = request.per_dimension(1, (bandwidth_per_gpu,))
        return grid(request.text, [Dimension(DimensionKind.SWITCH, gpus, *pair)])

    return build


def _dgx(
    bandwidth_per_gpu: float,
    nic_bandwidth: float,
    join: Callable[[str, int, int, Constants], Topology],
) -> _Builder:
    def build(request: _Request) -> Topology:
        machines = request.machines(8)
        if machines == 1:
            (pair,) = request.per_dimension(1, (bandwidth_per_gpu,))
            return grid(request.text, [Dimension(DimensionKind.SWITCH, 8, *pair)])
        constants = request.per_dimension(2, (bandwidth_per_gpu, nic_bandwidth), _CLASSES)
        return join(request.text, machines, 8, constants)

    return build


def _mi250(request: _Request) -> Topology:
    machines = request.machines(16)
    return mi250(
        request.text,
        machines,
        request.per_dimension(min(machines, 2), (50e9, 16e9)[:machines], _CLASSES),
    )


def _pcie(request: _Request) -> Topology:
    _without_argument(request)
    return pcie_dgx1(request.text, request.per_dimension(2, (12e9, 10e9), _CLASSES))


def _fat_tree(request: _Request) -> Topology:
    (ports,) = request.parameters(1, "x", "fat-tree:4 for 16 NPUs")
    if ports % 2 or ports > 64:
        raise request.error(
            f"{ports} ports a switch are not an even number in 2..64", "fat-tree:4 has 16 NPUs"
        )
    return fat_tree(request.text, ports, request.per_dimension(3, what="levels of links"))


def _dragonfly(request: _Request) -> Topology:
    example = "dragonfly:4,2,2 for 72 NPUs"
    routers, hosts, global_links = request.parameters(3, ",", example)
    groups = routers * global_links + 1
    if (
        max(routers, hosts, groups) > MAX_NODES
        or groups * routers * max(hosts, routers, global_links) > MAX_NODES
    ):
        raise request.error("too large", f"write for example {example}")
    return dragonfly(
        request.text, routers, hosts, global_links, request.per_dimension(3, what=_CLASSES)
    )


def _rail(request: _Request) -> Topology:
    nodes, gpus = request.parameters(2, "x", "rail:4x8 for 32 NPUs")
    if nodes * gpus > MAX_NODES // 2:
        raise request.error("too large", f"stay below {MAX_NODES // 2} NPUs")
    return rail(request.text, nodes, gpus, request.per_dimension(2, (450e9, 50e9), _CLASSES))


def _without_argument(request: _Request) -> None:
    if request.argument:
        raise request.error(f"{request.name} takes no size", f"write {request.name}")


BUILDERS: dict[str, _Builder] = {
    "line": _regular(DimensionKind.LINE, 1),
    "ring": _regular(DimensionKind.RING, 1),
    "mesh": _regular(DimensionKind.LINE),
    "torus": _regular(DimensionKind.RING),
    "fully-connected": _regular(DimensionKind.FULLY_CONNECTED, 1),
    "fc": _regular(DimensionKind.FULLY_CONNECTED, 1),
    "switch": _regular(DimensionKind.SWITCH, 1),
    "hypercube": _hypercube,
    "fat-tree": _fat_tree,
    "dragonfly": _dragonfly,
    "rail": _rail,
    "dgx1p": _direct(DGX1P, 20e9),
    "dgx1v": _direct(DGX1V, 25e9),
    "dgx1v-smi": _direct(DGX1V_SMI, 25e9),
    "dgx1-pcie": _pcie,
    "dgx2": _nvswitch(16, 150e9),
    "dgx-a100": _dgx(300e9, 25e9, nic_cluster),
    "dgx-h100": _dgx(450e9, 50e9, nvswitch_cluster),
    "mi250": _mi250,
}

TopologyText = _Request


def build_own(text: _Request) -> Topology:
    return BUILDERS[text.name](text)


def build_topology(text: str, builders: object) -> Topology:
    return parse_topology(text)
