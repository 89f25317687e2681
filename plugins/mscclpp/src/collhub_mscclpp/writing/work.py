"""The steps of an algorithm in one order of all ranks, and the connections of its messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import Int64Array, labels, topological_levels

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
    before earlier messages of its connection. `position`: int64[rows], place in `order`.
    `connection`: int64[rows], of messages, else -1. `source`, `destination`: int64, ranks of every
    connection. A connection is used by one lane of each of its ranks; all its messages are in
    order on both.
    """

    algorithm: Algorithm
    unit: int
    messages: Messages
    order: Int64Array
    position: Int64Array
    connection: Int64Array
    source: Int64Array
    destination: Int64Array

    @property
    def steps(self) -> StepTable:
        """The steps of the algorithm."""
        return self.algorithm.steps


def work_of(algorithm: Algorithm) -> PlanWork:
    """Match and order the steps. Raises `InputError` for what no plan can do."""
    steps = algorithm.steps
    _refuse_untold(algorithm)
    findings = Findings(algorithm.provenance.source_name or None)
    # Channels of plans pair by order, so that every message must have its partner.
    messages = match_messages(steps, findings)
    check_regions(algorithm, findings)
    if errors := [*findings]:
        raise InputError(errors)
    connection, ends = _connections(steps, messages)
    order = topological_levels(len(steps), *_edges(steps, messages, connection))
    # Blocks do their operations one after another: what waits in a circle hangs.
    if not order.is_complete:
        raise _refusal(algorithm, "steps wait for each other", "verify the algorithm")
    return PlanWork(
        algorithm,
        common_unit(algorithm),
        messages,
        order.nodes,
        order.position,
        connection,
        ends[:, 0],
        ends[:, 1],
    )


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


def _connections(steps: StepTable, messages: Messages) -> tuple[Int64Array, Int64Array]:
    """Connection of every row, and (source, destination) of every connection."""
    send, receive = messages.send, messages.receive
    columns = [
        steps.rank[send],
        steps.rank[receive],
        steps.channel[send],
        steps.lane[send],
        steps.lane[receive],
    ]
    # One lane at each end keeps a counter in the order of its messages.
    number = labels(*columns)
    _, first = np.unique(number, return_index=True)
    ends = np.stack(columns[:2], axis=1)[first].astype(np.int64)
    connection = np.full(len(steps), -1, np.int64)
    connection[send] = number
    connection[receive] = number
    return connection, ends


def _edges(
    steps: StepTable, messages: Messages, connection: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """(parent, child): dependencies, messages, and the order of messages on a connection."""
    parents, children = steps.edges()
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
