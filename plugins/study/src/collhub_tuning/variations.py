"""Networks that differ from a given one: other bandwidths or latencies, or failed links.

Each differs in one thing, so that a change of the winner has one cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hub_core.columns import Float64Array
from hub_core.model import UsageError, format_bandwidth, format_time, parse_bandwidth, parse_time
from hub_core.network import Dimension, Topology

_CURE = "write for example bandwidth=10GB/s..100GB/s or latency=100ns..10us"
_LINK_CURE = "write two nodes, as 3-4, or 3->4 for one direction"


@dataclass(frozen=True, slots=True)
class Variation:
    """A network that differs from the one as given in one thing.

    `name`: that thing, as `bandwidth=20 GB/s` or `without 3-4`.
    """

    name: str
    topology: Topology


def variations(
    topology: Topology, ranges: Sequence[str], failures: Sequence[str]
) -> list[Variation]:
    """One network for every value of all ranges, then one for every failure.

    `ranges`: as `bandwidth=10GB/s..100GB/s`, each value twice the one before, both ends included.
    `failures`: links that fail at once, as `3-4` (both directions) or `3->4,5-6`. Raises
    `UsageError` for what is neither, and where a failure parts the network.
    """
    found = [one for text in ranges for one in _varied(topology, text)]
    found += [_without(topology, text) for text in failures]
    # What is given twice is compared once.
    return list({one.name: one for one in found}.values())


def _varied(topology: Topology, text: str) -> Iterator[Variation]:
    what, equals, values = text.partition("=")
    if not equals or what not in ("bandwidth", "latency"):
        raise UsageError(f"--vary {text!r} varies neither bandwidth nor latency", cure=_CURE)
    if what == "bandwidth":
        for rate in _doubled(values, parse_bandwidth):
            yield _named(_with_bandwidth(topology, rate), f"bandwidth={format_bandwidth(rate)}")
        return
    for latency_s in _doubled(values, parse_time):
        name = f"latency={format_time(latency_s * 1e9)}"
        yield _named(_with_latency(topology, latency_s), name)


def _named(topology: Topology, name: str) -> Variation:
    return Variation(name, replace(topology, name=f"{topology.name}, {name}"))


def _doubled(text: str, parse: Callable[[str], float]) -> list[float]:
    """A value, or all of a range: each twice the one before, then its end."""
    first, dots, last = text.partition("..")
    values = [parse(first)]
    if not dots:
        return values
    end = parse(last)
    if end < values[0]:
        raise UsageError(f"the range {text!r} ends below its start", cure=_CURE)
    if not values[0]:
        raise UsageError(f"the range {text!r} begins at 0, which cannot be doubled", cure=_CURE)
    while values[-1] * 2 < end:
        values.append(values[-1] * 2)
    return values if values[-1] == end else [*values, end]


def _with_bandwidth(topology: Topology, bytes_per_s: float) -> Topology:
    """The fastest link has this bandwidth; all others keep their ratio to it."""
    most = float(topology.bandwidth_bytes_per_s.max(initial=0.0))

    def changed(one: Dimension) -> Dimension:
        """The dimension with its bandwidth scaled by the same factor as the links."""
        rate = one.bandwidth_bytes_per_s / most * bytes_per_s
        return replace(one, bandwidth_bytes_per_s=rate)

    return replace(
        topology,
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s / most * bytes_per_s,
        dimensions=tuple(map(changed, topology.dimensions)),
    )


def _with_latency(topology: Topology, latency_s: float) -> Topology:
    """The slowest link has this latency; all others keep their ratio to it, where it is not 0."""
    most = float(topology.latency_s.max(initial=0.0))
    latencies: Float64Array = np.full(topology.num_links, latency_s)
    if most:
        latencies = topology.latency_s / most * latency_s

    def changed(one: Dimension) -> Dimension:
        return replace(one, latency_s=one.latency_s / most * latency_s if most else latency_s)

    dimensions = tuple(map(changed, topology.dimensions))
    return replace(topology, latency_s=latencies, dimensions=dimensions)


def _without(topology: Topology, text: str) -> Variation:
    """The network without some links, with all that are parallel to them."""
    fails = np.zeros(topology.num_links, np.bool_)
    for link in text.split(","):
        ends = _ends(topology, link.strip())
        found = np.zeros(topology.num_links, np.bool_)
        for source, destination in ends:
            found |= (topology.source == source) & (topology.destination == destination)
        if not found.any():
            raise UsageError(f"--without-link {link.strip()}: {topology.name} has no such link")
        fails |= found
    rows = np.flatnonzero(~fails)
    # A plane whose links have all failed is no plane: the numbers stay without a gap.
    plane = np.unique(topology.plane[rows], return_inverse=True)[1].ravel()
    part = replace(
        topology,
        source=topology.source[rows],
        destination=topology.destination[rows],
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s[rows],
        latency_s=topology.latency_s[rows],
        plane=plane.astype(np.int64),
        # What has lost a link is no regular network.
        dimensions=(),
    )
    _check_connected(part, topology.name, text)
    return _named(part, f"without {text}")


def _ends(topology: Topology, link: str) -> list[tuple[int, int]]:
    """Source and destination of the links that a text means: two directions, or one for `->`."""
    numbers = {topology.node_name(node): node for node in range(topology.num_nodes)}
    numbers |= {str(node): node for node in range(topology.num_nodes)}
    one, arrow, other = link.partition("->")
    if arrow and one in numbers and other in numbers:
        return [(numbers[one], numbers[other])]
    # Names may have the sign in them: every place where it may part the two is tried.
    parts = link.split("-")
    splits = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
    found = [(numbers[a], numbers[b]) for a, b in splits if a in numbers and b in numbers]
    if len(found) != 1:
        message = f"--without-link {link!r} names no two nodes of {topology.name}"
        raise UsageError(message, cure=_LINK_CURE)
    source, destination = found[0]
    return [(source, destination), (destination, source)]


def _check_connected(part: Topology, name: str, text: str) -> None:
    """Raise `UsageError` where an NPU no longer reaches another."""
    start = np.zeros(1, np.int64)
    for is_backwards in (False, True):
        (hops,) = part.arcs(backwards=is_backwards).hops(start)
        lost = np.flatnonzero(hops[: part.num_npus] < 0)
        if len(lost):
            ends = [part.node_name(0), part.node_name(int(lost[0]))]
            source, destination = reversed(ends) if is_backwards else ends
            raise UsageError(
                f"--without-link {text}: {name} is not connected without it: "
                f"{source} does not reach {destination}",
                code="not-connected",
            )
