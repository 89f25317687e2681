"""Networks with failed or slow links: `without=A-B` and `degrade=A-B=0.5` of a topology text.

Links are named by their two nodes. A failure of a cable is that of both directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hub_core.columns import BoolArray, Int64Array, connected_parts
from hub_core.model.diagnostics import UsageError
from hub_core.model.quantities import format_ranks
from hub_core.network.topology import Topology

WITHOUT, DEGRADE = "without", "degrade"
"""Keys of a topology text, after its `?`."""

_FLAGS = {WITHOUT: "--without-link", DEGRADE: "--degrade"}
_CURES = {
    WITHOUT: "write two nodes, as 3-4, or 3->4 for one direction",
    DEGRADE: "write a link and the fraction of its bandwidth that remains, as 3-4=0.5",
}
# Links named in the cure of a network that falls apart.
_NAMED_LINKS = 4


@dataclass(frozen=True, slots=True)
class LinkChanges:
    """Failed and slow links, as texts: `3-4` or `3->4`; slow ones with a fraction, as `3-4=0.5`."""

    failed: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.failed or self.slow)

    def apply(self, topology: Topology) -> Topology:
        """Return the network with the slow links slowed down, and then the failed links removed.

        The bandwidths of slow links, and of all links parallel to them, are multiplied by the
        fraction. Parallel links also fail together. The name is kept, but the result has no
        dimensions, and planes without links disappear. Without changes, the network itself is
        returned. Raises `UsageError` for a text that names no link, for a fraction not above 0 or
        above 1, and for failures that separate NPUs (`not-connected`).
        """
        changed = degrade_links(topology, self.slow) if self.slow else topology
        return remove_links(changed, self.failed) if self.failed else changed

    def append_to(self, text: str) -> str:
        """Return a topology text with these changes appended as parameters.

        The failed links are appended as `without=`, then the slow links as `degrade=`, each
        separated by commas, as in `ring:4?without=0-1,1-2&degrade=2-3=0.5`. The first parameter
        follows `?`, or `&` if the text has a `?` already. Without changes, the text is returned
        unchanged.
        """
        given = {WITHOUT: self.failed, DEGRADE: self.slow}
        items = [f"{key}={','.join(links)}" for key, links in given.items() if links]
        mark = "&" if "?" in text else "?"
        return f"{text}{mark}{'&'.join(items)}" if items else text


def split_link_changes(text: str) -> tuple[str, LinkChanges]:
    """Split a topology text into the text of the complete network and the changes of its links.

    The parameters after the first `?` are separated by `&`. Those with the key `without` or
    `degrade` are removed; their values, divided at commas and stripped, are the changes, in order
    and not checked. So `ring:4?without=0-1,1-2&latency=1us` gives `ring:4?latency=1us` and the
    failed links `0-1` and `1-2`. If no parameter remains, `?` is removed too. A text without such a
    parameter is returned unchanged, with empty changes. In a text of several planes (`+`), the
    changes are part of the last plane's text, but apply to all planes.
    """
    shape, mark, query = text.partition("?")
    items = query.split("&")
    changes: Mapping[str, list[str]] = {WITHOUT: [], DEGRADE: []}
    remaining = []
    for item in items:
        key, _, value = item.partition("=")
        if key in changes:
            changes[key].extend(part.strip() for part in value.split(","))
        else:
            remaining.append(item)
    if len(remaining) == len(items):
        return text, LinkChanges()
    rest = "&".join(remaining)
    found = LinkChanges(tuple(changes[WITHOUT]), tuple(changes[DEGRADE]))
    return f"{shape}{mark}{rest}" if rest else shape, found


def remove_links(topology: Topology, links: Sequence[str]) -> Topology:
    """Return the network without the named links and all links parallel to them, on all planes.

    A link is given as `3-4` (both directions, at least one of which must exist) or `3->4`. All
    nodes stay. Planes that have no links any more disappear, and the others are renumbered in
    order. The result has the same name and no dimensions, also for an empty list. `topology` is not
    changed.

    Raises `UsageError` for the first text that names no link (`select_links`). Raises `UsageError`
    (`not-connected`) if the result does not connect all NPUs in both directions, even if `topology`
    does not. The message names two NPUs without a path and all separated NPUs. The remedy names
    removed links that would connect them, if there are any.
    """
    fails = np.zeros(topology.num_links, np.bool_)
    for text in links:
        fails |= select_links(topology, text)
    part = remove_rows(topology, fails)
    separation = find_separation(topology, fails)
    if separation is not None:
        raise UsageError(
            f"--without-link {','.join(links)}: {topology.name} is not connected without it: "
            f"{separation.message(topology)}",
            cure=separation.cure(topology),
            code="not-connected",
        )
    return part


def remove_rows(topology: Topology, fails: BoolArray) -> Topology:
    """Return the network without the links where `fails`, bool[links]; it may be unconnected.

    All nodes stay, and the remaining links keep their order. Planes without links disappear, and
    the others are renumbered from 0 in ascending order. `dimensions` becomes empty even if no link
    fails, because the network counts as not regular. `topology` is not changed.
    """
    rows = np.flatnonzero(~fails)
    plane = np.unique(topology.plane[rows], return_inverse=True)[1].ravel()
    return replace(
        topology,
        source=topology.source[rows],
        destination=topology.destination[rows],
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s[rows],
        latency_s=topology.latency_s[rows],
        plane=plane.astype(np.int64),
        # Without the link, the network is not regular.
        dimensions=(),
    )


def degrade_links(topology: Topology, links: Sequence[str]) -> Topology:
    """Return the network with the bandwidth of the named links multiplied by a fraction.

    A link is given as `3-4=0.5` (both directions) or `3->4=0.5`; links parallel to it are changed
    too. If a link is named twice, both factors apply. The result has no dimensions. Raises
    `UsageError` for a text that names no link, and for a fraction not above 0 or above 1.
    """
    rate = topology.bandwidth_bytes_per_s.copy()
    for text in links:
        link, equals, fraction_text = text.rpartition("=")
        try:
            fraction = float(fraction_text)
        except ValueError:
            fraction = 0.0
        if not equals or not 0 < fraction <= 1:
            raise UsageError(
                f"--degrade {text}: the fraction of the bandwidth is not above 0 and at most 1",
                cure=_CURES[DEGRADE],
            )
        rate[select_links(topology, link.strip(), DEGRADE)] *= fraction
    return replace(topology, bandwidth_bytes_per_s=rate, dimensions=())


def select_links(topology: Topology, text: str, key: str = WITHOUT) -> BoolArray:
    """Return the links between two nodes that a text names: bool[links], True for these links.

    `3-4` selects both directions and `3->4` one, with all parallel links. Nodes are given
    by name or number; the number has precedence over an equal name. Names may contain
    hyphens, so every division of the text at a hyphen is tried. `key`: the option in
    errors. Raise `UsageError` unless exactly one division gives two nodes, and if no link
    connects these nodes.
    """
    numbers = {topology.node_name(node): node for node in range(topology.num_nodes)}
    numbers |= {str(node): node for node in range(topology.num_nodes)}
    first, arrow, second = text.partition("->")
    if arrow and first in numbers and second in numbers:
        pairs = [(numbers[first], numbers[second])]
    else:
        parts = text.split("-")
        splits = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
        pairs = [(numbers[a], numbers[b]) for a, b in splits if a in numbers and b in numbers]
        if len(pairs) != 1:
            message = f"{_FLAGS[key]} {text!r} names no two nodes of {topology.name}"
            raise UsageError(message, cure=_CURES[key])
        pairs.append(pairs[0][::-1])
    matches = np.zeros(topology.num_links, np.bool_)
    for source, destination in pairs:
        matches |= (topology.source == source) & (topology.destination == destination)
    if not matches.any():
        raise UsageError(f"{_FLAGS[key]} {text}: {topology.name} has no such link")
    return matches


@dataclass(frozen=True, slots=True)
class Separation:
    """NPUs that failed links separate from NPU 0, ascending, and links that join them again.

    `is_backwards`: the NPUs do not reach NPU 0; otherwise NPU 0 does not reach them.
    `links_to_restore`: (source, destination) of failed links; with all of them, the network is
    connected again. Empty if it is not connected even with all failed links.
    """

    npus: tuple[int, ...]
    is_backwards: bool
    links_to_restore: tuple[tuple[int, int], ...]

    def message(self, topology: Topology) -> str:
        """Return a sentence such as `0 does not reach 3 (separated NPU 3)` about separated NPUs.

        The pair is NPU 0 and the first NPU of `npus`, in the opposite order if `is_backwards`. In
        brackets are the NPUs of the smaller part: `npus` or all other NPUs; `npus` if both are
        equally large.
        """
        names = [topology.node_name(0), topology.node_name(self.npus[0])]
        source, destination = reversed(names) if self.is_backwards else names
        rest = tuple(sorted(set(range(topology.num_npus)) - set(self.npus)))
        group = min(self.npus, rest, key=len)
        word = "NPU" if len(group) == 1 else "NPUs"
        return f"{source} does not reach {destination} (separated {word} {format_ranks(group)})"

    def cure(self, topology: Topology) -> str:
        """Return the advice to restore the links in `links_to_restore`.

        Nodes have their names in `topology`. A pair of nodes with links in both directions is
        listed once, as `3-4`; the first link gives the order of the nodes. A link in a single
        direction is `3->4`. The order is that of the first links. At most `_NAMED_LINKS` (4) names
        are listed, then the number of omitted names. Without links, the advice says that the
        network is not connected even with all links.
        """
        directions: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for link in self.links_to_restore:
            directions.setdefault((min(link), max(link)), []).append(link)
        names = [
            f"{topology.node_name(source)}{'-' if backwards else '->'}{topology.node_name(target)}"
            for (source, target), *backwards in directions.values()
        ]
        hidden = len(names) - _NAMED_LINKS
        more = f" and {hidden} more" if hidden > 0 else ""
        if not names:
            return "the network is not connected even with these links"
        return f"restore {', '.join(names[:_NAMED_LINKS])}{more}"


def find_separation(topology: Topology, fails: BoolArray) -> Separation | None:
    """Find the NPUs that are separated from NPU 0 when some links fail; None if there are none.

    `fails`: bool[links], True for failed links. The result has the NPUs that NPU 0 cannot
    reach, ascending. If it reaches all, it has those that cannot reach NPU 0, and
    `is_backwards` is True. NPUs that are separated even without failures are included.

    `links_to_restore` are (source, destination) pairs whose repair reconnects all NPUs. Links
    are repaired one by one: first until NPU 0 reaches all NPUs, then until all reach it. A
    candidate is a failed link from a reached node to another one; in the second part, to a
    node with a path to NPU 0 from one without. The first candidate in link order is used, but
    one that is the opposite of a repaired link has priority. Without any candidate,
    `links_to_restore` is empty.
    """
    keeps = ~fails
    separated: tuple[Int64Array, bool] | None = None
    restored: dict[tuple[int, int], None] = {}
    for is_backwards in (False, True):
        tail, head = topology.source, topology.destination
        if is_backwards:
            tail, head = head, tail
        while True:
            # The nodes that NPU 0 reaches, or that reach it, over the remaining links.
            arcs = remove_rows(topology, ~keeps).arcs(backwards=is_backwards)
            reached = arcs.hops(np.zeros(1, np.int64))[0] >= 0
            lost = np.flatnonzero(~reached[: topology.num_npus])
            if not len(lost):
                break
            separated = separated or (lost, is_backwards)
            joining = np.flatnonzero(~keeps & reached[tail] & ~reached[head])
            if not len(joining):
                return Separation(tuple(separated[0].tolist()), separated[1], ())
            pairs = [(int(topology.source[row]), int(topology.destination[row])) for row in joining]
            number = next((i for i, (a, b) in enumerate(pairs) if (b, a) in restored), 0)
            keeps[joining[number]] = True
            restored[pairs[number]] = None
    if separated is None:
        return None
    return Separation(tuple(separated[0].tolist()), separated[1], tuple(restored))


@dataclass(frozen=True, slots=True)
class LinkFailure:
    """Failure of all links between two nodes.

    `name`: as in `--without-link`, `0-1`, or `0->1` if there is no link back. `fails`: bool[links].
    `num_equal`: number of failures that this one represents, itself included.
    """

    name: str
    fails: BoolArray
    num_equal: int = 1


def list_failures(topology: Topology) -> list[LinkFailure]:
    """List the failures of single links of a network: one per pair of linked nodes, in link order.

    A failure takes all links between the two nodes, in both directions and on all planes, as a
    mask over the links. Its name is `A-B`, or `A->B` if all of them have the same direction; A is
    the source of the first of these links.
    """
    low = np.minimum(topology.source, topology.destination)
    high = np.maximum(topology.source, topology.destination)
    keys = low * topology.num_nodes + high
    _, first = np.unique(keys, return_index=True)
    failures = []
    for row in np.sort(first).tolist():
        fails = keys == keys[row]
        source, destination = int(topology.source[row]), int(topology.destination[row])
        names = f"{topology.node_name(source)}", f"{topology.node_name(destination)}"
        has_back = bool(np.any(topology.source[fails] == destination))
        failures.append(LinkFailure(("-" if has_back else "->").join(names), fails))
    return failures


def group_failures(
    topology: Topology, failures: Sequence[LinkFailure], weights: Iterable[Int64Array] = ()
) -> list[LinkFailure]:
    """Return one failure of each class of failures that are proven to be equal by symmetry.

    `failures`: all failures of single links (`list_failures`). A class is represented by its first
    failure, with the size of the class as `num_equal`, in the order of `failures`. Failures that
    are not proven to be equal stay in separate classes. If nodes times links exceed 2^24, every
    failure is a class.

    A symmetry is a mapping of the nodes. It preserves all links with bandwidths, latencies and
    planes, the kinds of nodes, abilities of switches, and `weights`: arrays int64[links], such as
    the bytes per link of a schedule. Method: refinement of node colours with individualization
    (McKay, Practical graph isomorphism, 1981), without backtracking; mappings are then checked.
    """
    from hub_core.network.symmetry import ColouredNetwork

    network = ColouredNetwork.of(topology, weights)
    colours = network.classify_links()
    rows = [int(np.flatnonzero(failure.fails)[0]) for failure in failures]
    ends = [{int(topology.source[row]), int(topology.destination[row])} for row in rows]
    place = {frozenset(pair): index for index, pair in enumerate(ends)}
    # Failure -> first failure of its class, which the automorphisms so far unite.
    first = np.arange(len(failures))
    for index, row in enumerate(rows):
        for representative in np.unique(first[:index]).tolist():
            if first[index] < index:
                break
            other = rows[representative]
            # Links back may have another colour than links there.
            if not np.isin(
                colours[failures[index].fails], colours[failures[representative].fails]
            ).all():
                continue
            image = network.find_automorphism(other, row)
            if image is not None:
                mapped = [place[frozenset(int(image[node]) for node in pair)] for pair in ends]
                first = connected_parts(
                    np.tile(np.arange(len(failures)), 2),
                    np.concatenate([first, np.asarray(mapped)]),
                    len(failures),
                )
    sizes = np.bincount(first, minlength=len(failures))
    return [
        replace(failures[index], num_equal=int(sizes[index])) for index in np.unique(first).tolist()
    ]
