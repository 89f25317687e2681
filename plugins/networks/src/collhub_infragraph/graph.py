"""The graph of an InfraGraph document: vertices, undirected edges, and their links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hub_core.columns import Int64Array

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

_MAX_DIGITS = 9


def parse_number(text: str) -> int | None:
    """Parse the integer value of an attribute, None for any other text."""
    # Only ASCII digits (`isdecimal` accepts further digits), and not too many, since huge texts
    # cost time.
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None


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
