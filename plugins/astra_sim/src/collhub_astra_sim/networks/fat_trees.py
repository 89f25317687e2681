"""Fat trees of two or three tiers as htsim numbers them, which states them by numbers alone.

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
    """Switches of one tier, 0 next to the NPUs, and the cables below them.

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
    """A fat tree: NPUs, NPUs of a pod, and two or three tiers."""

    npus: int
    pod_size: int
    tiers: tuple[Tier, ...]

    def defect(self) -> str | None:
        """Why no network has these numbers, or None."""
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
        for what, number, divisor in quotients:
            if not number or number % divisor:
                return f"{what}: {number} / {divisor} is no whole number of at least 1"
        if self.num_cables > MAX_LINKS // 2:
            return f"{self.num_cables} cables are more than {MAX_LINKS // 2}"
        return self._wiring_defect()

    def _wiring_defect(self) -> str | None:
        """Numbers of switches that do not meet the ports above and below them."""
        for number, (low, high) in enumerate(zip(self.tiers, self.tiers[1:], strict=False)):
            up = self.switches(number) * low.radix_up
            down = self.switches(number + 1) * high.radix_down
            if up != down:
                return f"tier {number} has {up} ports up, tier {number + 1} {down} ports down"
            reached = self._reached(number)
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
        """Cables in all.

        One for each NPU and for each port up of a switch, so that every cable of a bundle counts.
        """
        ports = [self.switches(number) * tier.radix_up for number, tier in enumerate(self.tiers)]
        return self.npus + sum(ports)

    def switches(self, number: int) -> int:
        """Switches of a tier."""
        if number == 0:
            return self.npus // self.tiers[0].radix_down
        uplinks = self.npus
        for low, high in zip(self.tiers[:number], self.tiers[1:], strict=False):
            uplinks = uplinks * low.speed_gbps // (high.speed_gbps * low.oversubscribed)
        return uplinks // self.tiers[number].radix_down

    def _reached(self, number: int) -> int:
        """Switches above that one of a tier is joined to.

        `number` is that of the lower tier; a bundle of cables leads to one switch.
        """
        # The switches below the last tier but one belong to pods.
        if number + 2 == len(self.tiers):
            above = self.switches(number + 1)
            return above if number == 0 else above // (self.switches(number) // self.pods)
        return self.switches(number + 1) // self.pods

    def topology(self, name: str) -> Topology:
        """The network: NPUs, switches tier by tier. Call it where there is no `defect`."""
        sizes = [self.switches(number) for number in range(len(self.tiers))]
        return topology_of(name, self.npus, self.npus + sum(sizes), list(self._cables()))

    def _cables(self) -> Iterator[Cable]:
        first = self.npus
        for npu in range(self.npus):
            yield self._cable(0, npu, first + npu // self.tiers[0].radix_down)
        for number in range(len(self.tiers) - 1):
            count = self.switches(number)
            for low in range(count):
                for high in self._above(number, low):
                    for _ in range(self.tiers[number + 1].bundle):
                        yield self._cable(number + 1, first + low, first + count + high)
            first += count

    def _above(self, number: int, switch: int) -> Iterator[int]:
        """The switches above one of a tier, by their numbers in their tier."""
        reached = self._reached(number)
        if number:
            # Aggregation switch g of a pod, of a, is joined to g, g + a, g + 2a, ...
            in_pod = self.switches(number) // self.pods
            yield from (switch % in_pod + in_pod * turn for turn in range(reached))
            return
        is_whole = len(self.tiers) == 2
        pod = 0 if is_whole else switch // (self.switches(0) // self.pods)
        yield from range(pod * reached, (pod + 1) * reached)

    def _cable(self, tier: int, low: int, high: int) -> Cable:
        below = self.tiers[tier]
        return Cable(low, high, below.speed_gbps * _GBIT, below.latency_ns / _PER_SECOND)
