"""Links of a document, with quantities in InfraGraph's units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from collhub_networks import Value

from collhub_infragraph.graph import BANDWIDTH, LATENCY, PLANE, Attributes, LinkKind, parse_number

_GIGA = Decimal(10**9)
_RATES = {"gigabytes_per_second": _GIGA, "gigabits_per_second": _GIGA / 8}
_TRANSFERS = "gigatransfers_per_second"
_PER_SECOND = {"ms": Decimal(10**3), "us": Decimal(10**6), "ns": Decimal(10**9)}
_LANES_UNKNOWN = "gigatransfers per second are of one lane, and no number of lanes is stated"
# Quantities in a node-link graph are texts.
_QUANTITY = re.compile(r"\s*([0-9.eE+-]+)\s*([A-Za-z/]+)\s*")
_TEXT_RATES = {"GBps": _GIGA, "Gbps": _GIGA / 8}
_MAX_RATE = Decimal(10**18)


def parse_link(value: Value, owner: str, attributes: Mapping[str, Attributes]) -> LinkKind:
    """Parse an entry of a list of links. `attributes`: annotations by name of the link."""
    name = value["name"].text()
    physical = value.get("physical")
    # Before InfraGraph 2.0 the values were given here; they would be silently ignored.
    if physical is None and (value.get("bandwidth") or value.get("latency")):
        value.fail(
            "a bandwidth or latency is directly in the link, as before InfraGraph 2.0",
            "move it below physical, as in InfraGraph 2.0 and later",
        )
    rate, delay, flaw = _parse_physical(physical) if physical else (None, None, "")
    annotations = attributes.get(name, {})
    return LinkKind(
        name,
        owner,
        _choose_exact(value, annotations.get(BANDWIDTH), rate),
        _choose_exact(value, annotations.get(LATENCY), delay),
        flaw,
        parse_number(annotations.get(PLANE, "")),
    )


def _choose_exact(
    value: Value,
    annotation: str | None,
    rounded: float | None,
) -> float | None:
    """Return the exact value of the hub's annotation if there is one, else the document's value."""
    # Documents use decimal units, which cannot represent every value of the hub.
    if annotation is None:
        return rounded
    return float(
        Value(
            value.file,
            annotation,
            f"{value.path} (annotation)",
            value.code,
        ).number()
    )


def _parse_physical(physical: Value) -> tuple[float | None, float | None, str]:
    """Parse bandwidth, latency, and the reason why a given bandwidth is unusable (empty if
    usable).
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
    value: Value,
    units: tuple[str, ...],
) -> tuple[str, Decimal | None]:
    """Find the unit of a quantity, and its number.

    The number is None for a missing quantity: InfraGraph's classes write the unit of every quantity
    that a program has accessed.
    """
    # Some writers omit the choice if only one unit is given.
    given_units = [unit for unit in units if value.get(unit) is not None]
    unit = value.text_of("choice", given_units[0] if given_units else units[0])
    if unit not in units:
        problem = f"{unit[:40]!r} is not a unit"
        value["choice"].fail(problem, f"use one of {', '.join(units)}")
    number = value.get(unit)
    return unit, None if number is None else number.number()


def to_positive_rate(value: Value, rate: Decimal) -> float:
    """Convert a bandwidth to bytes per second as a float.

    Raises `InputError` unless it is positive and below 1e18 bytes per second.
    """
    if not 0 < rate < _MAX_RATE:
        value.fail("a bandwidth above 0 and below 1e9 GB/s was expected", "omit unknown ones")
    return float(rate)


def _to_latency(value: Value, seconds: Decimal) -> float:
    """Convert a latency to seconds as a float. Raises `InputError` for negative and huge values."""
    if not 0 <= seconds < 10**9:
        value.fail("a latency of at least 0 was expected")
    return float(seconds)


def parse_node_link_edge(value: Value) -> LinkKind:
    """Parse the link of an edge in a node-link graph, with quantities such as `400 Gbps`."""
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


def _parse_quantity(value: Value) -> tuple[Decimal, str]:
    """Parse a text of a number and a unit."""
    match = _QUANTITY.fullmatch(value.text())
    if match is None:
        value.fail("a number and a unit were expected", "write for example 400 Gbps or 250 ns")
    number = Value(
        value.file,
        match[1],
        value.path,
        value.code,
    ).number()
    return number, match[2]
