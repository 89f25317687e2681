"""Shared code of readers and writers of network descriptions."""

from collhub_networks.cables import Cable, cables_of, find_reverse_links, topology_of
from collhub_networks.values import NetworkFindings, Value, document_of

__all__ = [
    "Cable",
    "NetworkFindings",
    "Value",
    "cables_of",
    "document_of",
    "find_reverse_links",
    "topology_of",
]
