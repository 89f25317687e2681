"""Write a topology for htsim, where a network is one of the fat trees that it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from collhub_networks import cables_of

from collhub_astra_sim.networks.fat_trees import FatTree, Tier
from collhub_astra_sim.networks.ns3_write import name_losses
from hub_core.model import UsageError
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, NoOptions, WriteResult


def write(topology: Topology, options: NoOptions) -> WriteResult:
    """Writer of the format `htsim`. Raises `UsageError` with the reason for all but fat trees."""
    del options
    try:
        tree = _Levels(topology).fat_tree()
    except _NoFatTreeError as error:
        raise UsageError(
            f"topology {topology.name} is no fat tree that htsim has: {error}",
            cure="write it for ns-3, which takes any cables: --to ns3",
            code="inexpressible-topology",
        ) from None
    content = "".join(_lines(tree)).encode("ascii")
    losses = tuple(name_losses(topology))
    # Switches may come back in another order.
    return WriteResult([Artifact("", lambda: content)], losses, ("links", "link order"))


def _lines(tree: FatTree) -> Iterator[str]:
    yield f"Nodes {tree.npus}\nTiers {len(tree.tiers)}\nPodsize {tree.pod_size}\n"
    for number, tier in enumerate(tree.tiers):
        yield f"\nTier {number}\n"
        yield f"Downlink_speed_Gbps {tier.speed_gbps}\nRadix_Down {tier.radix_down}\n"
        if number < len(tree.tiers) - 1:
            yield f"Radix_Up {tier.radix_up}\n"
        yield f"Downlink_Latency_ns {tier.latency_ns}\n"
        if tier.oversubscribed != 1:
            yield f"Oversubscribed {tier.oversubscribed}\n"
        if tier.bundle != 1:
            yield f"Bundle {tier.bundle}\n"


class _NoFatTreeError(Exception):
    """Why a network is no fat tree."""


class _Levels:
    """A network by hops from the nearest NPU: 0 the NPUs, 1 the switches next to them."""

    def __init__(self, topology: Topology) -> None:
        """Raises `_NoFatTreeError` where links join nodes of one level, or a switch is idle."""
        self._npus = topology.num_npus
        self._cables = cables_of(topology)
        level = [0] * self._npus + [-1] * (topology.num_nodes - self._npus)
        for here in range(1, 4):
            for cable in self._cables:
                for low, high in (cable[:2], cable[1::-1]):
                    if level[low] == here - 1 and level[high] < 0:
                        level[high] = here
        if -1 in level:
            raise _NoFatTreeError("a switch is idle, or further than three hops from every NPU")
        if any(abs(level[low] - level[high]) != 1 for low, high, *_ in self._cables):
            raise _NoFatTreeError("a link joins two NPUs, or two switches of one tier")
        self._count = max(level)
        self._nodes = [
            [node for node, its in enumerate(level) if its == here]
            for here in range(self._count + 1)
        ]
        # By node, the nodes above and how many cables lead to each; likewise below.
        self._above: list[Counter[int]] = [Counter() for _ in level]
        self._below: list[Counter[int]] = [Counter() for _ in level]
        self._kinds: list[set[tuple[float, float]]] = [set() for _ in range(self._count)]
        for cable in self._cables:
            low, high = sorted(cable[:2], key=level.__getitem__)
            self._above[low][high] += 1
            self._below[high][low] += 1
            self._kinds[level[low]].add(cable[2:])

    def fat_tree(self) -> FatTree:
        """The fat tree that this is. Raises `_NoFatTreeError` with the reason.

        It has two or three tiers of switches, each with cables of one rate and one latency.
        """
        if self._count not in (2, 3):
            raise _NoFatTreeError(f"it has {self._count} tiers of switches, htsim 2 or 3")
        tiers = [self._tier(number) for number in range(self._count)]
        tree = FatTree(self._npus, self._npus // self._pods(), tuple(tiers))
        if defect := tree.defect():
            raise _NoFatTreeError(defect)
        self._check_npus(tree)
        self._check_pods(tree)
        self._check_cores()
        return tree

    def _tier(self, number: int) -> Tier:
        """What the cables below and above the switches of a tier say."""
        speed_gbps, latency_ns = self._speed(number)
        bundles = {count for node in self._nodes[number] for count in self._above[node].values()}
        ports_below = self._ports(self._below, number + 1)
        is_top = number == self._count - 1
        ports_above = 0 if is_top else self._ports(self._above, number + 1)
        if len(bundles) != 1 or (number == 0 and bundles != {1}):
            raise _NoFatTreeError(f"the cables below tier {number} are bundled in several ways")
        share = 1 if is_top else self._oversubscribed(number, speed_gbps, ports_above)
        return Tier(
            speed_gbps,
            ports_below,
            latency_ns,
            radix_up=ports_above,
            oversubscribed=share,
            bundle=bundles.pop(),
        )

    def _speed(self, number: int) -> tuple[int, int]:
        """(Gbit/s, ns) of the cables below a tier."""
        if len(self._kinds[number]) != 1:
            raise _NoFatTreeError(f"the links below tier {number} differ in bandwidth or latency")
        ((bandwidth, latency_s),) = self._kinds[number]
        speed_gbps, latency_ns = bandwidth * 8 / 1e9, round(latency_s * 1e9, 6)
        if not (speed_gbps.is_integer() and latency_ns.is_integer() and latency_ns >= 1):
            what = f"{speed_gbps:g} Gbit/s and {latency_ns:g} ns"
            raise _NoFatTreeError(f"htsim states whole Gbit/s and ns of at least 1, not {what}")
        return int(speed_gbps), int(latency_ns)

    def _ports(self, side: Sequence[Counter[int]], level: int) -> int:
        """How many cables lead up, or down, from a node of a level: the same for all."""
        found = {sum(side[node].values()) for node in self._nodes[level]}
        if len(found) != 1:
            raise _NoFatTreeError(f"switches of tier {level - 1} differ in their number of links")
        return found.pop()

    def _oversubscribed(self, number: int, speed_gbps: int, ports_above: int) -> int:
        """How much more the cables below the switches of a tier carry than those above."""
        faster, _ = self._speed(number + 1)
        ports_below = self._ports(self._below, number + 1)
        share, rest = divmod(ports_below * speed_gbps, ports_above * faster)
        if rest or not share:
            raise _NoFatTreeError(f"tier {number} is not oversubscribed by a whole number")
        return share

    def _pods(self) -> int:
        """Pods are what hangs together below the topmost tier of three."""
        if self._count == 2:
            return 1
        above = {frozenset(self._above[switch]) for switch in self._nodes[1]}
        return len(above)

    def _check_npus(self, tree: FatTree) -> None:
        radix = tree.tiers[0].radix_down
        blocks = {tuple(sorted(self._below[switch])) for switch in self._nodes[1]}
        wanted = {tuple(range(first, first + radix)) for first in range(0, self._npus, radix)}
        if blocks != wanted:
            raise _NoFatTreeError("NPUs next to one another in number hang at different switches")

    def _check_pods(self, tree: FatTree) -> None:
        """Every switch of tier 0 is joined to all of tier 1 of its pod."""
        for switch in self._nodes[1]:
            pod = min(self._below[switch]) // tree.pod_size
            others = [
                other for other in self._nodes[1] if min(self._below[other]) // tree.pod_size == pod
            ]
            if any(self._above[other] != self._above[switch] for other in others):
                raise _NoFatTreeError("switches of one pod are joined to different ones above")

    def _check_cores(self) -> None:
        """Switches of tier 1 share the switches above in the same groups in every pod."""
        if self._count == 2:
            return
        groups: dict[frozenset[int], set[frozenset[int]]] = {}
        for switch in self._nodes[2]:
            pod = frozenset(self._below[switch])
            groups.setdefault(pod, set()).add(frozenset(self._above[switch]))
        first = next(iter(groups.values()))
        joined = [core for group in first for core in group]
        if any(group != first for group in groups.values()) or len(set(joined)) < len(joined):
            raise _NoFatTreeError("the switches of the top tier join different ones in each pod")
