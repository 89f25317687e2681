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
    """Collect all findings on a network, errors first; an empty tuple if there are none.

    - Error `npu-without-links`: names the NPUs without any link, in or out. A network of one NPU
      needs none.
    - Error `unreachable`: if some NPU cannot reach another one. It names one such pair, and all
      nodes that the first of the two reaches: no link leaves this set.
    - Notes on legal properties that are often mistakes: `one-way-links`, `unequal-directions`,
      `parallel-links` (`_find_unusual_links`), and `idle-switch`, which names the switches that
      lack links in, links out or both: no message can pass them.

    There is at most one finding of each kind. Long lists of nodes are shortened (`describe_nodes`).
    """
    findings = []
    has_link = np.zeros(topology.num_nodes, np.bool_)
    has_link[topology.source] = True
    has_link[topology.destination] = True
    unlinked = np.flatnonzero(~has_link[: topology.num_npus])
    if len(unlinked) and topology.num_npus > 1:
        verb = "has" if len(unlinked) == 1 else "have"
        message = f"{describe_nodes(topology, unlinked)} {verb} no link"
        cure = "add links, or leave such NPUs out"
        findings.append(Diagnostic("npu-without-links", message, cure=cure))

    pair = find_unreachable_pair(topology, range(topology.num_npus))
    if pair is not None:
        message = describe_separation(topology, *pair, find_reached(topology, pair[0]))
        cure = "add the missing links, or name the NPUs of one part, as in ?npus=0-3"
        findings.append(Diagnostic("unreachable", message, cure=cure))

    findings += _find_unusual_links(topology)

    switches = np.arange(topology.num_npus, topology.num_nodes)
    is_passable = np.isin(switches, topology.source) & np.isin(switches, topology.destination)
    idle = switches[~is_passable]
    if len(idle):
        verb = "lacks" if len(idle) == 1 else "lack"
        problem = "links in or links out, so no message can pass"
        message = f"{describe_nodes(topology, idle)} {verb} {problem}"
        findings.append(Diagnostic("idle-switch", message, Severity.NOTE))
    return tuple(findings)


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
