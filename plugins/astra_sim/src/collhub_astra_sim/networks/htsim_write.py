"""Write a topology for htsim, if the network is one of its fat trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from collhub_networks import cables_of

from collhub_astra_sim.networks.fat_trees import FatTree, Tier
from collhub_astra_sim.networks.ns3 import report_name_losses
from hub_core.model import UsageError
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, NoOptions, WriteResult


def write(topology: Topology, options: NoOptions) -> WriteResult:
    """Write the network as one topology file of htsim (format `htsim`).

    The network must be a fat tree of two or three tiers with equal links in a tier; NPUs of
    consecutive numbers are connected to the same switch. Losses are the multicast and the
    reduction of switches, names of nodes, and groups of NPUs, each if present. Switches and links
    may have other numbers when the file is read again. `options` has no effect.

    Raises `UsageError` (`inexpressible-topology`) with the reason for all other networks, also for
    several planes and for links without an equal reverse link.
    """
    del options
    try:
        tree = _Levels(topology).fat_tree()
    except _NoFatTreeError as error:
        raise UsageError(
            f"topology {topology.name} is no fat tree that htsim has: {error}",
            cure="write it for ns-3, which takes any cables: --to ns3",
            code="inexpressible-topology",
        ) from None
    content = "".join(_format_lines(tree)).encode("ascii")
    losses = tuple(report_name_losses(topology))
    # Switches may be read back in another order.
    return WriteResult([Artifact("", lambda: content)], losses, ("links", "link order"))


def _format_lines(tree: FatTree) -> Iterator[str]:
    """Yield parts of the text of the topology file: the head, then the keys of every tier.

    The head has `Nodes` (NPUs), `Tiers` and `Podsize`. Tiers are in the order of `tree.tiers`, from
    the hosts up, and numbered from 0. A tier begins with an empty line and `Tier N`. Its keys are,
    in this order: `Downlink_speed_Gbps`, `Radix_Down`, `Radix_Up` (omitted at the top tier),
    `Downlink_Latency_ns`, `Oversubscribed` and `Bundle`. The last two are omitted if they are 1.
    The latency of switches is not written.
    """
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
    """Reason why a network is no fat tree."""


class _Levels:
    """A network by hops from the nearest NPU (level 0: the NPUs, 1: switches next to them)."""

    def __init__(self, topology: Topology) -> None:
        """Assign a level to every node, and count the cables between levels.

        A cable is a link and its reverse. The level is 0 for NPUs, else the number of hops to the
        nearest NPU. Stored are the nodes of each level, the number of cables from each node to each
        neighbour above and below, and the (bandwidth, latency) pairs of cables by the lower of
        their two levels.

        Raises, in this order: `UsageError` for several planes, or a link without an equal one in
        the opposite direction; `_NoFatTreeError` if a switch is not within three hops of an NPU, or
        if a cable does not connect adjacent levels.
        """
        self._npus = topology.num_npus
        self._cables = cables_of(topology)
        level = [0] * self._npus + [-1] * (topology.num_nodes - self._npus)
        for current in range(1, 4):
            for cable in self._cables:
                for low, high in (cable[:2], cable[1::-1]):
                    if level[low] == current - 1 and level[high] < 0:
                        level[high] = current
        if -1 in level:
            raise _NoFatTreeError("a switch is idle, or further than three hops from every NPU")
        if any(abs(level[low] - level[high]) != 1 for low, high, *_ in self._cables):
            raise _NoFatTreeError("a link joins two NPUs, or two switches of one tier")
        self._count = max(level)
        self._nodes = [
            [node for node, node_level in enumerate(level) if node_level == current]
            for current in range(self._count + 1)
        ]
        # By node: the nodes above and the number of cables to each; likewise below.
        self._above: list[Counter[int]] = [Counter() for _ in level]
        self._below: list[Counter[int]] = [Counter() for _ in level]
        self._kinds: list[set[tuple[float, float]]] = [set() for _ in range(self._count)]
        for cable in self._cables:
            low, high = sorted(cable[:2], key=level.__getitem__)
            self._above[low][high] += 1
            self._below[high][low] += 1
            self._kinds[level[low]].add(cable[2:])

    def fat_tree(self) -> FatTree:
        """Return the htsim fat tree that equals this network.

        Raises `_NoFatTreeError` with the first reason why there is none. Checked in this order:

        - there are two or three tiers of switches
        - tier by tier from the lowest, the conditions of `_build_tier`
        - the numbers of NPUs, pods, ports and cables fit together (`FatTree.defect`); a pod is a
          set of switches of tier 0 with the same switches above, and two tiers have one pod
        - each switch of tier 0 is connected to a block of consecutive NPUs, such as 0 to 3 and 4 to
          7
        - switches of tier 0 whose NPUs are in one pod, by number, have the same switches above,
          with equally many cables to each
        - with three tiers, all pods are connected to the same disjoint groups of top switches
          (`_check_cores`)
        """
        if self._count not in (2, 3):
            raise _NoFatTreeError(f"it has {self._count} tiers of switches, htsim 2 or 3")
        tiers = [self._build_tier(number) for number in range(self._count)]
        pods = 1
        if self._count == 3:
            pods = len({frozenset(self._above[switch]) for switch in self._nodes[1]})
        tree = FatTree(self._npus, self._npus // pods, tuple(tiers))
        if defect := tree.defect():
            raise _NoFatTreeError(defect)
        # Each switch of tier 0 must connect a block of consecutive NPUs.
        radix = tree.tiers[0].radix_down
        blocks = {tuple(sorted(self._below[switch])) for switch in self._nodes[1]}
        expected = {tuple(range(first, first + radix)) for first in range(0, self._npus, radix)}
        if blocks != expected:
            raise _NoFatTreeError("NPUs of consecutive numbers are connected to different switches")
        self._check_pods(tree)
        self._check_cores()
        return tree

    def _build_tier(self, number: int) -> Tier:
        """Return tier `number` of the switches. Tier t is level t + 1: tier 0 connects the NPUs.

        - Speed (Gbit/s), latency (ns) and bundle size (parallel cables between two nodes) are those
          of the cables below the tier.
        - Ports below and above count the cables of one switch. The top tier has 0 ports above.
        - Oversubscription: bandwidth below a switch divided by that above it; 1 for the top tier.

        Raises `_NoFatTreeError` in these cases:

        - Switches of the tier differ in their numbers of cables, or cables below the tier differ.
        - Speed or oversubscription is no integer, or latency or oversubscription is below 1.
        - Bundle sizes below the tier differ. NPUs must have no parallel cables.
        """
        speed_gbps, latency_ns = self._get_speed(number)
        bundles = {count for node in self._nodes[number] for count in self._above[node].values()}
        ports_below = self._count_ports(self._below, number + 1)
        is_top = number == self._count - 1
        ports_above = 0 if is_top else self._count_ports(self._above, number + 1)
        if len(bundles) != 1 or (number == 0 and bundles != {1}):
            raise _NoFatTreeError(f"the cables below tier {number} have different bundle sizes")
        share = 1
        if not is_top:
            faster, _ = self._get_speed(number + 1)
            share, rest = divmod(ports_below * speed_gbps, ports_above * faster)
            if rest or not share:
                message = f"the oversubscription of tier {number} is not a whole number"
                raise _NoFatTreeError(message)
        return Tier(
            speed_gbps,
            ports_below,
            latency_ns,
            radix_up=ports_above,
            oversubscribed=share,
            bundle=bundles.pop(),
        )

    def _get_speed(self, number: int) -> tuple[int, int]:
        """Return the speed of the cables between level `number` and the next level above.

        The result is (bandwidth in Gbit/s, latency in ns), two integers. Level 0 has the
        NPUs. Cables of both directions count.

        Raises `_NoFatTreeError`, as htsim cannot represent the cables, in these cases:

        - The cables differ in bandwidth or latency, or there are none.
        - The bandwidth in Gbit/s is no integer.
        - The latency in ns, rounded to 1e-6 ns, is no integer or is below 1.
        """
        if len(self._kinds[number]) != 1:
            raise _NoFatTreeError(f"the links below tier {number} differ in bandwidth or latency")
        ((bandwidth, latency_s),) = self._kinds[number]
        speed_gbps, latency_ns = bandwidth * 8 / 1e9, round(latency_s * 1e9, 6)
        if not (speed_gbps.is_integer() and latency_ns.is_integer() and latency_ns >= 1):
            values = f"{speed_gbps:g} Gbit/s and {latency_ns:g} ns"
            raise _NoFatTreeError(f"htsim requires whole Gbit/s and ns of at least 1, not {values}")
        return int(speed_gbps), int(latency_ns)

    def _count_ports(self, side: Sequence[Counter[int]], level: int) -> int:
        """Return the number of cables that each node of `level` has on one side.

        `side`: `_above` or `_below`, which has by node the number of cables to each neighbour
        on this side. Parallel cables count separately. Raise `_NoFatTreeError` if the nodes of
        the level have different numbers.
        """
        counts = {sum(side[node].values()) for node in self._nodes[level]}
        if len(counts) != 1:
            raise _NoFatTreeError(f"switches of tier {level - 1} differ in their number of links")
        return counts.pop()

    def _check_pods(self, tree: FatTree) -> None:
        """Check that the switches of tier 0 in one pod share their switches of tier 1.

        Raises `_NoFatTreeError` if they do not.
        """
        for switch in self._nodes[1]:
            pod = min(self._below[switch]) // tree.pod_size
            peers = [
                peer for peer in self._nodes[1] if min(self._below[peer]) // tree.pod_size == pod
            ]
            if any(self._above[peer] != self._above[switch] for peer in peers):
                raise _NoFatTreeError(
                    "switches of one pod are connected to different switches above"
                )

    def _check_cores(self) -> None:
        """Check that all pods of a tree with three tiers are connected to the same top switches.

        - Tier 0 connects the NPUs, tier 1 the switches of tier 0, tier 2 those of tier 1.
        - A pod is the set of tier 1 switches that have the same switches of tier 0.
        - A group is the set of top switches that are connected to one tier 1 switch.

        All pods must have the same set of groups; equal groups of a pod count once. Different
        groups must have no switch in common. Otherwise `_NoFatTreeError` is raised. A tree of two
        tiers is not checked.
        """
        if self._count == 2:
            return
        groups: dict[frozenset[int], set[frozenset[int]]] = {}
        for switch in self._nodes[2]:
            pod = frozenset(self._below[switch])
            groups.setdefault(pod, set()).add(frozenset(self._above[switch]))
        first = next(iter(groups.values()))
        joined = [core for group in first for core in group]
        if any(group != first for group in groups.values()) or len(set(joined)) < len(joined):
            raise _NoFatTreeError("the groups of the top tier's switches differ between pods")
