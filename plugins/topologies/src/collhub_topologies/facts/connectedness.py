"""Whether a network can be used: connectedness, and what is often a slip in a topology file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from collhub_topologies.facts.pairs import Pairs
from hub_core.model import BoolArray, Diagnostic, Int64Array, Severity, format_ranks
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

_NAMED_NODES = 8
_LIST_WIDTH = 60


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Whether all NPUs of a topology reach one another, and what is often a slip."""
    # `Subject.TOPOLOGY` promises it.
    assert request.topology is not None
    found = check_topology(request.topology)
    is_ok = all(one.severity is not Severity.ERROR for one in found)
    return CheckReport(is_ok, "connected" if is_ok else "not connected", found)


def check_topology(topology: Topology) -> tuple[Diagnostic, ...]:
    """All findings on a network.

    Errors: NPUs without links, and pairs without a path. Notes: what is legal but often a slip.
    """
    return (
        *_lonely(topology),
        *_unreachable(topology),
        *_odd_links(topology),
        *_idle_switches(topology),
    )


def reached(topology: Topology, start: int, backwards: bool = False) -> BoolArray:
    """Which nodes a node reaches over links, itself included; `backwards`: which reach it.

    bool[nodes].
    """
    arcs = topology.arcs(backwards=backwards)
    return arcs.hops_from(np.asarray([start])) >= 0


def _lonely(topology: Topology) -> Iterator[Diagnostic]:
    """NPUs from which and to which nothing goes."""
    has_link = np.zeros(topology.num_nodes, np.bool_)
    has_link[topology.source] = True
    has_link[topology.destination] = True
    lonely = np.flatnonzero(~has_link[: topology.num_npus])
    # One NPU alone needs no network.
    if len(lonely) and topology.num_npus > 1:
        verb = "has" if len(lonely) == 1 else "have"
        message = f"{_nodes(topology, lonely)} {verb} no link"
        yield Diagnostic("npu-without-links", message, cure="add links, or leave such NPUs out")


def _unreachable(topology: Topology) -> Iterator[Diagnostic]:
    """One pair of NPUs without a path, and the cut that no link crosses."""
    pair = _lost_pair(topology)
    if pair is None:
        return
    source, goal = pair
    # What is reached from the source is closed: no link leads out of it.
    closed = _cut(topology, np.flatnonzero(reached(topology, source)))
    here, there = _nodes(topology, [source]), _nodes(topology, [goal])
    message = f"{here} cannot reach {there}: no link leaves {closed}"
    cure = "add the missing links, or name the NPUs of one part, as in ?npus=0-3"
    yield Diagnostic("unreachable", message, cure=cure)


def _lost_pair(topology: Topology) -> tuple[int, int] | None:
    """A source and a goal without a path; None where all NPUs reach one another.

    They do if NPU 0 reaches all and is reached by all.
    """
    npus = topology.num_npus
    ahead = np.flatnonzero(~reached(topology, 0)[:npus])
    if len(ahead):
        return 0, int(ahead[0])
    behind = np.flatnonzero(~reached(topology, 0, backwards=True)[:npus])
    return (int(behind[0]), 0) if len(behind) else None


def _odd_links(topology: Topology) -> Iterator[Diagnostic]:
    """Links that are legal and often slips."""
    pairs = Pairs(topology)
    # Of two directions that differ, one is enough to name both.
    unequal = pairs.differs_from_back() & (pairs.source < pairs.destination)
    found = (
        ("one-way-links", pairs.back < 0, "{} without a way back, the first"),
        ("unequal-directions", unequal, "{} unlike the way back, the first"),
        ("parallel-links", pairs.count > 1, "{} of several parallel links, the first"),
    )
    for code, is_odd, text in found:
        rows = np.flatnonzero(is_odd)
        if len(rows):
            plural = "1 connection is" if len(rows) == 1 else f"{len(rows)} connections are"
            source = topology.node_name(int(pairs.source[rows[0]]))
            destination = topology.node_name(int(pairs.destination[rows[0]]))
            message = f"{text.format(plural)} from {source} to {destination}"
            yield Diagnostic(code, message, Severity.NOTE)


def _idle_switches(topology: Topology) -> Iterator[Diagnostic]:
    """Switches that nothing can pass: without a link in, or without a link out."""
    nodes = np.arange(topology.num_npus, topology.num_nodes)
    idle = nodes[~np.isin(nodes, topology.source) | ~np.isin(nodes, topology.destination)]
    if len(idle):
        verb = "lacks" if len(idle) == 1 else "lack"
        message = f"{_nodes(topology, idle)} {verb} links in or links out, so nothing passes"
        yield Diagnostic("idle-switch", message, Severity.NOTE)


def _cut(topology: Topology, closed: Int64Array) -> str:
    """A set of nodes in words: NPUs first."""
    npus, switches = closed[closed < topology.num_npus], closed[closed >= topology.num_npus]
    behind = f" and {_nodes(topology, switches)}" if len(switches) else ""
    return _nodes(topology, npus) + behind


def _nodes(topology: Topology, nodes: Sequence[int] | Int64Array) -> str:
    """`NPU 3`, `NPUs 0-3`, or the names, with the count where there are many."""
    chosen = [int(node) for node in nodes]
    noun = "NPU" if len(chosen) == 1 else "NPUs"
    is_npu = chosen[0] < topology.num_npus
    if is_npu and not topology.node_names:
        return f"{noun} {_shortened(format_ranks(chosen))}"
    shown = ", ".join(topology.node_name(node) for node in chosen[:_NAMED_NODES])
    if len(chosen) > _NAMED_NODES:
        shown += f" and {len(chosen) - _NAMED_NODES} more"
    return f"{noun} {shown}" if is_npu else shown


def _shortened(ranks: str) -> str:
    """A list of ranks, cut behind a comma where it is long."""
    if len(ranks) <= _LIST_WIDTH:
        return ranks
    return f"{ranks[: ranks.rindex(',', 0, _LIST_WIDTH)]},..."
