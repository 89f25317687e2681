"""Builders of well-known networks, and the one text form in which the command line names them."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from hub_core.diagnostics import UsageError
from hub_core.topology import Dimension, DimensionKind, Topology
from hub_core.units import parse_bandwidth, parse_time

__all__ = ["BUILDERS", "DEFAULT_BANDWIDTH_BYTES_PER_S", "DEFAULT_LATENCY_S", "grid", "parse_topology"]

DEFAULT_BANDWIDTH_BYTES_PER_S = 50e9
DEFAULT_LATENCY_S = 500e-9
MAX_NODES = 1 << 20
MAX_LINKS = 1 << 25

# NVLink lanes between the GPUs of a DGX-1V (hybrid cube mesh) in the numbering of msccl-tools; a DGX-1P has the
# same pairs with one lane each.
_DGX1V_LANES = {
    (0, 1): 2, (0, 2): 1, (0, 3): 1, (0, 4): 2, (1, 2): 1, (1, 3): 2, (1, 5): 1, (2, 3): 2,
    (2, 6): 2, (3, 7): 1, (4, 5): 2, (4, 6): 1, (4, 7): 1, (5, 6): 1, (5, 7): 2, (6, 7): 2,
}  # fmt: skip

_Pairs = list[tuple[int, int]]
_Builder = Callable[["_Request"], Topology]


class _Request:
    """A parsed topology text: builder name, its argument, and the stated bandwidths and latencies."""

    def __init__(self, text: str) -> None:
        self.text = text
        shape, _, query = text.partition("?")
        self.name, _, self.argument = shape.partition(":")
        self.bandwidths: tuple[float, ...] = ()
        self.latencies: tuple[float, ...] = ()
        for item in filter(None, query.split("&")):
            key, _, value = item.partition("=")
            if key == "bandwidth":
                self.bandwidths = tuple(parse_bandwidth(part) for part in value.split(","))
            elif key == "latency":
                self.latencies = tuple(parse_time(part) for part in value.split(","))
            else:
                raise UsageError(f"topology {text!r}: unknown key {key!r}", cure="use bandwidth=... and latency=...")

    def sizes(self, text: str | None = None) -> tuple[int, ...]:
        """Sizes such as `8x8`. Raises `UsageError` unless each is a whole number of at least 1."""
        argument = self.argument if text is None else text
        parts = argument.split("x")
        if not all(part.isdecimal() and len(part) <= 7 and int(part) >= 1 for part in parts):
            raise UsageError(f"topology {self.text!r}: {argument!r} is not a size", cure="write for example mesh:8x8")
        return tuple(int(part) for part in parts)

    def per_dimension(self, count: int, default_bandwidth: float = DEFAULT_BANDWIDTH_BYTES_PER_S) -> list[tuple[float, float]]:
        """(bandwidth, latency) of each dimension; one stated value holds for all."""
        pairs = []
        for values, default, what in (
            (self.bandwidths, default_bandwidth, "bandwidths"),
            (self.latencies, DEFAULT_LATENCY_S, "latencies"),
        ):
            stated = values or (default,)
            if len(stated) not in (1, count):
                raise UsageError(
                    f"topology {self.text!r}: {len(stated)} {what} for {count} dimensions",
                    cure="state one value, or one per dimension",
                )
            pairs.append(stated * count if len(stated) == 1 else stated)
        return list(zip(*pairs, strict=True))


def parse_topology(text: str) -> Topology:
    """Build the topology that a text such as `torus:4x4?bandwidth=50GB/s&latency=500ns` names.

    One value of bandwidth or latency holds for all dimensions, a comma-separated list states one each.
    Several regular dimensions are joined by `*`: `ring:4*switch:2`. Defaults: 50GB/s and 500ns per link.
    Raises `UsageError` naming the closest builder.
    """
    if "*" in text.partition("?")[0]:
        return _product(text)
    request = _Request(text)
    builder = BUILDERS.get(request.name)
    if builder is None:
        close = difflib.get_close_matches(request.name, BUILDERS, 1, 0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(sorted(BUILDERS))}, or a file"
        raise UsageError(f"unknown topology {request.name!r}", cure=hint, code="unknown-topology")
    return builder(request)


def grid(name: str, dimensions: Sequence[Dimension]) -> Topology:
    """The product of regular dimensions: node id = a0 + n0 * (a1 + n1 * ...), as ASTRA-sim numbers them.

    Links are listed node by node, dimension by dimension, the next higher (clockwise) neighbour first. A
    switch dimension adds one switch per group of NPUs that differ in it alone.
    """
    sizes = [dimension.size for dimension in dimensions]
    npus = int(np.prod([float(size) for size in sizes]))
    if npus > MAX_NODES or any(d.kind is DimensionKind.FULLY_CONNECTED and npus * d.size > MAX_LINKS for d in dimensions):
        raise UsageError(f"topology {name!r} is too large", cure=f"stay below {MAX_NODES} nodes and {MAX_LINKS} links")
    columns: list[tuple[int, int, float, float]] = []
    strides = [1, *itertools.accumulate(sizes, lambda a, b: a * b)]
    nodes = npus
    for dimension, stride in zip(dimensions, strides, strict=False):
        constants = (dimension.bandwidth_bytes_per_s, dimension.latency_s)
        pairs, nodes = _dimension_pairs(dimension, stride, npus, nodes)
        columns.extend((source, destination, *constants) for source, destination in pairs)
    columns.sort(key=lambda link: min(link[0], npus))
    return _topology(name, npus, nodes, columns, tuple(dimensions))


def _dimension_pairs(dimension: Dimension, stride: int, npus: int, first_switch: int) -> tuple[_Pairs, int]:
    size = dimension.size
    pairs: _Pairs = []
    if dimension.kind is DimensionKind.SWITCH:
        switch_of: dict[int, int] = {}
        for node in range(npus):
            group = node - (node // stride) % size * stride
            switch = switch_of.setdefault(group, first_switch + len(switch_of))
            pairs += [(node, switch), (switch, node)]
        return pairs, first_switch + len(switch_of)
    for node in range(npus):
        here = (node // stride) % size
        for there in _neighbours(dimension.kind, here, size):
            pairs.append((node, node + (there - here) * stride))
    return pairs, first_switch


def _neighbours(kind: DimensionKind, here: int, size: int) -> list[int]:
    if kind is DimensionKind.FULLY_CONNECTED:
        return [there for there in range(size) if there != here]
    steps = [here + 1, here - 1]
    if kind is DimensionKind.RING:
        steps = list(dict.fromkeys(step % size for step in steps))
    return [there for there in steps if 0 <= there < size and there != here]


def _topology(
    name: str, npus: int, nodes: int, links: Sequence[tuple[int, int, float, float]], dimensions: tuple[Dimension, ...] = ()
) -> Topology:
    return Topology(
        name,
        npus,
        nodes,
        np.asarray([link[0] for link in links], np.int64),
        np.asarray([link[1] for link in links], np.int64),
        np.asarray([link[2] for link in links], np.float64),
        np.asarray([link[3] for link in links], np.float64),
        dimensions,
    )


def _regular(kind: DimensionKind, max_dimensions: int = 8) -> _Builder:
    def build(request: _Request) -> Topology:
        sizes = request.sizes()
        if len(sizes) > max_dimensions:
            raise UsageError(f"topology {request.text!r}: at most {max_dimensions} dimensions", cure="join several by *")
        constants = request.per_dimension(len(sizes))
        return grid(request.text, [Dimension(kind, n, *pair) for n, pair in zip(sizes, constants, strict=True)])

    return build


def _hypercube(request: _Request) -> Topology:
    (order,) = request.sizes() if "x" not in request.argument else (0,)
    if not 1 <= order <= 20:
        raise UsageError(f"topology {request.text!r}: the order is not in 1..20", cure="hypercube:3 has 8 NPUs")
    constants = request.per_dimension(order)
    return grid(request.text, [Dimension(DimensionKind.LINE, 2, *pair) for pair in constants])


def _product(text: str) -> Topology:
    shape, _, query = text.partition("?")
    kinds = {"line": DimensionKind.LINE, "ring": DimensionKind.RING, "switch": DimensionKind.SWITCH}
    kinds |= dict.fromkeys(("fully-connected", "fc"), DimensionKind.FULLY_CONNECTED)
    request = _Request(f"product?{query}")
    factors = [factor.partition(":") for factor in shape.split("*")]
    constants = request.per_dimension(len(factors))
    dimensions = []
    for (name, _, argument), pair in zip(factors, constants, strict=True):
        if name not in kinds:
            raise UsageError(f"topology {text!r}: {name!r} is no dimension", cure=f"join {', '.join(sorted(kinds))} by *")
        dimensions += [Dimension(kinds[name], size, *pair) for size in request.sizes(argument)]
    return grid(text, dimensions)


def _dgx1(lane_bandwidth: float, single_lanes: bool) -> _Builder:
    def build(request: _Request) -> Topology:
        _without_argument(request)
        ((bandwidth, latency),) = request.per_dimension(1, lane_bandwidth)
        links = []
        for (a, b), lanes in _DGX1V_LANES.items():
            total = bandwidth * (1 if single_lanes else lanes)
            links += [(a, b, total, latency), (b, a, total, latency)]
        return _topology(request.text, 8, 8, sorted(links))

    return build


def _nvswitch(gpus: int, bandwidth_per_gpu: float) -> _Builder:
    def build(request: _Request) -> Topology:
        _without_argument(request)
        (pair,) = request.per_dimension(1, bandwidth_per_gpu)
        return grid(request.text, [Dimension(DimensionKind.SWITCH, gpus, *pair)])

    return build


def _without_argument(request: _Request) -> None:
    if request.argument:
        raise UsageError(f"topology {request.text!r}: {request.name} takes no size", cure=f"write {request.name}")


BUILDERS: dict[str, _Builder] = {
    "line": _regular(DimensionKind.LINE, 1),
    "ring": _regular(DimensionKind.RING, 1),
    "mesh": _regular(DimensionKind.LINE),
    "torus": _regular(DimensionKind.RING),
    "fully-connected": _regular(DimensionKind.FULLY_CONNECTED, 1),
    "fc": _regular(DimensionKind.FULLY_CONNECTED, 1),
    "switch": _regular(DimensionKind.SWITCH, 1),
    "hypercube": _hypercube,
    "dgx1p": _dgx1(20e9, single_lanes=True),
    "dgx1v": _dgx1(25e9, single_lanes=False),
    "dgx2": _nvswitch(16, 150e9),
    "dgx-a100": _nvswitch(8, 300e9),
    "dgx-h100": _nvswitch(8, 450e9),
}
