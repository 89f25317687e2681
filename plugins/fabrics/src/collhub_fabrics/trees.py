"""Trees of switches with hosts at them, whose cables have a bandwidth a level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collhub_fabrics.options import TreeOptions
from collhub_fabrics.plan import FabricPlan
from collhub_fabrics.refusals import refuse
from hub_core.model import parse_bandwidth


@dataclass(slots=True)
class TreeSwitch:
    """A switch: those below it and hosts at it, by name; `line` as of `Location`."""

    switches: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    line: int | None = None


class SwitchTree:
    """Switches by name, in the order of the file. A switch or host may have several above it."""

    def __init__(self, file: str, switches: Mapping[str, TreeSwitch]) -> None:
        """Raises `InputError` for a switch that does not exist, and for one above itself."""
        self._file = file
        self._switches = switches
        self._heights: dict[str, int] = {}
        for name, switch in switches.items():
            for below in switch.switches:
                if below not in switches:
                    message = f"switch {name} leads to {below!r}, which is not described"
                    refuse(self._file, switch.line, message, f"describe the switch {below}")
        for name in switches:
            self._measure(name)

    def plan(self, options: TreeOptions) -> FabricPlan:
        """The network, level 0 the cables of hosts. Raises `InputError` without bandwidths."""
        plan = FabricPlan(self._file, options.gpus_per_node, options, options.nics)
        rates, rails = self._rates(options), options.rails
        if (options.nics or 1) % rails:
            message = f"{options.nics or 1} NICs of a host cannot be shared by {rails} rails"
            refuse(self._file, None, message, f"state for example FILE?nics={rails}&rails={rails}")
        leaves: dict[str, list[str]] = {}
        for rail in range(rails):
            for name, switch in self._switches.items():
                plan.add_switch(_on_rail(name, rail, rails))
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
                    # NICs of one rail take the switches that name the host in turn.
                    leaf = names[nic // rails % len(names)]
                    plan.add_nic(host, nic, _on_rail(leaf, nic % rails, rails), rates[0])
        for rail in range(rails):
            for name, switch in self._switches.items():
                for below in switch.switches:
                    # A cable belongs to the level of its lower end, as in htsim's files.
                    ends = _on_rail(below, rail, rails), _on_rail(name, rail, rails)
                    plan.add_cable(*ends, rates[self._heights[below]])
        return plan

    def _measure(self, start: str) -> None:
        """The height of a switch: 1 next to hosts, else one more than the highest below it."""
        # No recursion: a file of switches one above the other may be as deep as it is long.
        stack = [(start, False)]
        open_names: set[str] = set()
        while stack:
            name, is_done = stack.pop()
            switch = self._switches[name]
            if is_done:
                below = [self._heights[child] for child in switch.switches]
                self._heights[name] = 1 + max(below, default=0)
                open_names.discard(name)
            # Open means below itself: finished ones have a height.
            elif name in open_names:
                refuse(self._file, switch.line, f"switch {name} is above itself", "state a tree")
            elif name not in self._heights:
                open_names.add(name)
                stack.append((name, True))
                stack += [(child, False) for child in switch.switches]

    def _rates(self, options: TreeOptions) -> Sequence[float]:
        """Bytes per second by level."""
        levels = 1 + max(
            (self._heights[below] for each in self._switches.values() for below in each.switches),
            default=0,
        )
        if options.bandwidth is None:
            example = ",".join(["50GB/s"] * levels)
            cure = f"state one value a level from the hosts up: FILE?bandwidth={example}"
            message = f"the description states no bandwidths, and has {levels} levels of cables"
            refuse(self._file, None, message, cure)
        rates = [parse_bandwidth(part) for part in options.bandwidth.split(",")]
        # One value is for all levels; fewer than levels would be a guess.
        if len(rates) not in (1, levels):
            message = f"option bandwidth has {len(rates)} values for {levels} levels of cables"
            refuse(self._file, None, message, f"state one value, or {levels}")
        return rates * levels if len(rates) == 1 else rates


def _on_rail(name: str, rail: int, rails: int) -> str:
    """The name of a switch, with its rail where there are several."""
    return name if rails == 1 else f"rail {rail} {name}"
