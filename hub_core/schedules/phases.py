"""Give the phases of a connection separate channels, so that rounds of an algorithm can overlap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hub_core.columns import Int64Array, distinct, group_of_entry, labels, topological_levels
from hub_core.model import Algorithm, Findings, Messages, StepTable, match_messages


def separate_phases(algorithm: Algorithm) -> Algorithm:
    """Give each phase of a connection a channel of its own.

    Messages of a connection are in different phases if one has more messages before it on its
    longest chain of messages and dependencies than the other. An algorithm with lanes, whose
    thread blocks are thus fixed, and one without several phases on a connection are returned
    unchanged.
    """
    steps = algorithm.steps
    if (steps.lane >= 0).any() or not len(steps):
        return algorithm
    messages = match_messages(steps, Findings())
    phase = _number_phases(steps, messages)
    phases = int(phase.max(initial=0)) + 1
    if phases == 1:
        return algorithm
    is_message = steps.sends | steps.receives
    channel = np.where(is_message, steps.channel.astype(np.int64) * phases + phase, steps.channel)
    # Numbers without gaps, because runtimes limit the number of channels.
    channel[is_message] = np.searchsorted(distinct(channel[is_message]), channel[is_message])
    return replace(algorithm, steps=replace(steps, channel=channel.astype(np.int32)))


def _number_phases(steps: StepTable, messages: Messages) -> Int64Array:
    """Number the phases of each connection from 0: int64[rows], 0 for rows without a message.

    A connection is a pair of ranks with a channel. Its messages whose sends have the same level in
    the order of steps and messages (the length of the longest path to them) are one phase. Phases
    ascend with the level, without gaps; a receive has the phase of its send.
    """
    parents, children = steps.edges()
    order = topological_levels(
        len(steps),
        np.concatenate([parents, messages.send]),
        np.concatenate([children, messages.receive]),
    )
    level = np.zeros(len(steps), np.int64)
    level[order.nodes] = group_of_entry(order.level_indptr)
    send, receive = messages.send, messages.receive
    connection = labels(steps.rank[send], steps.peer[send], steps.channel[send])
    pair = labels(connection, level[send])
    # Pairs ascend with the connection, then with the level.
    first_pair = np.full(int(connection.max(initial=-1)) + 1, len(send), np.int64)
    np.minimum.at(first_pair, connection, pair)
    phase = np.zeros(len(steps), np.int64)
    phase[send] = phase[receive] = pair - first_pair[connection]
    return phase
