"""Read what ibnetdiscover prints: InfiniBand switches, cards, and every cable from both ends.

Source: the manual of ibnetdiscover (public). A device is a line `Switch`, `Ca` or `Rt` with its
ports, guid and name, and a line for each port that is in use, up to an empty line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from collhub_networks import NetworkFindings

from collhub_fabrics.options import InfinibandOptions
from collhub_fabrics.plan import FabricPlan
from collhub_fabrics.refusals import refuse
from hub_core.model import Location
from hub_core.network import Topology
from hub_core.plugin_api import Source

_LONGEST_FILE = 1 << 28
_GBIT = 125e6
# Gbit per second of one lane, as the spec of each generation rounds it.
_LANE_RATES = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64, "EDR": 25.0, "HDR": 50.0,
    "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
_DEVICE = re.compile(r'(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"(?:\s*#\s*"([^"]*)")?')
_PORT = re.compile(
    r"\[(\d{1,4})\](?:\([0-9a-fA-F]+\))?(?:\[ext \d+\])?\s+"
    r'"([^"]+)"\s*\[(\d{1,4})\][^#]*(?:#(.*))?'
)
_REMOTE = re.compile(r'\s*"([^"]*)"')
_RATE = re.compile(r"\b(\d{1,2})x(\w+)")
# In-network reduction of a switch, which shows itself as a card.
_AGGREGATION = "Aggregation Node"

End = tuple[str, int]
"""Guid and port of one end of a cable."""


@dataclass(slots=True)
class _Device:
    """A switch or router, or a card: `Ca`. `name` as printed, `line` of its first mention."""

    is_card: bool
    name: str
    line: int


@dataclass(slots=True)
class _Cable:
    """Rates that the ends state, in Gbit/s, and the line of the first of them."""

    line: int
    rates: list[float] = field(default_factory=list)


def read(source: Source, options: InfinibandOptions) -> Topology:
    """The network of an ibnetdiscover listing. Raises `InputError` with file and line."""
    return _Listing(source).topology(options)


class _Listing:
    """Devices by guid, and cables by their two ends."""

    def __init__(self, source: Source) -> None:
        self._source = source
        content = source.content()
        if len(content) > _LONGEST_FILE:
            refuse(self._source.name, None, f"the file is larger than {_LONGEST_FILE >> 20} MiB")
        self._devices: dict[str, _Device] = {}
        self._cables: dict[tuple[End, End], _Cable] = {}
        self._findings = NetworkFindings()
        self._remote_names: dict[str, tuple[str, int]] = {}
        guid = ""
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            guid = self._take(number, line, guid)

    def topology(self, options: InfinibandOptions) -> Topology:
        """The network: hosts by their names, then by those of their cards."""
        self._add_unlisted()
        cards = {guid: one for guid, one in self._devices.items() if one.is_card}
        if not cards:
            refuse(
                self._source.name,
                None,
                "no card (Ca) is listed",
                "give the whole output of ibnetdiscover",
            )
        node_of = self._nodes(options.gpus_per_node is not None)
        plan = FabricPlan(self._source.name, options.gpus_per_node or 1, options)
        for name in sorted({node_of[guid] for guid in cards}, key=_natural):
            plan.add_host(name)
        for guid in self._devices:
            if guid not in cards:
                plan.add_switch(node_of[guid])
        for (one, other), cable in self._cables.items():
            rate = self._rate(
                one,
                other,
                cable,
                options,
            )
            plan.add_cable(node_of[one[0]], node_of[other[0]], rate)
        self._findings.tell(self._source.report)
        groups = {} if options.gpus_per_node else self._groups(cards, plan.hosts, node_of)
        return plan.topology(groups)

    def _take(self, number: int, line: str, guid: str) -> str:
        """The meaning of a line; returns the guid of the device that the next one belongs to."""
        if not line.strip():
            return ""
        device = _DEVICE.match(line)
        if device is not None:
            return self._add_device(number, device)
        if not line.startswith("["):
            # Headers: key=value lines, and comments.
            return guid
        if not guid:
            refuse(
                self._source.name,
                number,
                "a port stands without a device",
                "keep the line Switch or Ca above",
            )
        port = _PORT.match(line)
        if port is None:
            cure = 'a port is [1] "S-0002c9020040f160"[18] # "name" lid 1 4xHDR'
            refuse(self._source.name, number, f"{line[:60]!r} is no port of ibnetdiscover", cure)
        self._add_cable(number, guid, port)
        return guid

    def _add_device(
        self,
        number: int,
        match: re.Match[str],
    ) -> str:
        kind, guid, name = match.groups()
        if guid in self._devices:
            first = self._devices[guid].line
            refuse(
                self._source.name, number, f"device {guid[:80]} stands twice, first on line {first}"
            )
        is_card = kind == "Ca"
        self._devices[guid] = _Device(is_card, name or guid, number)
        return guid

    def _add_cable(
        self,
        number: int,
        guid: str,
        match: re.Match[str],
    ) -> None:
        """One end of a cable: the other end names the same two ports."""
        here, there = (guid, int(match[1])), (match[2], int(match[3]))
        if here == there:
            refuse(self._source.name, number, "a port is joined to itself")
        said = match[4] or ""
        remote = _REMOTE.match(said)
        self._remote_names.setdefault(match[2], (remote[1] if remote else match[2], number))
        # Both ends list a cable, so that its name is the pair of its ends in one order.
        key = (here, there) if here < there else (there, here)
        cable = self._cables.setdefault(key, _Cable(number))
        rate = _RATE.search(said)
        if rate is None:
            return
        lane = _LANE_RATES.get(rate[2])
        if lane is None:
            cure = f"known are {', '.join(_LANE_RATES)}"
            refuse(self._source.name, number, f"{rate[0]!r} is no rate", cure)
        cable.rates.append(int(rate[1]) * lane)

    def _add_unlisted(self) -> None:
        """Cards that are named at switches alone; an unlisted switch leads nowhere."""
        for guid, (name, line) in self._remote_names.items():
            if guid in self._devices:
                continue
            if not guid.startswith("H-"):
                cure = "give the whole output of ibnetdiscover"
                refuse(
                    self._source.name,
                    line,
                    f"the cable leads to {guid[:80]}, which is not listed",
                    cure,
                )
            self._devices[guid] = _Device(True, name, line)
        aggregators = [guid for guid, one in self._devices.items() if _AGGREGATION in one.name]
        for guid in aggregators:
            line = self._devices.pop(guid).line
            place = Location(self._source.name, line)
            message = "a card of a switch that reduces in the network is left out"
            self._findings.note("aggregation-node", place, message)
        gone = set(aggregators)
        kept = {
            key: cable for key, cable in self._cables.items() if not gone & {key[0][0], key[1][0]}
        }
        self._cables = kept

    def _rate(
        self,
        one: End,
        other: End,
        cable: _Cable,
        options: InfinibandOptions,
    ) -> float:
        """Bytes per second of a cable; the lower one where its ends do not agree."""
        if not cable.rates:
            if options.bandwidth is None:
                ends = f"{one[0]}[{one[1]}] and {other[0]}[{other[1]}]"
                cure = "state it as FILE?bandwidth=50GB/s"
                refuse(self._source.name, cable.line, f"no rate is stated between {ends}", cure)
            return options.bandwidth
        if len(set(cable.rates)) > 1:
            place = Location(self._source.name, cable.line)
            message = f"the ends of a cable state {min(cable.rates):g} and {max(cable.rates):g}"
            self._findings.warn("unequal-rates", place, f"{message} Gbit/s: the lower one is taken")
        return min(cable.rates) * _GBIT

    def _nodes(self, are_hosts: bool) -> dict[str, str]:
        """The name of the node that each device is: its host, or its own."""
        found: dict[str, str] = {}
        taken: set[str] = set()
        for guid, device in self._devices.items():
            name = device.name
            if device.is_card and are_hosts:
                found[guid] = _host(name)
                continue
            # Switches are often called alike.
            if name in taken:
                name = f"{name} {guid}"
            taken.add(name)
            found[guid] = name
        return found

    def _groups(
        self,
        cards: dict[str, _Device],
        hosts: Sequence[str],
        node_of: dict[str, str],
    ) -> dict[str, list[str]]:
        """Hosts and rails, which are cards of one name; none where each host has one card."""
        of_host: dict[str, list[str]] = {}
        of_rail: dict[str, list[str]] = {}
        guid_of = {node_of[guid]: guid for guid in cards}
        for node in hosts:
            name = cards[guid_of[node]].name
            of_host.setdefault(f"host {_host(name)}", []).append(node)
            of_rail.setdefault(f"rail {name.partition(' ')[2] or name}", []).append(node)
        is_split = any(len(members) > 1 for members in of_host.values())
        return {**of_host, **of_rail} if is_split else {}


def _host(name: str) -> str:
    """The host of a card: the first word of its name."""
    return name.split()[0] if name.split() else name


def _natural(name: str) -> list[tuple[int, str]]:
    """By which names are sorted: numbers in them by their value, so that n2 stands before n10."""
    return list(_pieces(name))


def _pieces(name: str) -> Iterator[tuple[int, str]]:
    for piece in re.findall(r"\d+|\D+", name):
        yield (int(piece), "") if piece.isdecimal() and piece.isascii() else (-1, piece)
