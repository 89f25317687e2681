"""Whether a network can be used: connectedness, and what is often a slip in a topology file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from collhub_columns import BoolArray, Int64Array, NodePairs

from hub_core.model import Diagnostic, Severity, format_ranks
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

_NAMED_NODES = 8
_LIST_WIDTH = 60


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Whether all NPUs of a topology reach one another, and what is often a slip."""
    # `Subject.TOPOLOGY` promises it.
    assert request.topology is not None
    found = check_topology(request.topology)
    errors = [one for one in found if one.severity is Severity.ERROR]
    verdict = "not connected" if errors else "connected"
    return CheckReport(not errors, verdict, found)


def check_topology(topology: Topology) -> tuple[Diagnostic, ...]:
    """All findings on a network.

    Errors: NPUs without links, and pairs without a path. Notes: what is legal but often a slip.
    """
    # Errors first: who reads the first lines alone reads the causes.
    return (
        *_lonely(topology),
        *_unreachable(topology),
        *_odd_links(topology),
        *_idle_switches(topology),
    )


def reached(topology: Topology, start: int, backwards: bool = False) -> BoolArray:
    """Which nodes can be reached from a node over links, bool[nodes]; the node itself included.

    `backwards`: from which nodes this node can be reached. Linear in nodes and links.
    """
    hops = topology.arcs(backwards=backwards).hops(np.asarray([start]))[0]
    is_reached: BoolArray = hops >= 0
    return is_reached


def _lonely(topology: Topology) -> Iterator[Diagnostic]:
    """NPUs from which and to which nothing goes."""
    has_link = np.zeros(topology.num_nodes, np.bool_)
    has_link[topology.source] = True
    has_link[topology.destination] = True
    lonely = np.flatnonzero(~has_link[: topology.num_npus])
    # One NPU alone needs no network.
    if not len(lonely) or topology.num_npus == 1:
        return
    verb = "has" if len(lonely) == 1 else "have"
    message = f"{_nodes(topology, lonely)} {verb} no link"
    cure = "add links, or leave such NPUs out"
    yield Diagnostic("npu-without-links", message, cure=cure)


def _unreachable(topology: Topology) -> Iterator[Diagnostic]:
    """One pair of NPUs without a path, and the cut that no link crosses."""
    pair = _lost_pair(topology)
    if pair is None:
        return
    source, goal = pair
    found = reached(topology, source)
    # What is reached from the source is closed: no link leads out of it.
    closed = _cut(topology, np.flatnonzero(found))
    here, there = _nodes(topology, [source]), _nodes(topology, [goal])
    message = f"{here} cannot reach {there}: no link leaves {closed}"
    cure = "add the missing links, or name the NPUs of one part, as in ?npus=0-3"
    yield Diagnostic("unreachable", message, cure=cure)


def _lost_pair(topology: Topology) -> tuple[int, int] | None:
    """A source and a goal without a path; None where all NPUs reach one another.

    They do if NPU 0 reaches all and is reached by all.
    """
    # Links may lead one way only.
    npus = topology.num_npus
    ahead = np.flatnonzero(~reached(topology, 0)[:npus])
    if len(ahead):
        return 0, int(ahead[0])
    behind = np.flatnonzero(~reached(topology, 0, backwards=True)[:npus])
    return (int(behind[0]), 0) if len(behind) else None


def _odd_links(topology: Topology) -> Iterator[Diagnostic]:
    """Links that are legal and often slips."""
    pairs = NodePairs(topology)

    # Of two directions that differ, one is enough to name both.
    unequal = pairs.differs_from_back() & (pairs.source < pairs.destination)
    found = (
        ("one-way-links", pairs.back < 0, "{} without a way back, the first"),
        ("unequal-directions", unequal, "{} unlike the way back, the first"),
        ("parallel-links", pairs.count > 1, "{} of several parallel links, the first"),
    )
    for code, is_odd, text in found:
        rows = np.flatnonzero(is_odd)
        if not len(rows):
            continue
        count = "1 connection is"
        if len(rows) > 1:
            count = f"{len(rows)} connections are"
        ends = _ends(topology, pairs, int(rows[0]))
        message = f"{text.format(count)} {ends}"
        yield Diagnostic(code, message, Severity.NOTE)


def _ends(topology: Topology, pairs: NodePairs, row: int) -> str:
    """`from 0 to switch 1`."""
    source = int(pairs.source[row])
    destination = int(pairs.destination[row])
    return f"from {topology.node_name(source)} to {topology.node_name(destination)}"


def _idle_switches(topology: Topology) -> Iterator[Diagnostic]:
    """Switches that nothing can pass: without a link in, or without a link out."""
    nodes = np.arange(topology.num_npus, topology.num_nodes)
    has_way_out = np.isin(nodes, topology.source)
    has_way_in = np.isin(nodes, topology.destination)
    is_passable = has_way_in & has_way_out
    idle = nodes[~is_passable]
    if not len(idle):
        return
    verb = "lacks" if len(idle) == 1 else "lack"
    what = "links in or links out, so nothing passes"
    message = f"{_nodes(topology, idle)} {verb} {what}"
    yield Diagnostic("idle-switch", message, Severity.NOTE)


def _cut(topology: Topology, closed: Int64Array) -> str:
    """A set of nodes in words: NPUs first."""
    # Switches alone reach nobody that counts.
    npus = closed[closed < topology.num_npus]
    switches = closed[closed >= topology.num_npus]
    text = _nodes(topology, npus)
    if not len(switches):
        return text
    behind = _nodes(topology, switches)
    return f"{text} and {behind}"


def _nodes(topology: Topology, nodes: Sequence[int] | Int64Array) -> str:
    """`NPU 3`, `NPUs 0-3`, or the names, with the count where there are many."""
    chosen = [int(node) for node in nodes]
    noun = "NPU" if len(chosen) == 1 else "NPUs"
    is_npu = chosen[0] < topology.num_npus
    if is_npu and not topology.node_names:
        return f"{noun} {_shortened(format_ranks(chosen))}"
    shown = _names(topology, chosen)
    # Names of switches say what they are.
    return f"{noun} {shown}" if is_npu else shown


def _names(topology: Topology, nodes: Sequence[int]) -> str:
    """Names of nodes, those beyond the first few only counted."""
    names = [topology.node_name(node) for node in nodes[:_NAMED_NODES]]
    shown = ", ".join(names)
    if len(nodes) > _NAMED_NODES:
        shown += f" and {len(nodes) - _NAMED_NODES} more"
    return shown


def _shortened(ranks: str) -> str:
    """A list of ranks, cut behind a comma where it is long."""
    if len(ranks) <= _LIST_WIDTH:
        return ranks
    return f"{ranks[: ranks.rindex(',', 0, _LIST_WIDTH)]},..."
