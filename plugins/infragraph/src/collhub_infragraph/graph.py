"""The graph of an InfraGraph document: vertices, undirected edges, and the links on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from collhub_columns import Int64Array

CODE = "invalid-infragraph"
"""The code of all errors in documents."""

# Attributes of annotations. `rank` is InfraGraph's own custom, the others are this hub's.
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

_MOST_DIGITS = 9


def number_of(text: str) -> int | None:
    """The whole number that an attribute states, None where it states none."""
    # Other digits of Unicode count as decimal, too, and huge texts cost time.
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_number else None


@dataclass(frozen=True, slots=True)
class LinkKind:
    """A link of a document, of which many edges may be.

    `owner`: the device that has it in its list, empty for the document's own. Bandwidth in bytes
    per second and latency in seconds are None where they are not stated. `flaw`: why a stated
    bandwidth is none.
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
    """What a document says beside its infrastructure: attributes by vertex, edge and graph."""

    of_vertex: Mapping[str, Attributes] = field(default_factory=dict)
    of_edge: Mapping[tuple[str, str], Attributes] = field(default_factory=dict)
    of_link: Mapping[str, Attributes] = field(default_factory=dict)
    of_graph: Attributes = field(default_factory=dict)

    @property
    def is_exact(self) -> bool:
        """Whether the hub wrote the document, so that its switches and cables stay as they are."""
        return EXACT in self.of_graph


@dataclass(frozen=True, slots=True)
class VertexGraph:
    """A document as vertices and edges.

    `names`, `kinds`: of the vertices, `host.0.xpu.1` and `xpu`. `one`, `other`: int64, the ends of
    every edge, no pair twice; `link`: int64, its row in `links`.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    one: Int64Array
    other: Int64Array
    link: Int64Array
    links: tuple[LinkKind, ...]
    annotations: Annotations
