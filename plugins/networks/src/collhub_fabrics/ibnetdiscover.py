"""Read the output of ibnetdiscover: InfiniBand switches, cards, and cables by both endpoints.

Source: the manual of ibnetdiscover (public). A device is a line `Switch`, `Ca` or `Rt` with its
number of ports, guid and name, and a line for each port in use, up to an empty line. With -p, the
output is a list of ports instead: a line has type, lid, port, guid, lanes and speed of a port, and
then, if it has a cable, those of the other end. The samples for the conformance kit are of this
format only, because trees need options for bandwidths.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from collhub_networks import NetworkFindings

from collhub_fabrics.plan import FabricPlan, refuse
from collhub_fabrics.plugin import InfinibandOptions
from hub_core.model import Location
from hub_core.network import Topology
from hub_core.plugin_api import Source

_MAX_FILE_BYTES = 1 << 28
_BYTES_PER_GBIT = 125e6
# Gbit per second of one lane, rounded as in the specification of each generation.
_LANE_RATES = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64, "EDR": 25.0, "HDR": 50.0,
    "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
_DEVICE = re.compile(r'(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"(?:\s*#\s*"([^"]*)")?')
_PORT = re.compile(
    r"\[(\d{1,4})\](?:\([0-9a-fA-F]+\))?(?:\[ext \d+\])?\s+"
    r'"([^"]+)"\s*\[(\d{1,4})\][^#]*(?:#(.*))?'
)
_LISTED_PORT = re.compile(
    r"(CA|SW|RT)\s+\d+\s+(\d{1,4})\s+0x([0-9a-fA-F]+)\s+(\d{1,2})x\s+(\S+)"
    r"(?:\s+-\s+(CA|SW|RT)\s+\d+\s+(\d{1,4})\s+0x([0-9a-fA-F]+)\s+\(\s*'(.*)' - '(.*)'\s*\)"
    r"|\s+'?(.*?)'?)\s*"
)
# Types of a list of ports, as the first letter of a guid in the other form.
_PREFIXES = {"CA": "H-", "SW": "S-", "RT": "R-"}
_NO_RATE = "???"
_REMOTE = re.compile(r'\s*"([^"]*)"')
_QUOTED = re.compile(r'"[^"]*"')
_RATE = re.compile(r"\b(\d{1,2})x(\w+)")
# In-network reduction of a switch, which is listed as a card.
_AGGREGATION = "Aggregation Node"

End = tuple[str, int]
"""Guid and port of one end of a cable."""


@dataclass(slots=True)
class _Device:
    """A switch or router, or a card (`Ca`). `name` as printed; `line` of its first mention."""

    is_card: bool
    name: str
    line: int


@dataclass(slots=True)
class _Cable:
    """Rates given at the endpoints in Gbit/s, and the line of the first mention."""

    line: int
    rates: list[float] = field(default_factory=list)


def read(source: Source, options: InfinibandOptions) -> Topology:
    """Read the network of an ibnetdiscover listing. Raises `InputError` with file and line."""
    return _Listing(source).topology(options)


class _Listing:
    """Parsed listing: devices by guid, and cables by their two endpoints."""

    def __init__(self, source: Source) -> None:
        self._source = source
        content = source.content()
        if len(content) > _MAX_FILE_BYTES:
            refuse(self._source.name, None, f"the file is larger than {_MAX_FILE_BYTES >> 20} MiB")
        self._devices: dict[str, _Device] = {}
        self._cables: dict[tuple[End, End], _Cable] = {}
        self._findings = NetworkFindings()
        self._remote_names: dict[str, tuple[str, int]] = {}
        guid = ""
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            guid = self._parse_line(number, line, guid)

    def topology(self, options: InfinibandOptions) -> Topology:
        """Build the network of the listing, in which NPUs are cards, or GPUs with `gpus_per_node`.

        Node order: NPUs, switches and routers as listed, then hosts if a host has several GPUs.
        Without `gpus_per_node` every card is an NPU. With it, each host has that many consecutive
        NPUs. NPUs sort by name of card or host, with numbers by value (n2 before n10). Links from
        hosts to GPUs are first, then cables as first mentioned, at the lower rate of both ends (a
        warning if they differ).

        Cards that only a switch mentions are included. Aggregation nodes and their cables are
        omitted, with a note. Groups: with several GPUs per host, each host. Without
        `gpus_per_node`, hosts and rails if a host has several cards (`_find_groups`). Otherwise
        none.

        Findings go to the source at every call. Raises `InputError` (`invalid-fabric`), in this
        order: a cable to an unlisted device that is no card; no card; no cable; a cable without a
        rate here and in the options; a host with the name of a switch; too many nodes; no
        `node_bandwidth` for hosts.
        """
        self._add_unlisted_cards()
        cards = {guid: device for guid, device in self._devices.items() if device.is_card}
        if not cards:
            refuse(
                self._source.name,
                None,
                "no card (Ca) is listed",
                "give the complete output of ibnetdiscover",
            )
        if not self._cables:
            first_line = min(card.line for card in cards.values())
            message = "cards are listed, but no cable: their ports are down"
            cure = "run ibnetdiscover on a host whose link is active"
            refuse(self._source.name, first_line, message, cure)
        node_of = self._find_node_names(options.gpus_per_node is not None)
        plan = FabricPlan(self._source.name, options.gpus_per_node or 1, options)
        for name in sorted({node_of[guid] for guid in cards}, key=_natural_key):
            plan.add_host(name)
        for guid in self._devices:
            if guid not in cards:
                plan.add_switch(node_of[guid])
        for (first, second), cable in self._cables.items():
            rate = self._find_rate(first, second, cable, options)
            plan.add_cable(node_of[first[0]], node_of[second[0]], rate)
        self._findings.tell(self._source.report)
        groups = {} if options.gpus_per_node else self._find_groups(cards, plan.hosts, node_of)
        return plan.topology(groups)

    def _parse_line(self, number: int, line: str, guid: str) -> str:
        """Parse a line; return the guid of the device to which the next line belongs.

        `number`: number of the line, from 1. `guid`: device to which the line belongs, "" for none.
        The first rule that applies:

        1. A blank line ends the device: returns "".
        2. A line such as `Switch 36 "GUID" # "NAME"` (or `Ca`, `Rt`) adds a device, named by its
           guid without a comment: returns its guid. Raises `InputError` for a repeated guid.
        3. A line such as `SW 7 1 0xGUID 4x HDR - CA 8 1 0xGUID ( 'NAME' - 'NAME' )` is a port in a
           list of ports. Its device, with the name of the line, is added unless it is known, and
           its cable if there is another end (`???` is no rate): returns `guid`.
        4. A line that does not begin with `[` is ignored: returns `guid`.
        5. Any other line is a port of the device `guid`, whose cable is added: returns `guid`. The
           rate is the first `NUMBERxWORD` in the comment. Raises `InputError` if there is no
           device, or if the line does not have the form of a port.

        A cable that both ends list is added once. Rules 3 and 5 raise `InputError` for a port that
        is connected to itself, and for an unknown rate (`_join`).
        """
        if not line.strip():
            return ""
        device = _DEVICE.match(line)
        if device is not None:
            kind, guid, name = device.groups()
            if guid in self._devices:
                first = self._devices[guid].line
                message = f"device {guid[:80]} is listed twice, first on line {first}"
                refuse(self._source.name, number, message)
            self._devices[guid] = _Device(kind == "Ca", name or guid, number)
            return guid
        listed = _LISTED_PORT.fullmatch(line)
        if listed is not None:
            near = _PREFIXES[listed[1]] + listed[3].lower()
            near_name = listed[9] or listed[11] or near
            self._devices.setdefault(near, _Device(listed[1] == "CA", near_name, number))
            # A port without another end has no cable.
            if listed[6] is not None:
                far = _PREFIXES[listed[6]] + listed[8].lower()
                ends = (near, int(listed[2])), (far, int(listed[7]))
                speed = None if listed[5] == _NO_RATE else (listed[4], listed[5])
                self._join(number, ends, listed[10] or far, speed)
            return guid
        if not line.startswith("["):
            # Headers are key=value lines and comments.
            return guid
        if not guid:
            refuse(
                self._source.name,
                number,
                "a port has no device",
                "keep the line Switch or Ca above it",
            )
        port = _PORT.match(line)
        if port is None:
            cure = 'a port is [1] "S-0002c9020040f160"[18] # "name" lid 1 4xHDR'
            refuse(self._source.name, number, f"{line[:60]!r} is not a port line", cure)
        comment = port[4] or ""
        remote = _REMOTE.match(comment)
        # Only outside of quotes, because a name may look like a rate: "2xA100".
        rate = _RATE.search(_QUOTED.sub("", comment))
        ends = (guid, int(port[1])), (port[2], int(port[3]))
        name = remote[1] if remote else port[2]
        self._join(number, ends, name, None if rate is None else (rate[1], rate[2]))
        return guid

    def _join(
        self, number: int, ends: tuple[End, End], name: str, rate: tuple[str, str] | None
    ) -> None:
        """Record a cable between two ends, with a rate if one is given.

        `name`: of the device at the second end, which is recorded at its first mention; `rate`:
        numbers of lanes and generation, such as ("4", "HDR"). A cable is identified by its two ends
        (guid and port), in any order. A second line with the same ends, such as that of the other
        device, adds no cable; its rate, if it has one, is added to the cable. The cable keeps the
        number of its first line. The rate in Gbit/s is the number of lanes times the rate of the
        generation: `4xHDR` is 200 Gbit/s.

        Raises `InputError` for a port that is connected to itself, and for an unknown generation.
        """
        local_end, remote_end = ends
        if local_end == remote_end:
            refuse(self._source.name, number, "a port is joined to itself")
        self._remote_names.setdefault(remote_end[0], (name, number))
        # Both ends list the cable, so its key is the sorted pair of ends.
        key = min(local_end, remote_end), max(local_end, remote_end)
        cable = self._cables.setdefault(key, _Cable(number))
        if rate is None:
            return
        lanes, generation = rate
        lane_rate = _LANE_RATES.get(generation)
        if lane_rate is None:
            cure = f"known rates are {', '.join(_LANE_RATES)}"
            message = f"'{lanes}x{generation[:40]}' is not a known rate"
            refuse(self._source.name, number, message, cure)
        cable.rates.append(int(lanes) * lane_rate)

    def _add_unlisted_cards(self) -> None:
        """Add cards that are mentioned only at switches; then remove aggregation nodes.

        A device at the other end of a cable that is not listed itself must be a card, i.e. its guid
        begins with `H-`. It is appended to the devices. Its name is in the comment of the line that
        first mentions it; otherwise the guid is the name. Raises `InputError` at that line for the
        first unlisted device that is no card.

        Then every device with `Aggregation Node` in its name is removed, with all its cables. A
        note `aggregation-node` is recorded for each, in the order of the devices.
        """
        for guid, (name, line) in self._remote_names.items():
            if guid in self._devices:
                continue
            if not guid.startswith("H-"):
                cure = "give the complete output of ibnetdiscover"
                refuse(
                    self._source.name,
                    line,
                    f"the cable leads to {guid[:80]}, which is not listed",
                    cure,
                )
            self._devices[guid] = _Device(True, name, line)
        aggregators = [
            guid for guid, device in self._devices.items() if _AGGREGATION in device.name
        ]
        for guid in aggregators:
            line = self._devices.pop(guid).line
            location = Location(self._source.name, line)
            message = "a card of a switch that reduces in the network is left out"
            self._findings.note("aggregation-node", location, message)
        removed = set(aggregators)
        self._cables = {
            endpoints: cable
            for endpoints, cable in self._cables.items()
            if not removed & {endpoints[0][0], endpoints[1][0]}
        }

    def _find_rate(
        self,
        first: End,
        second: End,
        cable: _Cable,
        options: InfinibandOptions,
    ) -> float:
        """Return the bandwidth of a cable in bytes/s, from the rates in the listing or the options.

        `first`, `second`: its ends, for messages. If both ends give a rate and the rates differ,
        the lower one is used, with the warning `unequal-rates`. Without a rate, it is the option
        `bandwidth`. Raises `InputError` if that is missing too.
        """
        if not cable.rates:
            if options.bandwidth is None:
                endpoints = f"{first[0]}[{first[1]}] and {second[0]}[{second[1]}]"
                cure = "give it as FILE?bandwidth=50GB/s"
                refuse(self._source.name, cable.line, f"no rate is given between {endpoints}", cure)
            return options.bandwidth
        if len(set(cable.rates)) > 1:
            location = Location(self._source.name, cable.line)
            rates = f"{min(cable.rates):g} and {max(cable.rates):g} Gbit/s"
            message = f"the ends of a cable have rates {rates}: the lower one is used"
            self._findings.warn("unequal-rates", location, message)
        return min(cable.rates) * _BYTES_PER_GBIT

    def _find_node_names(self, are_hosts: bool) -> dict[str, str]:
        """Return for each device, by guid, the name of the network node that it belongs to.

        With `are_hosts`, the node of a card is its host: the first word of the card's name (`node1`
        of `node1 mlx5_0`). Several cards may have the same host. All other devices, and without
        `are_hosts` also cards, are nodes with their own names. If an earlier such device has the
        same name, the result is `NAME GUID`. Names of hosts are not compared with those of
        switches.
        """
        node_of: dict[str, str] = {}
        used_names: set[str] = set()
        for guid, device in self._devices.items():
            name = device.name
            if device.is_card and are_hosts:
                node_of[guid] = _get_host_name(name)
                continue
            # Switches often have equal names.
            if name in used_names:
                name = f"{name} {guid}"
            used_names.add(name)
            node_of[guid] = name
        return node_of

    def _find_groups(
        self,
        cards: dict[str, _Device],
        hosts: Sequence[str],
        node_of: dict[str, str],
    ) -> dict[str, list[str]]:
        """Group the cards by host and by rail; return the names of nodes by name of the group.

        A rail consists of the cards with the same place in their hosts. Groups are `host NAME`
        first, then `rail NAME`. The host is the first word of the card's name. The rail is the rest
        of the name, or the entire name if it is one word. Members are in the order of `hosts`, the
        nodes of the cards. `node_of`: name of the node by guid. Returns {} if every host has only
        one card.
        """
        of_host: dict[str, list[str]] = {}
        of_rail: dict[str, list[str]] = {}
        guid_of = {node_of[guid]: guid for guid in cards}
        for node in hosts:
            name = cards[guid_of[node]].name
            of_host.setdefault(f"host {_get_host_name(name)}", []).append(node)
            of_rail.setdefault(f"rail {name.partition(' ')[2] or name}", []).append(node)
        is_split = any(len(members) > 1 for members in of_host.values())
        return {**of_host, **of_rail} if is_split else {}


def _get_host_name(name: str) -> str:
    """Return the host of a card: the first word of its name; the name itself if it has no word."""
    return name.split()[0] if name.split() else name


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Sort key of names: numbers in them compare by value, so that n2 precedes n10."""
    key = []
    for piece in re.findall(r"\d+|\D+", name):
        is_number = piece.isdecimal() and piece.isascii()
        key.append((int(piece), "") if is_number else (-1, piece))
    return key


# Two hosts at one switch, one of them with two cards.
_INFINIBAND = """\
#
# Topology file: generated on Thu Jan  1 00:00:00 2026
#
vendid=0x2c9
switchguid=0x2c90200000001(2c90200000001)
Switch\t36 "S-0002c90200000001"\t\t# "leaf-1" enhanced port 0 lid 1 lmc 0
[1]\t"H-0002c90300000001"[1](2c90300000001) \t\t# "node1 mlx5_0" lid 4 4xHDR
[2]\t"H-0002c90300000002"[1](2c90300000002) \t\t# "node1 mlx5_1" lid 5 4xHDR
[3]\t"H-0002c90300000003"[1](2c90300000003) \t\t# "node2 mlx5_0" lid 6

caguid=0x2c90300000001
Ca\t1 "H-0002c90300000001"\t\t# "node1 mlx5_0"
[1](2c90300000001) \t"S-0002c90200000001"[1]\t\t# lid 4 lmc 0 "leaf-1" lid 1 4xHDR

Ca\t1 "H-0002c90300000002"\t\t# "node1 mlx5_1"
[1](2c90300000002) \t"S-0002c90200000001"[2]\t\t# lid 5 lmc 0 "leaf-1" lid 1 4xHDR

Ca\t1 "H-0002c90300000003"\t\t# "node2 mlx5_0"
[1](2c90300000003) \t"S-0002c90200000001"[3]\t\t# lid 6 lmc 0 "leaf-1" lid 1 4xEDR
"""


def build_infiniband_samples() -> Sequence[Source]:
    """Return one sample for tests: the listing `leaf.ibnetdiscover` of three cards at a switch."""
    return [Source.of_bytes("leaf.ibnetdiscover", _INFINIBAND.encode("ascii"))]
