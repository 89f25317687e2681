"""Check that a network is connected, and report likely mistakes in a topology file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hub_core.columns import NodePairs
from hub_core.model import Diagnostic, Severity
from hub_core.network import (
    Topology,
    describe_nodes,
    describe_separation,
    find_reached,
    find_unreachable_pair,
)
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions


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


def _find_npus_without_links(topology: Topology) -> Iterator[Diagnostic]:
    """Yield one error `npu-without-links` that names the NPUs without any link, in or out.

    An NPU with links in only one direction has a link. The text of `describe_nodes`
    shortens long lists. Yield no error if there is no such NPU, or if the network has only
    one NPU.
    """
    has_link = np.zeros(topology.num_nodes, np.bool_)
    has_link[topology.source] = True
    has_link[topology.destination] = True
    unlinked = np.flatnonzero(~has_link[: topology.num_npus])
    # A single NPU needs no network.
    if not len(unlinked) or topology.num_npus == 1:
        return
    verb = "has" if len(unlinked) == 1 else "have"
    message = f"{describe_nodes(topology, unlinked)} {verb} no link"
    cure = "add links, or leave such NPUs out"
    yield Diagnostic("npu-without-links", message, cure=cure)


def _find_unreachable(topology: Topology) -> Iterator[Diagnostic]:
    """Yield one error `unreachable` if some NPU cannot reach another one, otherwise no error.

    The message names one such pair, and all nodes that the first of the two reaches: no link leaves
    this set.
    """
    pair = find_unreachable_pair(topology, range(topology.num_npus))
    if pair is None:
        return
    message = describe_separation(topology, *pair, find_reached(topology, pair[0]))
    cure = "add the missing links, or name the NPUs of one part, as in ?npus=0-3"
    yield Diagnostic("unreachable", message, cure=cure)


def _find_unusual_links(topology: Topology) -> Iterator[Diagnostic]:
    """Yield a note for each kind of unusual connection, with their number and the first one.

    A connection is all links of one plane from one node to another. Its bandwidth is the sum
    and its latency the minimum over its links. Connections are sorted by plane, source,
    destination; a note names the source and the destination of the first one. The kinds, in
    this order:

    - `one-way-links`: connections without a connection back on the same plane
    - `unequal-directions`: connections whose bandwidth or latency differs from that of the
      connection back. Only the direction with the lower source number is counted and named.
    - `parallel-links`: connections of two or more links. The two directions count as two
      connections.

    A kind that does not occur yields nothing. There are at most three notes, without a cure.
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
    """Yield one note `idle-switch` that names the switches that lack links in, links out or both.

    No message can pass such a switch. At most 8 are named, with the number of further ones.
    Yield no note if there is no such switch.
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
    message = f"{describe_nodes(topology, idle)} {verb} {problem}"
    yield Diagnostic("idle-switch", message, Severity.NOTE)
