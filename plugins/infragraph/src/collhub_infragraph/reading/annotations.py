"""Annotations of a document: attributes of vertices, edges, links and the graph as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from collhub_networks import Value

from collhub_infragraph.graph import Annotations, Attributes


def annotations_of(value: Value | None) -> Annotations:
    """The part `annotations` of a document, as `get_graph` of InfraGraph's service gives it."""
    if value is None:
        return Annotations()
    return Annotations(
        {entry["name"].text(): _attributes(entry) for entry in value.items_of("nodes")},
        dict(_edges(value)),
        {entry["name"].text(): _attributes(entry) for entry in value.items_of("links")},
        dict(_pairs(value, "graph")),
    )


def _edges(value: Value) -> Iterator[tuple[tuple[str, str], Attributes]]:
    for entry in value.items_of("edges"):
        yield (entry["ep1"].text(), entry["ep2"].text()), _attributes(entry)


def _attributes(entry: Value) -> Attributes:
    return dict(_pairs(entry, "attributes"))


def _pairs(
    value: Value,
    key: str,
) -> Iterator[tuple[str, str]]:
    """Attributes with their values as texts, nothing where none is stated."""
    for entry in value.items_of(key):
        stated = entry.get("value")
        yield entry["attribute"].text(), "" if stated is None else str(stated.raw)
