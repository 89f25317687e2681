"""The network of a certificate: what its links can carry, plane by plane."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import cast

from collhub_certificates.flaws import FlawError
from hub_core.network import Topology
from hub_core.schedules import (
    Certificate,
    CertifiedNetwork,
    LinkCapacities,
    network_digest,
    network_object,
)


def capacities_of(
    certificate: Certificate, topology: Topology | None
) -> list[dict[tuple[int, int], Fraction]]:
    """Per plane, bytes per second between neighbours; of parallel links the first stands.

    The links are those of the topology where one is given. Raises `FlawError` where it is another
    one than the certificate is for, and where nobody states the links.
    """
    network = _known_network(certificate["network"], topology)
    planes: list[dict[tuple[int, int], Fraction]] = [{}]
    for source, destination, bandwidth, *named_plane in network["links"]:
        plane = int(named_plane[0]) if named_plane else 0
        if plane > len(planes):
            raise FlawError("topology", "its planes are not numbered in order")
        if plane == len(planes):
            planes.append({})
        link = int(source), int(destination)
        planes[plane].setdefault(link, Fraction(bandwidth))
    return planes


def united(planes: Sequence[LinkCapacities]) -> dict[tuple[int, int], Fraction]:
    """What all planes have together between neighbours.

    No algorithm exceeds a bound of this network, even one that changes planes on the way.
    """
    total: dict[tuple[int, int], Fraction] = {}
    for plane in planes:
        for link, capacity in plane.items():
            so_far = total.get(link, Fraction(0))
            total[link] = so_far + capacity
    return total


def _known_network(stated: CertifiedNetwork, topology: Topology | None) -> CertifiedNetwork:
    """The network with its links; a topology must be the one that the certificate is for.

    Everything that the certificate states of its network must agree with the topology and with the
    digest, except for the name, which proves nothing.
    """
    if topology is not None:
        given = cast(CertifiedNetwork, network_object(topology))
        if given["sha256"] != stated["sha256"]:
            message = f"the certificate is for {stated['name']}, not for {topology.name}"
            cure = "give the topology for which the algorithm was made"
            raise FlawError("topology", message, cure)
        facts = {key: value for key, value in stated.items() if key != "name"}
        known = {key: value for key, value in given.items() if key in facts}
        switches = ("multicast", "reduce")
        if facts != known or any(key in given and key not in facts for key in switches):
            message = "the certificate states other nodes or links than its digest stands for"
            raise FlawError("topology", message)
        return given
    if "links" not in stated:
        message = f"the certificate does not state the links of {stated['name']}"
        raise FlawError("topology", message, "name the network with --topology")
    if network_digest(stated) != stated["sha256"]:
        raise FlawError("topology", "the digest of the network is not that of its nodes and links")
    return stated
