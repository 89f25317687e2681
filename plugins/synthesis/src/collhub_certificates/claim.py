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
        """Return whether data flow towards the roots of the trees (True) or away from them (False).

        True for collectives that end at a root (reduce, gather), and for the reduce-scatter, where
        the root of a tree is the rank whose part is reduced. An all-reduce, which does both, gives
        False.
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
        """Return the NPU of the root, as the document states it.

        None for a collective without a root. The document must have been checked.
        """
        if self.kind in ROOTED:
            return self.document["root"]
        return None

    def check_ranks(self, algorithm: Algorithm | None) -> None:
        """Raise `FlawError` if ranks, root or collective of the certificate are invalid.

        Ranks and root are numbers of NPUs. Checked in this order:

        1. Ranks (code `certificate-ranks`): at least two, all different, none above the last NPU of
           the claimed network.
        2. Root (code `certificate-ranks`): if the collective has a root, it is one of the ranks.
        3. Collective (code `certificate-collective`), only if `algorithm` is given and not custom:
           it has the kind of the certificate, the ranks of the certificate are 0 to n - 1 in this
           order for its n ranks, and its root is None or that of the certificate.

        Raises `ValueError` if the certificate names an unknown kind of collective.
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
        """Return the entries of planes by plane number; {} if the network has one plane.

        An entry of the certificate is about one plane, an independent network that carries a
        share of the data. Planes without an entry are missing. If a plane has several entries,
        the last one counts. Raises `FlawError` (`certificate-planes`) unless the shares of the
        entries add up to exactly 1 and the network has all their planes.
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
    """Return the bandwidth of every link in bytes/s, as one dict per plane.

    A plane is an independent network. The keys are (source, destination). Of parallel links
    of a plane only the first counts. Links without a plane are on plane 0, which is always in
    the result. The links are those of `topology`, or if it is None, of the certificate.

    Raises `FlawError` (`certificate-topology`) in these cases:

    - The description in the certificate contradicts the topology, or its own digest.
    - There is no topology, and the certificate does not list its links.
    - The plane of a link is more than 1 above the highest one before (0 before the first).
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
    """Return the capacity of every link summed over all planes.

    A plane without the link adds nothing. Bounds on this combined network also hold for algorithms
    whose data change planes on their route.
    """
    total: dict[tuple[int, int], Fraction] = {}
    for plane in planes:
        for link, capacity in plane.items():
            total[link] = total.get(link, Fraction(0)) + capacity
    return total


def _check_network(declared: CertifiedNetwork, topology: Topology | None) -> CertifiedNetwork:
    """Return the description of a certificate's network with its links, after checking it.

    With a topology, these are checked first to last, and the description of the topology is
    returned:

    1. The declared digest is that of the topology.
    2. Every declared fact except the name equals that of the topology. Links may be missing;
       switches that multicast or reduce must be listed if the topology has any.

    Without a topology, the certificate must list its links, and its digest must be the one computed
    from its facts; `declared` is returned. Digests do not cover the name, so it is never checked.
    Raises `FlawError` (code `certificate-topology`) if a check fails.
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
    """Find a JSON object with the name `key` in the extensions of an algorithm; None without one.

    An extension is the JSON value that a producer, such as a synthesizer, has stored under
    its name. Only direct members of extensions that are objects are searched; a value with
    this key that is no object is skipped. Of several, the first in the order of the
    producers' names is returned.
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
    """Raise `FlawError` unless a document is for the collective of an algorithm.

    The code is `certificate-collective`. Size in bytes, kind, ranks and root are compared;
    the ranks of the document must be 0, 1, ... in order. An algorithm without a size, or
    without a root, fits any. For a custom algorithm only the size is compared. Raises
    `ValueError` for an unknown kind in the document. `document_name` is used in the
    message.
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
    """Check that a claimed lower bound in ns is not above the proved one, and return it.

    The claim is the field `lower_bound_ns` of the document. Raises `FlawError`
    (`certificate-bound`) unless it is an integer from 0 to `proved_ns`. `proof` is the
    plural subject of the message, for example "the prices".
    """
    claimed = document.get("lower_bound_ns")
    if not isinstance(claimed, int) or isinstance(claimed, bool) or claimed < 0:
        raise FlawError("bound", f"the bound {claimed!r:.40} is no time in whole nanoseconds")
    if claimed <= proved_ns:
        return claimed
    message = f"{proof} prove {float(proved_ns):.6g} ns, not {claimed} ns as claimed"
    raise FlawError("bound", message)


def describe_network_name(document: Mapping[str, Any]) -> str:
    """Return the entry for the network's name in the list of unproved claims."""
    return f"the network's name {str(document['network'].get('name', ''))!r:.60}"
