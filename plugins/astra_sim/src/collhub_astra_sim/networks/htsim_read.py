"""Read a topology for htsim: a fat tree described by numbers.

Source: `FatTreeTopologyCfg` of csg-htsim (public). A line is a key, white space and a whole number;
keys are case-insensitive; a line that begins with # is a comment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

import numpy as np

from collhub_astra_sim.networks.fat_trees import FatTree, Tier
from hub_core.model import InputError, Location
from hub_core.network import Topology
from hub_core.plugin_api import NoOptions, Source

_LONGEST_FILE = 1 << 20
_MOST_DIGITS = 9
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
    """Read the network of an htsim topology file. Raises `InputError` with file and line."""
    del options
    return _File(source).topology()


class _File:
    """A file as its keys: those of the network, and those of each tier."""

    def __init__(self, source: Source) -> None:
        self._name = source.name
        content = source.content()
        if len(content) > _LONGEST_FILE:
            self._fail(None, "the file is larger than 1 MiB")
        self._head: dict[str, int] = {}
        self._tiers: dict[int, dict[str, int]] = {}
        block: dict[str, int] = self._head
        for number, line in enumerate(content.decode("ascii", "replace").splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            key, value = self._parse_pair(words, number)
            if key == "tier":
                block = self._tiers.setdefault(value, {})
                if block:
                    self._fail(number, f"tier {value} occurs twice")
            else:
                self._store_value(block, key, value, number)

    def topology(self) -> Topology:
        """Build the network. Raises `InputError` for missing or inconsistent numbers."""
        missing = [key for key in _HEAD if key not in self._head]
        if missing:
            self._fail(None, f"missing: {', '.join(missing)}", "write for example Nodes 16")
        count = self._head["tiers"]
        if count not in (2, 3) or set(self._tiers) != set(range(count)):
            numbers = ", ".join(map(str, sorted(self._tiers))) or "none"
            self._fail(
                None, f"Tiers is {count}, and the blocks are of tiers {numbers}: 2 or 3, 0..n"
            )
        tiers = tuple(self._build_tier(number, number == count - 1) for number in range(count))
        tree = FatTree(self._head["nodes"], self._head["podsize"], tiers)
        if defect := tree.defect():
            self._fail(None, defect, "the numbers have to be consistent: see the manual of htsim")
        return _add_switch_latencies(tree, tree.topology(self._name))

    def _build_tier(self, number: int, is_top: bool) -> Tier:
        """Build a tier from its keys. Raises `InputError` for missing ones."""
        values_by_key = self._tiers[number]
        needed = _REQUIRED if is_top else _REQUIRED | _UP
        missing = [key for key in needed if key not in values_by_key]
        if missing:
            self._fail(None, f"tier {number} lacks {', '.join(missing)}")
        values = {_KEYS[key][0]: value for key, value in values_by_key.items() if _KEYS[key][0]}
        if is_top:
            values.pop("radix_up", None)
        return Tier(**values)

    def _parse_pair(self, words: list[str], line: int) -> tuple[str, int]:
        """Parse a line as (key in lower case, value). Raises `InputError`."""
        text = words[1] if len(words) == 2 else ""
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
            self._fail(line, "a key and a whole number were expected", "write for example Nodes 16")
        return words[0].lower(), int(text)

    def _store_value(self, block: dict[str, int], key: str, value: int, line: int) -> None:
        """Store a value. Raises `InputError` for unknown or duplicate keys and invalid values."""
        known: Mapping[str, object] = dict.fromkeys(_HEAD) if block is self._head else _KEYS
        if key not in known:
            self._fail(line, f"{key[:40]!r} is not one of {', '.join(known)}")
        if key in block:
            self._fail(line, f"{key} occurs twice")
        if key in _KEYS and value < _KEYS[key][1]:
            self._fail(line, f"{key} is {value}, at least {_KEYS[key][1]} was expected")
        if key in _HEAD and value < 1:
            self._fail(line, f"{key} is {value}, at least 1 was expected")
        block[key] = value

    def _fail(self, line: int | None, message: str, cure: str = "") -> NoReturn:
        """Raise the `InputError` of this file."""
        location = Location(self._name, line)
        raise InputError(message, location=location, cure=cure, code="invalid-htsim-topology")


def _add_switch_latencies(tree: FatTree, topology: Topology) -> Topology:
    """Add the latency of every switch to the links that leave it."""
    sizes = [tree.switches(number) for number in range(len(tree.tiers))]
    latencies_s = [tier.switch_latency_ns / 1e9 for tier in tree.tiers]
    latency_of_node = np.concatenate([np.zeros(tree.npus), np.repeat(latencies_s, sizes)])
    if not latency_of_node.any():
        return topology
    return replace(topology, latency_s=topology.latency_s + latency_of_node[topology.source])
