"""Order the steps of all ranks of an algorithm, and assign its messages to connections."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_mscclpp.writing.networks import PlanNetwork
from collhub_mscclpp.writing.switches import SwitchSteps, find_switch_steps
from hub_core.columns import Int64Array, inverse, labels, topological_levels
from hub_core.model import (
    Algorithm,
    CollectiveKind,
    Findings,
    InputError,
    Location,
    Messages,
    ReduceOp,
    StepKind,
    StepTable,
    match_messages,
)
from hub_core.verification import check_regions, common_unit

NAMES = {
    CollectiveKind.ALL_REDUCE: "allreduce",
    CollectiveKind.ALL_GATHER: "allgather",
    CollectiveKind.REDUCE_SCATTER: "reducescatter",
    CollectiveKind.ALL_TO_ALL: "alltoall",
}
"""Names of collectives in plans; all other collectives are `custom`."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanWork:
    """An algorithm with ordered steps.

    `unit`: units of a chunk. `order`: int64, rows of all ranks; each row follows its dependencies
    and the earlier messages of its connection, and steps of one operation of a switch are adjacent.
    `position`: int64[rows], index in `order`. `connection`: int64[rows], connection of a message,
    else -1. `source`, `destination`: int64, ranks of every connection. A connection is used by one
    lane of each of its ranks, and both execute its messages in the same order. `lane`: int64[rows].
    `switches`: steps that switch channels execute.
    """

    algorithm: Algorithm
    unit: int
    messages: Messages
    order: Int64Array
    position: Int64Array
    connection: Int64Array
    source: Int64Array
    destination: Int64Array
    lane: Int64Array
    switches: SwitchSteps

    @property
    def steps(self) -> StepTable:
        """The steps of the algorithm."""
        return self.algorithm.steps

    def edges(self) -> tuple[Int64Array, Int64Array]:
        """Return (parents, children) of all dependencies, including those that the plan adds."""
        return _collect_dependencies(self.steps, self.switches)


def order_work(
    algorithm: Algorithm,
    network: PlanNetwork | None = None,
    *,
    has_switch_sums: bool = False,
    is_sliced: bool = False,
) -> PlanWork:
    """Return an order of execution of all steps of an algorithm, with messages and connections.

    A connection is a channel of the plan. A step follows its dependencies, a receive its send,
    and a message the earlier messages of its connection. Steps are ordered by level (longest path
    of dependencies), then by row. A switch operation (multicast or sum in a switch) counts as one
    step; its steps are adjacent. There are none without `network`, and no sums without
    `has_switch_sums`. `is_sliced`: messages are sent in slices; operations with many messages
    are then not formed. Operations in a cycle of waiting steps become ordinary messages.

    Raises `InputError` for the first case: no units of steps; a reduction other than a sum;
    compute steps; unmatched messages and regions out of range (all such errors together); steps
    that still wait in a cycle.
    """
    steps = algorithm.steps
    if not algorithm.has_contents:
        reason = "the steps do not say which units they move"
        raise _describe_refusal(algorithm, reason, "write plans from algorithms with contents")
    if algorithm.collective.reduces and algorithm.collective.reduce_op is not ReduceOp.SUM:
        raise _describe_refusal(algorithm, "the executor always sums", "write plans for sums")
    if algorithm.steps.is_kind(StepKind.COMPUTE).any():
        reason = "plans have no computation"
        raise _describe_refusal(algorithm, reason, "leave the compute steps out")
    findings = Findings(algorithm.provenance.source_name or None)
    # Channels of plans are paired by order, so every message needs its partner.
    messages = match_messages(steps, findings)
    check_regions(algorithm, findings)
    if errors := [*findings]:
        raise InputError(errors)
    switches = SwitchSteps.empty(len(steps))
    if network is not None:
        switches = find_switch_steps(
            algorithm, messages, network, has_sums=has_switch_sums, is_sliced=is_sliced
        )
    while True:
        lane = switches.lanes(steps)
        connection, rank_pairs = _assign_connections(steps, messages, lane, switches)
        edges = _collect_edges(steps, messages, connection, switches)
        order, in_cycle = _order_rows(edges, switches)
        if not len(in_cycle):
            break
        # Thread blocks execute operations one after another, so a cycle would deadlock.
        if not switches.remove_cycle(in_cycle.tolist()):
            raise _describe_refusal(algorithm, "steps wait for each other", "verify the algorithm")
    position = inverse(order)
    return PlanWork(
        algorithm,
        common_unit(algorithm),
        messages,
        order,
        position,
        connection,
        rank_pairs[:, 0],
        rank_pairs[:, 1],
        lane,
        switches,
    )


def _order_rows(
    edges: tuple[Int64Array, Int64Array], switches: SwitchSteps
) -> tuple[Int64Array, Int64Array]:
    """Return (order of all rows that respects the dependencies, rows for which there is none).

    `edges`: (parents, children), as rows. The order can be used only if the second array is
    empty. The second array ascends. The first rule that applies:

    1. The rows in a cycle of dependencies, and all rows that depend on them.
    2. The rows of switch operations that wait for each other, and all rows that depend on them.
    3. Empty.

    A level is the length of the longest path of dependencies to a row. Without switch
    operations, rows are ordered by level, then by row. With them, the rows of an operation form
    a node; a sum and the multicast of its result are one node. Any other row is a node. Nodes are
    ordered by their level, then by their first row in the list of the operation. The rows of a
    node are adjacent, ordered by their own level, then by row.
    """
    rows = len(switches.multicast)
    parents, children = edges
    plain = topological_levels(rows, parents, children)
    if not plain.is_complete or switches.is_empty:
        return plain.nodes, np.flatnonzero(plain.position < 0)
    cluster = np.unique(switches.clusters(rows), return_inverse=True)[1].astype(np.int64)
    is_between = cluster[parents] != cluster[children]
    joint = topological_levels(
        int(cluster.max()) + 1, cluster[parents][is_between], cluster[children][is_between]
    )
    level = joint.position[cluster]
    return np.lexsort((plain.position, level)), np.flatnonzero(level < 0)


def _collect_dependencies(steps: StepTable, switches: SwitchSteps) -> tuple[Int64Array, Int64Array]:
    """Return (parents, children), int64: all dependencies between the steps, by row.

    First the data and control dependencies of the steps, then those that switch operations
    add (`SwitchSteps.control_edges`). Pairs may occur repeatedly.
    """
    parents, children = steps.edges()
    added_parents, added_children = switches.control_edges()
    return np.concatenate([parents, added_parents]), np.concatenate([children, added_children])


def _describe_refusal(algorithm: Algorithm, reason: str, cure: str) -> InputError:
    """Return the error for an algorithm that no plan can express; it is not raised here.

    The code is `plan`; the location is the source file of the algorithm, if known.
    """
    location = Location(algorithm.provenance.source_name or None)
    message = f"cannot be written as a plan: {reason}"
    return InputError(message, location=location, cure=cure, code="plan")


def _assign_connections(
    steps: StepTable, messages: Messages, lane: Int64Array, switches: SwitchSteps
) -> tuple[Int64Array, Int64Array]:
    """Assign a connection (one channel of the plan) to every message.

    Returns the connection of every row, -1 for rows without a message, and the sender and
    receiver of each connection, int64[connections, 2]. Messages share a connection if they
    agree in sender, receiver, channel, lane of the send and lane of the receive. If there are
    switch operations, they must also agree in whether a multicast of a switch sends them.
    Connections are numbered from 0 in the ascending order of these values. `lane`: int64[rows].
    `messages`: all messages, matched.
    """
    send, receive = messages.send, messages.receive
    columns = [
        steps.rank[send].astype(np.int64),
        steps.rank[receive].astype(np.int64),
        steps.channel[send].astype(np.int64),
        lane[send],
        lane[receive],
    ]
    if not switches.is_empty:
        # Lanes of switch operations start at the same number on senders and receivers.
        columns.append((switches.multicast[send] >= 0).astype(np.int64))
    # With one lane at each end, a counter is used in the order of its messages.
    number = labels(*columns)
    _, first = np.unique(number, return_index=True)
    rank_pairs = np.stack(columns[:2], axis=1)[first].astype(np.int64)
    connection = np.full(len(steps), -1, np.int64)
    connection[send] = number
    connection[receive] = number
    return connection, rank_pairs


def _collect_edges(
    steps: StepTable, messages: Messages, connection: Int64Array, switches: SwitchSteps
) -> tuple[Int64Array, Int64Array]:
    """Return the rows (parents, children) between which the order of execution is fixed.

    The pairs are, in this order:

    - dependencies of the steps (program order included), and those that switch operations add
    - each send and its receive
    - on each connection, each send and the next send, by rows of the sends
    - on each connection, the receives of these same two messages

    Messages of a connection must stay in order, because a signal is only a count. Pairs may
    occur repeatedly. `connection`: connection of each row, -1 without a message.
    """
    parents, children = _collect_dependencies(steps, switches)
    number = connection[messages.send]
    # Messages are sorted by send, and so are the receives of each connection.
    by_connection = np.argsort(number, kind="stable")
    follows = np.diff(number[by_connection]) == 0
    before, after = by_connection[:-1][follows], by_connection[1:][follows]
    send, receive = messages.send, messages.receive
    return (
        # A signal carries only a count, so the messages of a connection must stay in order.
        np.concatenate([parents, send, send[before], receive[before]]),
        np.concatenate([children, receive, send[after], receive[after]]),
    )
