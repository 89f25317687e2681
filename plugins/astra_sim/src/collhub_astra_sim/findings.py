"""Say which ranks never finish and why, and where ASTRA-sim itself would stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.inputs import rank_of_nodes
from collhub_astra_sim.kernel import World
from collhub_astra_sim.options import Model
from hub_core import NodeTable, NodeType
from hub_core.model import Diagnostic, Location, Severity
from hub_core.network import DimensionKind, Occupancy, Topology

Int64Array = npt.NDArray[np.int64]
Locate = Callable[[int], Location]

_ASTRA_SIM_KINDS = (DimensionKind.RING, DimensionKind.FULLY_CONNECTED, DimensionKind.SWITCH)


def findings(
    nodes: NodeTable,
    world: World,
    has_event_at_zero: bool,
    topology: Topology,
    model: Model,
    locate: Locate,
) -> tuple[Diagnostic, ...]:
    """All that is to be said about a run, ranks in order."""
    found: list[Diagnostic] = []
    if np.any(world.node["end"] < 0):
        stuck = _Stuck(nodes, world, locate)
        for rank in range(nodes.num_ranks):
            found += stuck.of_rank(rank)
    if has_event_at_zero and _is_astra_sim_network(topology, model):
        found.append(
            Diagnostic(
                "astra-sim-aborts",
                "a message at the start takes less than 1 ns to send, where ASTRA-sim itself aborts",
                Severity.WARNING,
                cure="these times hold for a start a little later; use larger messages to compare",
            )
        )
    return tuple(found)


def _is_astra_sim_network(topology: Topology, model: Model) -> bool:
    """Whether ASTRA-sim can be given this network at all."""
    kinds = [dimension.kind for dimension in topology.dimensions]
    few_enough = len(kinds) == 1 or (len(kinds) > 1 and not model.is_congestion_aware)
    return (
        few_enough
        and all(kind in _ASTRA_SIM_KINDS for kind in kinds)
        and model.occupancy is Occupancy.SERIALIZATION
    )


class _Stuck:
    """The nodes that did not end, and what they wait for."""

    def __init__(self, nodes: NodeTable, world: World, locate: Locate) -> None:
        self._nodes = nodes
        self._start = world.node["start"]
        self._end = world.node["end"]
        self._key = world.node["key"]
        self._finish = world.rank["finish"]
        self._locate = locate
        self._rank = rank_of_nodes(nodes)
        self._blocker = _blockers(nodes, self._start, self._end)

    def of_rank(self, rank: int) -> Iterator[Diagnostic]:
        """At most one finding: for a rank that never finishes, or that finishes without some of its nodes."""
        first, end = int(self._nodes.rank_indptr[rank]), int(self._nodes.rank_indptr[rank + 1])
        unended = first + np.flatnonzero(self._end[first:end] < 0)
        if self._finish[rank] >= 0:
            if len(unended):
                message = f"{_steps(len(unended))} of rank {rank} depend on one another in a cycle and never run"
                yield Diagnostic(
                    "cyclic-dependencies", message, Severity.WARNING, self._locate(int(unended[0]))
                )
            return
        begun = unended[self._start[unended] >= 0]
        if len(begun):
            node = int(begun[0])
            yield Diagnostic(
                "never-finishes",
                f"rank {rank} never finishes: {self._wait(node)}{_others(len(begun) - 1, len(unended) - len(begun))}",
                location=self._locate(node),
                cure=self._cure(node),
            )
        else:
            what = "every step waits for another one" if end > first else "it has no steps"
            yield Diagnostic(
                "never-finishes",
                f"rank {rank} never finishes: {what}",
                location=Location(rank=rank),
            )

    def _wait(self, node: int) -> str:
        """What a node that began waits for."""
        nodes = self._nodes
        if nodes.type[node] != NodeType.COMM_RECV:
            kind = int(nodes.type[node])
            name = NodeType(kind).name if kind in set(NodeType) else str(kind)
            return f"a node of type {name} has no place in an algorithm"
        peer, size, tag = int(nodes.peer[node]), int(nodes.size[node]), int(nodes.tag[node])
        wanted = f"it waits for a message of {size} bytes with tag {tag} from rank {peer}"
        sender = self._sender(node)
        if sender is None:
            return f"{wanted}, which {self._near_miss(node)}"
        return f"{wanted}, but {self._name(sender)} that sends it never starts: {self._obstacle(sender)}"

    def _sender(self, receive: int) -> int | None:
        """The first SEND of the message's key that never began, or None when there is none."""
        sends = self._sends_to(receive)
        waiting = sends[(self._key[sends] == self._key[receive]) & (self._start[sends] < 0)]
        return int(waiting[0]) if len(waiting) else None

    def _sends_to(self, receive: int) -> Int64Array:
        """All SENDs of the rank that a RECV names to the rank of that RECV."""
        nodes = self._nodes
        peer = int(nodes.peer[receive])
        first, end = int(nodes.rank_indptr[peer]), int(nodes.rank_indptr[peer + 1])
        is_send = (nodes.type[first:end] == NodeType.COMM_SEND) & (
            nodes.peer[first:end] == self._rank[receive]
        )
        return first + np.flatnonzero(is_send)

    def _near_miss(self, receive: int) -> str:
        """How the messages between the two ranks differ from the one that a RECV waits for."""
        nodes, peer = self._nodes, int(self._nodes.peer[receive])
        sends = self._sends_to(receive)
        same_tag = sends[nodes.tag[sends] == nodes.tag[receive]]
        same_size = sends[nodes.size[sends] == nodes.size[receive]]
        if len(np.intersect1d(same_tag, same_size)):
            return f"rank {peer} sends less often than it is received"
        if len(same_tag):
            return f"rank {peer} sends with {int(nodes.size[same_tag[0]])} bytes ({self._name(int(same_tag[0]))})"
        if len(same_size):
            return f"rank {peer} sends with tag {int(nodes.tag[same_size[0]])} ({self._name(int(same_size[0]))})"
        return f"rank {peer} never sends"

    def _obstacle(self, node: int) -> str:
        """What keeps a node from starting in the end."""
        blocker = int(self._blocker[node])
        return (
            "its dependencies form a cycle"
            if self._start[blocker] < 0
            else f"it waits for {self._name(blocker)}"
        )

    def _cure(self, node: int) -> str:
        if self._nodes.type[node] == NodeType.COMM_RECV and self._sender(node) is None:
            return "let both sides agree on size, tag and number of messages"
        return ""

    def _name(self, node: int) -> str:
        place = self._locate(node)
        return f"step {place.step} of rank {place.rank}"


def _blockers(nodes: NodeTable, start: Int64Array, end: Int64Array) -> Int64Array:
    """For every node that never started, a node that did and that it waits for in the end; one of a cycle if none did."""
    blocker = np.arange(len(nodes))
    for indptr, parents in (
        (nodes.control_indptr, nodes.control_indices),
        (nodes.data_indptr, nodes.data_indices),
    ):
        children = np.repeat(np.arange(len(nodes)), np.diff(indptr))
        holds = (start[children] < 0) & (end[parents] < 0)
        blocker[children[holds]] = parents[holds]
    # Every round doubles the length of the chains that are followed.
    for _ in range(len(nodes).bit_length()):
        blocker = blocker[blocker]
    return blocker


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _others(begun: int, waiting: int) -> str:
    """What else is unfinished in the same rank."""
    parts = []
    if begun:
        parts.append(
            f"{_steps(begun)} more wait for messages"
            if begun > 1
            else "1 step more waits for a message"
        )
    if waiting:
        parts.append(f"{_steps(waiting)} behind never start{'s' if waiting == 1 else ''}")
    return f" ({', '.join(parts)})" if parts else ""
