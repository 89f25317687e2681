"""What a simulation sent over every line of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collhub_pictures.networks.drawn_lines import DrawnLines
from hub_core.model import UsageError, format_bytes
from hub_core.network import Topology
from hub_core.plugin_api import LinkLoad

_Ends = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LineLoad:
    """Load of a line: `busy` is the share of the time of its busier way, None where it was unused.

    `text`: both ways in words.
    """

    busy: float | None
    text: str


def line_loads(
    topology: Topology, lines: DrawnLines, loads: Sequence[LinkLoad], time_ns: int
) -> list[LineLoad]:
    """The load of every line.

    Parallel links are one line: their bytes together, the busiest of them. Raises `UsageError` for
    a load of a link that the topology lacks.
    """
    by_ends: dict[_Ends, LinkLoad] = {}
    for load in loads:
        ends = (load.source, load.destination)
        known = by_ends.get(ends, LinkLoad(*ends, 0, 0))
        busy_ns = max(known.busy_ns, load.busy_ns)
        by_ends[ends] = LinkLoad(*ends, known.bytes + load.bytes, busy_ns)
    found = []
    for source, destination, is_arrow in zip(
        lines.source.tolist(), lines.destination.tolist(), lines.is_arrow.tolist(), strict=True
    ):
        ways = [(source, destination), *([] if is_arrow else [(destination, source)])]
        found.append(_of_ways([by_ends.pop(ends, None) for ends in ways], time_ns))
    if by_ends:
        source, destination = min(by_ends)
        raise _without_link(topology, source, destination)
    return found


def check_loads(topology: Topology, loads: Sequence[LinkLoad]) -> None:
    """Raise `UsageError` for a load of a link that the topology lacks."""
    known = set(zip(topology.source.tolist(), topology.destination.tolist(), strict=True))
    for load in loads:
        if (load.source, load.destination) not in known:
            raise _without_link(topology, load.source, load.destination)


def _without_link(topology: Topology, source: int, destination: int) -> UsageError:
    return UsageError(
        f"topology {topology.name} has no link {source} -> {destination}, which has a load",
        cure="name the topology that was simulated",
        code="load-without-link",
    )


def _of_ways(ways: Sequence[LinkLoad | None], time_ns: int) -> LineLoad:
    shares = [load.busy_ns / max(time_ns, 1) for load in ways if load is not None]
    texts = [
        "unused"
        if load is None
        else f"{format_bytes(load.bytes)}, busy {100 * load.busy_ns / max(time_ns, 1):.0f} %"
        for load in ways
    ]
    return LineLoad(max(shares, default=None), " / ".join(texts))
