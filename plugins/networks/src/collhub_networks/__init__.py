"""Shared code of readers and writers of network descriptions."""

from collhub_networks.cables import Cable, cables_of, find_reverse_links, topology_of
from collhub_networks.values import DocumentValue, NetworkFindings, document_of

__all__ = [
    "Cable",
    "DocumentValue",
    "NetworkFindings",
    "cables_of",
    "document_of",
    "find_reverse_links",
    "topology_of",
]
