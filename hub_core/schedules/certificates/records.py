"""The document `collhub/certificate-1` as types; docs/certificates.md says what it means.

Rates and weights are fractions as text, in bytes of the collective per second. Nodes are numbers:
NPUs first, then switches.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class CertifiedNetwork(TypedDict):
    """The network that the certificate is for.

    `links`: [source, destination, bandwidth], of several planes [..., plane]; left out where there
    are many. `multicast`, `reduce`: switches that do so, left out where there are none. `sha256`:
    of the counts, these and the links as compact JSON with sorted keys.
    """

    name: str
    npus: int
    nodes: int
    sha256: str
    links: NotRequired[list[list[int | str]]]
    multicast: NotRequired[list[int]]
    reduce: NotRequired[list[int]]


class CertifiedBound(TypedDict):
    """A rate that nothing exceeds, and the nodes or blocks of nodes that prove it.

    `kind`: `cut` (what leaves `nodes`), `ingress-cut` (what enters them) or `partition` (`blocks`).
    """

    kind: str
    rate: str
    nodes: NotRequired[list[int]]
    blocks: NotRequired[list[list[int]]]


class TreeCount(TypedDict):
    """How many trees there are, and how few there could be at this rate; stated, not proved."""

    trees: int
    at_least: int
    unit: NotRequired[str]
    status: str
    reason: str


class CertifiedWay(TypedDict):
    """A tree: `parents` by NPU, -1 for none.

    `routes` by NPU: the switches on the way from its parent.
    """

    parents: list[int]
    routes: NotRequired[dict[str, list[int]]]


class CertifiedTree(CertifiedWay):
    """A tree with its weight: the bytes of the collective per second that it carries.

    `plane`: 0 where it is left out. `target`: the rank that a path of a scatter or gather serves.
    `up`: the tree by which an all-reduce collects, where that is another one.
    """

    root: int
    weight: str
    depth: int
    plane: NotRequired[int]
    target: NotRequired[int]
    up: NotRequired[CertifiedWay]


class CertifiedPlane(TypedDict):
    """A plane that carries data: its share of them, its rate, and the bound of it alone."""

    plane: int
    share: str
    rate: str
    bound: CertifiedBound


class Certificate(TypedDict):
    """The whole document. `root` and `ranks` are NPUs; `root` stands for rooted collectives."""

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
