"""Certificates of optimality: the document `collhub/certificate-1`, its digest and its bounds.

docs/certificates.md defines the document. Rates and weights are fractions as text, in bytes of the
collective per second. Nodes are numbers: NPUs first, then switches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NotRequired, TypedDict

from hub_core.model import Algorithm, JsonValue
from hub_core.network import Topology


class CertifiedNetwork(TypedDict):
    """The network of a certificate.

    `links`: [source, destination, bandwidth], with several planes [..., plane]; omitted if there
    are many. `multicast`, `reduce`: multicasting and reducing switches; omitted if there are none.
    `sha256`: digest of `npus`, `nodes`, these and the links (`network_digest`).
    """

    name: str
    npus: int
    nodes: int
    sha256: str
    links: NotRequired[list[list[int | str]]]
    multicast: NotRequired[list[int]]
    reduce: NotRequired[list[int]]


class CertifiedBound(TypedDict):
    """An upper bound of the rate, and the nodes or blocks of nodes that prove it.

    `kind`: `cut` (links that leave `nodes`), `ingress-cut` (links that enter them), `partition`
    (links between `blocks`) or `directed-partition` (links that leave one of the first `senders`
    blocks, or enter one of the others).
    """

    kind: str
    rate: str
    nodes: NotRequired[list[int]]
    blocks: NotRequired[list[list[int]]]
    senders: NotRequired[int]


class TreeCount(TypedDict):
    """Number of trees, and a claimed, unproven minimum (`at_least`) at this rate."""

    trees: int
    at_least: int
    unit: NotRequired[str]
    status: str
    reason: str


class CertifiedWay(TypedDict):
    """A tree.

    `parents`: parent of every NPU, -1 for none. `routes`: by NPU, the switches between it and its
    parent.
    """

    parents: list[int]
    routes: NotRequired[dict[str, list[int]]]


class CertifiedTree(CertifiedWay):
    """A tree with its weight: its rate in bytes of the collective per second.

    `plane`: 0 if omitted. `target`: the rank that a path of a scatter or gather serves. `up`: the
    reduction tree of an all-reduce; omitted if it is the same tree.
    """

    root: int
    weight: str
    depth: int
    plane: NotRequired[int]
    target: NotRequired[int]
    up: NotRequired[CertifiedWay]


class CertifiedPlane(TypedDict):
    """A plane that carries data: its fraction of the data, its rate, and its bound."""

    plane: int
    share: str
    rate: str
    bound: CertifiedBound


class Certificate(TypedDict):
    """The document. `root` and `ranks` are NPUs; `root` is given for rooted collectives only."""

    schema: str
    collective: str
    root: NotRequired[int]
    ranks: list[int]
    network: CertifiedNetwork
    rate: str
    bound: CertifiedBound
    is_optimal: bool
    collective_bytes: NotRequired[int]
    lower_bound_ns: NotRequired[int]
    tree_count: TreeCount
    planes: NotRequired[list[CertifiedPlane]]
    trees: NotRequired[list[CertifiedTree]]


CERTIFICATE_SCHEMA = "collhub/certificate-1"

_KEY = "certificate"
_HASHED_KEYS = ("npus", "nodes", "multicast", "reduce", "links")


def find_certificate(algorithm: Algorithm) -> dict[str, JsonValue] | None:
    """Return the first certificate in the extensions of an algorithm, or None without one.

    An extension has a certificate if it is a JSON object whose member `certificate` is a
    JSON object. The extensions are searched in alphabetical order of their names. The
    certificate is not validated.
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
    """Return the JSON object `network` (`CertifiedNetwork`) of a certificate.

    Its members are, in this order:

    - `name`, `npus` and `nodes` (NPUs and switches)
    - `multicast`, `reduce`: the switches that can multicast or reduce; each is omitted if there are
      none
    - `sha256`: digest of all other members except the name; it always covers the links
    - `links`, only with `with_links`: [source, destination, bandwidth] in the order of the
      topology. The bandwidth in bytes/s is an exact fraction as text. With several planes, the
      plane follows.
    """
    head: dict[str, JsonValue] = {
        "npus": topology.num_npus,
        "nodes": topology.num_nodes,
    }
    # Only if there are any, so that other digests do not change.
    for key, switches in (("multicast", topology.multicast), ("reduce", topology.reduction)):
        if switches:
            head[key] = list(switches)
    links: list[JsonValue] = []
    for link, plane in zip(topology.links(), topology.plane.tolist(), strict=True):
        # From the shortest decimal text, since `Fraction(0.1)` is not a tenth.
        bandwidth = str(Fraction(repr(link.bandwidth_bytes_per_s)))
        links.append([link.source, link.destination, bandwidth])
        if topology.num_planes > 1:
            links[-1] = [link.source, link.destination, bandwidth, plane]
    network: dict[str, JsonValue] = {"name": topology.name, **head}
    network["sha256"] = network_digest({**head, "links": links})
    if with_links:
        network["links"] = links
    return network


def network_digest(network: Mapping[str, object]) -> str:
    """Return the SHA-256 of a network as 64 hexadecimal digits; its name does not matter.

    `network`: the JSON object of a network with its links. Only the members in
    `_HASHED_KEYS` (such as `npus` and `links`) count, and only if they are present. Hashed
    is their JSON text without spaces and with sorted keys; the order of the links matters.
    """
    document = {key: network[key] for key in _HASHED_KEYS if key in network}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


LinkCapacities = Mapping[tuple[int, int], Fraction]
"""Bandwidth in bytes/s by (source node, destination node)."""


def spreading_rate(nodes: Sequence[int], capacities: LinkCapacities, outward: bool) -> Fraction:
    """Return the exact total bandwidth in bytes/s of the links that leave a set of nodes.

    With `outward` False, the links that enter the set count instead. Links between two
    nodes of the set never count. The result is 0 if no link counts. `nodes`: the set;
    repeated nodes count once. `capacities`: bandwidth by (source, destination).
    """
    inside = set(nodes)
    total = Fraction(0)
    for (tail, head), capacity in capacities.items():
        source_is_inside = tail in inside
        destination_is_inside = head in inside
        if source_is_inside == destination_is_inside:
            continue
        if source_is_inside == outward:
            total += capacity
    return total


def partition_rate(blocks: Sequence[Sequence[int]], capacities: LinkCapacities) -> Fraction:
    """Return an upper bound on the rate of an all-reduce, in bytes of the full buffer per second.

    `blocks`: two or more disjoint sets of nodes that contain all ranks; a switch may be in any
    block or in none. The bound is the bandwidth of all links that enter a block, divided by 2
    (blocks - 1). Without switches and with equal links in both directions, it is the bound of
    Nash-Williams and Tutte (1961).
    """
    # Every element needs at least len(blocks) - 1 messages between the blocks to be reduced and as
    # many to be distributed, and each of them enters a block. A message that enters the ranks of a
    # block enters every set of nodes with exactly these ranks, so any assignment of switches holds.
    entering = Fraction(0)
    for block in blocks:
        entering += spreading_rate(block, capacities, outward=False)
    return entering / (2 * (len(blocks) - 1))


def directed_partition_rate(
    blocks: Sequence[Sequence[int]], senders: int, capacities: LinkCapacities
) -> Fraction:
    """Return an upper bound of the rate of an all-reduce, in bytes of the collective per second.

    `blocks`: two or more disjoint sets of nodes, each with a rank. The first `senders` of them (0
    to all) are sending blocks, the other blocks are receiving ones. `capacities`: in bytes/s by
    (source node, destination node).

    A link counts if it leaves a sending block, or enters a receiving one; a link that does both
    counts once. The other end may be in any other block or in none. Links within a block, or with
    both ends outside of all blocks, do not count. The bound is the capacity of all links that
    count, divided by (number of blocks - 1). One block raises `ZeroDivisionError`.
    """
    # For every element, consider the first moment at which the nodes of a receiving block together
    # have all contributions (without receiving blocks: the end). Until then, a message has left
    # every sending block, and after it, a message enters every other receiving block. These are
    # different messages over links that count: at least len(blocks) - 1.
    block_of = {node: number for number, block in enumerate(blocks) for node in block}
    counted = Fraction(0)
    for (tail, head), capacity in capacities.items():
        source, destination = block_of.get(tail), block_of.get(head)
        if source == destination:
            continue
        leaves_sender = source is not None and source < senders
        enters_receiver = destination is not None and destination >= senders
        if leaves_sender or enters_receiver:
            counted += capacity
    return counted / (len(blocks) - 1)
