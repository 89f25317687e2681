"""Trees of switches with hosts, whose cables have one bandwidth per level.

Lists of hosts are in Slurm's notation: `node[01-04,07],login`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from collhub_fabrics.plan import FabricPlan, refuse
from collhub_fabrics.plugin import TreeOptions
from hub_core.model import parse_bandwidth

_PART = re.compile(r"[^,\[\]\s]*(?:\[[0-9,\s-]*\][^,\[\]\s]*)*")
_RANGE = re.compile(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*")
# More than any cluster has; protects memory from huge ranges.
_MAX_HOSTS = 1 << 20


def expand_hosts(text: str) -> list[str]:
    """Expand a list such as `node[01-04,07],login` to the names of its hosts, in order.

    Brackets contain numbers and ascending ranges, and may stand anywhere in a name. The numbers
    of a range are padded with zeros to the width of its first number: `[08-10]` gives 08, 09,
    10 and `[8-10]` gives 8, 9, 10. Several brackets in one name give all combinations; the last
    bracket varies fastest. Names may repeat.

    Raises `ValueError` with the reason for an empty text or name, nested or open brackets,
    spaces outside of brackets, numbers of more than 9 digits, a decreasing range, and more than
    2^20 hosts.
    """
    hosts: list[str] = []
    for part in _split_names(text):
        # Brackets do not nest: every second piece is the content of brackets.
        # Even positions have plain text, odd ones the contents of brackets.
        pieces = [
            _expand_numbers(piece) if index % 2 else [piece]
            for index, piece in enumerate(re.split(r"[\[\]]", part))
        ]
        # Checked before the expansion, since brackets multiply.
        if len(hosts) + math.prod(map(len, pieces)) > _MAX_HOSTS:
            raise ValueError(f"{text[:80]!r} names more than {_MAX_HOSTS} hosts")
        hosts += ["".join(names) for names in itertools.product(*pieces)]
    return hosts


def _split_names(text: str) -> Iterator[str]:
    """Yield the names with their brackets, split at commas outside of brackets.

    Brackets contain only digits, commas, minus signs and white space. Raises `ValueError`
    for an empty name, also of an empty text, for brackets that do not match, and for white
    space outside of brackets. It is raised at the faulty name, after the names before it.
    """
    position = 0
    while position <= len(text):
        match = _PART.match(text, position)
        end = len(text) if match is None else match.end()
        is_end = end == len(text)
        if match is None or not match[0] or not (is_end or text[end] == ","):
            raise ValueError(f"{text[:80]!r} is no list of hosts")
        yield match[0]
        position = end + 1


def _expand_numbers(text: str) -> list[str]:
    """Expand the content of brackets such as `01-04,07` to its numbers as texts.

    The numbers of a range are padded with zeros to the width of its first number. Raises
    `ValueError` for a part that is neither a number of at most 9 digits nor a range, for a
    decreasing range, and for a range of more than 2^20 numbers.
    """
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"[{text[:80]}] is no list of numbers")
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if not 1 <= count <= _MAX_HOSTS:
            raise ValueError(f"[{text[:80]}] is no range from low to high")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


@dataclass(slots=True)
class TreeSwitch:
    """A switch: names of the switches below it and of its hosts; `line` as in `Location`."""

    switches: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    line: int | None = None


class SwitchTree:
    """Switches by name, in the order of the file.

    A switch or host may have several switches above it.
    """

    def __init__(self, file: str, switches: Mapping[str, TreeSwitch]) -> None:
        """Store the switches, and compute how high each one is in the tree.

        The height of a switch is the number of switches on the longest way down from it, itself
        included. Raises `InputError` for a reference to a missing switch, and for a switch that is
        above itself.
        """
        self._file = file
        self._switches = switches
        self._heights: dict[str, int] = {}
        for name, switch in switches.items():
            for below in switch.switches:
                if below not in switches:
                    message = f"switch {name} leads to {below!r}, which is not described"
                    refuse(self._file, switch.line, message, f"describe the switch {below}")
        for name in switches:
            self._measure_heights(name)

    def plan(self, options: TreeOptions) -> FabricPlan:
        """Plan the network: every switch once per rail, the hosts, and all cables.

        A rail is a copy of all switches and of the cables between them. With several rails,
        switch s of rail r is named `rail r s`. Switches are in the order of the file, rail by
        rail. Hosts are in the order in which switches list them. Their cables come first.

        - Without `nics`, `rails` must be 1, and a host has a cable to each switch that lists it.
        - With `nics`, NIC n is in rail n mod `rails` and has one cable, to switch (n // `rails`)
          mod k of the k switches that list the host.

        A cable has the bandwidth of its lower end's level: 0 for hosts, the height for switches
        (1 without switches below). Raises `InputError` if `bandwidth` is missing or has neither 1
        nor one value per level, and if the NICs (1 without the option) are no multiple of
        `rails`. Raises `UsageError` for an invalid bandwidth.
        """
        plan = FabricPlan(self._file, options.gpus_per_node, options, options.nics)
        rates, rails = self._parse_rates(options), options.rails
        if (options.nics or 1) % rails:
            message = f"{options.nics or 1} NICs of a host cannot be shared by {rails} rails"
            refuse(self._file, None, message, f"give for example FILE?nics={rails}&rails={rails}")
        leaves: dict[str, list[str]] = {}
        for rail in range(rails):
            for name, switch in self._switches.items():
                plan.add_switch(_add_rail_name(name, rail, rails))
                for host in switch.hosts if not rail else ():
                    plan.add_host(host)
                    leaves.setdefault(host, []).append(name)
        if options.nics is None:
            for host, names in leaves.items():
                for name in names:
                    plan.add_cable(host, name, rates[0])
        else:
            for host, names in leaves.items():
                for nic in range(options.nics):
                    # NICs of one rail use the switches of the host round robin.
                    leaf = names[nic // rails % len(names)]
                    plan.add_nic(host, nic, _add_rail_name(leaf, nic % rails, rails), rates[0])
        for rail in range(rails):
            for name, switch in self._switches.items():
                for below in switch.switches:
                    # A cable belongs to the level of its lower end, as in htsim's files.
                    endpoints = (
                        _add_rail_name(below, rail, rails),
                        _add_rail_name(name, rail, rails),
                    )
                    plan.add_cable(*endpoints, rates[self._heights[below]])
        return plan

    def _measure_heights(self, start: str) -> None:
        """Compute the heights of a switch and of all switches below it; store them in `_heights`.

        The height is 1 for a switch without switches directly below, else 1 more than the largest
        of theirs. Known heights are reused. Raises `InputError` for a switch that is above itself.
        """
        # No recursion: a chain of switches may be as deep as the file is long.
        stack = [(start, False)]
        open_names: set[str] = set()
        while stack:
            name, is_done = stack.pop()
            switch = self._switches[name]
            if is_done:
                below = [self._heights[child] for child in switch.switches]
                self._heights[name] = 1 + max(below, default=0)
                open_names.discard(name)
            # A switch that is still open is below itself; finished ones have a height.
            elif name in open_names:
                refuse(self._file, switch.line, f"switch {name} is above itself", "give a tree")
            elif name not in self._heights:
                open_names.add(name)
                stack.append((name, True))
                stack += [(child, False) for child in switch.switches]

    def _parse_rates(self, options: TreeOptions) -> Sequence[float]:
        """Return the bandwidth of the cables of each level in bytes/s, from the hosts upwards.

        Level 0 has the cables of hosts. Level k has the cables between a switch of height k and the
        switches above it. The number of levels is 1 + the largest height of a switch below
        another one; 1 without such switches. A single value of the option `bandwidth` applies to
        all levels.

        Raises `InputError` if the option is missing. Raises `UsageError` for an invalid value. Then
        raises `InputError` for several values if their number is not the number of levels.
        """
        levels = 1 + max(
            (
                self._heights[below]
                for switch in self._switches.values()
                for below in switch.switches
            ),
            default=0,
        )
        if options.bandwidth is None:
            example = ",".join(["50GB/s"] * levels)
            cure = f"give one value per level from the hosts up: FILE?bandwidth={example}"
            message = f"the description has no bandwidths, and {levels} levels of cables"
            refuse(self._file, None, message, cure)
        rates = [parse_bandwidth(part) for part in options.bandwidth.split(",")]
        # A single value applies to all levels; any other number must match the levels.
        if len(rates) not in (1, levels):
            message = f"option bandwidth has {len(rates)} values for {levels} levels of cables"
            refuse(self._file, None, message, f"give one value, or {levels}")
        return rates * levels if len(rates) == 1 else rates


def _add_rail_name(name: str, rail: int, rails: int) -> str:
    """Build the name of a switch, with its rail if there are several."""
    return name if rails == 1 else f"rail {rail} {name}"
