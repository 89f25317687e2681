"""The graph of an InfraGraph document: vertices, undirected edges, and their links.

Links have quantities in InfraGraph's units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from collhub_networks import DocumentValue

from hub_core.columns import Int64Array
from hub_core.model import parse_whole

CODE = "invalid-infragraph"
"""The code of all errors in documents."""

# Attributes of annotations. `rank` is InfraGraph's custom, the remaining ones are the hub's.
RANK = "rank"
EXACT = "collhub-exact"
NAME = "collhub-name"
POSITIONS = "collhub-links"
PLANE = "collhub-plane"
BANDWIDTH = "collhub-bandwidth-bytes-per-s"
LATENCY = "collhub-latency-s"
GROUP = "collhub-group:"
DIMENSIONS = "collhub-dimensions"
MULTICAST, REDUCTION = "collhub-multicast", "collhub-reduction"

MAX_NUMBER = 10**9 - 1
"""Of the numbers in annotations."""


@dataclass(frozen=True, slots=True)
class LinkKind:
    """A link of a document, which many edges may use.

    `owner`: the device in whose list it is, empty for the document's list. Bandwidth in bytes per
    second and latency in seconds are None if missing. `flaw`: the reason why a given bandwidth is
    unusable.
    """

    name: str
    owner: str = ""
    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None
    flaw: str = ""
    plane: int | None = None

    @property
    def title(self) -> str:
        """`device/link`, or the name of a link of the document."""
        return f"{self.owner}/{self.name}" if self.owner else self.name


Attributes = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Annotations:
    """Annotations of a document: attributes by vertex, edge, link and for the graph."""

    of_vertex: Mapping[str, Attributes] = field(default_factory=dict)
    of_edge: Mapping[tuple[str, str], Attributes] = field(default_factory=dict)
    of_link: Mapping[str, Attributes] = field(default_factory=dict)
    of_graph: Attributes = field(default_factory=dict)

    @property
    def is_exact(self) -> bool:
        """Whether the hub wrote the document, so that its switches and cables are kept
        unchanged.
        """
        return EXACT in self.of_graph


@dataclass(frozen=True, slots=True)
class VertexGraph:
    """A document as vertices and edges.

    `names`, `kinds`: of the vertices, such as `host.0.xpu.1` and `xpu`. `first_vertex`,
    `second_vertex`: int64, the two vertices of every edge, each pair once; `link`: int64, its row
    in `links`.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    first_vertex: Int64Array
    second_vertex: Int64Array
    link: Int64Array
    links: tuple[LinkKind, ...]
    annotations: Annotations


_GIGA = Decimal(10**9)
_RATES = {"gigabytes_per_second": _GIGA, "gigabits_per_second": _GIGA / 8}
_TRANSFERS = "gigatransfers_per_second"
_PER_SECOND = {"ms": Decimal(10**3), "us": Decimal(10**6), "ns": Decimal(10**9)}
_LANES_UNKNOWN = "gigatransfers per second are of one lane, and no number of lanes is stated"
# Quantities in a node-link graph are texts.
_QUANTITY = re.compile(r"\s*([0-9.eE+-]+)\s*([A-Za-z/]+)\s*")
_TEXT_RATES = {"GBps": _GIGA, "Gbps": _GIGA / 8}
_MAX_RATE = Decimal(10**18)


def parse_link(value: DocumentValue, owner: str, attributes: Mapping[str, Attributes]) -> LinkKind:
    """Parse an entry of a list of links: name, bandwidth in bytes/s, latency in s, and plane.

    `owner`: the device that has the list, "" for the document. `attributes`: annotations by link.

    - Bandwidth, latency: those of the annotation, which are exact. If it has none, those of
      `physical` (`_parse_physical`); None without both.
    - Plane: only from the annotation, 1 to 9 ASCII digits; None if it is missing or another text.
    - `flaw`: a text if `physical` has a bandwidth in transfers per second, also if the annotation
      has a bandwidth; otherwise "". `physical` then gives no bandwidth.

    Raises `InputError` for a missing name; for a link without `physical` that has the member
    `bandwidth` or `latency` (the form before InfraGraph 0.3); for invalid values in `physical`; and
    for a bandwidth or latency of an annotation that is no finite number below 1e100.
    """
    name = value["name"].text()
    physical = value.get("physical")
    # Before InfraGraph 0.3 the values were given here; they would be silently ignored.
    if physical is None and (value.get("bandwidth") or value.get("latency")):
        value.fail(
            "a bandwidth or latency is directly in the link, as before InfraGraph 0.3",
            "move it below physical, as in InfraGraph 0.3 and later",
        )
    rate, delay, flaw = _parse_physical(physical) if physical else (None, None, "")
    annotations = attributes.get(name, {})
    return LinkKind(
        name,
        owner,
        _choose_exact(value, annotations.get(BANDWIDTH), rate),
        _choose_exact(value, annotations.get(LATENCY), delay),
        flaw,
        parse_whole(annotations.get(PLANE, ""), MAX_NUMBER),
    )


def _choose_exact(
    value: DocumentValue,
    annotation: str | None,
    rounded: float | None,
) -> float | None:
    """Return a link's exact number from the hub's annotation, or `rounded` without an annotation.

    `rounded` may be None. Raises `InputError` at the link's path (`value`) for an
    annotation that is not a finite number. Its range and sign are not checked here.
    """
    # Documents use decimal units, which cannot represent every value of the hub.
    if annotation is None:
        return rounded
    return float(
        DocumentValue(
            value.file,
            annotation,
            f"{value.path} (annotation)",
            value.code,
        ).number()
    )


def _parse_physical(physical: DocumentValue) -> tuple[float | None, float | None, str]:
    """Return (bytes per second, seconds, flaw) of a link's `physical`; missing values are None.

    The unit of each quantity is its `choice`. Without it, the unit is the first that has a value,
    of `gigabytes_per_second`, `gigabits_per_second`, `gigatransfers_per_second`; or of `ms`, `us`,
    `ns`. A quantity without a value in its unit is missing. A bandwidth in transfers per second
    gives None, and `flaw` says why. In all other cases `flaw` is "".

    Raises `InputError` for a `choice` that is another unit, and for a value that is no finite
    number. The bandwidth must be above 0 and below 1e18 bytes/s, the latency at least 0 and below
    1e9 s.
    """
    rate, flaw = None, ""
    bandwidth = physical.get("bandwidth")
    if bandwidth is not None:
        unit, number = _find_quantity(bandwidth, (*_RATES, _TRANSFERS))
        # The rate per byte depends on lanes and encoding, which a document does not contain.
        if unit == _TRANSFERS and number is not None:
            flaw = _LANES_UNKNOWN
        elif number is not None:
            rate = to_positive_rate(bandwidth, number * _RATES[unit])
    latency = physical.get("latency")
    if latency is None:
        return rate, None, flaw
    unit, number = _find_quantity(latency, tuple(_PER_SECOND))
    return rate, None if number is None else _to_latency(latency, number / _PER_SECOND[unit]), flaw


def _find_quantity(
    value: DocumentValue,
    units: tuple[str, ...],
) -> tuple[str, Decimal | None]:
    """Return the unit in which a quantity of a link is given, and its number.

    The unit is the `choice`; without it, the first of `units` that has a value; without
    any, the first of `units`. The number is None if the quantity has no value in this unit;
    values in other units are ignored. Raises `InputError` for a `choice` that is not in
    `units`, and for a value that is no finite number.
    """
    # Some writers omit the choice if only one unit is given.
    given_units = [unit for unit in units if value.get(unit) is not None]
    unit = value.text_of("choice", given_units[0] if given_units else units[0])
    if unit not in units:
        problem = f"{unit[:40]!r} is not a unit"
        value["choice"].fail(problem, f"use one of {', '.join(units)}")
    number = value.get(unit)
    return unit, None if number is None else number.number()


def to_positive_rate(value: DocumentValue, rate: Decimal) -> float:
    """Return a bandwidth in bytes per second as a float.

    Raises `InputError` at `value` unless it is above 0 and below 1e18 bytes per second.
    """
    if not 0 < rate < _MAX_RATE:
        value.fail("a bandwidth above 0 and below 1e9 GB/s was expected", "omit unknown ones")
    return float(rate)


def _to_latency(value: DocumentValue, seconds: Decimal) -> float:
    """Return a latency in seconds as a float.

    Raises `InputError` at `value` if it is negative, or 1e9 s or more.
    """
    if not 0 <= seconds < 10**9:
        value.fail("a latency of at least 0 was expected")
    return float(seconds)


def parse_node_link_edge(value: DocumentValue) -> LinkKind:
    """Parse the link of an edge in a node-link graph, with quantities such as `400 Gbps`.

    Returns name, bandwidth in bytes/s, latency in s and `flaw`; owner "" and no plane. The name
    is the text `link`, "" if it is absent. Bandwidths are texts in `GBps` or `Gbps`, latencies
    in `ms`, `us` or `ns`; a missing value is None. A bandwidth in `GT/s` or `GTps` is None, and
    `flaw` says that the lanes are unknown; otherwise `flaw` is "".

    Raises `InputError` for another unit and for text that is no number with a unit. Bandwidths
    must be above 0 and below 1e18 bytes/s, latencies at least 0 and below 1e9 s; other values
    raise it too.
    """
    name = value.text_of("link", "")
    rate, flaw = None, ""
    bandwidth = value.get("bandwidth")
    if bandwidth is not None:
        number, unit = _parse_quantity(bandwidth)
        if unit in ("GT/s", "GTps"):
            flaw = _LANES_UNKNOWN
        elif unit in _TEXT_RATES:
            rate = to_positive_rate(bandwidth, number * _TEXT_RATES[unit])
        else:
            bandwidth.fail(f"{unit!r} is not a unit", f"use one of {', '.join(_TEXT_RATES)}")
    latency = value.get("latency")
    if latency is None:
        return LinkKind(
            name,
            "",
            rate,
            None,
            flaw,
        )
    number, unit = _parse_quantity(latency)
    if unit not in _PER_SECOND:
        latency.fail(f"{unit!r} is not a unit", f"use one of {', '.join(_PER_SECOND)}")
    return LinkKind(
        name,
        "",
        rate,
        _to_latency(latency, number / _PER_SECOND[unit]),
        flaw,
    )


def _parse_quantity(value: DocumentValue) -> tuple[Decimal, str]:
    """Return (number, unit) of a text such as `400 Gbps`.

    Blanks around and between both are optional. The number may be 0, negative or have an
    exponent. The unit has letters and `/` only, and is not compared with known units. Raises
    `InputError` if the value is no such text, if number or unit is missing, and for a number
    that is 1e100 or more, or longer than 40 characters.
    """
    match = _QUANTITY.fullmatch(value.text())
    if match is None:
        value.fail("a number and a unit were expected", "write for example 400 Gbps or 250 ns")
    number = DocumentValue(
        value.file,
        match[1],
        value.path,
        value.code,
    ).number()
    return number, match[2]
