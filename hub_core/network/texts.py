"""Parse texts of topologies, such as `torus:4x4?bandwidth=50GB/s`, and build regular networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from hub_core.model import (
    UsageError,
    closest,
    parse_bandwidth,
    parse_ranks,
    parse_time,
    parse_whole,
)
from hub_core.network.construction import below_network, grid, side_by_side
from hub_core.network.topology import PLANE_SEPARATOR, Dimension, DimensionKind, Topology

DEFAULT_BANDWIDTH_BYTES_PER_S = 50e9

DEFAULT_LATENCY_S = 500e-9

MAX_TEXT = 1000

MAX_DIMENSIONS = 32

# Of a size: as many digits as MAX_NODES has.
_MAX_SIZE = 10**7 - 1

KEYS = (
    *("bandwidth", "latency", "npus", "multicast", "reduce"),
    *("network", "network-bandwidth", "network-latency", "by-rail"),
)
"""Keys that are allowed after the `?` of a text."""

_NETWORK_KEYS = ("network", "network-bandwidth", "network-latency")

# Dimensions that products may contain; other builders cannot be combined.
DIMENSIONS = {
    "line": DimensionKind.LINE,
    "ring": DimensionKind.RING,
    "fully-connected": DimensionKind.FULLY_CONNECTED,
    "fc": DimensionKind.FULLY_CONNECTED,
    "switch": DimensionKind.SWITCH,
}

# Builders whose argument may have several sizes, as `mesh:4x4`.
_PRODUCTS = {"mesh": DimensionKind.LINE, "torus": DimensionKind.RING}


class TopologyText:
    """The parsed text of one topology, the argument of a builder.

    `text`: the text without `npus=...`, used as the name of the topology. `name`: name of the
    builder. `argument`: the part between `:` and `?`, such as `4x4`, or "". `bandwidths` in bytes/s
    and `latencies` in s: the given values in order, possibly none. `npus`: NPUs to keep, None for
    all. `multicasts`, `reduces`: whether switches multicast and reduce. The caller of the builder
    applies `npus`, `multicasts` and `reduces`. `network`: text of the network of switches above
    machines, "" for that of the builder; `by_rail`: whether the first NICs of all machines are
    connected first. Raises `UsageError` for an unknown or repeated key and for an invalid value.
    """

    def __init__(self, text: str) -> None:
        self.text = _without(text, ("npus",))
        shape, _, query = text.partition("?")
        self.name, _, self.argument = shape.partition(":")
        stated = self._stated(query)
        self.bandwidths = tuple(parse_bandwidth(part) for part in stated.get("bandwidth", []))
        self.latencies = tuple(parse_time(part) for part in stated.get("latency", []))
        self.npus = parse_ranks(",".join(stated["npus"])) if "npus" in stated else None
        for key in ("multicast", "reduce"):
            if stated.get(key, ["true"]) != ["true"]:
                raise self.error(f"{key} is not true", f"write {key}=true, or leave it out")
        self.multicasts, self.reduces = "multicast" in stated, "reduce" in stated
        self.network = self._network(stated)
        self.by_rail = "by-rail" in stated
        if stated.get("by-rail", ["true"]) != ["true"]:
            raise self.error("by-rail is not true", "write by-rail=true, or leave it out")

    def _network(self, stated: Mapping[str, Sequence[str]]) -> str:
        """Return the text of the network between machines, or "" if there is none.

        `stated`: values by key of the query. The values of `network` are joined by commas;
        `network-bandwidth` and `network-latency` become the query of the returned text. Raises
        `UsageError` if one of these two, or `by-rail`, is given without `network`.
        """
        values = {key: stated[key] for key in _NETWORK_KEYS if key in stated}
        if "network" not in values:
            if values or "by-rail" in stated:
                named = next(iter(values), "by-rail")
                raise self.error(f"{named} without network", "add for example network=fat-tree:4")
            return ""
        text = ",".join(values.pop("network"))
        pairs = [
            f"{key.removeprefix('network-')}={','.join(values_of_key)}"
            for key, values_of_key in values.items()
        ]
        return f"{text}?{'&'.join(pairs)}" if pairs else text

    def _stated(self, query: str) -> dict[str, list[str]]:
        """Return the values of every key of a query `key=a,b&...`, split at commas.

        Empty items between `&` are skipped. A key without a value has the value [""]. Raise
        `UsageError` (`invalid-topology-text`) for an unknown key and for a repeated key. The
        cure for an unknown key is the most similar known key, or the list of all keys.
        """
        stated: dict[str, list[str]] = {}
        for item in filter(None, query.split("&")):
            key, _, value = item.partition("=")
            if key not in KEYS:
                cure = closest(key, KEYS) or f"use {', '.join(KEYS)}"
                raise self.error(f"unknown key {key!r}", cure)
            if key in stated:
                cure = "separate the values of several dimensions by commas"
                raise self.error(f"{key} is given twice", cure)
            stated[key] = value.split(",")
        return stated

    def declared(self, topology: Topology) -> Topology:
        """Return the topology with all of its switches multicasting or reducing, as declared.

        `multicast=true` and `reduce=true` each select all switches. With one of them, both lists of
        the topology are replaced, and the one that is not declared becomes empty. Without a
        declaration the topology itself is returned. Raises `UsageError` if there are no switches.
        """
        if not (self.multicasts or self.reduces):
            return topology
        switches = tuple(range(topology.num_npus, topology.num_nodes))
        if not switches:
            raise self.error(
                "only switches multicast and reduce, and there are none", "leave it out"
            )
        multicast, reduction = switches * self.multicasts, switches * self.reduces
        return replace(topology, multicast=multicast, reduction=reduction)

    def error(self, message: str, cure: str) -> UsageError:
        """Create (not raise) a `UsageError` that names the topology text.

        Its code is `invalid-topology-text`.
        """
        message = f"topology {self.text!r}: {message}"
        return UsageError(message, cure=cure, code="invalid-topology-text")

    def sizes(
        self, text: str | None = None, separator: str = "x", example: str = ""
    ) -> tuple[int, ...]:
        """Parse sizes such as `8x8` from `text`, by default from the argument of the topology text.

        The argument is the text between `:` and `?`. `separator` separates the sizes. Raise
        `UsageError` unless every part is an integer from 1 to 9999999 in ASCII digits; the
        remedy shows `example`, by default `NAME:8`.
        """
        argument = self.argument if text is None else text
        parts = argument.split(separator)
        wrong = next((part for part in parts if not parse_whole(part, _MAX_SIZE)), None)
        if wrong is not None:
            place = "" if wrong == argument else f" in {argument!r}"
            message = f"{wrong!r}{place} is not a size" if argument else "the size is missing"
            raise self.error(message, self._write(example))
        return tuple(int(part) for part in parts)

    def parameters(self, count: int, separator: str, example: str) -> tuple[int, ...]:
        """Return exactly `count` sizes from the argument (the part between `:` and `?`).

        The argument is split at each `separator`. Raises `UsageError` for another number of
        sizes, and for a part that is not a whole number from 1 to `_MAX_SIZE`; `example` is
        shown in the cure.
        """
        sizes = self.sizes(None, separator, example)
        if len(sizes) != count:
            message = f"{len(sizes)} numbers where {count} were expected"
            raise self.error(message, self._write(example))
        return sizes

    def without_argument(self) -> None:
        """Raise `UsageError` if the text has an argument."""
        if self.argument:
            raise self.error(f"{self.name} takes no size", f"write {self.name}")

    def per_dimension(
        self,
        count: int,
        default_bandwidths: Sequence[float] = (DEFAULT_BANDWIDTH_BYTES_PER_S,),
        what: str = "dimensions",
    ) -> list[tuple[float, float]]:
        """Return (bandwidth in bytes/s, latency in s) of each of `count` dimensions, in order.

        The values are those of `bandwidth=` and `latency=` in the text; missing ones are
        replaced by `default_bandwidths` and by 500 ns. A single value, given or default,
        applies to all dimensions. Raises `UsageError` for a number of values that is neither 1
        nor `count`; the message calls the counted objects `what`.
        """
        bandwidths = self._spread(count, self.bandwidths or default_bandwidths, "bandwidths", what)
        latencies = self._spread(count, self.latencies or (DEFAULT_LATENCY_S,), "latencies", what)
        return list(zip(bandwidths, latencies, strict=True))

    def _spread(
        self, count: int, values: Sequence[float], name: str, quantity: str
    ) -> Sequence[float]:
        """Return `count` values: the given ones, or a single one repeated.

        `name`: name of the values, `quantity`: name of the objects that need one each, both for the
        message. Raises `UsageError` for a number of values that is neither 1 nor `count`.
        """
        if len(values) not in (1, count):
            message = f"{len(values)} {name} for {count} {quantity}"
            raise self.error(message, f"state one value, or {count}")
        return [values[0]] * count if len(values) == 1 else values

    def _write(self, example: str) -> str:
        """Return the cure for a text without sizes."""
        return f"write for example {example or self.name + ':8'}"


class TopologyFunction(Protocol):
    """Builds the topologies of one name from their texts."""

    def __call__(self, text: TopologyText, /) -> Topology:
        """Build the topology with all its NPUs. Raises `UsageError` for an invalid text."""


def build_topology(text: str, find_builder: Callable[[str], TopologyFunction]) -> Topology:
    """Build the topology that a text such as `torus:4x4?bandwidth=50GB/s&latency=500ns` describes.

    The defaults are 50GB/s and 500ns per link. One value applies to all dimensions; a list
    separated by commas gives one per dimension. Each name, such as `torus`, is built by the
    function that `find_builder` returns for it: `regular` below for the core's regular networks, or
    that of a plugin. Raises `UsageError` for an invalid text and for more than 1000 characters,
    and any error of `find_builder`. The forms are:

    - `ring:4*switch:2`, or `ring-switch:4x2`: a product of regular dimensions
    - `npus=0,2,4-7`: keeps only these NPUs, renumbered in this order
    - `multicast=true`, `reduce=true`: all switches multicast or reduce
    - `dgx-h100:4?network=leaf-spine:4,8,4`: machines connected by a network of switches
      (`below_network`), with `network-bandwidth=`, `network-latency=` and `by-rail=true`
    - `dgx1v+dgx1-pcie`: networks on the same NPUs, one plane each (`side_by_side`); the keys
      after a `?` apply to the plane in which they are written
    """
    if len(text) > MAX_TEXT:
        message = f"topology {text[:40]!r}...: more than {MAX_TEXT} characters"
        raise UsageError(message, cure="write a topology file")
    parts = []
    for part in map(TopologyText, PLANE_SEPARATOR.split(text)):
        plane = part.declared(_built(part, find_builder))
        parts.append(plane if part.npus is None else plane.subset(part.npus))
    return parts[0] if len(parts) == 1 else side_by_side(text, parts)


def regular(text: TopologyText) -> Topology:
    """Build a topology such as `ring:8` or `torus:4x4`, whose dimensions are all of one kind.

    Bandwidth and latency come from the text or are defaults; one value applies to all
    dimensions. The name must be one of the core's regular networks. Raises `UsageError` for
    sizes that are no integers from 1 to 9999999, for more than `MAX_DIMENSIONS` (32)
    sizes, for more than one size with a name other than `mesh` and `torus`, for another number
    of bandwidths or latencies, and for a network that is too large (`grid`).
    """
    sizes = text.sizes()
    kind = _PRODUCTS.get(text.name) or DIMENSIONS[text.name]
    max_dimensions = MAX_DIMENSIONS if text.name in _PRODUCTS else 1
    if len(sizes) > max_dimensions:
        cure = "use fewer"
        if max_dimensions == 1:
            cure = f"join dimensions by *, as in {text.name}:4*{text.name}:4"
        raise text.error(f"{len(sizes)} dimensions where {max_dimensions} can be", cure)
    constants = text.per_dimension(len(sizes))
    dimensions = [Dimension(kind, n, *pair) for n, pair in zip(sizes, constants, strict=True)]
    return grid(text.text, dimensions)


def _built(text: TopologyText, find_builder: Callable[[str], TopologyFunction]) -> Topology:
    """Build a topology with one plane; `npus=`, `multicast=` and `reduce=` are ignored.

    The first rule that applies decides:

    1. With `network=`: machines, of the text without the keys of the network, and that network
       above them (`below_network`).
    2. A `*` before the `?`, as in `ring:4*switch:2`: a product of dimensions with one size each.
    3. A name of two or more dimensions joined by `-`, as in `ring-switch:4x2`: a product with these
       sizes.
    4. Otherwise the builder that `find_builder` returns for the name.

    Raises `UsageError` for invalid texts, and the errors of `find_builder` and of the builder.
    """
    if text.network:
        inner = TopologyText(_without(text.text, (*_NETWORK_KEYS, "by-rail")))
        above = TopologyText(text.network)
        return below_network(
            text.text,
            _built(inner, find_builder),
            _built(above, find_builder),
            by_rail=text.by_rail,
            has_bandwidths=bool(above.bandwidths),
            has_latencies=bool(above.latencies),
        )
    # A product has several names, so no single builder can build it.
    shape = text.text.partition("?")[0]
    if "*" in shape:
        return _product(text, [tuple(factor.split(":", 1)) for factor in shape.split("*")])
    # `fully-connected` contains `-`, so that it cannot be used in such a list.
    kinds = text.name.split("-")
    if len(kinds) > 1 and all(kind in DIMENSIONS for kind in kinds):
        sizes = text.parameters(len(kinds), "x", f"{text.name}:{'x'.join('4' * len(kinds))}")
        return _product(text, list(zip(kinds, map(str, sizes), strict=True)))
    return find_builder(text.name)(text)


def _product(text: TopologyText, factors: Sequence[tuple[str, ...]]) -> Topology:
    """Build a grid from `factors`: (name, size) of each dimension, or (name,) if it has no size.

    NPUs with consecutive numbers are neighbours in the first dimension. Bandwidths and latencies
    are those of the text, or the defaults. One value applies to all dimensions.

    Raises `UsageError`, in this order: more than `MAX_DIMENSIONS` (32) factors; another number of
    bandwidths or latencies than 1 or that of the factors; the first factor with a name that is not
    in `DIMENSIONS`, without a size, with an invalid size, or with several sizes (`ring:4x4`); a
    network that is too large (`grid`).
    """
    if len(factors) > MAX_DIMENSIONS:
        raise text.error(f"more than {MAX_DIMENSIONS} dimensions", "use fewer")
    constants = text.per_dimension(len(factors))
    dimensions = []
    for (name, *argument), pair in zip(factors, constants, strict=True):
        if name not in DIMENSIONS:
            cure = f"join {', '.join(sorted(DIMENSIONS))} by *"
            raise text.error(f"{name!r} is no dimension", cure)
        sizes = text.sizes("".join(argument), example="ring:4*switch:2")
        if len(sizes) > 1:
            cure = "write one size a factor: ring:4*ring:4"
            raise text.error(f"{name}:{argument[0]} is more than one dimension", cure)
        dimensions.append(Dimension(DIMENSIONS[name], sizes[0], *pair))
    return grid(text.text, dimensions)


def _without(text: str, keys: Sequence[str]) -> str:
    """Return a topology text without the items of its query whose key is in `keys`.

    The `?` is removed if no item remains.
    """
    shape, _, query = text.partition("?")
    remaining = [item for item in query.split("&") if item and item.partition("=")[0] not in keys]
    return f"{shape}?{'&'.join(remaining)}" if remaining else shape
