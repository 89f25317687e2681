"""Paths of edges between nodes, and bandwidths and latencies that only options supply.

Vertices that only forward are removed. Rule of this contraction: NPUs stay. Another vertex of
degree 0 or 1 is removed; one of degree 2 whose neighbours are not connected yet becomes part of the
link between them. The remaining vertices forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collhub_networks import NetworkFindings

from collhub_infragraph.graph import LinkKind, VertexGraph
from collhub_infragraph.plugin import InfragraphReadOptions
from hub_core.model import (
    InputError,
    Location,
    UsageError,
    format_bandwidth,
    parse_bandwidth,
)


@dataclass(frozen=True, slots=True)
class Hop:
    """A path of edges between two vertices, over vertices that only forward.

    `bandwidths` in bytes per second, `latencies` in seconds: the values given for its edges.
    `links`: rows of their links, in order. `positions`: rows of the two directed links, if given by
    the hub's own annotation; a row is None if there is no link in that direction.
    """

    first_vertex: int
    second_vertex: int
    links: tuple[int, ...]
    bandwidths: tuple[float, ...] = ()
    latencies: tuple[float, ...] = ()
    positions: tuple[int | None, int | None] | None = None

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Minimum of the known bandwidths of the edges in bytes/s; None if no edge has one."""
        return min(self.bandwidths, default=None)

    @property
    def latency_s(self) -> float | None:
        """Sum of the known latencies of the edges in seconds; None if no edge has one."""
        return sum(self.latencies) if self.latencies else None

    def reverse(self) -> Hop:
        """Return the same path of edges from its other end: vertices, links and positions reversed.

        Bandwidths and latencies keep their order, because only their minimum and sum are used.
        """
        positions = None if self.positions is None else self.positions[::-1]
        reversed_hop = replace(
            self,
            first_vertex=self.second_vertex,
            second_vertex=self.first_vertex,
            positions=positions,
        )
        return replace(reversed_hop, links=self.links[::-1])

    def join_next(self, next_hop: Hop) -> Hop:
        """Return the path that continues with `next_hop`, which begins at the end of this one:
        links, bandwidths and latencies are concatenated. Positions are those of this hop, or of the
        next if this one has none.
        """
        return Hop(
            self.first_vertex,
            next_hop.second_vertex,
            self.links + next_hop.links,
            self.bandwidths + next_hop.bandwidths,
            self.latencies + next_hop.latencies,
            self.positions or next_hop.positions,
        )


class Contraction:
    """The hops of a graph during the removal of vertices.

    `is_kept`: vertices that are never removed. `keeps_parallel`: whether a vertex of degree 2 is
    removed even if its neighbours are joined already, so that parallel cables remain.
    """

    def __init__(self, hops: Sequence[Hop], is_kept: Sequence[bool], keeps_parallel: bool) -> None:
        self._is_kept = is_kept
        self._keeps_parallel = keeps_parallel
        self._hops = dict(enumerate(hops))
        # Sets, because a switch may have hundreds of thousands of hops, each of which is removed.
        self._hops_at: list[set[int]] = [set() for _ in is_kept]
        self._hop_count: Counter[tuple[int, int]] = Counter()
        self.is_removed = [False] * len(is_kept)
        for number, hop in self._hops.items():
            self._add_hop(number, hop)

    def run(self) -> list[Hop]:
        """Remove the vertices that only forward, until none can be removed; return the hops.

        A hop is a path of edges between two vertices that remain. In each round, all vertices
        are tried in ascending order (`_remove_vertex`); another round follows if a vertex was
        removed. A kept vertex stays. Another one is removed with at most one hop, or with two
        hops if they can be joined (`_contract`). The hops are in the order of their first
        edges. Sets `is_removed` for the removed vertices.
        """
        removed = 1
        # A removal lowers the degree of neighbours, which may then be removed too.
        while removed:
            removed = sum(self._remove_vertex(vertex) for vertex in range(len(self._is_kept)))
        return [self._hops[number] for number in sorted(self._hops)]

    def _remove_vertex(self, vertex: int) -> bool:
        """Remove a vertex if the rules allow it; return whether it was removed.

        It stays if it must be kept, is already removed, has more than two hops (paths to other
        vertices), or has two that `_contract` does not allow to join. A vertex with at most one hop
        is always removed. The hops that the vertex still has are removed with it; joined hops
        remain, since they no longer belong to it.
        """
        if self._is_kept[vertex] or self.is_removed[vertex] or len(self._hops_at[vertex]) > 2:
            return False
        if len(self._hops_at[vertex]) == 2 and not self._contract(vertex):
            return False
        self.is_removed[vertex] = True
        for number in list(self._hops_at[vertex]):
            self._remove_hop(number)
        return True

    def _contract(self, vertex: int) -> bool:
        """Try to join the two hops of `vertex`; return whether the vertex may be removed.

        The vertex must have exactly two hops. The rules are tried in this order:

        - Both hops lead to the same neighbour: True. The hops are unchanged; the caller removes
          both.
        - Another hop connects the two neighbours, and parallel hops are not kept: False. The
          hops are unchanged.
        - Otherwise: True. Both hops are replaced by one between the two neighbours, with the
          edges of both in order. It gets the smaller of both numbers, so that hops stay in the
          order of the document.
        """
        first, second = sorted(self._hops_at[vertex])
        before, after = self._hops[first], self._hops[second]
        # Edges have no direction: orient both so that one follows the other.
        if before.second_vertex != vertex:
            before = before.reverse()
        if after.first_vertex != vertex:
            after = after.reverse()
        pair = _sort_pair(before.first_vertex, after.second_vertex)
        if before.first_vertex == after.second_vertex or (
            self._hop_count[pair] and not self._keeps_parallel
        ):
            # A cable from a node back to itself carries no data.
            return before.first_vertex == after.second_vertex
        self._remove_hop(first)
        self._remove_hop(second)
        # Reuse the number of the first hop: hops stay in the order of the document.
        self._hops[first] = before.join_next(after)
        self._add_hop(first, self._hops[first])
        return True

    def _add_hop(
        self,
        number: int,
        hop: Hop,
    ) -> None:
        """Register a hop at its two vertices, and count it for this unordered pair of vertices.

        `number`: its key. The caller stores the hop in `_hops`. The two vertices must differ (not
        checked).
        """
        self._hops_at[hop.first_vertex].add(number)
        self._hops_at[hop.second_vertex].add(number)
        self._hop_count[_sort_pair(hop.first_vertex, hop.second_vertex)] += 1

    def _remove_hop(self, number: int) -> None:
        """Remove a hop (path of edges between two vertices) by its number.

        It is removed from the hops, from both of its vertices, and from the number of hops of the
        pair. Raises `KeyError` for an unknown number.
        """
        hop = self._hops.pop(number)
        self._hops_at[hop.first_vertex].remove(number)
        self._hops_at[hop.second_vertex].remove(number)
        self._hop_count[_sort_pair(hop.first_vertex, hop.second_vertex)] -= 1


def _sort_pair(first_vertex: int, second_vertex: int) -> tuple[int, int]:
    """Return the two vertex numbers, the smaller one first."""
    return min(first_vertex, second_vertex), max(first_vertex, second_vertex)


# Finite, but message times on it round to zero.
UNLIMITED = 1e17
_MAX_NAMED = 6


def parse_bandwidths(text: str | None) -> dict[str, float]:
    """Parse the option `bandwidth`, with one line `link=450GB/s` per link: bytes/s by name.

    Blanks around names are ignored; `*` is a name too. Of repeated names the last one
    counts. The result is {} for None and for an empty text. Raises `UsageError` for an
    invalid bandwidth, a line without `=` and an empty line.
    """
    bandwidths = {}
    for line in (text or "").splitlines():
        name, _, value = line.partition("=")
        bandwidths[name.strip()] = parse_bandwidth(value)
    return bandwidths


def apply_bandwidths(
    file: str,
    links: Sequence[LinkKind],
    bandwidths: Mapping[str, float],
    findings: NetworkFindings,
) -> tuple[LinkKind, ...]:
    """Return the links with the bandwidths that the option `bandwidth` gives for them.

    `bandwidths`: bytes/s by `device/link` (`title`) or by `link` (`name`, which applies to all
    links of that name). If both are given for a link, that of the title is used. The name `*`
    is ignored: it only supplies missing values, which `supply_missing_values` does.

    The result has all links in the same order; the given ones are unchanged. A link with a
    bandwidth by option is copied with this bandwidth, instead of the document's, and with an
    empty `flaw`. For each such link one note (`supplied-bandwidth`) is added to `findings`. The
    remaining links are returned as they are.

    Raises `UsageError` (`unknown-link`) for the first name other than `*` that is neither a
    title nor a name of a link; then no note is added. `file`: for messages.
    """
    known = {name for link in links for name in (link.name, link.title)}
    for name in bandwidths:
        if name not in known and name != "*":
            named = ", ".join(sorted(known)) or "none"
            message = f"option bandwidth.{name}: {file} has no link of this name"
            raise UsageError(message, cure=f"links are: {named}", code="unknown-link")
    updated_links = []
    for link in links:
        rate = bandwidths.get(link.title, bandwidths.get(link.name))
        if rate is None:
            updated_links.append(link)
            continue
        message = f"{link.title}: {format_bandwidth(rate)} by option"
        if link.bandwidth_bytes_per_s is not None:
            message += f" instead of {format_bandwidth(link.bandwidth_bytes_per_s)}"
        findings.note("supplied-bandwidth", Location(file), message, subject=link.title)
        updated_links.append(replace(link, bandwidth_bytes_per_s=rate, flaw=""))
    return tuple(updated_links)


def supply_missing_values(
    file: str,
    graph: VertexGraph,
    hops: Sequence[Hop],
    options: InfragraphReadOptions,
    findings: NetworkFindings,
) -> list[Hop]:
    """Return the hops (paths of edges); options supply missing bandwidths and latencies.

    A value is missing if no edge of the hop has it; a hop with a value for one edge remains.
    The result has all hops in the same order, as copies.

    - A missing bandwidth becomes that of the name `*` in the option `bandwidth`. Without it,
      and with the option `missing` = `unlimited`, it becomes 1e17 bytes/s (`UNLIMITED`).
      Otherwise `InputError` (`no-bandwidth`) is raised, which lists the links.
    - A missing latency becomes the option `latency` in seconds, or 0 without this option.

    `findings` gets at most two notes, each with the number of hops: `supplied-bandwidth` if a
    bandwidth was missing, then `supplied-latency` if a latency was missing, also for 0. Raises
    `UsageError` for an invalid bandwidth in the option, also if none is missing. `file`: for
    messages.
    """
    rate = parse_bandwidths(options.bandwidth).get("*")
    if rate is None and options.missing == "unlimited":
        rate = UNLIMITED
    bare = [hop for hop in hops if hop.bandwidth_bytes_per_s is None]
    if bare and rate is None:
        _refuse_missing_bandwidths(file, graph, bare)
    if bare and rate is not None:
        shown = "unlimited" if rate == UNLIMITED else format_bandwidth(rate)
        message = f"{len(bare)} links have no bandwidth: {shown} by option"
        findings.note("supplied-bandwidth", Location(file), message)
    slow = [hop for hop in hops if hop.latency_s is None]
    if slow:
        supplied, cure = "0 ns is used", "give one with FILE?latency=500ns"
        if options.latency is not None:
            supplied, cure = f"{options.latency * 1e9:g} ns by option", ""
        message = f"{len(slow)} links have no latency: {supplied}"
        findings.note("supplied-latency", Location(file), message, cure)
    rates = () if rate is None else (rate,)
    delays = (options.latency or 0.0,)
    return [
        replace(
            hop,
            bandwidths=hop.bandwidths or rates,
            latencies=hop.latencies or delays,
        )
        for hop in hops
    ]


def _refuse_missing_bandwidths(
    file: str,
    graph: VertexGraph,
    hops: Sequence[Hop],
) -> None:
    """Raise `InputError` (`no-bandwidth`) that lists the links of the given hops.

    It is always raised. `hops`: the hops (paths over one or more edges) without a bandwidth.
    Each hop counts once for each different link on its path. The message has, in this order:

    - the number of hops
    - the `_MAX_NAMED` (6) links that occur in most hops, by decreasing number of hops, ties in
      the order of their first hop: `device/link`, the number of hops, and the end vertices of
      the first hop
    - the number of further links, if any
    - the `flaw` (why the given bandwidth is unusable) of the first link that has one, also of a
      link that is not listed

    The remedy shows the option `bandwidth` for the first two links and for `*`, and
    `missing=unlimited`. Vertex names and links are from `graph`. `file`: location of the error.
    """
    # By link, not by edge: a network repeats its devices, and one option applies to all of them.
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    flaws = {}
    for hop in hops:
        endpoints = f"{graph.names[hop.first_vertex]} - {graph.names[hop.second_vertex]}"
        for row in sorted(set(hop.links)):
            link = graph.links[row]
            counts[link.title] += 1
            examples.setdefault(link.title, endpoints)
            if link.flaw:
                flaws[link.title] = link.flaw
    named = counts.most_common(_MAX_NAMED)
    parts = [f"{title} ({count} edges, as {examples[title]})" for title, count in named]
    rest = f", and {len(counts) - len(named)} more" if len(counts) > len(named) else ""
    reason = f"; {next(iter(flaws.values()))}" if flaws else ""
    message = f"{len(hops)} edges have no bandwidth: {', '.join(parts)}{rest}{reason}"
    pairs = "&".join(f"bandwidth.{title}=50GB/s" for title, _ in named[:2])
    cure = f"give them as FILE?{pairs}, all as FILE?bandwidth.*=50GB/s, or missing=unlimited"
    raise InputError(
        message,
        location=Location(file),
        cure=cure,
        code="no-bandwidth",
    )
