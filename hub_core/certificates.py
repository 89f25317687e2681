"""Check a certificate of optimality - trees, their rate, and a cut that no rate exceeds - without whoever made it.

Everything is recomputed in fractions from the links' bandwidths: whether every tree is one, what all trees together put
on every link, and what the cut lets through. The document is described in docs/certificates.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from hub_core.documents.schema_check import first_violation
from hub_core.documents.strict_json import JsonObject
from hub_core.model.algorithm import Algorithm, JsonValue
from hub_core.model.diagnostics import Diagnostic, Severity
from hub_core.model.kinds import CollectiveKind, StepKind
from hub_core.network.topology import Topology

SCHEMA = "collhub/certificate-1"
_SCHEMA_FILE = "certificate-1.json"
_KEY = "certificate"

_Link = tuple[int, int]
_Capacities = Mapping[_Link, Fraction]


@dataclass(frozen=True, slots=True)
class CertificateReport:
    """What is left of a certificate's claims. `rate`: bytes per second that the trees carry, None where they do not.

    `bound`: the rate that the cut or partition allows, None where it is none. `is_optimal`: both are sound and equal.
    """

    rate: Fraction | None
    bound: Fraction | None
    diagnostics: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing that the certificate claims is wrong."""
        return not any(found.severity is Severity.ERROR for found in self.diagnostics)

    @property
    def is_optimal(self) -> bool:
        """Whether no algorithm has a higher rate."""
        return self.ok and self.rate is not None and self.rate == self.bound


class _FlawError(Exception):
    """A claim that does not hold."""

    def __init__(self, code: str, message: str, cure: str = "") -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(f"certificate-{code}", message, cure=cure)


def network_object(topology: Topology, with_links: bool = True) -> dict[str, JsonValue]:
    """The `network` of a certificate: name, counts, SHA-256 of the links and, on demand, the links themselves."""
    has_planes = topology.num_planes > 1
    links: list[JsonValue] = [
        [
            link.source,
            link.destination,
            str(_exact(link.bandwidth_bytes_per_s)),
            *([plane] if has_planes else []),
        ]
        for link, plane in zip(topology.links(), topology.plane.tolist(), strict=True)
    ]
    head: dict[str, JsonValue] = {"npus": topology.num_npus, "nodes": topology.num_nodes}
    digest = hashlib.sha256(
        json.dumps({**head, "links": links}, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
    return {
        "name": topology.name,
        **head,
        "sha256": digest,
        **({"links": links} if with_links else {}),
    }


def find_certificate(algorithm: Algorithm) -> JsonObject | None:
    """The certificate among an algorithm's extensions: the first by name of who made it."""
    for name in sorted(algorithm.extensions):
        extension = algorithm.extensions[name]
        if isinstance(extension, dict) and isinstance(certificate := extension.get(_KEY), dict):
            return certificate
    return None


def check_certificate(
    certificate: JsonObject, algorithm: Algorithm | None = None, topology: Topology | None = None
) -> CertificateReport:
    """Recompute everything that a certificate claims.

    With `topology`, the certificate must be for this network; without, for the links that it states. With `algorithm`,
    what the algorithm sends over every link must be what the trees send. Nothing is trusted but the topology.
    """
    if violation := first_violation(certificate, _SCHEMA_FILE):
        return CertificateReport(
            None,
            None,
            (Diagnostic("certificate-form", f"certificate: {violation[0]}: {violation[1]}"),),
        )
    found: list[Diagnostic] = []
    rate = bound = None
    try:
        claim = _Claim(certificate, _capacities(certificate, topology))
        claim.check_ranks(algorithm)
        bound = _attempt(claim.bound, found)
        if "trees" in certificate:
            rate = _attempt(lambda: claim.carried(algorithm), found)
        else:
            message = "the certificate leaves the trees out, so that only the bound was checked"
            found.append(Diagnostic("certificate-partial", message, Severity.WARNING))
        claim.compare(rate, bound)
    except _FlawError as flaw:
        found.append(flaw.diagnostic)
    return CertificateReport(rate, bound, tuple(found))


def _attempt(compute: Callable[[], Fraction], found: list[Diagnostic]) -> Fraction | None:
    try:
        return compute()
    except _FlawError as flaw:
        found.append(flaw.diagnostic)
        return None


def _capacities(certificate: JsonObject, topology: Topology | None) -> list[dict[_Link, Fraction]]:
    """Per plane, bytes per second between neighbours; of parallel links the first stands."""
    stated = certificate["network"]
    if topology is not None:
        if network_object(topology, False)["sha256"] != stated["sha256"]:
            cure = "give the topology for which the algorithm was made"
            raise _FlawError(
                "topology",
                f"the certificate is for {stated['name']}, not for {topology.name}",
                cure,
            )
        stated = network_object(topology)
    if "links" not in stated:
        raise _FlawError(
            "topology",
            f"the certificate does not state the links of {stated['name']}",
            "name the network with --topology",
        )
    planes: list[dict[_Link, Fraction]] = [{}]
    for source, destination, bandwidth, *plane in stated["links"]:
        if sum(plane) > len(planes):
            raise _FlawError("topology", "its planes are not numbered in order")
        planes += [{}] if sum(plane) == len(planes) else []
        planes[sum(plane)].setdefault((source, destination), Fraction(bandwidth))
    return planes


def _united(planes: Sequence[_Capacities]) -> dict[_Link, Fraction]:
    """What all planes have together between neighbours."""
    total: dict[_Link, Fraction] = {}
    for plane in planes:
        for link, capacity in plane.items():
            total[link] = total.get(link, Fraction(0)) + capacity
    return total


def spreading_rate(inside: Sequence[int], capacities: _Capacities, outward: bool) -> Fraction:
    """Bytes per second over the links that leave a set of nodes (`outward`) or enter it."""
    chosen = set(inside)
    across = (
        capacity
        for (tail, head), capacity in capacities.items()
        if (tail in chosen) != (head in chosen) and (tail in chosen) == outward
    )
    return sum(across, Fraction(0))


def partition_rate(blocks: Sequence[Sequence[int]], capacities: _Capacities) -> Fraction:
    """What an all-reduce can do between blocks of ranks: 2 (blocks - 1) messages of every element enter one of them.

    For networks with equal links in both directions this is the bound of Nash-Williams and Tutte (1961). A message that
    enters a block's ranks enters every set of nodes which has these ranks and no others, so a block may have any switches.
    """
    entering = sum((spreading_rate(block, capacities, False) for block in blocks), Fraction(0))
    return entering / (2 * (len(blocks) - 1))


@dataclass(frozen=True, slots=True)
class _Claim:
    """A certificate whose form is right, and the network that it is about, plane by plane."""

    document: JsonObject
    planes: Sequence[_Capacities]

    @property
    def kind(self) -> CollectiveKind:
        return CollectiveKind(self.document["collective"])

    @property
    def ranks(self) -> list[int]:
        """The NPU of every rank."""
        ranks: list[int] = self.document["ranks"]
        return ranks

    def check_ranks(self, algorithm: Algorithm | None) -> None:
        """Refuse ranks that are no NPUs, and a certificate for another collective."""
        document, npus = self.document, self.document["network"]["npus"]
        if len(set(self.ranks)) < len(self.ranks) or max(self.ranks) >= npus or len(self.ranks) < 2:
            raise _FlawError(
                "ranks", f"the ranks are not two or more different NPUs of 0..{npus - 1}"
            )
        if self.kind in _ROOTED and document.get("root") not in self.ranks:
            raise _FlawError("ranks", f"the root {document.get('root')} is none of the ranks")
        if algorithm is None:
            return
        made = algorithm.collective
        is_same = made.kind is self.kind and self.ranks == list(range(made.num_ranks))
        is_same = is_same and (made.root is None or made.root == document.get("root"))
        if not is_same and made.kind is not CollectiveKind.CUSTOM:
            raise _FlawError(
                "collective",
                f"the certificate is for {self.kind} of {len(self.ranks)} ranks, the algorithm is {made.kind}",
            )

    def bound(self) -> Fraction:
        """The rate that the stated cut or partition allows; those of single planes are held against what they claim."""
        for plane, stated in self.carrying().items():
            if self._bound(stated["bound"], self.planes[plane]) != Fraction(
                stated["bound"]["rate"]
            ):
                raise _FlawError(
                    "bound",
                    f"the bound of plane {plane} is not {_gb(Fraction(stated['bound']['rate']))} as claimed",
                )
        return self._bound(self.document["bound"], _united(self.planes))

    def carrying(self) -> dict[int, JsonObject]:
        """What is stated of every plane that carries anything; nothing where the network is one plane."""
        if len(self.planes) == 1:
            return {}
        stated = {entry["plane"]: entry for entry in self.document.get("planes", [])}
        if sum(Fraction(entry["share"]) for entry in stated.values()) != 1 or not set(
            stated
        ) <= set(range(len(self.planes))):
            raise _FlawError("planes", "the planes of the network do not share all data")
        return stated

    def _bound(self, stated: JsonObject, capacities: _Capacities) -> Fraction:
        nodes, total = set(range(self.document["network"]["nodes"])), len(self.ranks)
        if stated["kind"] == "partition" and self.kind is CollectiveKind.ALL_REDUCE:
            blocks = stated.get("blocks", [])
            named = sorted(node for block in blocks for node in block if node in self.ranks)
            if (
                len(blocks) < 2
                or named != sorted(self.ranks)
                or not all(set(block) <= nodes for block in blocks)
            ):
                raise _FlawError("bound", "the blocks are no partition of the ranks")
            if any(not set(block) & set(self.ranks) for block in blocks):
                raise _FlawError("bound", "a block of the partition holds no rank")
            return partition_rate(blocks, capacities)
        cut = set(stated.get("nodes", []))
        inside, outside = len(cut & set(self.ranks)), len(set(self.ranks) - cut)
        if (
            not cut <= nodes
            or not inside
            or not outside
            or (self.kind in _ROOTED and self.document["root"] not in cut)
        ):
            raise _FlawError("bound", "the cut does not part the ranks as it must")
        across = spreading_rate(sorted(cut), capacities, self.kind not in _COLLECTING)
        return across * _shares(self.kind, total, inside, outside)

    def carried(self, algorithm: Algorithm | None) -> Fraction:
        """The rate that the trees carry together; every link has room for them, every rank gets its part."""
        carrying = self.carrying()
        total = Fraction(0)
        for plane, capacities in enumerate(self.planes):
            stated = [tree for tree in self.document["trees"] if tree.get("plane", 0) == plane]
            if not stated and len(self.planes) > 1 and plane not in carrying:
                continue
            trees = [branches for tree in stated for branches in _Branches.of(tree, self)]
            rate = self._rate(stated, trees, capacities)
            entry = carrying.get(plane, {"share": "1", "rate": str(rate)})
            if Fraction(entry["rate"]) != rate or (carrying and plane not in carrying):
                raise _FlawError(
                    "planes", f"the trees of plane {plane} carry {_gb(rate)}, not what is claimed"
                )
            if algorithm is not None:
                self._check_traffic(
                    trees,
                    Fraction(entry["share"]) / rate,
                    _moved(algorithm, plane, len(self.planes)),
                )
            total += rate
        if any(tree.get("plane", 0) >= len(self.planes) for tree in self.document["trees"]):
            raise _FlawError("planes", "a tree is on a plane that the network does not have")
        return total

    def _rate(
        self, stated: Sequence[JsonObject], trees: Sequence[_Branches], capacities: _Capacities
    ) -> Fraction:
        """The rate of the trees of one plane."""
        for link, load in sorted(_loads(trees).items()):
            capacity = capacities.get(link, Fraction(0))
            if load > capacity:
                message = f"the trees put {_gb(load)} on the link {link[0]} -> {link[1]} of {_gb(capacity)}"
                raise _FlawError("load", message)
        rate = sum((Fraction(tree["weight"]) for tree in stated), Fraction(0))
        if not rate:
            raise _FlawError("rate", "the trees carry nothing")
        if self.kind in _SPREAD_BY_TARGET:
            # The root's own part goes nowhere.
            rate *= Fraction(len(self.ranks), len(self.ranks) - 1)
        self._check_parts(trees, rate)
        return rate

    def _check_parts(self, trees: Sequence[_Branches], rate: Fraction) -> None:
        """Trees that serve one rank alone - rooted at it, or leading to it - must carry its equal part."""
        if self.kind not in _SPLIT:
            return
        part: dict[int, Fraction] = dict.fromkeys(self.ranks, Fraction(0))
        for tree in trees:
            part[tree.served] += tree.weight
        if self.kind in _ROOTED:
            part[self.document["root"]] = rate / len(self.ranks)
        for rank, carried in part.items():
            if carried * len(self.ranks) != rate:
                raise _FlawError(
                    "parts",
                    f"the trees carry {_gb(carried)} for NPU {rank}, not a {len(self.ranks)}th of {_gb(rate)}",
                )

    def _check_traffic(
        self, trees: Sequence[_Branches], data_per_rate: Fraction, moved: Mapping[_Link, Fraction]
    ) -> None:
        """What the algorithm sends between two NPUs must be what the trees send there."""
        planned: dict[_Link, Fraction] = {}
        for tree in trees:
            for hop in tree.hops():
                planned[hop] = planned.get(hop, Fraction(0)) + tree.weight * data_per_rate
        for pair in sorted(moved.keys() | planned.keys()):
            if moved.get(pair) != planned.get(pair):
                raise _FlawError(
                    "traffic",
                    f"the algorithm does not send what the trees say from rank {pair[0]} to rank {pair[1]}",
                )

    def compare(self, rate: Fraction | None, bound: Fraction | None) -> None:
        """Hold the stated numbers against the recomputed ones."""
        document = self.document
        stated = {
            "rate": (Fraction(document["rate"]), rate),
            "bound": (Fraction(document["bound"]["rate"]), bound),
        }
        for name, (claimed, computed) in stated.items():
            if computed is not None and claimed != computed:
                raise _FlawError(
                    name, f"the {name} is {_gb(computed)}, not {_gb(claimed)} as claimed"
                )
        if rate is not None and document["tree_count"]["trees"] != len(document["trees"]):
            raise _FlawError(
                "trees",
                f"{len(document['trees'])} trees are stated, not {document['tree_count']['trees']} as claimed",
            )
        if rate is not None and bound is not None and rate > bound:
            raise _FlawError(
                "bound",
                f"the trees carry {_gb(rate)}, more than the bound of {_gb(bound)}: one of them is wrong",
            )
        if document["is_optimal"] and rate is not None and bound is not None and rate != bound:
            raise _FlawError(
                "optimal",
                f"claimed to be optimal, but {_gb(rate)} is less than the bound of {_gb(bound)}",
            )


def _moved(algorithm: Algorithm, plane: int, num_planes: int) -> dict[_Link, Fraction]:
    """The part of the data that an algorithm sends between two ranks on the channels of a plane."""
    steps, units = algorithm.steps, algorithm.collective.unit_count
    sends = np.flatnonzero((steps.kind == StepKind.SEND) & (steps.channel % num_planes == plane))
    pairs, inverse = np.unique(
        steps.rank[sends].astype(np.int64) << 32 | steps.peer[sends], return_inverse=True
    )
    sent = np.zeros(len(pairs), np.int64)
    np.add.at(sent, inverse, steps.count[sends])
    return {
        (int(pair >> 32), int(pair & 0xFFFFFFFF)): Fraction(int(count), units)
        for pair, count in zip(pairs, sent, strict=True)
    }


_ROOTED = frozenset(
    {CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER}
)
_WHOLE = frozenset({CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.ALL_REDUCE})
_COLLECTING = frozenset(
    {CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.REDUCE_SCATTER}
)
_SPLIT = frozenset(
    {
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.GATHER,
        CollectiveKind.SCATTER,
    }
)
_SPREAD_BY_TARGET = frozenset({CollectiveKind.GATHER, CollectiveKind.SCATTER})


def _shares(kind: CollectiveKind, total: int, inside: int, outside: int) -> Fraction:
    """Bytes of the collective per byte that must cross a cut with so many of its ranks inside and outside."""
    if kind in _WHOLE:
        return Fraction(1)
    return Fraction(total, outside if kind in _SPREAD_BY_TARGET else inside)


@dataclass(frozen=True, slots=True)
class _Branches:
    """A tree, one way or both: `parents` by NPU, the nodes between, and `served`: the rank whose part it carries alone."""

    weight: Fraction
    parents: Mapping[int, int]
    routes: Mapping[int, Sequence[int]]
    is_down: bool
    is_up: bool
    served: int
    npus: int

    @classmethod
    def of(cls, stated: JsonObject, claim: _Claim) -> list[_Branches]:
        """One, or where the way up is another, two; each checked to be a tree which reaches whom it must."""
        root, kind = stated["root"], claim.kind
        targets = (
            [stated["target"]] if kind in _SPREAD_BY_TARGET and "target" in stated else claim.ranks
        )
        if kind in _ROOTED and root != claim.document["root"]:
            raise _FlawError(
                "tree", f"a tree is rooted at {root}, not at the root {claim.document['root']}"
            )
        if root not in claim.ranks or not set(targets) <= set(claim.ranks):
            raise _FlawError("tree", f"the tree of root {root} starts at no rank, or leads to none")
        served: int = stated["target"] if kind in _SPREAD_BY_TARGET and "target" in stated else root
        has_own_way_up = kind is CollectiveKind.ALL_REDUCE and "up" in stated
        ways = [
            (
                stated,
                kind not in _COLLECTING,
                kind in _COLLECTING or (kind is CollectiveKind.ALL_REDUCE and not has_own_way_up),
            )
        ]
        if has_own_way_up:
            ways.append((stated["up"], False, True))
        return [
            cls._way(way, stated, is_down, is_up, served, targets, claim)
            for way, is_down, is_up in ways
        ]

    @classmethod
    def _way(
        cls,
        way: JsonObject,
        stated: JsonObject,
        is_down: bool,
        is_up: bool,
        served: int,
        targets: Sequence[int],
        claim: _Claim,
    ) -> _Branches:
        parents = {node: parent for node, parent in enumerate(way["parents"]) if parent >= 0}
        if stated["root"] in parents:
            raise _FlawError("tree", f"the root {stated['root']} of a tree hangs on another node")
        for node in (*targets, *parents):
            _check_path(node, stated["root"], parents)
        routes = {int(node): route for node, route in way.get("routes", {}).items()}
        return cls(
            Fraction(stated["weight"]),
            parents,
            routes,
            is_down,
            is_up,
            served,
            claim.document["network"]["npus"],
        )

    def hops(self) -> Iterator[_Link]:
        """Messages between NPUs: switches do not count as stops."""
        for stops in self._stops():
            npus = [node for node in stops if node < self.npus]
            yield from pairwise(npus)

    def links(self) -> Iterator[_Link]:
        """Links that the messages take."""
        for stops in self._stops():
            yield from pairwise(stops)

    def _stops(self) -> Iterator[list[int]]:
        """Nodes from every parent to its child, or back."""
        for node, parent in self.parents.items():
            stops = [parent, *self.routes.get(node, ()), node]
            if self.is_down:
                yield stops
            if self.is_up:
                yield stops[::-1]


def _check_path(node: int, root: int, parents: Mapping[int, int]) -> None:
    start, steps = node, 0
    while node != root:
        steps += 1
        if node not in parents or steps > len(parents):
            raise _FlawError("tree", f"NPU {start} does not hang on the tree of root {root}")
        node = parents[node]


def _loads(trees: Sequence[_Branches]) -> dict[_Link, Fraction]:
    loads: dict[_Link, Fraction] = {}
    for tree in trees:
        for link in tree.links():
            loads[link] = loads.get(link, Fraction(0)) + tree.weight
    return loads


def _exact(bandwidth_bytes_per_s: float) -> Fraction:
    """The number that a bandwidth's shortest decimal text names."""
    return Fraction(repr(bandwidth_bytes_per_s))


def _gb(rate: Fraction) -> str:
    return f"{float(rate) / 1e9:.6g} GB/s"
