"""Facts of a communicator in a log of NCCL: members, rings, trees, connections, choices.

The lines of choices (subsystem TUNING) differ by release: 2.20 to 2.22 give numbers and a time,
2.23 also the operation, 2.24 and later names and channels. Source: NVIDIA/nccl (Apache-2.0).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

# Rank without parent or child in a line of trees.
NO_RANK = -1


@dataclass(frozen=True, slots=True)
class TreeNode:
    """Position of one rank in the tree of a channel; `parent` is -1 for the root."""

    parent: int
    children: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection of a channel between two ranks.

    `index`: 0 for rings and trees, 1 for send and receive, -1 in old releases. `transport`: as in
    the log, `P2P/CUMEM/read` or `NET/IB/0/GDRDMA`. `end`: `send` or `receive`, "" if the line is
    for both.
    """

    channel: int
    index: int
    source: int
    target: int
    transport: str
    end: str = ""


@dataclass(slots=True)
class CommunicatorFacts:
    """Facts of one communicator; -1 and empty containers if the log lacks them.

    `identity`: its hash, or parent and colour of a split. `processes`: host and process by rank;
    `devices`: CUDA device by rank. `rings`: ranks by channel, from the line of rank 0;
    `successors`: next rank by channel and rank, from lines of every rank. `cut_rings`: channels of
    which the line is truncated. `trees`: by channel and rank. `connections`, `choices`: with their
    number of lines. `channels`: the line with the numbers of channels.
    """

    identity: str
    rank_count: int = -1
    node_count: int = -1
    processes: dict[int, str] = field(default_factory=dict)
    devices: dict[int, int] = field(default_factory=dict)
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ring_lines: dict[int, int] = field(default_factory=dict)
    cut_rings: set[int] = field(default_factory=set)
    successors: dict[int, dict[int, int]] = field(default_factory=dict)
    trees: dict[int, dict[int, TreeNode]] = field(default_factory=dict)
    connections: dict[Connection, int] = field(default_factory=dict)
    choices: dict[Choice, int] = field(default_factory=dict)
    calls: int = 0
    channels: str = ""

    def ring(self, channel: int) -> tuple[int, ...]:
        """Return the ring of a channel: the line of rank 0, else the lines of all ranks."""
        if channel in self.rings and channel not in self.cut_rings:
            return self.rings[channel]
        successors = self.successors.get(channel, {})
        if not successors:
            return self.rings.get(channel, ())
        first = min(successors)
        ring = [first]
        while len(ring) <= len(successors) and successors.get(ring[-1], first) != first:
            ring.append(successors[ring[-1]])
        return tuple(ring)

    @property
    def ring_channels(self) -> list[int]:
        """Channels with a ring, sorted."""
        return sorted({*self.rings, *self.successors})

    def transports(self) -> Counter[str]:
        """Count the connections by transport, without the number of the network device."""
        counts: Counter[str] = Counter()
        for connection, count in self.connections.items():
            kind = connection.transport.split("/")
            counts["/".join(kind[:2] if kind[0] == "NET" else kind)] += count
        return counts

    def size(self) -> int:
        """Return the number of ranks: as logged, else the highest rank that occurs plus 1."""
        if self.rank_count > 0:
            return self.rank_count
        ranks = {rank for ring in self.rings.values() for rank in ring}
        ranks |= {rank for tree in self.trees.values() for rank in tree} | set(self.processes)
        return max(ranks, default=-1) + 1


def describe_ring_defect(facts: CommunicatorFacts, channel: int) -> str:
    """Return the reason why the ring of a channel is not one over all ranks, "" without one."""
    ring, size = facts.ring(channel), facts.size()
    if channel in facts.cut_rings and channel not in facts.successors:
        return "the line is truncated, and the log has no GRAPH lines of the ring"
    if twice := [rank for rank, count in Counter(ring).items() if count > 1]:
        return f"rank {twice[0]} occurs twice"
    if missing := sorted(set(range(size)) - set(ring)):
        return f"rank {missing[0]} of {size} is missing"
    if excess_ranks := sorted(set(ring) - set(range(size))):
        return f"rank {excess_ranks[0]} is not below {size}"
    return ""


def describe_tree_defect(tree: Mapping[int, TreeNode], size: int) -> str:
    """Return the first reason why the nodes are not one tree over `size` ranks, "" without one.

    Checked in this order: a missing rank, a rank not below `size`, a number of roots other than
    one, parents and children that do not name each other, and ranks that the root does not reach (a
    cycle). Of several ranks with a defect, the lowest is named.
    """
    if missing := sorted(set(range(size)) - set(tree)):
        return f"the line of rank {missing[0]} is missing"
    if excess_ranks := sorted(set(tree) - set(range(size))):
        return f"rank {excess_ranks[0]} is not below {size}"
    roots = [rank for rank, node in sorted(tree.items()) if node.parent == NO_RANK]
    if len(roots) != 1:
        return f"{len(roots)} ranks have no parent"
    for rank, node in sorted(tree.items()):
        for child in node.children:
            if child not in tree or tree[child].parent != rank:
                return f"rank {rank} has the child {child}, whose parent is another rank"
        parent = tree.get(node.parent)
        if node.parent != NO_RANK and (parent is None or rank not in parent.children):
            return f"rank {rank} has the parent {node.parent}, of which it is no child"
    reached = {roots[0]}
    level = [roots[0]]
    while level:
        level = [child for rank in level for child in tree[rank].children if child not in reached]
        reached.update(level)
    if len(reached) < size:
        return f"rank {min(set(tree) - reached)} is in a cycle"
    return ""


_LINE = re.compile(
    r"(?:(\w{1,40}): )?(\d{1,19}) Bytes -> Algo (\w{1,20}) proto (\w{1,20})"
    r"(?: time (\d{1,12}(?:\.\d{1,12})?)| channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\})?"
)
_NUMBER = re.compile(r"\d{1,2}")
# By NCCL's numbers.
_ALGORITHMS = dict(
    enumerate(("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"))
)
_PROTOCOLS = dict(enumerate(("LL", "LL128", "SIMPLE")))


@dataclass(frozen=True, slots=True)
class Choice:
    """Algorithm and protocol that NCCL chose for one call.

    `operation` is "" in releases that do not name it; `bytes`: as logged. Names are in upper case:
    `RING`, `SIMPLE`; unknown numbers are kept.
    """

    operation: str
    bytes: int
    algorithm: str
    protocol: str


@dataclass(frozen=True, slots=True)
class ChoiceLine:
    """One logged choice. `time_us`: of lines with numbers; `channels`: of lines with names.

    `time_us` is None and `channels` is 0 if the line lacks them. The channels of a damaged line may
    be 0 or negative.
    """

    choice: Choice
    time_us: float | None
    channels: int


def parse_choice(text: str) -> ChoiceLine | None:
    """Parse a message that starts with a choice; None for other messages."""
    match = _LINE.match(text)
    if match is None:
        return None
    operation, size, algorithm, protocol, time_us, first, last = match.groups()
    is_numbered = all(map(_NUMBER.fullmatch, (algorithm, protocol)))
    if is_numbered:
        algorithm = _ALGORITHMS.get(int(algorithm), algorithm)
        protocol = _PROTOCOLS.get(int(protocol), protocol)
    choice = Choice(operation or "", int(size), algorithm.upper(), protocol.upper())
    return ChoiceLine(
        choice,
        float(time_us) if time_us and is_numbered else None,
        int(last) - int(first) + 1 if first and not is_numbered else 0,
    )
