"""Fat trees of two or three tiers, as htsim describes them by numbers, and their reader.

Source: `FatTreeTopologyCfg` of csg-htsim (public), which ASTRA-sim's htsim backend reads. In the
file a line is a key, white space and an integer; keys are case-insensitive; a line that begins
with # is a comment.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
from collhub_networks import Cable, topology_of

from hub_core.model import InputError, Location, parse_whole
from hub_core.network import MAX_LINKS, MAX_NODES, Topology
from hub_core.plugin_api import NoOptions, Source

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
        """Return the first reason why no fat tree has these numbers; None if a fat tree has them.

        There must be a tier, and no divisor may be 0. In the rules, t is every tier but the
        highest, and u is the tier above t. `uplinks`(t) is the number of links from tier t to u,
        without bundles: `uplinks`(t - 1) (for tier 0: `npus`) * speed of t / (speed of u *
        `oversubscribed` of t). "Whole" means an integer of at least 1.

        1. `npus` is 1 to `MAX_NODES` // 4.
        2. `npus` / `pod_size` and `pod_size` / `radix_down` of tier 0 are whole.
        3. For each t, `uplinks`(t), `uplinks`(t) / `radix_down` of u, and `radix_up` of t /
           `bundle` of u are whole.
        4. There are at most `MAX_LINKS` // 2 cables.
        5. For each t, first: all switches of t have as many ports up as all switches of u have
           ports down. Second: `radix_up` of t is `bundle` of u times the number of switches of u
           that are connected to a switch of t.
        """
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
        """Return the number of cables: one per NPU and one per upward port of the switches.

        Cables of a bundle count separately.
        """
        ports = [self.switches(number) * tier.radix_up for number, tier in enumerate(self.tiers)]
        return self.npus + sum(ports)

    def switches(self, number: int) -> int:
        """Return the number of switches of tier `number`; 0 is the lowest tier.

        It is u(`number`) / `radix_down` of this tier, where u(t) is the number of cables that
        arrive at tier t from below: u(0) is the number of NPUs, and u(t + 1) is u(t) * speed of
        t / (speed of t + 1 * `oversubscribed` of t). All divisions are rounded down.
        """
        if number == 0:
            return self.npus // self.tiers[0].radix_down
        uplinks = self.npus
        for low, high in zip(self.tiers[:number], self.tiers[1:], strict=False):
            uplinks = uplinks * low.speed_gbps // (high.speed_gbps * low.oversubscribed)
        return uplinks // self.tiers[number].radix_down

    def _count_switches_above(self, number: int) -> int:
        """Return the number of switches of tier `number` + 1 to which a switch is connected.

        The switch is of tier `number`, which must not be the top tier. Parallel cables to a
        switch count once. With two tiers, a switch of tier 0 reaches all top switches. With
        three tiers, it reaches all switches of tier 1 in its pod; a switch of tier 1 reaches
        the number of top switches divided by the number of switches of tier 1 in a pod, rounded
        down.
        """
        # Switches below the second tier from the top belong to pods.
        if number + 2 == len(self.tiers):
            above = self.switches(number + 1)
            return above if number == 0 else above // (self.switches(number) // self.pods)
        return self.switches(number + 1) // self.pods

    def topology(self, name: str) -> Topology:
        """Build the network: NPUs, then the switches tier by tier from the lowest.

        Every cable becomes two adjacent links, first up, then down; the cables are in the order
        of `_list_cables`. The latency of switches is not included. Nodes have no names.
        `defect()` must be None.
        """
        sizes = [self.switches(number) for number in range(len(self.tiers))]
        return topology_of(name, self.npus, self.npus + sum(sizes), list(self._list_cables()))

    def _list_cables(self) -> Iterator[Cable]:
        """Yield all cables of the network, those below the lowest tier first.

        Nodes are numbered NPUs first, then switches tier by tier. A cable has its lower node, its
        upper node, and the bandwidth and latency of the upper node's tier. NPU i is connected to
        switch i // radix_down of tier 0. Every switch below the top tier is connected to those of
        `_list_switches_above`, by as many parallel cables as the `bundle` of the upper tier. Cables
        between two tiers are sorted by lower switch, then by upper switch.
        """
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
        """Yield the switches of the next tier to which a switch of tier `number` is connected.

        Switches are numbered within their tier. A switch of tier 0 is connected to all switches of
        tier 1 in its pod, or to all with two tiers. A switch of tier 1 that is number g of the a
        switches in its pod is connected to g, g + a, g + 2 a, ...
        """
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
        """Return the cable from node `low` up to node `high`, which is a switch of tier `tier`.

        It has the bandwidth (bytes/s) and the latency (s) of this tier.
        """
        below = self.tiers[tier]
        return Cable(low, high, below.speed_gbps * _GBIT, below.latency_ns / _PER_SECOND)


_LONGEST_FILE = 1 << 20
_MAX_NUMBER = 10**9 - 1
_HEAD = ("nodes", "tiers", "podsize")
# Keys of a tier, with their fields and minimum values; keys of `_OPTIONAL` may be omitted.
_REQUIRED = {
    "downlink_speed_gbps": ("speed_gbps", 1),
    "radix_down": ("radix_down", 1),
    "downlink_latency_ns": ("latency_ns", 1),
}
_UP = {"radix_up": ("radix_up", 1)}
_OPTIONAL = {
    "switch_latency_ns": ("switch_latency_ns", 0),
    "oversubscribed": ("oversubscribed", 1),
    "bundle": ("bundle", 1),
    "queue_up": ("", 0),
    "queue_down": ("", 0),
}
_KEYS = _REQUIRED | _UP | _OPTIONAL


def read(source: Source, options: NoOptions) -> Topology:
    """Read the network of an htsim topology file: NPUs, then switches by tier from the lowest.

    The rules for lines and numbers are those of `_FatTreeFile`. Raise `InputError`
    (`invalid-htsim-topology`), with the line if it is known, for a file above 1 MiB,
    invalid lines, and missing or inconsistent numbers. Raise `UsageError` for several
    files.
    """
    del options
    return _FatTreeFile(source).topology()


class _FatTreeFile:
    """A file as its keys: those of the network, and those of each tier."""

    def __init__(self, source: Source) -> None:
        """Parse all lines of a file, without checks of completeness.

        Sets `_name` (of the source), `_head` (values of `nodes`, `tiers` and `podsize`) and
        `_tiers` (values of each tier by its number), with keys in lower case. A line is a key in
        any case and an integer of at most 9 digits. Empty lines, lines that start with `#` and a
        byte order mark are skipped. Lines before the first `tier N` belong to `_head`, later ones
        to the last tier N.

        Raises `UsageError` for a source of several files. Raises `InputError`
        (`invalid-htsim-topology`) for a file above 1 MiB, without a line. For the first wrong line
        it names the line. Wrong are: another form (also a sign or a point), `tier N` if tier N has
        keys already, a key that is unknown or repeated in its part, and a value below the minimum
        of its key (1 in `_head`, see `_KEYS` for tiers).
        """
        self._name = source.name
        content = source.content()
        if len(content) > _LONGEST_FILE:
            self._fail(None, "the file is larger than 1 MiB")
        self._head: dict[str, int] = {}
        self._tiers: dict[int, dict[str, int]] = {}
        block: dict[str, int] = self._head
        for number, line in enumerate(
            content.removeprefix(codecs.BOM_UTF8).decode("ascii", "replace").splitlines(), 1
        ):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            value = parse_whole(words[1], _MAX_NUMBER) if len(words) == 2 else None
            if value is None:
                self._fail(
                    number, "a key and a whole number were expected", "write for example Nodes 16"
                )
            key = words[0].lower()
            if key == "tier":
                block = self._tiers.setdefault(value, {})
                if block:
                    self._fail(number, f"tier {value} occurs twice")
            else:
                known: Mapping[str, object] = dict.fromkeys(_HEAD) if block is self._head else _KEYS
                if key not in known:
                    self._fail(number, f"{key[:40]!r} is not one of {', '.join(known)}")
                if key in block:
                    self._fail(number, f"{key} occurs twice")
                if key in _KEYS and value < _KEYS[key][1]:
                    self._fail(number, f"{key} is {value}, at least {_KEYS[key][1]} was expected")
                if key in _HEAD and value < 1:
                    self._fail(number, f"{key} is {value}, at least 1 was expected")
                block[key] = value

    def topology(self) -> Topology:
        """Build the network of the file: NPUs first, then the switches by tier from the lowest.

        Every cable becomes two adjacent links, up and then down, with the speed and the latency
        that the file states for its upper tier. Links that leave a switch also have the switch's
        latency. Cables of NPUs are first, then those between the tiers from the lowest, sorted by
        lower, then by upper switch. Parallel cables remain separate links. The nodes have no names.
        Raises `InputError` (`invalid-htsim-topology`, without a line) for the first defect of:

        1. `nodes`, `tiers` or `podsize` is missing.
        2. `tiers` is not 2 or 3, or the blocks are not those of the tiers 0 to `tiers` - 1.
        3. A tier, from the lowest, lacks `Downlink_speed_Gbps`, `Radix_Down`, `Downlink_Latency_ns`
           or, below the top, `Radix_Up`. The `Radix_Up` of the top tier is ignored. Missing other
           keys have the defaults of `Tier`.
        4. `FatTree.defect` refuses the numbers.
        """
        missing = [key for key in _HEAD if key not in self._head]
        if missing:
            cure = f"write for example {missing[0].capitalize()} 16"
            self._fail(None, f"missing: {', '.join(missing)}", cure)
        count = self._head["tiers"]
        if count not in (2, 3) or set(self._tiers) != set(range(count)):
            numbers = ", ".join(map(str, sorted(self._tiers))) or "none"
            self._fail(
                None, f"Tiers is {count}, and the blocks are of tiers {numbers}: 2 or 3, 0..n"
            )
        tiers = []
        for number in range(count):
            values_by_key, is_top = self._tiers[number], number == count - 1
            needed = _REQUIRED if is_top else _REQUIRED | _UP
            lacking = [key for key in needed if key not in values_by_key]
            if lacking:
                self._fail(None, f"tier {number} lacks {', '.join(lacking)}")
            values = {_KEYS[key][0]: value for key, value in values_by_key.items() if _KEYS[key][0]}
            if is_top:
                values.pop("radix_up", None)
            tiers.append(Tier(**values))
        tree = FatTree(self._head["nodes"], self._head["podsize"], tuple(tiers))
        if defect := tree.defect():
            self._fail(None, defect, "the numbers have to be consistent: see the manual of htsim")
        # Add the latency of every switch to the links that leave it.
        topology = tree.topology(self._name)
        sizes = [tree.switches(number) for number in range(len(tree.tiers))]
        latencies_s = [tier.switch_latency_ns / 1e9 for tier in tree.tiers]
        latency_of_node = np.concatenate([np.zeros(tree.npus), np.repeat(latencies_s, sizes)])
        if not latency_of_node.any():
            return topology
        return replace(topology, latency_s=topology.latency_s + latency_of_node[topology.source])

    def _fail(self, line: int | None, message: str, cure: str = "") -> NoReturn:
        """Raise `InputError` (`invalid-htsim-topology`) for the file.

        `line`: line of the error, None for the entire file. `cure`: advice, "" for none.
        """
        location = Location(self._name, line)
        raise InputError(message, location=location, cure=cure, code="invalid-htsim-topology")
