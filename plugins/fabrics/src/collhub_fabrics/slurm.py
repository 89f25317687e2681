"""Read Slurm's topology.conf: trees of switches, and blocks.

Source: the manual of topology.conf (public). A line has `Key=Value` pairs, keys of any case; #
begins a comment, and a line that ends with a backslash goes on. LinkSpeed means nothing to Slurm.
"""

from __future__ import annotations

from collections.abc import Iterator

from collhub_fabrics.hostlists import expanded_hosts
from collhub_fabrics.options import TreeOptions
from collhub_fabrics.refusals import refuse
from collhub_fabrics.trees import SwitchTree, TreeSwitch
from hub_core.model import Diagnostic, Location, Severity
from hub_core.network import Topology
from hub_core.plugin_api import Source

_LONGEST_FILE = 1 << 26
_KEYS = {"switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes"}
_MOST_DIGITS = 7
_CORE = "core"


def read(source: Source, options: TreeOptions) -> Topology:
    """The network of a topology.conf. Raises `InputError` with file and line."""
    topology = _File(source).topology(options)
    if options.gpus_per_node > 1 and options.nics is None:
        source.report(
            Diagnostic(
                "one-cable",
                f"a host of {options.gpus_per_node} GPUs has one cable at each of its switches",
                Severity.NOTE,
                Location(source.name),
                f"state its NICs with FILE?nics={options.gpus_per_node}, and rails with &rails=",
            )
        )
    return topology


class _File:
    """The lines of a file: switches, or blocks and their sizes."""

    def __init__(self, source: Source) -> None:
        self._name = source.name
        content = source.content()
        if len(content) > _LONGEST_FILE:
            refuse(self._name, None, f"the file is larger than {_LONGEST_FILE >> 20} MiB")
        self._switches: dict[str, TreeSwitch] = {}
        self._blocks: dict[str, TreeSwitch] = {}
        self._sizes: list[int] = []
        for number, line in _lines(content.decode("utf-8", "replace")):
            self._take(number, self._pairs(number, line))

    def topology(self, options: TreeOptions) -> Topology:
        """The network; blocks become groups as well."""
        # Slurm's plugins read one kind or the other, never both.
        if self._switches and self._blocks:
            refuse(self._name, None, "switches and blocks are both described", "keep one of them")
        if not self._switches and not self._blocks:
            cure = "a line is SwitchName=s Nodes=node[01-16], or BlockName=b Nodes=..."
            refuse(self._name, None, "no switch and no block is described", cure)
        groups = {name: block.hosts for name, block in self._blocks.items()}
        switches = self._switches or self._levels_of_blocks()
        return SwitchTree(self._name, switches).plan(options).topology(groups)

    def _take(
        self,
        number: int,
        pairs: dict[str, str],
    ) -> None:
        """The meaning of one line."""
        if "blocksizes" in pairs:
            self._sizes = [self._size(number, part) for part in pairs["blocksizes"].split(",")]
            return
        holder = self._switches if "switchname" in pairs else self._blocks
        name = pairs.get("switchname") or pairs.get("blockname")
        if not name:
            refuse(self._name, number, "SwitchName or BlockName was expected")
        # Slurm takes the last one in silence, which hides a slip.
        if name in holder:
            refuse(self._name, number, f"{name[:80]} is described twice")
        below = self._hosts(number, pairs.get("switches", ""))
        hosts = self._hosts(number, pairs.get("nodes", ""))
        if not below and not hosts:
            refuse(self._name, number, f"{name[:80]} has neither Switches nor Nodes")
        holder[name] = TreeSwitch(below, hosts, number)

    def _levels_of_blocks(self) -> dict[str, TreeSwitch]:
        """Blocks as switches, and switches above as many blocks as the sizes say, one above all."""
        found = dict(self._blocks)
        # Blocks stand in the file in the order in which Slurm joins them.
        top = list(self._blocks)
        for low, high in zip(self._sizes, self._sizes[1:], strict=False):
            if high % low or high == low:
                cure = "each size is a multiple of the one before"
                refuse(self._name, None, f"BlockSizes: {high} is no multiple of {low}", cure)
            # So many of the level below make one of this level.
            count = high // low
            parts = [top[first : first + count] for first in range(0, len(top), count)]
            top = [f"{part[0]}..{part[-1]}" for part in parts]
            found |= {name: TreeSwitch(part) for name, part in zip(top, parts, strict=True)}
        if len(top) > 1:
            found[_CORE] = TreeSwitch(top)
        return found

    def _pairs(
        self,
        number: int,
        line: str,
    ) -> dict[str, str]:
        """The pairs of a line by key in small letters."""
        found: dict[str, str] = {}
        for word in line.split():
            key, equals, value = word.partition("=")
            # Slurm takes keys of any case.
            name = key.lower()
            if not equals or name not in _KEYS:
                cure = "keys are SwitchName, Switches, Nodes, LinkSpeed, BlockName, BlockSizes"
                refuse(self._name, number, f"{word[:80]!r} is no pair of a known key", cure)
            if name in found:
                refuse(self._name, number, f"{key} is stated twice")
            found[name] = value
        return found

    def _hosts(self, number: int, text: str) -> list[str]:
        if not text:
            return []
        try:
            return expanded_hosts(text)
        except ValueError as error:
            refuse(self._name, number, str(error), "write for example node[01-04,07]")

    def _size(
        self,
        number: int,
        text: str,
    ) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and int(text)):
            refuse(self._name, number, f"BlockSizes: {text[:80]!r} is no number of hosts")
        return int(text)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with something on them, and their numbers; a continued line has that of its first."""
    start, held = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        # A comment ends a line, also a continued one.
        plain = line.partition("#")[0].rstrip()
        start = start or number
        if plain.endswith("\\"):
            held += plain[:-1] + " "
            continue
        if (held + plain).strip():
            yield start, held + plain
        start, held = 0, ""
    if held.strip():
        yield start, held
