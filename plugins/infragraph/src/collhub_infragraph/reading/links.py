"""Links of a document, and quantities as InfraGraph states them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from collhub_networks import Value

from collhub_infragraph.graph import BANDWIDTH, LATENCY, PLANE, Attributes, LinkKind, number_of

_GIGA = Decimal(10**9)
_RATES = {"gigabytes_per_second": _GIGA, "gigabits_per_second": _GIGA / 8}
_TRANSFERS = "gigatransfers_per_second"
_PER_SECOND = {"ms": Decimal(10**3), "us": Decimal(10**6), "ns": Decimal(10**9)}
_LANES = "gigatransfers per second are of one lane, and no number of lanes is stated"
# Quantities of a node-link graph, which are texts.
_WORDS = re.compile(r"\s*([0-9.eE+-]+)\s*([A-Za-z/]+)\s*")
_RATE_WORDS = {"GBps": _GIGA, "Gbps": _GIGA / 8}
_MOST = Decimal(10**18)


def link_of(value: Value, owner: str, attributes: Mapping[str, Attributes]) -> LinkKind:
    """A link of a list of links. `attributes`: annotations by name of link."""
    name = value["name"].text()
    physical = value.get("physical")
    # The old grammar would read as a link without any bandwidth.
    if physical is None and (value.get("bandwidth") or value.get("latency")):
        value.fail(
            "a bandwidth or latency stands directly in the link, as before InfraGraph 2.0",
            "state it below physical, as InfraGraph 2.0 and later do",
        )
    rate, delay, flaw = _physical(physical) if physical else (None, None, "")
    stated = attributes.get(name, {})
    return LinkKind(
        name,
        owner,
        _exact(value, stated.get(BANDWIDTH), rate),
        _exact(value, stated.get(LATENCY), delay),
        flaw,
        number_of(stated.get(PLANE, "")),
    )


def _exact(
    value: Value,
    stated: str | None,
    rounded: float | None,
) -> float | None:
    """The number that an annotation of the hub states to the last bit, else the document's."""
    # Documents state decimal units: a number of the hub may not survive them.
    if stated is None:
        return rounded
    return float(
        Value(
            value.file,
            stated,
            f"{value.path} (annotation)",
            value.code,
        ).number()
    )


def _physical(physical: Value) -> tuple[float | None, float | None, str]:
    """Bandwidth, latency, and why a stated bandwidth is none."""
    rate, flaw = None, ""
    bandwidth = physical.get("bandwidth")
    if bandwidth is not None:
        unit, number = _chosen(bandwidth, (*_RATES, _TRANSFERS))
        # Lanes times encoding would give bytes, and a document states neither.
        if unit == _TRANSFERS and number is not None:
            flaw = _LANES
        elif number is not None:
            rate = positive_rate(bandwidth, number * _RATES[unit])
    latency = physical.get("latency")
    if latency is None:
        return rate, None, flaw
    unit, number = _chosen(latency, tuple(_PER_SECOND))
    return rate, None if number is None else _delay(latency, number / _PER_SECOND[unit]), flaw


def _chosen(
    value: Value,
    units: tuple[str, ...],
) -> tuple[str, Decimal | None]:
    """The unit of a quantity, and its number.

    No number stands for a quantity that is not stated: InfraGraph's own classes write the unit of
    every quantity that somebody has looked at.
    """
    # The choice is left out by some writers, where one unit alone is stated.
    stated = [unit for unit in units if value.get(unit) is not None]
    unit = value.text_of("choice", stated[0] if stated else units[0])
    if unit not in units:
        value["choice"].fail(f"{unit[:40]!r} is no unit", f"use one of {', '.join(units)}")
    number = value.get(unit)
    return unit, None if number is None else number.number()


def positive_rate(value: Value, rate: Decimal) -> float:
    """A bandwidth in bytes per second. Raises `InputError` unless it is positive and finite."""
    if not 0 < rate < _MOST:
        value.fail("a bandwidth above 0 and below 1e9 GB/s was expected", "leave unknown ones out")
    return float(rate)


def _delay(value: Value, seconds: Decimal) -> float:
    if not 0 <= seconds < 10**9:
        value.fail("a latency of at least 0 was expected")
    return float(seconds)


def link_of_words(value: Value) -> LinkKind:
    """The link of an edge of a node-link graph, whose quantities are texts such as `400 Gbps`."""
    name = value.text_of("link", "")
    rate, flaw = None, ""
    bandwidth = value.get("bandwidth")
    if bandwidth is not None:
        number, unit = _number_and_unit(bandwidth)
        if unit in ("GT/s", "GTps"):
            flaw = _LANES
        elif unit in _RATE_WORDS:
            rate = positive_rate(bandwidth, number * _RATE_WORDS[unit])
        else:
            bandwidth.fail(f"{unit!r} is no unit", f"use one of {', '.join(_RATE_WORDS)}")
    latency = value.get("latency")
    if latency is None:
        return LinkKind(
            name,
            "",
            rate,
            None,
            flaw,
        )
    number, unit = _number_and_unit(latency)
    if unit not in _PER_SECOND:
        latency.fail(f"{unit!r} is no unit", f"use one of {', '.join(_PER_SECOND)}")
    return LinkKind(
        name,
        "",
        rate,
        _delay(latency, number / _PER_SECOND[unit]),
        flaw,
    )


def _number_and_unit(value: Value) -> tuple[Decimal, str]:
    match = _WORDS.fullmatch(value.text())
    if match is None:
        value.fail("a number and a unit were expected", "write for example 400 Gbps or 250 ns")
    number = Value(
        value.file,
        match[1],
        value.path,
        value.code,
    ).number()
    return number, match[2]
