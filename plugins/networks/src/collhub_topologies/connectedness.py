"""Check that a network is connected, and report likely mistakes in a topology file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hub_core.columns import BoolArray, Int64Array, NodePairs
from hub_core.model import Diagnostic, Severity, format_ranks
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

_MAX_NAMES = 8
_MAX_LIST_WIDTH = 60


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check that all NPUs of a topology reach one another, and note likely mistakes.

    The report is ok unless a finding is an error. The verdict is `connected`, or `not connected` if
    there is an error.
    """
    assert request.topology is not None
    findings = check_topology(request.topology)
    has_errors = any(finding.severity is Severity.ERROR for finding in findings)
    verdict = "not connected" if has_errors else "connected"
    return CheckReport(not has_errors, verdict, findings)


def check_topology(topology: Topology) -> tuple[Diagnostic, ...]:
    """Collect all findings on a network, errors first.

    Errors: NPUs without links, and a pair of NPUs without a path. Notes: legal properties that are
    often mistakes.
    """
    # Errors first, so that the first lines name the causes.
    return (
        *_find_npus_without_links(topology),
        *_find_unreachable(topology),
        *_find_unusual_links(topology),
        *_find_idle_switches(topology),
    )


def find_reached(topology: Topology, start: int, backwards: bool = False) -> BoolArray:
    """Find the nodes that a node reaches over links: bool[nodes], true for the node itself too.

    With `backwards`, find the nodes that reach this node instead. Takes time linear in nodes and
    links.
    """
    hops = topology.arcs(backwards=backwards).hops(np.asarray([start]))[0]
    is_reached: BoolArray = hops >= 0
    return is_reached


def _find_npus_without_links(topology: Topology) -> Iterator[Diagnostic]:
    """Yield one error `npu-without-links` that lists all NPUs without any link in or out.

    Yields nothing if there is no such NPU, or if the network has only one NPU.
    """
    has_link = np.zeros(topology.num_nodes, np.bool_)
    has_link[topology.source] = True
    has_link[topology.destination] = True
    unlinked = np.flatnonzero(~has_link[: topology.num_npus])
    # A single NPU needs no network.
    if not len(unlinked) or topology.num_npus == 1:
        return
    verb = "has" if len(unlinked) == 1 else "have"
    message = f"{_describe_nodes(topology, unlinked)} {verb} no link"
    cure = "add links, or leave such NPUs out"
    yield Diagnostic("npu-without-links", message, cure=cure)


def _find_unreachable(topology: Topology) -> Iterator[Diagnostic]:
    """Yield one error `unreachable` if some NPU cannot reach another one, otherwise no error.

    The message names one such pair, and all nodes that the first of the two reaches: no link leaves
    this set.
    """
    pair = _find_unreachable_pair(topology)
    if pair is None:
        return
    source, destination = pair
    # No link leads out of the set of reached nodes.
    cut = _describe_cut(topology, np.flatnonzero(find_reached(topology, source)))
    source_name, destination_name = (
        _describe_nodes(topology, [source]),
        _describe_nodes(topology, [destination]),
    )
    message = f"{source_name} cannot reach {destination_name}: no link leaves {cut}"
    cure = "add the missing links, or name the NPUs of one part, as in ?npus=0-3"
    yield Diagnostic("unreachable", message, cure=cure)


def _find_unreachable_pair(topology: Topology) -> tuple[int, int] | None:
    """Find two NPUs without a path from the first to the second; `None` if there are none.

    It is enough to test NPU 0, since all NPUs reach one another if NPU 0 reaches all and all reach
    it. The result is (0, first NPU that it does not reach) if there is one, else (first NPU that
    does not reach NPU 0, 0).
    """
    # Both directions are tested, since links may be one-way.
    npus = topology.num_npus
    unreached = np.flatnonzero(~find_reached(topology, 0)[:npus])
    if len(unreached):
        return 0, int(unreached[0])
    not_reaching = np.flatnonzero(~find_reached(topology, 0, backwards=True)[:npus])
    return (int(not_reaching[0]), 0) if len(not_reaching) else None


def _find_unusual_links(topology: Topology) -> Iterator[Diagnostic]:
    """Yield a note for each kind of unusual connection, with their number and the first one.

    A connection is all links from one node to another, by ascending source, then destination. The
    kinds, in this order: `one-way-links` (no links back), `unequal-directions` (the links back
    differ; counted once for both directions), `parallel-links` (several links from one node to the
    other). Kinds that do not occur are left out.
    """
    pairs = NodePairs(topology)

    # Count unequal directions once per pair.
    unequal = pairs.differs_from_back() & (pairs.source < pairs.destination)
    cases = (
        ("one-way-links", pairs.back < 0, "{} without a reverse link, the first"),
        ("unequal-directions", unequal, "{} different from the reverse link, the first"),
        ("parallel-links", pairs.count > 1, "{} of several parallel links, the first"),
    )
    for code, is_unusual, text in cases:
        rows = np.flatnonzero(is_unusual)
        if not len(rows):
            continue
        count = "1 connection is"
        if len(rows) > 1:
            count = f"{len(rows)} connections are"
        row = int(rows[0])
        source = int(pairs.source[row])
        destination = int(pairs.destination[row])
        endpoints = f"from {topology.node_name(source)} to {topology.node_name(destination)}"
        message = f"{text.format(count)} {endpoints}"
        yield Diagnostic(code, message, Severity.NOTE)


def _find_idle_switches(topology: Topology) -> Iterator[Diagnostic]:
    """Yield one note `idle-switch` that lists all switches without links in or without links out.

    No message can pass such a switch. Yields nothing if there is none.
    """
    nodes = np.arange(topology.num_npus, topology.num_nodes)
    has_link_out = np.isin(nodes, topology.source)
    has_link_in = np.isin(nodes, topology.destination)
    is_passable = has_link_in & has_link_out
    idle = nodes[~is_passable]
    if not len(idle):
        return
    verb = "lacks" if len(idle) == 1 else "lack"
    problem = "links in or links out, so no message can pass"
    message = f"{_describe_nodes(topology, idle)} {verb} {problem}"
    yield Diagnostic("idle-switch", message, Severity.NOTE)


def _describe_cut(topology: Topology, closed: Int64Array) -> str:
    """Describe a set of nodes as a text: its NPUs, and its switches if it has any.

    Both are described by `_describe_nodes`. The set must have at least one NPU.
    """
    npus = closed[closed < topology.num_npus]
    switches = closed[closed >= topology.num_npus]
    text = _describe_nodes(topology, npus)
    if not len(switches):
        return text
    return f"{text} and {_describe_nodes(topology, switches)}"


def _describe_nodes(topology: Topology, nodes: Sequence[int] | Int64Array) -> str:
    """Describe a list of NPUs, or of switches, for example `NPUs 0-3`; long lists are shortened.

    NPUs without names are listed as ranges, cut at a comma after at most `_MAX_LIST_WIDTH`
    characters. Otherwise the first 8 names are listed, and the others counted. `nodes` must not be
    empty, and must not contain both kinds.
    """
    chosen = [int(node) for node in nodes]
    noun = "NPU" if len(chosen) == 1 else "NPUs"
    is_npu = chosen[0] < topology.num_npus
    if is_npu and not topology.node_names:
        return f"{noun} {_shorten(format_ranks(chosen))}"
    shown = _list_names(topology, chosen)
    # Names of switches contain the word already.
    return f"{noun} {shown}" if is_npu else shown


def _list_names(topology: Topology, nodes: Sequence[int]) -> str:
    """List the names of nodes, separated by commas.

    Only the first 8 are named; `and N more` follows if there are others.
    """
    names = [topology.node_name(node) for node in nodes[:_MAX_NAMES]]
    shown = ", ".join(names)
    if len(nodes) > _MAX_NAMES:
        shown += f" and {len(nodes) - _MAX_NAMES} more"
    return shown


def _shorten(ranks: str) -> str:
    """Shorten a list of ranks to `_MAX_LIST_WIDTH` characters.

    A longer list is cut at the last comma within this width, and `,...` is appended. A shorter list
    stays unchanged.
    """
    if len(ranks) <= _MAX_LIST_WIDTH:
        return ranks
    return f"{ranks[: ranks.rindex(',', 0, _MAX_LIST_WIDTH)]},..."
