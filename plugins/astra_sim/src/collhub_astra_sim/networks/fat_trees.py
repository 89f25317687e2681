"""Fat trees of two or three tiers as in htsim, which describes them only by numbers.

Source: `FatTreeTopologyCfg` of csg-htsim (public), which ASTRA-sim's htsim backend reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collhub_networks import Cable, topology_of

from hub_core.network import MAX_LINKS, MAX_NODES, Topology

_GBIT = 125e6
_PER_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class Tier:
    """Switches of one tier (0: directly above the NPUs), and the cables below them.

    `radix_up`, `oversubscribed`: of the cables above; `bundle`: parallel cables below.
    """

    speed_gbps: int
    radix_down: int
    latency_ns: int
    radix_up: int = 0
    switch_latency_ns: int = 0
    oversubscribed: int = 1
    bundle: int = 1


@dataclass(frozen=True, slots=True)
class FatTree:
    """A fat tree: number of NPUs, NPUs per pod, and two or three tiers."""

    npus: int
    pod_size: int
    tiers: tuple[Tier, ...]

    def defect(self) -> str | None:
        """Return why no network has these numbers, or None."""
        if not 1 <= self.npus <= MAX_NODES // 4:
            return f"Nodes {self.npus} is not in 1..{MAX_NODES // 4}"
        quotients = [
            ("Nodes / Podsize", self.npus, self.pod_size),
            ("Podsize / Radix_Down of tier 0", self.pod_size, self.tiers[0].radix_down),
        ]
        uplinks = self.npus
        for low, high in zip(self.tiers, self.tiers[1:], strict=False):
            slower = high.speed_gbps * low.oversubscribed
            quotients.append(("uplinks of a tier by speeds", uplinks * low.speed_gbps, slower))
            uplinks = uplinks * low.speed_gbps // slower
            quotients.append(("uplinks of a tier by Radix_Down", uplinks, high.radix_down))
            quotients.append(("Radix_Up / Bundle", low.radix_up, high.bundle))
        for quotient, number, divisor in quotients:
            if not number or number % divisor:
                return f"{quotient}: {number} / {divisor} is no whole number of at least 1"
        if self.num_cables > MAX_LINKS // 2:
            return f"{self.num_cables} cables are more than {MAX_LINKS // 2}"
        return self._check_wiring()

    def _check_wiring(self) -> str | None:
        """Return the first mismatch between the ports of adjacent tiers, or None."""
        for number, (low, high) in enumerate(zip(self.tiers, self.tiers[1:], strict=False)):
            up = self.switches(number) * low.radix_up
            down = self.switches(number + 1) * high.radix_down
            if up != down:
                return f"tier {number} has {up} ports up, tier {number + 1} {down} ports down"
            reached = self._count_switches_above(number)
            if low.radix_up != reached * high.bundle:
                return (
                    f"Radix_Up {low.radix_up} of tier {number} does not reach the "
                    f"{reached} switches above by bundles of {high.bundle}"
                )
        return None

    @property
    def pods(self) -> int:
        """Number of pods."""
        return self.npus // self.pod_size

    @property
    def num_cables(self) -> int:
        """Total number of cables: one per NPU and per upward port, so that cables of a bundle count
        separately.
        """
        ports = [self.switches(number) * tier.radix_up for number, tier in enumerate(self.tiers)]
        return self.npus + sum(ports)

    def switches(self, number: int) -> int:
        """Return the number of switches of a tier."""
        if number == 0:
            return self.npus // self.tiers[0].radix_down
        uplinks = self.npus
        for low, high in zip(self.tiers[:number], self.tiers[1:], strict=False):
            uplinks = uplinks * low.speed_gbps // (high.speed_gbps * low.oversubscribed)
        return uplinks // self.tiers[number].radix_down

    def _count_switches_above(self, number: int) -> int:
        """Return the number of switches above to which one switch of tier `number` is connected.

        A bundle of cables leads to one switch.
        """
        # Switches below the second tier from the top belong to pods.
        if number + 2 == len(self.tiers):
            above = self.switches(number + 1)
            return above if number == 0 else above // (self.switches(number) // self.pods)
        return self.switches(number + 1) // self.pods

    def topology(self, name: str) -> Topology:
        """Build the network: NPUs, then switches tier by tier. Requires `defect()` to be None."""
        sizes = [self.switches(number) for number in range(len(self.tiers))]
        return topology_of(name, self.npus, self.npus + sum(sizes), list(self._list_cables()))

    def _list_cables(self) -> Iterator[Cable]:
        """Yield all cables, tier by tier from the NPUs."""
        first = self.npus
        for npu in range(self.npus):
            yield self._make_cable(0, npu, first + npu // self.tiers[0].radix_down)
        for number in range(len(self.tiers) - 1):
            count = self.switches(number)
            for low in range(count):
                for high in self._list_switches_above(number, low):
                    for _ in range(self.tiers[number + 1].bundle):
                        yield self._make_cable(number + 1, first + low, first + count + high)
            first += count

    def _list_switches_above(self, number: int, switch: int) -> Iterator[int]:
        """Yield the switches above a switch, by their numbers in their tier."""
        reached = self._count_switches_above(number)
        if number:
            # Aggregation switch g of a pod with a of them is connected to g, g + a, g + 2a, ...
            in_pod = self.switches(number) // self.pods
            yield from (switch % in_pod + in_pod * i for i in range(reached))
            return
        is_one_pod = len(self.tiers) == 2
        pod = 0 if is_one_pod else switch // (self.switches(0) // self.pods)
        yield from range(pod * reached, (pod + 1) * reached)

    def _make_cable(self, tier: int, low: int, high: int) -> Cable:
        """Return a cable below a tier, with the bandwidth and latency of the tier."""
        below = self.tiers[tier]
        return Cable(low, high, below.speed_gbps * _GBIT, below.latency_ns / _PER_SECOND)
