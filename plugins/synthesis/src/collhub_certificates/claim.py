"""Claims of certificates: the collective, the network's links, and checks of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

from hub_core.model import ROOTED, Algorithm, CollectiveKind, Diagnostic
from hub_core.network import Topology
from hub_core.schedules import (
    Certificate,
    CertifiedNetwork,
    CertifiedPlane,
    LinkCapacities,
    network_digest,
    network_object,
)


class FlawError(Exception):
    """A claim of a certificate does not hold; caught by the function that creates the report.

    Its diagnostic has a stable code, and a message with the claim and the recomputed value.
    """

    def __init__(self, code: str, message: str, cure: str = "") -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(f"certificate-{code}", message, cure=cure)


def format_gb(rate: Fraction) -> str:
    """Format a rate for messages, in GB/s with six digits."""
    return f"{float(rate) / 1e9:.6g} GB/s"


@dataclass(frozen=True, slots=True)
class Claim:
    """A certificate of valid form with its network.

    `planes`: bytes per second by link, for every plane.
    """

    document: Certificate
    planes: Sequence[LinkCapacities]

    @property
    def kind(self) -> CollectiveKind:
        """The kind of the collective in the document. Raises `ValueError` for an unknown kind."""
        return CollectiveKind(self.document["collective"])

    @property
    def is_collecting(self) -> bool:
        """True if data flow up the trees: to a root, or to the rank whose part is reduced
        (reduce-scatter).
        """
        traits = self.kind.traits
        return traits.to_root or (traits.reduces and traits.is_split)

    @property
    def has_parts(self) -> bool:
        """True if the buffer has an equal part per rank."""
        return self.kind.traits.is_split

    @property
    def may_serve_one(self) -> bool:
        """True if a tree may serve a single rank: a part that is sent to or from a root."""
        return self.has_parts and self.kind in ROOTED

    @property
    def ranks(self) -> list[int]:
        """The NPU of every rank, by rank, as in the document."""
        return self.document["ranks"]

    @property
    def root(self) -> int | None:
        """The NPU of the root; None for collectives without a root."""
        if self.kind in ROOTED:
            return self.document["root"]
        return None

    def check_ranks(self, algorithm: Algorithm | None) -> None:
        """Raise `FlawError` for ranks that are no NPUs, and for another collective.

        The ranks must be at least two different NPUs of the claimed network, and the root of a
        rooted collective must be one of them. `algorithm`: the algorithm that carries the
        certificate, None to skip the comparison. Unless it is custom, it must have the same kind,
        the ranks 0, 1, ... in this order, and no root or the same one.
        """
        last = self.document["network"]["npus"] - 1
        distinct = set(self.ranks)
        are_different = len(distinct) == len(self.ranks) >= 2
        if not are_different or max(distinct) > last:
            message = f"the ranks are not two or more different NPUs of 0..{last}"
            raise FlawError("ranks", message)
        root = self.document.get("root")
        if self.kind in ROOTED and root not in distinct:
            message = f"the root {root} is none of the ranks"
            raise FlawError("ranks", message)
        if algorithm is not None:
            # Refuse another kind, other ranks or another root.
            actual = algorithm.collective
            # An algorithm among some NPUs is custom: only its traffic can be compared.
            if actual.kind is not CollectiveKind.CUSTOM:
                is_same_kind = actual.kind is self.kind
                has_same_ranks = self.ranks == list(range(actual.num_ranks))
                has_same_root = actual.root in (None, self.document.get("root"))
                if not (is_same_kind and has_same_ranks and has_same_root):
                    declared = f"{self.kind} of {len(self.ranks)} ranks"
                    message = f"the certificate is for {declared}, the algorithm is {actual.kind}"
                    raise FlawError("collective", message)

    def carrying_planes(self) -> dict[int, CertifiedPlane]:
        """Return the entries of all planes that carry data, by number; empty for a single plane.

        Planes are independent networks. Raises `FlawError` unless the shares of the entries add up
        to exactly 1 and their planes exist; if a plane has several entries, the last one counts.
        """
        if len(self.planes) == 1:
            return {}
        entries = {entry["plane"]: entry for entry in self.document.get("planes", [])}
        shares = sum(Fraction(entry["share"]) for entry in entries.values())
        are_known = set(entries) <= set(range(len(self.planes)))
        if shares == 1 and are_known:
            return entries
        message = "the planes of the network do not share all data"
        raise FlawError("planes", message)


def read_capacities(
    certificate: Certificate, topology: Topology | None
) -> list[dict[tuple[int, int], Fraction]]:
    """Return bytes per second by link for every plane; the first of parallel links counts.

    The links are those of the topology, if given, else those of the certificate. Raises `FlawError`
    for a topology of another certificate, and if neither specifies the links.
    """
    network = _check_network(certificate["network"], topology)
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


def add_planes(planes: Sequence[LinkCapacities]) -> dict[tuple[int, int], Fraction]:
    """Add up the capacities of all planes by link; a link that a plane lacks counts as 0 there.

    Bounds of this network also hold for algorithms whose data change planes on their route.
    """
    total: dict[tuple[int, int], Fraction] = {}
    for plane in planes:
        for link, capacity in plane.items():
            total[link] = total.get(link, Fraction(0)) + capacity
    return total


def _check_network(declared: CertifiedNetwork, topology: Topology | None) -> CertifiedNetwork:
    """Return the network with its links, after a check of the topology and the digest.

    With a topology, its digest must be the declared one, and all declared facts except the name
    must be those of the topology; its own description is returned. Without, the certificate must
    state the links and its digest must fit. The name is not covered by the digest. Raises
    `FlawError` otherwise.
    """
    if topology is not None:
        actual = cast(CertifiedNetwork, network_object(topology))
        if actual["sha256"] != declared["sha256"]:
            message = f"the certificate is for {declared['name']}, not for {topology.name}"
            cure = "give the topology for which the algorithm was made"
            raise FlawError("topology", message, cure)
        facts = {key: value for key, value in declared.items() if key != "name"}
        expected = {key: value for key, value in actual.items() if key in facts}
        switches = ("multicast", "reduce")
        if facts != expected or any(key in actual and key not in facts for key in switches):
            message = "the certificate states other nodes or links than its digest stands for"
            raise FlawError("topology", message)
        return actual
    if "links" not in declared:
        message = f"the certificate does not state the links of {declared['name']}"
        raise FlawError("topology", message, "name the network with --topology")
    if network_digest(declared) != declared["sha256"]:
        raise FlawError("topology", "the digest of the network is not that of its nodes and links")
    return declared


def find_document(algorithm: Algorithm, key: str) -> Mapping[str, Any] | None:
    """Return the first JSON object under `key` in the extensions, in order of the producers' names.

    None if there is none; extensions of other forms are skipped.
    """
    for name in sorted(algorithm.extensions):
        extension = algorithm.extensions[name]
        # Extensions of other producers may have any form.
        if not isinstance(extension, dict):
            continue
        document = extension.get(key)
        if isinstance(document, dict):
            return document
    return None


def check_same_collective(
    document: Mapping[str, Any],
    algorithm: Algorithm,
    document_name: str,
) -> None:
    """Raise `FlawError` if a document is for another size, kind, root or ranks than an algorithm.

    Ranks of the document must be 0, 1, ... in order. `document_name`: for the message. An algorithm
    without size, or without root, fits any; of a custom algorithm only the size is compared.
    """
    actual = algorithm.collective
    is_same = algorithm.collective_bytes in (None, document["collective_bytes"])
    # An algorithm among some NPUs is custom: its kind and its ranks cannot be compared.
    if actual.kind is not CollectiveKind.CUSTOM:
        is_same &= actual.kind == CollectiveKind(document["collective"])
        is_same &= list(document["ranks"]) == list(range(actual.num_ranks))
        is_same &= actual.root is None or actual.root == document.get("root")
    if not is_same:
        message = f"the {document_name} is for another collective, size or other ranks"
        raise FlawError("collective", message)


def check_claimed_time(document: Mapping[str, Any], proved_ns: Fraction, proof: str) -> int:
    """Return the claimed bound in ns, the field `lower_bound_ns` of a document.

    Raises `FlawError` unless it is an integer from 0 to `proved_ns`; `proof`: subject of the
    message.
    """
    claimed = document["lower_bound_ns"]
    if not isinstance(claimed, int) or isinstance(claimed, bool) or claimed < 0:
        raise FlawError("bound", f"the bound {claimed!r:.40} is no time in whole nanoseconds")
    if claimed <= proved_ns:
        return claimed
    message = f"{proof} prove {float(proved_ns):.6g} ns, not {claimed} ns as claimed"
    raise FlawError("bound", message)


def describe_network_name(document: Mapping[str, Any]) -> str:
    """Return the entry for the network's name in the list of unproved claims."""
    return f"the network's name {str(document['network'].get('name', ''))!r:.60}"
