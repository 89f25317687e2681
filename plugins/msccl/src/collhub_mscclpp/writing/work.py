"""The steps of an algorithm in one order of all ranks, and the connections of its messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_mscclpp.writing.networks import PlanNetwork
from collhub_mscclpp.writing.switches import SwitchSteps, switch_steps
from hub_core.columns import Int64Array, labels, topological_levels
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
"""Collectives that plans name; all others are `custom`."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanWork:
    """An algorithm ready to be written.

    `unit`: units of a chunk. `order`: int64, rows of all ranks, none before what it waits for nor
    before earlier messages of its connection; steps of one operation of a switch stand together.
    `position`: int64[rows], place in `order`. `connection`: int64[rows], of messages, else -1.
    `source`, `destination`: int64, ranks of every connection. A connection is used by one lane of
    each of its ranks; all its messages are in order on both. `lane`: int64[rows]. `switches`: the
    steps that switch channels may do.
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
        """(parents, children) of all dependencies, those of the plan's own included."""
        return _dependencies(self.steps, self.switches)


def work_of(
    algorithm: Algorithm,
    network: PlanNetwork | None = None,
    *,
    has_switch_sums: bool = False,
    is_sliced: bool = False,
) -> PlanWork:
    """Match and order the steps. Raises `InputError` for what no plan can do.

    `has_switch_sums`: whether switches may add; `is_sliced`: whether messages go slice by slice.
    """
    steps = algorithm.steps
    _refuse_untold(algorithm)
    findings = Findings(algorithm.provenance.source_name or None)
    # Channels of plans pair by order, so that every message must have its partner.
    messages = match_messages(steps, findings)
    check_regions(algorithm, findings)
    if errors := [*findings]:
        raise InputError(errors)
    switches = SwitchSteps.empty(len(steps))
    if network is not None:
        switches = switch_steps(
            algorithm, messages, network, has_sums=has_switch_sums, is_sliced=is_sliced
        )
    while True:
        lane = switches.lanes(steps)
        connection, ends = _connections(steps, messages, lane, switches)
        order, in_cycle = _order(_edges(steps, messages, connection, switches), switches)
        if not len(in_cycle):
            break
        # Blocks do their operations one after another: what waits in a cycle hangs.
        if not switches.loosen(in_cycle.tolist()):
            raise _refusal(algorithm, "steps wait for each other", "verify the algorithm")
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return PlanWork(
        algorithm,
        common_unit(algorithm),
        messages,
        order,
        position,
        connection,
        ends[:, 0],
        ends[:, 1],
        lane,
        switches,
    )


def _order(
    edges: tuple[Int64Array, Int64Array], switches: SwitchSteps
) -> tuple[Int64Array, Int64Array]:
    """(rows in order, steps of one operation next to each other; rows in or after a cycle)."""
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
    place = joint.position[cluster]
    return np.lexsort((plain.position, place)), np.flatnonzero(place < 0)


def _dependencies(steps: StepTable, switches: SwitchSteps) -> tuple[Int64Array, Int64Array]:
    parents, children = steps.edges()
    added_parents, added_children = switches.control_edges()
    return np.concatenate([parents, added_parents]), np.concatenate([children, added_children])


def _refuse_untold(algorithm: Algorithm) -> None:
    """Refuse traces of times, which do not say what they move."""
    if not algorithm.has_contents:
        reason = "the steps do not say which units they move"
        raise _refusal(algorithm, reason, "write plans from algorithms with contents")
    if algorithm.collective.reduces and algorithm.collective.reduce_op is not ReduceOp.SUM:
        raise _refusal(algorithm, "the executor always sums", "write plans for sums")
    if algorithm.steps.is_kind(StepKind.COMPUTE).any():
        raise _refusal(algorithm, "plans have no computation", "leave the compute steps out")


def _refusal(algorithm: Algorithm, reason: str, cure: str) -> InputError:
    place = Location(algorithm.provenance.source_name or None)
    message = f"cannot be written as a plan: {reason}"
    return InputError(message, location=place, cure=cure, code="plan")


def _connections(
    steps: StepTable, messages: Messages, lane: Int64Array, switches: SwitchSteps
) -> tuple[Int64Array, Int64Array]:
    """Connection of every row, and (source, destination) of every connection."""
    send, receive = messages.send, messages.receive
    columns = [
        steps.rank[send].astype(np.int64),
        steps.rank[receive].astype(np.int64),
        steps.channel[send].astype(np.int64),
        lane[send],
        lane[receive],
    ]
    if not switches.is_empty:
        # Lanes of switches count from one number on, on senders and on receivers.
        columns.append((switches.multicast[send] >= 0).astype(np.int64))
    # One lane at each end keeps a counter in the order of its messages.
    number = labels(*columns)
    _, first = np.unique(number, return_index=True)
    ends = np.stack(columns[:2], axis=1)[first].astype(np.int64)
    connection = np.full(len(steps), -1, np.int64)
    connection[send] = number
    connection[receive] = number
    return connection, ends


def _edges(
    steps: StepTable, messages: Messages, connection: Int64Array, switches: SwitchSteps
) -> tuple[Int64Array, Int64Array]:
    """(parent, child): dependencies, messages, and the order of messages on a connection."""
    parents, children = _dependencies(steps, switches)
    number = connection[messages.send]
    # Messages ascend in their sends, and so do the receives of each connection.
    by_connection = np.argsort(number, kind="stable")
    follows = np.diff(number[by_connection]) == 0
    before, after = by_connection[:-1][follows], by_connection[1:][follows]
    send, receive = messages.send, messages.receive
    return (
        # Signals tell a number alone: messages of a connection must not overtake.
        np.concatenate([parents, send, send[before], receive[before]]),
        np.concatenate([children, receive, send[after], receive[after]]),
    )
