"""Where a certificate stands in an algorithm, and how it names the network that it is for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction

from hub_core.model import Algorithm, JsonValue
from hub_core.network import Topology

CERTIFICATE_SCHEMA = "collhub/certificate-1"

_KEY = "certificate"
_HASHED = ("npus", "nodes", "multicast", "reduce", "links")


def find_certificate(algorithm: Algorithm) -> dict[str, JsonValue] | None:
    """The certificate among an algorithm's extensions: the first by name of who made it.

    Nothing is promised of its form yet; a valid one is a `Certificate`.
    """
    for name in sorted(algorithm.extensions):
        extension = algorithm.extensions[name]
        if not isinstance(extension, dict):
            continue
        certificate = extension.get(_KEY)
        if isinstance(certificate, dict):
            return certificate
    return None


def network_object(topology: Topology, with_links: bool = True) -> dict[str, JsonValue]:
    """The `network` of a certificate, a `CertifiedNetwork`; the links themselves on demand."""
    head: dict[str, JsonValue] = {
        "npus": topology.num_npus,
        "nodes": topology.num_nodes,
    }
    # Stated where there are any: what others count on does not hold there.
    for key, switches in (("multicast", topology.multicast), ("reduce", topology.reduction)):
        if switches:
            head[key] = list(switches)
    links = _link_objects(topology)
    network: dict[str, JsonValue] = {"name": topology.name, **head}
    network["sha256"] = network_digest({**head, "links": links})
    if with_links:
        network["links"] = links
    return network


def network_digest(network: Mapping[str, object]) -> str:
    """SHA-256 of a network that states its links, as a certificate writes it.

    The name is not part of the digest: it proves nothing.
    """
    return _digest({key: network[key] for key in _HASHED if key in network})


def _link_objects(topology: Topology) -> list[JsonValue]:
    """The links in the order of the topology; planes are named where there are several."""
    objects: list[JsonValue] = []
    for link, plane in zip(topology.links(), topology.plane.tolist(), strict=True):
        bandwidth = _exact(link.bandwidth_bytes_per_s)
        objects.append([link.source, link.destination, bandwidth])
        if topology.num_planes > 1:
            objects[-1] = [link.source, link.destination, bandwidth, plane]
    return objects


def _exact(bandwidth_bytes_per_s: float) -> str:
    """The fraction that a bandwidth's shortest decimal text names, so that 0.1 is a tenth."""
    # `Fraction(0.1)` would be the binary number next to a tenth.
    decimal = repr(bandwidth_bytes_per_s)
    return str(Fraction(decimal))


def _digest(document: Mapping[str, object]) -> str:
    """SHA-256 of the one compact text of a document."""
    text = json.dumps(
        document,
        sort_keys=True,
        separators=(",", ":"),
    )
    digest = hashlib.sha256(text.encode())
    return digest.hexdigest()
