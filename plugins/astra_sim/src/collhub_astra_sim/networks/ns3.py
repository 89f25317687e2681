"""Topology text of ASTRA-sim's ns-3 backend, and that of SimAI, which has a longer header.

Source: the sample networks of astra-network-ns3 (public), and the generator of SimAI (public). Both
are numbers and words between white space: line breaks have no meaning, and there are no comments.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from collhub_networks import Cable, cables_of, topology_of

from collhub_astra_sim.options import SIMAI, Ns3WriteOptions
from hub_core.columns import BoolArray
from hub_core.model import (
    Diagnostic,
    InputError,
    Location,
    Loss,
    Severity,
    UsageError,
    format_ranks,
)
from hub_core.network import MAX_LINKS, MAX_NODES, Topology
from hub_core.plugin_api import Artifact, NoOptions, Source, WriteResult

_LONGEST_FILE = 1 << 28
_LONGEST_WORD = 40
_SIMAI_HEADER_WORDS = 6
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
    """Read the network of an ns-3 topology file, in the form of ASTRA-sim or of SimAI.

    Every cable becomes two links. NPUs keep the order of their numbers; switches are
    numbered after them, in the order of the file. Another number of cables than in the
    header is reported as a warning (`link-count`), and all cables up to the number in the
    header are read. Raise `InputError` (`invalid-ns3-topology`), with the line if it is
    known, for invalid content and for a file above 256 MiB. Raise `UsageError` for several
    files.
    """
    del options
    return _FileWords(source).topology()


class _FileWords:
    """The words of a file, consumed one by one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        content = source.content()
        if len(content) > _LONGEST_FILE:
            self._fail(f"the file is larger than {_LONGEST_FILE >> 20} MiB")
        # Non-ASCII bytes become a character that no number contains.
        lines = content.removeprefix(codecs.BOM_UTF8).decode("ascii", "replace").splitlines()
        self._line = 1
        self._first_line = lines[0].split() if lines else []
        self._words = self._iterate_words(lines)

    def topology(self) -> Topology:
        """Read the network from the header, the switches and the cables of the file.

        Each cable becomes two links, one per direction. Nodes that are not listed as switches are
        NPUs, numbered from 0 in ascending order of their numbers in the file. Switches follow, in
        the order in which the file lists them. In a header of SimAI's format, NVSwitches count as
        switches.

        At most the number of cables in the header is read. One warning (`link-count`) is reported
        if the file has fewer cables, or has words after the last cable that is read.

        Raises `InputError` (`invalid-ns3-topology`) for an invalid header (also if all nodes are
        switches), a node that does not exist, a repeated switch, an invalid or zero rate, an
        invalid delay, and a cable of a node to itself.
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
        # No error, because existing files have fewer or more links than their header declares.
        more = next(self._words, None)
        if len(cables) != header.cables or more is not None:
            difference = "more follows" if more is not None else f"{len(cables)} follow"
            message = f"{header.cables} links are announced, {difference}; {len(cables)} are read"
            location = Location(self._source.name)
            self._source.report(Diagnostic("link-count", message, Severity.WARNING, location))
        return topology_of(self._source.name, len(npus), header.nodes, cables)

    def _read_header(self) -> _Header:
        """Read the numbers of nodes, switches and cables; the next word to read is that after the
        header.

        - ASTRA-sim's header: three integers (nodes, switches, cables).
        - SimAI's header: nodes, GPUs per server (ignored), NVSwitches, switches, cables, GPU type
          (ignored). It is assumed if words 4 and 5 are decimal and word 6 exists and begins with no
          digit. `switches` of the result are NVSwitches plus switches.

        Raises `InputError` (`invalid-ns3-topology`) at the line of the last word read, in this
        order:

        1. One of the first three words is missing, no decimal number, or above 2^20 (first), 2^24
           (others).
        2. SimAI's header is in a first line of exactly seven words, as forks of SimAI write it.
        3. SimAI's switches or cables are above 2^24.
        4. There are at least as many switches as nodes.
        """
        first = [self._read_integer("a number of nodes", MAX_NODES + 1)]
        first += [self._read_integer("a number of nodes", MAX_LINKS + 1) for _ in range(2)]
        # SimAI's header has the GPUs of a server and the NVSwitches before the switches, and
        # finally the kind of GPU, a word; without this word the following numbers are the switches
        # and links.
        words = [next(self._words, "") for _ in range(3)]
        is_of_simai = not words[2][:1].isdigit() and all(map(str.isdecimal, words[:2]))
        if is_of_simai and words[2]:
            if len(self._first_line) == _SIMAI_HEADER_WORDS + 1:
                message = f"{self._first_line[-1][:_LONGEST_WORD]!r} follows the type of GPU"
                self._fail(message, f"SimAI's header has {_SIMAI_HEADER_WORDS} words: remove it")
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

        `number`: new number of each node. A rate is a decimal number without an exponent, and one
        of the units `bps` and `b/s` (bits) or `Bps` and `B/s` (bytes), such as `400Gbps`. The
        prefixes k, K, M and G are powers of 1000; Ki, Mi and Gi are powers of 1024. The packet loss
        rate is ignored. Raises `InputError` for a link of a node to itself, and for an invalid
        node, rate (also 0) or delay, also for a cable that ends before its delay.
        """
        for _ in range(header.cables):
            first = next(self._words, None)
            if first is None:
                return
            source = number[self._parse_number(first, "a node", header.nodes)]
            destination = number[self._read_integer("a node", header.nodes)]
            if source == destination:
                self._fail("a link joins a node to itself")
            word = next(self._words, "")
            match = _RATE.fullmatch(word)
            rate = float(match[1]) * _PREFIXES.get(match[2] or "", 1.0) if match else 0.0
            if match is None or not rate > 0:
                self._fail(f"{word[:_LONGEST_WORD]!r} is no data rate", "write for example 400Gbps")
            if match[3].startswith("b"):
                rate /= 8
            word = next(self._words, "")
            match = _DELAY.fullmatch(word)
            if match is None:
                self._fail(f"{word[:_LONGEST_WORD]!r} is no delay", "write for example 500ns")
            delay_s = float(match[1]) / _PER_SECOND[match[2]]
            # The packet loss rate has no effect on times here.
            next(self._words, None)
            yield Cable(source, destination, rate, delay_s)

    def _read_integer(self, description: str, above: int) -> int:
        """Read an integer in 0..above-1; `description` names it in errors. Raises `InputError`."""
        return self._parse_number(next(self._words, ""), description, above)

    def _parse_number(self, word: str, description: str, above: int = MAX_LINKS + 1) -> int:
        """Parse an integer of decimal ASCII digits, from 0 to `above` - 1 (by default `MAX_LINKS`).

        Raises `InputError` for any other word, and for one with more digits than `above`, such as
        many leading zeros. The word "" means the end of the file. `description` names the number in
        the error.
        """
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
        """Raise `InputError` (`invalid-ns3-topology`) with `message` at the line of the last word.

        `cure`: advice, "" for none. Before the first word there is no line.
        """
        location = Location(self._source.name, getattr(self, "_line", None))
        raise InputError(message, location=location, cure=cure, code="invalid-ns3-topology")


_RATE_PREFIXES = (("G", 10**9), ("M", 10**6), ("K", 10**3), ("", 1))
# For more NPUs, the table of all pairs takes too much memory.
_MOST_JUDGED = 1 << 13


def write(topology: Topology, options: Ns3WriteOptions) -> WriteResult:
    """Write the topology as a file of cables for ns-3 (format `ns3`).

    A cable is a link with an equal link in the opposite direction. The header is that of
    ASTRA-sim, or of SimAI with `header=simai`. Losses are multicast and reduction in
    switches, names of nodes, groups, rounded rates and latencies, and forwarding by NPUs;
    dimensions and the order of links are declared as restated. Raise `UsageError` for
    several planes, for links that form no cables, and with `header=simai` for servers that
    SimAI cannot describe.
    """
    cables = cables_of(topology)
    header = _format_simai_header if options.header == SIMAI else _format_header
    lines = [*header(topology, len(cables), options)]
    for cable in cables:
        rate, delay = _format_rate(cable.bandwidth_bytes_per_s), _format_delay(cable.latency_s)
        lines.append(f"{cable.source} {cable.destination} {rate} {delay} 0\n")
    content = "".join(lines).encode("ascii")
    losses = (
        *report_name_losses(topology),
        *_report_rounding(cables),
        *_report_forwarding(topology),
    )
    return WriteResult([Artifact("", lambda: content)], losses, ("dimensions", "link order"))


def _format_header(topology: Topology, cables: int, options: Ns3WriteOptions) -> list[str]:
    """Return the two header lines of ASTRA-sim's form, each with a line break at its end.

    The first line has the numbers of nodes, switches and `cables`, separated by blanks. The
    second one lists the numbers of all switches, which follow the NPUs; it is empty without
    switches. `options` is not used.
    """
    del options
    npus, nodes = topology.num_npus, topology.num_nodes
    return [f"{nodes} {nodes - npus} {cables}\n", " ".join(map(str, range(npus, nodes))) + "\n"]


def _format_simai_header(topology: Topology, cables: int, options: Ns3WriteOptions) -> list[str]:
    """Return the first two lines of a topology file in SimAI's form.

    The first line has the numbers of nodes, NPUs per server, NVSwitches, other switches and
    `cables`, and the type of GPU from the options. The second lists the switches, NVSwitches first.
    An NVSwitch is a switch that connects only the NPUs of one server (`find_servers`); without any,
    a server has one NPU. Raises `UsageError` (`uneven-servers`) for servers of different sizes, or
    if a server's first NPU is no multiple of the size.
    """
    npus, nodes = topology.num_npus, topology.num_nodes
    servers = find_servers(topology)
    nvswitches = servers.nvswitches
    other_switches = [node for node in range(npus, nodes) if node not in set(nvswitches)]
    counts = f"{nodes} {servers.npus} {len(nvswitches)} {len(other_switches)} {cables}"
    return [
        f"{counts} {options.gpu_type}\n",
        " ".join(map(str, [*nvswitches, *other_switches])) + "\n",
    ]


def _format_rate(bandwidth_bytes_per_s: float) -> str:
    """Return a bandwidth in bits per second as text, such as `400Gbps` for 50e9 bytes/s.

    The rate is rounded to an integer of bits per second. The prefix is the largest one of
    G, M, K and none for which the number in the text is an integer: 1.5 Gbit/s gives
    `1500Mbps`, 0 gives `0Gbps`.
    """
    bits = round(bandwidth_bytes_per_s * 8)
    prefix, factor = next(pair for pair in _RATE_PREFIXES if bits % pair[1] == 0)
    return f"{bits // factor}{prefix}bps"


def _format_delay(latency_s: float) -> str:
    """Return the latency rounded to whole nanoseconds, with its unit: 500ns."""
    return f"{round(latency_s * 1e9)}ns"


def report_name_losses(topology: Topology) -> Iterator[Loss]:
    """Yield the losses of a file that has only numbers of nodes.

    They are multicast and reduction (with their switches), names of nodes, and groups; each only if
    the topology has them.
    """
    for name, switches in (("multicast", topology.multicast), ("reduction", topology.reduction)):
        if switches:
            yield Loss(name, format_ranks(switches), "switches only forward")
    if topology.node_names:
        yield Loss("node_names", "all nodes", "nodes have only numbers")
    if topology.groups:
        yield Loss("groups", ", ".join(topology.groups), "there are no groups of NPUs")


def _report_rounding(cables: list[Cable]) -> Iterator[Loss]:
    """Yield losses for bandwidths and latencies that the file rounds to integer bit/s and ns.

    There is at most one loss for each of the two, bandwidths first. It has the value of the first
    affected cable in the given order, and the text that is written for it. A bandwidth is affected
    if its bit/s are not exactly an integer. A latency is affected if its ns, rounded to 6 decimal
    places, are not an integer; so deviations below 5e-7 ns do not count. Nothing is yielded without
    affected cables.
    """
    for cable in cables:
        bits = cable.bandwidth_bytes_per_s * 8
        if bits != round(bits):
            message = f"written as {_format_rate(cable.bandwidth_bytes_per_s)}"
            yield Loss("bandwidth_bytes_per_s", f"{cable.bandwidth_bytes_per_s} B/s", message)
            break
    for cable in cables:
        latency_ns = round(cable.latency_s * 1e9, 6)
        if latency_ns != round(latency_ns):
            where = f"{latency_ns} ns"
            yield Loss("latency_s", where, f"written as {_format_delay(cable.latency_s)}: whole ns")
            break


def _report_forwarding(topology: Topology) -> Iterator[Loss]:
    """Yield one loss if some NPUs are connected only through other NPUs, or not at all.

    NPUs do not forward in ns-3. The loss has the number of ordered pairs of such NPUs and the first
    pair by source, then destination. Networks of more than `_MOST_JUDGED` NPUs are not checked.
    """
    if topology.num_npus > _MOST_JUDGED:
        return
    unreachable = np.argwhere(~_find_reached(topology))
    if len(unreachable):
        first, second = unreachable[0].tolist()
        yield Loss(
            f"{len(unreachable)} paths over NPUs",
            f"from NPU {topology.node_name(first)} to NPU {topology.node_name(second)}, ...",
            "NPUs do not forward in ns-3: run algorithms that send only to neighbours",
        )


def _find_reached(topology: Topology) -> BoolArray:
    """Return whether NPU i reaches NPU j without another NPU in between: bool[NPUs, NPUs].

    An island is a set of switches that are connected through switches. True in these cases:

    - i = j
    - There is a link from i to j.
    - i and j each have a link to a switch of the same island.

    Links back from switches to NPUs are not checked. Links between switches count in both
    directions.
    """
    npus = topology.num_npus
    reached = np.eye(npus, dtype=np.bool_)
    is_direct = (topology.source < npus) & (topology.destination < npus)
    reached[topology.source[is_direct], topology.destination[is_direct]] = True
    # By switch the number of its island, int64[switches]: the smallest switch of the island.
    island = np.arange(topology.num_nodes - npus)
    between = (topology.source >= npus) & (topology.destination >= npus)
    switch_pairs = topology.source[between] - npus, topology.destination[between] - npus
    # The minimum number spreads over every link until no number changes.
    while len(switch_pairs[0]):
        before = island.copy()
        np.minimum.at(island, switch_pairs[1], before[switch_pairs[0]])
        if np.array_equal(island, before):
            break
    goes_up = np.flatnonzero((topology.source < npus) & (topology.destination >= npus))
    reaches = island[topology.destination[goes_up] - npus]
    for number in np.unique(island).tolist():
        members = np.unique(topology.source[goes_up[reaches == number]])
        reached[np.ix_(members, members)] = True
    return reached


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers of equal size and their switches.

    `npus`: number of consecutive NPUs of each server; `nvswitches`: nodes that connect only NPUs of
    one server.
    """

    npus: int
    nvswitches: list[int]


def find_servers(topology: Topology) -> Servers:
    """Find the NVSwitches, which connect NPUs of one server only, and the NPUs per server.

    A neighbour of a node is the destination of a link from it. A switch is an NVSwitch if all of
    these hold:

    - Its neighbours are at least two NPUs with consecutive numbers, and no switches.
    - Each of these NPUs has at least two neighbours.
    - It does not connect all NPUs of the topology, unless no other switch meets the first two
      conditions with fewer NPUs.

    Returns the NVSwitches in ascending order, and the size of a server: the largest number of NPUs
    of an NVSwitch, 1 without NVSwitches. NPUs without an NVSwitch are not checked. Raises
    `UsageError` (`uneven-servers`) if an NVSwitch has fewer NPUs than the size, or its first NPU is
    no multiple of the size, because SimAI divides the number of an NPU by the size.
    """
    npus = topology.num_npus
    ends = np.unique(np.stack([topology.source, topology.destination]), axis=1)
    links = np.bincount(ends[0], minlength=topology.num_nodes)
    npus_of_switch: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    for switch in range(npus, topology.num_nodes):
        neighbours = ends[1][ends[0] == switch]
        # A leaf connects switches, a rail one NPU per server, a single switch NPUs with one link.
        is_inside = len(neighbours) > 1 and neighbours[-1] < npus and links[neighbours].min() > 1
        if is_inside and neighbours[-1] - neighbours[0] == len(neighbours) - 1:
            npus_of_switch[switch] = neighbours
    # A switch of all NPUs connects servers, unless there is only one server.
    inner = {
        switch: neighbours
        for switch, neighbours in npus_of_switch.items()
        if len(neighbours) < npus
    }
    npus_of_switch = inner or npus_of_switch
    if not npus_of_switch:
        return Servers(1, [])
    size = max(len(neighbours) for neighbours in npus_of_switch.values())
    for switch, neighbours in npus_of_switch.items():
        if len(neighbours) != size or neighbours[0] % size:
            name = topology.node_name(switch)
            message = (
                f"{name} joins NPUs {neighbours[0]} to {neighbours[-1]}, "
                f"others {size} NPUs of a server"
            )
            cure = "leave out -O header=simai: its servers have one size, and follow each other"
            raise UsageError(message, cure=cure, code="uneven-servers")
    return Servers(size, list(npus_of_switch))
