"""Jobs that stop: waiting nodes of ranks that never finish, and inputs on which ASTRA-sim aborts.

ASTRA-sim aborts by its network, at time 0, or when a rank finishes, measured with the public
release of March 2026. Hazards of single nodes are in `find_hazards`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collhub_astra_sim.options import CONGESTION_AWARE
from collhub_astra_sim.workloads.machine_state import (
    BATCH_ENDS,
    CODE_BITS,
    COLLECTIVE_NODE,
    CUSTOM_ENDS,
    DELIVERY,
    LINK_FREE,
    NEVER_ENDS,
    NO_CHOICE,
    NO_SLOT,
    NODE_ENDS,
    RECV_NODE,
    SEND_NODE,
)
from collhub_astra_sim.workloads.system import MAX_GROUP
from hub_core import NodeType
from hub_core.columns import Int64Array, distinct
from hub_core.model import Diagnostic, JobCollective, NodeKind, Workload, format_ranks, parse_whole
from hub_core.network import DimensionKind, Topology

if TYPE_CHECKING:
    from collhub_astra_sim.workloads.layout import PreparedJob
    from collhub_astra_sim.workloads.machine_state import MachineState

_ORDER_CURE = "issue the collectives of these groups in the same order on all ranks"
_LISTED_RANKS = 8


class _Reason(NamedTuple):
    """Why a node does not finish, and the cure, empty if there is none."""

    text: str
    cure: str = ""


def report_waiting_ranks(
    workload: Workload, layout: PreparedJob, machine: MachineState
) -> tuple[Diagnostic, ...]:
    """Return the findings of all ranks that never finish, in the order of the ranks.

    A rank has one finding for every node that has started but not finished. It has at most
    one more, for a node that has not started although its parents have finished: the first
    one whose slot is occupied, or else the first one. Return () if all ranks finish.
    """
    job = _StoppedJob(workload, layout, machine)
    return tuple(
        finding
        for rank in np.flatnonzero(machine.rank["finish"] < 0).tolist()
        for finding in job.findings_of(rank)
    )


class _StoppedJob:
    """A job whose event queue is empty; columns by row of the workload's nodes."""

    def __init__(self, workload: Workload, layout: PreparedJob, machine: MachineState) -> None:
        self._workload, self._layout = workload, layout
        self._start, self._end = (
            self._order_by_row(machine, "start"),
            self._order_by_row(machine, "end"),
        )
        self._unmet = self._order_by_row(machine, "unmet")
        self._streams = self._order_by_row(machine, "streams")
        self._choice = self._order_by_row(machine, "choice")
        self._slot = self._order_by_row(machine, "slot")
        self._is_ongoing = (self._start >= 0) & (self._end < 0)

    def _order_by_row(self, machine: MachineState, name: str) -> Int64Array:
        """Return the field `name` of the machine's nodes by row of the workload: int64[nodes].

        The machine is the state of the simulation. Its nodes are in another order: by rank,
        then by identity.
        """
        column = np.empty(len(self._workload.nodes), np.int64)
        column[self._layout.order] = machine.node[name]
        return column

    def findings_of(self, rank: int) -> Iterator[Diagnostic]:
        """Yield the findings of a rank that never finishes, all of them errors.

        A node is running if it has started and not ended. It is ready if it has not started
        although all its parents have finished. Nodes are taken in ascending order of their
        identities. First comes one `unfinished-node` per running node, with the reason and the
        cure of `_explain`. Then at most one error about ready nodes:

        - `slot-occupied` for the first ready node whose slot (`kernel.start_free_nodes`) a running
          node occupies. The text names that running node.
        - `never-issued` for the first ready node otherwise: it depends on a node that takes no
          time.

        Yields nothing if the rank has neither running nor ready nodes. That the rank never
        finishes is not checked.
        """
        rows = self._layout.order[
            slice(*self._workload.nodes.rank_indptr[rank : rank + 2].tolist())
        ]
        ongoing = rows[self._is_ongoing[rows]].tolist()
        for row in ongoing:
            yield self._make_finding("unfinished-node", self._explain(row), row)
        free = rows[(self._start[rows] < 0) & (self._unmet[rows] == 0)].tolist()
        occupant = {slot: row for row in reversed(ongoing) if (slot := self._slot[row]) != NO_SLOT}
        waiting = next((row for row in free if self._slot[row] in occupant), None)
        if waiting is not None:
            name = self._format_name(occupant[self._slot[waiting]])
            yield self._make_finding(
                "slot-occupied", _Reason(f"waits for the slot of {name}"), waiting
            )
        elif free:
            text = "depends on a node that takes no time, and no further node of its rank finishes"
            yield self._make_finding("never-issued", _Reason(text), free[0])

    def _make_finding(self, code: str, reason: _Reason, row: int) -> Diagnostic:
        """Return an error with the message that a node, and therefore its rank, never finishes.

        The message is the name of the node (`_format_name`), the text of `reason`, and "; the
        rank never finishes". The cure is that of `reason`, the location that of the node.
        `row`: row of the node in the workload.
        """
        message = f"{self._format_name(row)} {reason.text}; the rank never finishes"
        location = self._workload.nodes.location(row)
        return Diagnostic(code, message, location=location, cure=reason.cure)

    def _format_name(self, row: int) -> str:
        """Return the name of the node in row `row` for messages, such as `node 7 (COMPUTE)`.

        The number is the node's identity in its trace, not its row. The word is the member of
        `NodeKind`.
        """
        nodes = self._workload.nodes
        return f"node {int(nodes.identity[row])} ({NodeKind(int(nodes.kind[row])).name})"

    def _describe_collective(self, row: int) -> str:
        """Return the name of a collective node with its group, or with "all ranks".

        For example `node 7 (all-reduce of process group '2')`. A node of another kind has the
        name of `_format_name`. `row`: row of the node in the workload.
        """
        nodes = self._workload.nodes
        if nodes.kind[row] != NodeKind.COLLECTIVE:
            return self._format_name(row)
        kind = JobCollective(nodes.collective[row]).noun
        return f"node {int(nodes.identity[row])} ({kind} of {self._format_group(row)})"

    def _format_group(self, row: int) -> str:
        """Return `process group 'NAME'` for the group of a node, or `all ranks` if it has none.

        `row`: row of the node in the workload. A negative group number means no group.
        """
        group = int(self._workload.nodes.group[row])
        return f"process group {self._workload.groups[group].name!r}" if group >= 0 else "all ranks"

    def _explain(self, row: int) -> _Reason:
        """Return the reason why a running node does not finish, by the first rule that applies.

        - RECV: "waits for a message of rank P that is never sent"; P is the node's peer
        - SEND: "waits for rank P"
        - The action that ASTRA-sim gives the node is `NEVER_ENDS`: "is of a kind that ASTRA-sim
          never finishes". This includes collectives.
        - Any other collective: the result of `_explain_collective`
        - All other nodes: "never finishes"

        Only reasons of `_explain_collective` may have a cure. `row`: of the workload's nodes.
        """
        nodes = self._workload.nodes
        kind = NodeKind(int(nodes.kind[row]))
        if kind is NodeKind.RECV:
            return _Reason(f"waits for a message of rank {int(nodes.peer[row])} that is never sent")
        if kind is NodeKind.SEND:
            return _Reason(f"waits for rank {int(nodes.peer[row])}")
        if self._layout.work.action[row] == NEVER_ENDS:
            return _Reason("is of a kind that ASTRA-sim never finishes")
        return (
            self._explain_collective(row)
            if kind is NodeKind.COLLECTIVE
            else _Reason("never finishes")
        )

    def _explain_collective(self, row: int) -> _Reason:
        """Return why a running collective does not finish, by the first rule that applies.

        Members are the ranks of its group, or all ranks of the job if it has none. A member runs
        the collective if it has a running node of the same group, collective kind and bytes. Except
        for the first rule, the text begins with the kind, the bytes and the group of the node.

        1. There is only one member: ASTRA-sim never finishes such a collective; no cure.
        2. Some members do not run it: the first `_LISTED_RANKS` (8) of these ranks, ascending, and
           the collective that the first one runs. Without such a collective there is no cure.
        3. It has no group and a native algorithm: `_describe_uneven_numbers`, with the running
           nodes of all members.
        4. Otherwise: "though all members have begun it: orders or algorithms differ".

        The cure of 2 and 4 is to issue these collectives in the same order on all ranks.
        """
        nodes = self._workload.nodes
        members = self._workload.members(int(nodes.group[row]))
        if len(members) == 1:
            return _Reason("has a group of one member, which ASTRA-sim never finishes")
        is_same = self._is_ongoing & (nodes.group == nodes.group[row])
        is_same &= (nodes.collective == nodes.collective[row]) & (nodes.bytes == nodes.bytes[row])
        rows = np.flatnonzero(is_same)
        missing = sorted(set(members) - set(nodes.rank[rows].tolist()))
        kind = JobCollective(nodes.collective[row]).noun
        size = int(nodes.bytes[row])
        text = f"is an {kind} of {size} bytes of {self._format_group(row)} that never finishes"
        if missing:
            text += f": not begun by rank {', '.join(map(str, missing[:_LISTED_RANKS]))}"
            first_rows = np.arange(*nodes.rank_indptr[missing[0] : missing[0] + 2].tolist())
            is_collective = nodes.kind[first_rows] == NodeKind.COLLECTIVE
            collectives = first_rows[self._is_ongoing[first_rows] & is_collective]
            if not len(collectives):
                return _Reason(text)
            other = self._describe_collective(int(collectives[0]))
            return _Reason(f"{text}; rank {missing[0]} waits in {other}", _ORDER_CURE)
        if nodes.group[row] < 0 and self._choice[row] >= 0:
            return self._describe_uneven_numbers(text, rows)
        return _Reason(
            f"{text}, though all members have begun it: orders or algorithms differ", _ORDER_CURE
        )

    def _describe_uneven_numbers(self, prefix: str, rows: Int64Array) -> _Reason:
        """Describe why a collective of all ranks never ends: ranks number its messages differently.

        ASTRA-sim numbers the messages by the parts (streams) of all earlier collectives of the
        rank, also those of groups, and messages match only if these numbers are equal. Here the
        number of a rank is the sum of the parts of its finished collectives that have an algorithm.
        `prefix`: beginning of the sentence. `rows`: the collective's nodes, at least one per rank.

        - Equal numbers: "though all members have begun it"; the cure is the same order everywhere.
        - Otherwise the text has the ranks with more than the minimum, an example of their finished
          collectives (the first of a group, without one the first of any rank), and the ranks with
          the minimum. The cure is a process group of all ranks: the first one of the job, or a new
          one. Its name is the largest group name that is a number up to `MAX_GROUP` (or 0), plus 1;
          more than `_LISTED_RANKS` (8) ranks are listed as `[0, ..., N]`.
        """
        nodes, ranks = self._workload.nodes, self._workload.num_ranks
        is_past = (self._end >= 0) & (self._choice != NO_CHOICE)
        counts = np.bincount(nodes.rank[is_past], self._streams[is_past], ranks).astype(np.int64)
        if len(distinct(counts[nodes.rank[rows]])) < 2:
            return _Reason(f"{prefix}, though all members have begun it", _ORDER_CURE)
        is_earlier = is_past & (nodes.group >= 0) & (counts[nodes.rank] > counts.min())
        earlier = np.flatnonzero(is_earlier if is_earlier.any() else is_past)
        ranks_with_fewest = np.flatnonzero(counts == counts.min()).tolist()
        ranks_with_more = np.flatnonzero(counts > counts.min()).tolist()
        text = (
            f"{prefix}: ranks {format_ranks(ranks_with_more)} have run more collectives before it, "
            f"such as {self._describe_collective(int(earlier[0]))}, than ranks "
            f"{format_ranks(ranks_with_fewest)}, so that "
            "ASTRA-sim numbers its messages differently"
        )
        groups = self._workload.groups
        name = next((group.name for group in groups if len(group.ranks) == ranks), None)
        if name is not None:
            cure = f"name the group of all ranks of groups.json in these nodes: pg_name {name!r}"
            return _Reason(text, cure)
        used_numbers = [parse_whole(group.name, MAX_GROUP) or 0 for group in groups]
        name = str(max(used_numbers, default=0) + 1)
        listed = f"[0, ..., {ranks - 1}]" if ranks > _LISTED_RANKS else str([*range(ranks)])
        cure = (
            f'add a group of all ranks to groups.json, "{name}": {listed}, and name it in these '
            f"nodes: pg_name {name!r}"
        )
        return _Reason(text, cure)


CODE = "astra-sim-aborts"
_UNAWARE_CURE = "simulate it with -O network=congestion-unaware"
_SMALLEST_RING = 3


def find_network_abort(topology: Topology, backend: str) -> Diagnostic | None:
    """Return an error if ASTRA-sim's congestion-aware backend aborts on a topology, otherwise None.

    None if `backend` is another one, or if the topology has no dimensions (ASTRA-sim has no
    such topology, so nothing is checked). Otherwise the first rule that applies gives the
    error, with the code `astra-sim-aborts`:

    - two or more dimensions
    - one dimension that is a ring of 1 or 2 NPUs; the cure also proposes FullyConnected
    - one dimension of another kind with 1 NPU

    The cure of every error is to simulate with `-O network=congestion-unaware`. None if no rule
    applies.
    """
    dimensions = topology.dimensions
    if backend != CONGESTION_AWARE or not dimensions:
        return None
    if len(dimensions) > 1:
        message = f"the congestion-aware ASTRA-sim knows one dimension, not {len(dimensions)}"
        return Diagnostic(CODE, f"{message}: it aborts", cure=_UNAWARE_CURE)
    (only,) = dimensions
    if only.kind is DimensionKind.RING and only.size < _SMALLEST_RING:
        message = f"the congestion-aware ASTRA-sim aborts on a Ring of {only.size} NPUs"
        cure = f"write FullyConnected, which has the same links, or {_UNAWARE_CURE}"
        return Diagnostic(CODE, message, cure=cure)
    if only.size < 2:
        message = "the congestion-aware ASTRA-sim aborts on a network of one NPU"
        return Diagnostic(CODE, message, cure=_UNAWARE_CURE)
    return None


def report_event_at_zero(
    workload: Workload, layout: PreparedJob, machine: MachineState
) -> Diagnostic:
    """Return the error (`astra-sim-aborts`) about the node that schedules an event at time 0.

    The error is located at the node. The run must have stopped at this event (`ABORTED`),
    so that it is the first one in the queue of `machine`; this is not checked.
    """
    bucket = machine.entry[machine.heap[0]["first"]]["item"]
    item = int(machine.event[machine.bucket[bucket]["first"]]["item"])
    row = _find_node_of_event(item & 3, item >> 2, layout, machine)
    nodes = workload.nodes
    name = f"node {int(nodes.identity[row])} ({NodeKind(int(nodes.kind[row])).name})"
    message = f"{name} takes less than 1 ns at the start: ASTRA-sim aborts on an event at time 0"
    cure = "let a computation of 1 ns or more precede it, or make it larger"
    return Diagnostic(CODE, message, location=nodes.location(row), cure=cure)


def _find_node_of_event(kind: int, item: int, layout: PreparedJob, machine: MachineState) -> int:
    """Return the row, in the workload's nodes, of the node to which an event at time 0 belongs.

    `item` is the index of the batch, message or link of the event. The kind of event determines a
    rank and a code, i.e. the action that follows the event:

    - `BATCH_ENDS`: rank of the batch, code of its first delay
    - `DELIVERY`: source rank and sender code of the message
    - `LINK_FREE`: as `DELIVERY`, for the first sent message with bytes whose current hop is on the
      link. Raises `IndexError` without such a message.
    - others: neither

    A code that ends a node gives this node. A code that ends a step of a custom algorithm gives the
    collective that runs the algorithm. Any other code gives the first native collective of the
    rank, by identity, that started at time 0. If there is none, the result is the first node of the
    job by (rank, identity).
    """
    rank, code = -1, -1
    if kind == BATCH_ENDS:
        rank = int(machine.batch[item]["rank"])
        code = int(machine.delay[machine.batch[item]["first"]]["code"])
    elif kind == LINK_FREE:
        # The message that occupies the link is at the hop of that link.
        on_link = machine.path_link[machine.message["hop"]] == item
        is_sent = ~machine.message["is_receive"] & (machine.message["bytes"] > 0)
        item = int(np.flatnonzero(on_link & is_sent)[0])
        kind = DELIVERY
    if kind == DELIVERY:
        rank = int(machine.message[item]["source"])
        code = int(machine.message[item]["sender"])
    row = -1
    action, index = code & ((1 << CODE_BITS) - 1), code >> CODE_BITS
    if code >= 0 and action == NODE_ENDS:
        row = index
    elif code >= 0 and action == CUSTOM_ENDS:
        row = int(machine.stream[machine.progress[index]["stream"]]["row"])
    if row < 0:
        # A message of a native collective: the only collective of its rank at the start.
        is_of_rank = (machine.node["rank"] == rank) & (machine.node["start"] == 0)
        row = int(np.argmax(is_of_rank & (machine.node["action"] == COLLECTIVE_NODE)))
    return int(layout.order[row])


def report_unknown_at_start(
    workload: Workload, layout: PreparedJob, machine: MachineState
) -> tuple[Diagnostic, ...]:
    """Return an error for each collective that starts at time 0 and aborts ASTRA-sim.

    These are collective nodes that the machine cannot execute (action `NEVER_ENDS`): nodes on
    the host (`on_host`), and nodes of a kind without an algorithm. Their exception ends the
    run only at time 0; later it only stops the rank.

    `machine`: state after the simulation, from which the start times are read. Errors are
    sorted by rank, then by node identity. Each has the code `CODE`, the location of its node
    and a cure. The result is () without such collectives.
    """
    node = machine.node
    rows = layout.order[(node["action"] == NEVER_ENDS) & (node["start"] == 0)]
    nodes = workload.nodes
    diagnostics = []
    for row in rows[nodes.is_kind(NodeKind.COLLECTIVE)[rows]].tolist():
        reason = "of the host" if nodes.on_host[row] else "of a kind without algorithms"
        message = (
            f"node {int(nodes.identity[row])} is a collective {reason} that is issued at the start:"
            " ASTRA-sim aborts"
        )
        cure = "choose another kind, and let it run on the device"
        diagnostics.append(Diagnostic(CODE, message, location=nodes.location(row), cure=cure))
    return tuple(diagnostics)


def report_statistics_aborts(
    workload: Workload, layout: PreparedJob, machine: MachineState
) -> tuple[Diagnostic, ...]:
    """Return an error for each rank on whose statistics ASTRA-sim aborts, by ascending rank.

    `machine`: state after the simulation; it is only read. ASTRA-sim aborts on a rank if all
    three conditions hold:

    - The rank has a node LOAD, STORE or MARKER, or a COMPUTE node on the host.
    - The rank has a finish time.
    - A message ended its last node. The last node is the one that the simulation closed last
      on the rank. It is a SEND, a RECV, or a collective with a custom algorithm whose last
      step was no computation.

    Each error has the code `CODE`, the location of this last node, and a cure. The result is
    () if no rank is affected.
    """
    nodes = workload.nodes
    is_risky = nodes.is_kind(NodeKind.LOAD, NodeKind.STORE, NodeKind.MARKER)
    is_risky |= nodes.is_kind(NodeKind.COMPUTE) & nodes.on_host
    diagnostics = []
    for rank in distinct(nodes.rank[is_risky]).tolist():
        last = machine.node[machine.rank[rank]["last"]]
        ends_by_message = last["action"] in (SEND_NODE, RECV_NODE)
        if last["action"] == COLLECTIVE_NODE and last["choice"] < NO_CHOICE:
            ends_by_message = last["ended_by"] != NodeType.COMP
        if machine.rank[rank]["finish"] >= 0 and ends_by_message:
            row = int(layout.order[machine.rank[rank]["last"]])
            message = (
                f"node {int(nodes.identity[row])}, a message, ends the rank, which has host, memory"
                " or marker nodes: ASTRA-sim aborts in its statistics"
            )
            cure = "let a COMPUTE node of the device come last"
            diagnostics.append(Diagnostic(CODE, message, location=nodes.location(row), cure=cure))
    return tuple(diagnostics)
