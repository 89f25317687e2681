"""What readers and writers of network descriptions share."""

from collhub_networks.cables import Cable, cables_of, topology_of, ways_back
from collhub_networks.findings import NetworkFindings
from collhub_networks.values import Value
from collhub_networks.yaml_documents import document_of

__all__ = [
    "Cable",
    "NetworkFindings",
    "Value",
    "cables_of",
    "document_of",
    "topology_of",
    "ways_back",
]
