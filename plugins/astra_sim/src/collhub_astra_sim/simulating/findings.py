"""Report ranks that never finish, with the reasons, and inputs on which ASTRA-sim itself aborts.

ASTRA-sim itself exits with success when ranks hang, and names no node. Here the root cause of a
stuck node is reported: a message that is never sent, or the node at the start of the chain of
dependencies that the sender waits for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collhub_astra_sim.simulating.kernel import SimulatedWorld
from collhub_astra_sim.simulating.simulated_network import TimingModel
from collhub_astra_sim.simulating.trace_nodes import Locate
from hub_core import NodeTable, NodeType
from hub_core.columns import Int64Array, group_of_entry
from hub_core.model import Diagnostic, Location, Severity, format_count
from hub_core.network import DimensionKind, Occupancy, Topology

_ASTRA_SIM_KINDS = (DimensionKind.RING, DimensionKind.FULLY_CONNECTED, DimensionKind.SWITCH)


def report_findings(
    nodes: NodeTable,
    world: SimulatedWorld,
    has_event_at_zero: bool,
    topology: Topology,
    model: TimingModel,
    locate: Locate,
) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of a finished simulation.

    If at least one node did not end, first come the findings of `StuckNodes.findings_of`
    for all ranks, in ascending order (errors and warnings). Then, if `has_event_at_zero`
    and ASTRA-sim can simulate the network, follows a warning that ASTRA-sim aborts on an
    event at time 0. `locate`: returns the location of a node. Return () if all nodes ended
    and there is no warning.
    """
    diagnostics: list[Diagnostic] = []
    # The search for reasons takes longer than most runs, so it runs only if a node is stuck.
    if np.any(world.node["end"] < 0):
        stuck = StuckNodes(nodes, world, locate)
        for rank in range(nodes.num_ranks):
            diagnostics += stuck.findings_of(rank)
    if has_event_at_zero and _is_astra_sim_network(topology, model):
        # The simulator's event queue asserts that every event is later than its current time.
        warning = Diagnostic(
            "astra-sim-aborts",
            "a message at the start takes less than 1 ns to send, where ASTRA-sim itself aborts",
            Severity.WARNING,
            cure="these times hold for a start a little later; use larger messages to compare",
        )
        diagnostics.append(warning)
    return tuple(diagnostics)


def _is_astra_sim_network(topology: Topology, model: TimingModel) -> bool:
    """Return whether ASTRA-sim itself can simulate this network with this timing model.

    The occupancy must be `serialization`. The topology must have dimensions, all of the three kinds
    of ASTRA-sim, and exactly one if the model is congestion-aware.
    """
    if model.occupancy is not Occupancy.SERIALIZATION:
        return False
    kinds = [dimension.kind for dimension in topology.dimensions]
    max_dimensions = 1 if model.is_congestion_aware else len(kinds)
    has_valid_count = 1 <= len(kinds) <= max_dimensions
    return has_valid_count and all(kind in _ASTRA_SIM_KINDS for kind in kinds)


_DISAGREEMENT_CURE = "let both sides agree on size, tag and number of messages"


class StuckNodes:
    """Reasons why nodes of a finished simulation never started or never finished.

    `locate` returns the location of a node for messages.
    """

    def __init__(self, nodes: NodeTable, world: SimulatedWorld, locate: Locate) -> None:
        self._nodes = nodes
        self._start: Int64Array = world.node["start"]
        self._end: Int64Array = world.node["end"]
        self._key = world.node["key"]
        self._finish = world.rank["finish"]
        self._locate = locate
        self._rank = group_of_entry(nodes.rank_indptr)
        self._blocker = _find_blockers(nodes, self._start, self._end)

    def findings_of(self, rank: int) -> Iterator[Diagnostic]:
        """Yield at most one diagnostic about a rank that never finishes or has unused steps.

        A rank has finished if it has a finish time; nodes that never started do not prevent it.
        The first case that applies:

        1. Finished, and all nodes have an end: no diagnostic.
        2. Finished otherwise: warning `cyclic-dependencies` at the first node without an end.
        3. A node started and has no end: error `never-finishes` at the first such node, with
           the event for which it waits, and a cure.
        4. Otherwise: error `never-finishes` at the rank. It has no steps, or every step waits
           for another one.
        """
        first, end = self._get_rows(rank)
        unended = first + np.flatnonzero(self._end[first:end] < 0)
        begun = unended[self._start[unended] >= 0]
        if self._finish[rank] >= 0:
            # A rank finishes when no node is ongoing, even if some nodes have not begun.
            if len(unended):
                steps = format_count(len(unended), "step")
                yield Diagnostic(
                    "cyclic-dependencies",
                    f"{steps} of rank {rank} depend on one another in a cycle and never run",
                    Severity.WARNING,
                    self._locate(int(unended[0])),
                )
        elif len(begun):
            yield self._report_waiting(rank, int(begun[0]), len(begun), len(unended))
        else:
            reason = "every step waits for another one" if end > first else "it has no steps"
            message = f"rank {rank} never finishes: {reason}"
            yield Diagnostic("never-finishes", message, location=Location(rank=rank))

    def _get_rows(self, rank: int) -> tuple[int, int]:
        """Return the rows of a rank's nodes as (first row, row after the last).

        Both are equal for a rank without nodes.
        """
        first, end = self._nodes.rank_indptr[rank : rank + 2].tolist()
        return first, end

    def _report_waiting(self, rank: int, node: int, begun: int, unended: int) -> Diagnostic:
        """Return the error (`never-finishes`) at `node`, the first of its rank that waits.

        A node waits if it started and never ended. The message has the event for which it waits
        (`_describe_wait`). The numbers of further nodes follow in parentheses, those that are not
        0, such as ` (1 step more waits for a message, 2 steps after it never start)`. There is a
        cure only for a RECV of which no SEND with the same ends, size and tag is still waiting to
        start. `begun`: number of waiting nodes of the rank, this one included. `unended`: number of
        all nodes of the rank without an end, also those that never started.
        """
        further_waiting, never_started = begun - 1, unended - begun
        parts = []
        if further_waiting:
            verb = "wait for messages" if further_waiting > 1 else "waits for a message"
            parts.append(f"{format_count(further_waiting, 'step')} more {verb}")
        if never_started:
            verb = "start" if never_started > 1 else "starts"
            parts.append(f"{format_count(never_started, 'step')} after it never {verb}")
        further_steps = f" ({', '.join(parts)})" if parts else ""
        is_receive = self._nodes.type[node] == NodeType.COMM_RECV
        is_never_sent = is_receive and self._find_sender(node) is None
        return Diagnostic(
            "never-finishes",
            f"rank {rank} never finishes: {self._describe_wait(node)}{further_steps}",
            location=self._locate(node),
            cure=_DISAGREEMENT_CURE if is_never_sent else "",
        )

    def _describe_wait(self, node: int) -> str:
        """Return a clause on the event for which a node waits that started and did not end.

        A node of another type than RECV never ends; the clause says that its type has no place in
        an algorithm. For a RECV the clause gives the bytes, tag and peer of the message. Then
        follows:

        - if a SEND of the peer with this size and tag has not started: the name of the first one,
          and its obstacle. That is the step for which it waits, directly or through other steps, or
          a cycle of dependencies.
        - otherwise how the messages of the peer differ from the expected one
          (`_describe_near_miss`)
        """
        # Sends and local work always finish; ASTRA-sim starts nodes of other types and never
        # finishes them.
        if self._nodes.type[node] != NodeType.COMM_RECV:
            kind = int(self._nodes.type[node])
            # A file may contain any number.
            type_name = NodeType(kind).name if kind in set(NodeType) else str(kind)
            return f"a node of type {type_name} has no place in an algorithm"
        peer = self._nodes.peer[node]
        size = self._nodes.size[node]
        tag = self._nodes.tag[node]
        text = f"it waits for a message of {size} bytes with tag {tag} from rank {peer}"
        sender = self._find_sender(node)
        if sender is None:
            return f"{text}, which {self._describe_near_miss(node)}"
        blocker = int(self._blocker[sender])
        obstacle = (
            "its dependencies form a cycle"
            if self._start[blocker] < 0
            else f"it waits for {self._format_name(blocker)}"
        )
        return f"{text}, but {self._format_name(sender)} that sends it never starts: {obstacle}"

    def _find_sender(self, receive: int) -> int | None:
        """Return the first SEND that a RECV waits for and that never started; None without one.

        It belongs to the RECV's peer and is sent to the RECV's rank, with the same size and the
        same tag (modulo ASTRA-sim's tag limit).
        """
        sends = self._find_sends_to(receive)
        has_key = self._key[sends] == self._key[receive]
        is_waiting = self._start[sends] < 0
        waiting = sends[has_key & is_waiting]
        return int(waiting[0]) if len(waiting) else None

    def _find_sends_to(self, receive: int) -> Int64Array:
        """Return the rows of all SENDs from the peer of a RECV to the RECV's rank, ascending.

        Tags and sizes are not compared, and also finished SENDs are included.
        """
        nodes = self._nodes
        sender = int(nodes.peer[receive])
        first, end = self._get_rows(sender)
        is_send = nodes.type[first:end] == NodeType.COMM_SEND
        is_to_receiver = nodes.peer[first:end] == self._rank[receive]
        return first + np.flatnonzero(is_send & is_to_receiver)

    def _describe_near_miss(self, receive: int) -> str:
        """Return a clause that shows how the messages of a RECV's peer miss the RECV.

        The sends are all SENDs of the peer to the RECV's rank, finished ones included. The first
        case that applies is described; `peer` is `rank N`:

        1. Some have the tag and the size of the RECV: `peer sends less often than it is received`.
        2. Some have the tag: the size of the first one in bytes and its step, for example `rank 1
           sends with 64 bytes (step 3 of rank 1)`.
        3. Some have the size: the tag of the first one and its step.
        4. Otherwise `peer never sends`, also if it sends messages of another tag and another size.
        """
        sender = f"rank {self._nodes.peer[receive]}"
        tag, size = self._nodes.tag, self._nodes.size
        sends = self._find_sends_to(receive)
        has_tag = tag[sends] == tag[receive]
        has_size = size[sends] == size[receive]
        if np.any(has_tag & has_size):
            return f"{sender} sends less often than it is received"
        if has_tag.any():
            candidate = int(sends[has_tag][0])
            return f"{sender} sends with {size[candidate]} bytes ({self._format_name(candidate)})"
        if has_size.any():
            candidate = int(sends[has_size][0])
            return f"{sender} sends with tag {tag[candidate]} ({self._format_name(candidate)})"
        return f"{sender} never sends"

    def _format_name(self, node: int) -> str:
        """Return the name of a node in messages, such as `step 3 of rank 1`.

        Step and rank are those of its location in the user's file.
        """
        location = self._locate(node)
        return f"step {location.step} of rank {location.rank}"


def _find_blockers(nodes: NodeTable, start: Int64Array, end: Int64Array) -> Int64Array:
    """Return for every node the node because of which it did not start: int64[nodes], rows.

    `start`, `end`: times, negative for a node that never started or never ended. A node that
    started has its own row.

    For any other node, a chain of parents is followed: from a node that did not start to one of its
    parents that did not end. If there are several, the last data parent is taken; without a data
    parent, the last control parent. The chain ends at a node that started, or that has no parent
    without an end; that node is the result. A chain that enters a cycle gives some node of the
    cycle. Cost: O(n log n).
    """
    blocker = np.arange(len(nodes))
    # Data dependencies come last: if an element is assigned repeatedly, numpy uses the last value.
    for indptr, parents in (
        (nodes.control_indptr, nodes.control_indices),
        (nodes.data_indptr, nodes.data_indices),
    ):
        children = group_of_entry(indptr)
        is_blocking = (start[children] < 0) & (end[parents] < 0)
        blocker[children[is_blocking]] = parents[is_blocking]
    # Every round doubles the length of the chains that are followed.
    for _ in range(len(nodes).bit_length()):
        blocker = blocker[blocker]
    return blocker
