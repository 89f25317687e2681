"""The links of a topology as undirected edges, which is all that an InfraGraph has."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from collhub_networks import ways_back

from hub_core.network import Topology


@dataclass(frozen=True, slots=True)
class Strand:
    """One edge between nodes `one` and `other`, for two links that are alike or for one alone.

    `there`, `back`: rows of the links, None where there is none this way. `is_parallel`: whether
    other strands join the same nodes, which an InfraGraph has ports for.
    """

    one: int
    other: int
    bandwidth_bytes_per_s: float
    latency_s: float
    plane: int
    there: int | None
    back: int | None
    is_parallel: bool = False

    @property
    def positions(self) -> str:
        """The rows as the annotation states them: `12,40`, `12,`."""
        texts = ["" if row is None else str(row) for row in (self.there, self.back)]
        return ",".join(texts)


def strands_of(topology: Topology) -> list[Strand]:
    """All links, in the order of the first one of each strand."""
    # Undirected edges serve two links only where these are alike.
    ways = ways_back(topology).tolist()
    planes = topology.plane.tolist()
    pairs = Counter[tuple[int, int]]()
    rows = []
    for row, link in enumerate(topology.links()):
        back = ways[row]
        # The second link of a pair belongs to the strand of the first.
        if 0 <= back < row:
            continue
        pairs[_pair(link.source, link.destination)] += 1
        # What has no way back is an edge of its own, marked in the annotations.
        rows.append((row, link, None if back < 0 else back))
    return [
        Strand(
            link.source,
            link.destination,
            link.bandwidth_bytes_per_s,
            link.latency_s,
            planes[row],
            row,
            back,
            pairs[_pair(link.source, link.destination)] > 1,
        )
        for row, link, back in rows
    ]


def _pair(
    one: int,
    other: int,
) -> tuple[int, int]:
    return (one, other) if one < other else (other, one)
