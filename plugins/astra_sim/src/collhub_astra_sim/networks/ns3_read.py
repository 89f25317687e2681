"""Read the topology text of ASTRA-sim's ns-3 backend, and that of SimAI, which has a longer header.

Source: the sample networks of astra-network-ns3 (public), and the generator of SimAI (public). Both
are numbers and words between white space: line breaks have no meaning, and there are no comments.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from collhub_networks import Cable, topology_of

from hub_core.model import Diagnostic, InputError, Location, Severity
from hub_core.network import MAX_LINKS, MAX_NODES, Topology
from hub_core.plugin_api import NoOptions, Source

_LONGEST_FILE = 1 << 28
_LONGEST_WORD = 40
_RATE = re.compile(r"(\d+(?:\.\d+)?)([KMG]i?|k)?(bps|b/s|Bps|B/s)")
_PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_DELAY = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d+)?)(s|ms|us|ns|ps|fs)")
# Powers of ten: dividing by them is exact for decimal digits, multiplying by their inverses is not.
_PER_SECOND = {"s": 1e0, "ms": 1e3, "us": 1e6, "ns": 1e9, "ps": 1e12, "fs": 1e15}


@dataclass(frozen=True, slots=True)
class _Header:
    """The counts in the header: all nodes, switches among them, and cables."""

    nodes: int
    switches: int
    cables: int


def read(source: Source, options: NoOptions) -> Topology:
    """Read the network of an ns-3 topology file. Raises `InputError` with file and line."""
    del options
    return _Words(source).topology()


class _Words:
    """The words of a file, consumed one by one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        content = source.content()
        if len(content) > _LONGEST_FILE:
            self._fail(f"the file is larger than {_LONGEST_FILE >> 20} MiB")
        # Non-ASCII bytes become a character that no number contains.
        lines = content.decode("ascii", "replace").splitlines()
        self._line = 1
        self._words = self._iterate_words(lines)

    def topology(self) -> Topology:
        """Read the network.

        Switches are numbered after the NPUs, which keep their order. Raises `InputError` for
        malformed numbers and a repeated switch.
        """
        header = self._read_header()
        switches = [self._read_integer("a switch", header.nodes) for _ in range(header.switches)]
        if len(set(switches)) < len(switches):
            self._fail("a switch is named twice")
        # Switches are numbered after the NPUs, which keep their order.
        is_switch = set(switches)
        npus = [node for node in range(header.nodes) if node not in is_switch]
        number = {node: index for index, node in enumerate([*npus, *switches])}
        cables = list(self._read_cables(header, number))
        self._check_end(header, len(cables))
        return topology_of(self._source.name, len(npus), header.nodes, cables)

    def _read_header(self) -> _Header:
        """Read the header of ASTRA-sim or of SimAI.

        SimAI's header has additional numbers and ends with a word, the kind of GPU. Raises
        `InputError` if all nodes are switches.
        """
        first = [self._read_integer("a number of nodes", MAX_NODES + 1)]
        first += [self._read_integer("a number of nodes", MAX_LINKS + 1) for _ in range(2)]
        # SimAI's header has the GPUs of a server and the NVSwitches before the switches, and
        # finally the kind of GPU, a word; without this word the following numbers are the switches
        # and links.
        words = [next(self._words, "") for _ in range(3)]
        is_of_simai = not words[2][:1].isdigit() and all(map(str.isdecimal, words[:2]))
        if is_of_simai and words[2]:
            nodes, _, nvswitches = first
            switches, cables = (self._parse_number(word, "a number of links") for word in words[:2])
            header = _Header(nodes, nvswitches + switches, cables)
        else:
            self._words = itertools.chain(filter(None, words), self._words)
            header = _Header(*first)
        if header.switches >= header.nodes:
            self._fail(f"{header.switches} of {header.nodes} nodes are switches: there is no NPU")
        return header

    def _read_cables(self, header: _Header, number: dict[int, int]) -> Iterator[Cable]:
        """Yield the cables up to the end of the file, at most the number in the header.

        Raises `InputError` for a link of a node to itself, and for an invalid node, rate or delay.
        """
        for _ in range(header.cables):
            first = next(self._words, None)
            if first is None:
                return
            source = number[self._parse_number(first, "a node", header.nodes)]
            destination = number[self._read_integer("a node", header.nodes)]
            if source == destination:
                self._fail("a link joins a node to itself")
            rate, delay = self._read_rate(), self._read_delay()
            # The packet loss rate has no effect on times here.
            next(self._words, None)
            yield Cable(source, destination, rate, delay)

    def _check_end(self, header: _Header, count: int) -> None:
        """Report a warning if the number of links differs from the header.

        Existing files have fewer or more links than the header announces.
        """
        more = next(self._words, None)
        if count == header.cables and more is None:
            return
        difference = "more follows" if more is not None else f"{count} follow"
        message = f"{header.cables} links are announced, {difference}; {count} are read"
        location = Location(self._source.name)
        self._source.report(Diagnostic("link-count", message, Severity.WARNING, location))

    def _read_rate(self) -> float:
        """Read a data rate and return bytes per second. Raises `InputError`."""
        word = next(self._words, "")
        match = _RATE.fullmatch(word)
        value = float(match[1]) * _PREFIXES.get(match[2] or "", 1.0) if match else 0.0
        if match is None or not value > 0:
            self._fail(f"{word[:_LONGEST_WORD]!r} is no data rate", "write for example 400Gbps")
        return value / 8 if match[3].startswith("b") else value

    def _read_delay(self) -> float:
        """Read a delay and return seconds.

        Raises `InputError` for a word that is no number with a unit from s down to fs.
        """
        word = next(self._words, "")
        match = _DELAY.fullmatch(word)
        if match is None:
            self._fail(f"{word[:_LONGEST_WORD]!r} is no delay", "write for example 500ns")
        return float(match[1]) / _PER_SECOND[match[2]]

    def _read_integer(self, description: str, above: int) -> int:
        """Read an integer in 0..above-1; `what` names it in errors."""
        return self._parse_number(next(self._words, ""), description, above)

    def _parse_number(self, word: str, description: str, above: int = MAX_LINKS + 1) -> int:
        """Parse an integer in 0..above-1; `what` names it in errors. Raises `InputError`."""
        is_number = word.isascii() and word.isdecimal() and len(word) <= len(str(above))
        if not is_number or int(word) >= above:
            actual = repr(word[:_LONGEST_WORD]) if word else "the end of the file"
            self._fail(f"{description}, 0 to {above - 1}, was expected, not {actual}")
        return int(word)

    def _iterate_words(self, lines: list[str]) -> Iterator[str]:
        """Yield the words of all lines in order; sets `_line` to their line number, from 1."""
        for number, line in enumerate(lines, 1):
            self._line = number
            yield from line.split()

    def _fail(self, message: str, cure: str = "") -> NoReturn:
        """Raise the `InputError` of the current line."""
        location = Location(self._source.name, getattr(self, "_line", None))
        raise InputError(message, location=location, cure=cure, code="invalid-ns3-topology")
