"""Whether a network can be used: NPUs that do not reach one another, and what is often a mistake in a topology file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hub_core.model.diagnostics import Diagnostic, Severity
from hub_core.model.rank_lists import format_ranks
from hub_core.network.facts import reached
from hub_core.network.topology import Topology

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_NAMED_NODES = 8


class Pairs:
    """The links by plane and ordered pair of nodes, as columns of equal length.

    `source`, `destination`, `count`: int64; then sums of bandwidth, and the least latency.
    `back`: the row of the way back, -1 where there is none.
    """

    def __init__(self, topology: Topology) -> None:
        square = topology.num_nodes**2
        key = topology.plane * square + topology.source * topology.num_nodes + topology.destination
        keys, row, self.count = np.unique(key, return_inverse=True, return_counts=True)
        self.source, self.destination = np.divmod(keys % square, topology.num_nodes)
        self.bandwidth_bytes_per_s = np.bincount(
            row, topology.bandwidth_bytes_per_s, len(keys)
        ).astype(np.float64)
        self.latency_s = np.full(len(keys), np.inf)
        np.minimum.at(self.latency_s, row, topology.latency_s)
        wanted = keys // square * square + self.destination * topology.num_nodes + self.source
        place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        self.back = np.where(keys[place] == wanted, place, -1) if len(keys) else place

    def __len__(self) -> int:
        return len(self.source)

    def differs_from_back(self) -> BoolArray:
        """Whether the way back exists with another bandwidth or latency."""
        rates, latencies = self.bandwidth_bytes_per_s, self.latency_s
        differs: BoolArray = (self.back >= 0) & (
            (rates != rates[self.back]) | (latencies != latencies[self.back])
        )
        return differs


def check_topology(topology: Topology) -> tuple[Diagnostic, ...]:
    """All findings: an error where NPUs do not reach one another, notes on what is legal but often a slip."""
    return (
        *_lonely(topology),
        *_unreachable(topology),
        *_odd_links(topology),
        *_idle_switches(topology),
    )


def _lonely(topology: Topology) -> Iterator[Diagnostic]:
    degree = np.bincount(topology.source, minlength=topology.num_nodes) + np.bincount(
        topology.destination, minlength=topology.num_nodes
    )
    lonely = np.flatnonzero(degree[: topology.num_npus] == 0)
    if len(lonely) and topology.num_npus > 1:
        message = f"{_nodes(topology, lonely)} {'has' if len(lonely) == 1 else 'have'} no link"
        yield Diagnostic("npu-without-links", message, cure="add links, or leave such NPUs out")


def _unreachable(topology: Topology) -> Iterator[Diagnostic]:
    """One pair of NPUs without a path, and the cut that no link crosses."""
    npus = topology.num_npus
    ahead = reached(topology, 0)
    behind = ahead if not ahead[:npus].all() else reached(topology, 0, backwards=True)
    lost = np.flatnonzero(~behind[:npus])
    if not len(lost):
        return
    source, goal = (0, int(lost[0])) if behind is ahead else (int(lost[0]), 0)
    inside = ahead if behind is ahead else reached(topology, source)
    closed = np.flatnonzero(inside)
    yield Diagnostic(
        "unreachable",
        f"{_nodes(topology, [source])} cannot reach {_nodes(topology, [goal])}: no link leaves {_cut(topology, closed)}",
        cure="add the missing links, or name the NPUs of one part, as in ?npus=0-3",
    )


def _odd_links(topology: Topology) -> Iterator[Diagnostic]:
    pairs = Pairs(topology)
    found = (
        ("one-way-links", pairs.back < 0, "{} without a way back, the first"),
        (
            "unequal-directions",
            pairs.differs_from_back() & (pairs.source < pairs.destination),
            "{} unlike the way back, the first",
        ),
        ("parallel-links", pairs.count > 1, "{} of several parallel links, the first"),
    )
    for code, is_odd, text in found:
        rows = np.flatnonzero(is_odd)
        if len(rows):
            plural = "1 connection is" if len(rows) == 1 else f"{len(rows)} connections are"
            ends = " to ".join(
                topology.node_name(int(column[rows[0]]))
                for column in (pairs.source, pairs.destination)
            )
            yield Diagnostic(code, f"{text.format(plural)} from {ends}", Severity.NOTE)


def _idle_switches(topology: Topology) -> Iterator[Diagnostic]:
    """Switches that nothing can pass: without a link in, or without a link out."""
    nodes = np.arange(topology.num_npus, topology.num_nodes)
    idle = nodes[~np.isin(nodes, topology.source) | ~np.isin(nodes, topology.destination)]
    if len(idle):
        verb = "lacks" if len(idle) == 1 else "lack"
        yield Diagnostic(
            "idle-switch",
            f"{_nodes(topology, idle)} {verb} links in or links out, so nothing passes",
            Severity.NOTE,
        )


def _cut(topology: Topology, closed: Int64Array) -> str:
    npus, switches = closed[closed < topology.num_npus], closed[closed >= topology.num_npus]
    behind = f" and {_nodes(topology, switches)}" if len(switches) else ""
    return _nodes(topology, npus) + behind


def _nodes(topology: Topology, nodes: Sequence[int] | Int64Array) -> str:
    """`NPU 3`, `NPUs 0-3`, or the names, with the count where there are many."""
    chosen = [int(node) for node in nodes]
    is_npu = chosen[0] < topology.num_npus
    if is_npu and not topology.node_names:
        return f"NPU{'s' if len(chosen) > 1 else ''} {_short(format_ranks(chosen))}"
    shown = ", ".join(topology.node_name(node) for node in chosen[:_NAMED_NODES])
    rest = f" and {len(chosen) - _NAMED_NODES} more" if len(chosen) > _NAMED_NODES else ""
    return f"{'NPU' if is_npu else ''}{'s' if is_npu and len(chosen) > 1 else ''} {shown}{rest}".strip()


def _short(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: text.rindex(',', 0, width)]},..."
