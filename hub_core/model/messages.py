"""Pair every send with its receive: the k-th with the k-th of one (source, destination, channel)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.model.findings import CAP, Findings
from hub_core.model.steps import StepTable
from hub_core.model.wording import action, describe

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages: `send` and `receive` rows of equal length, ascending in `send`, and the rows without partner."""

    send: Int64Array
    receive: Int64Array
    lonely_sends: Int64Array
    lonely_receives: Int64Array


def match_messages(steps: StepTable, findings: Findings) -> Messages:
    """Return the messages; peers out of range, missing partners and unequal counts become findings.

    Cost: two sorts of the message rows, next to nothing where they are in order already.
    """
    addressed = _check_peers(steps, findings)
    sends = np.flatnonzero(steps.sends & addressed)
    receives = np.flatnonzero(steps.receives & addressed)
    send_key = _connection_keys(steps, sends, steps.rank, steps.peer)
    receive_key = _connection_keys(steps, receives, steps.peer, steps.rank)
    send_order, receive_order = (
        np.argsort(send_key, kind="stable"),
        np.argsort(receive_key, kind="stable"),
    )
    sends, send_key = sends[send_order], send_key[send_order]
    receives, receive_key = receives[receive_order], receive_key[receive_order]
    if np.array_equal(send_key, receive_key):
        paired = _messages(sends, receives, sends[:0], receives[:0])
    else:
        paired = _pair_unequal(sends, send_key, receives, receive_key)
    _report(steps, paired, findings)
    return paired


def _check_peers(steps: StepTable, findings: Findings) -> npt.NDArray[np.bool_]:
    """Mask of the message rows whose peer is another rank of the collective."""
    is_message = steps.sends | steps.receives
    outside = is_message & ((steps.peer < 0) | (steps.peer >= steps.num_ranks))
    own = is_message & (steps.peer == steps.rank)
    expected = f"expected 0..{steps.num_ranks - 1}"
    findings.add_rows(
        "peer-range",
        steps,
        np.flatnonzero(outside),
        lambda row: f"peer {int(steps.peer[row])} is not a rank, {expected}: {action(steps, row)}",
    )
    findings.add_rows(
        "self-message",
        steps,
        np.flatnonzero(own),
        lambda row: f"the peer of a message is the rank itself: {action(steps, row)}",
        cure="use a local copy",
    )
    addressed: npt.NDArray[np.bool_] = is_message & ~outside & ~own
    return addressed


def _connection_keys(
    steps: StepTable,
    rows: Int64Array,
    source: npt.NDArray[np.int32],
    destination: npt.NDArray[np.int32],
) -> Int64Array:
    """One integer per (source, destination, channel), ordered like the triple."""
    pair = source[rows].astype(np.int64) * steps.num_ranks + destination[rows]
    channels = np.unique(steps.channel)
    if len(channels) <= 1:
        return pair
    return pair * len(channels) + np.searchsorted(channels, steps.channel[rows])


def _pair_unequal(
    sends: Int64Array, send_key: Int64Array, receives: Int64Array, receive_key: Int64Array
) -> Messages:
    """Pair by (connection, ordinal) where some partner is missing."""
    _, inverse = np.unique(np.concatenate([send_key, receive_key]), return_inverse=True)
    width = len(sends) + len(receives) + 1
    send_slot = inverse[: len(sends)] * width + _ordinals(send_key)
    receive_slot = inverse[len(sends) :] * width + _ordinals(receive_key)
    _, s, r = np.intersect1d(send_slot, receive_slot, assume_unique=True, return_indices=True)
    return _messages(sends[s], receives[r], np.delete(sends, s), np.delete(receives, r))


def _ordinals(sorted_keys: Int64Array) -> Int64Array:
    first = np.flatnonzero(
        np.concatenate([[True], sorted_keys[1:] != sorted_keys[:-1]])[: len(sorted_keys)]
    )
    return np.arange(len(sorted_keys)) - np.repeat(
        first, np.diff(np.append(first, len(sorted_keys)))
    )


def _messages(
    send: Int64Array, receive: Int64Array, lonely_sends: Int64Array, lonely_receives: Int64Array
) -> Messages:
    order = np.argsort(send, kind="stable")
    return Messages(send[order], receive[order], np.sort(lonely_sends), np.sort(lonely_receives))


def _report(steps: StepTable, messages: Messages, findings: Findings) -> None:
    def lonely(row: int) -> str:
        return f"nothing at rank {int(steps.peer[row])} on channel {int(steps.channel[row])} matches this {action(steps, row)}"

    findings.add_rows("unmatched-send", steps, messages.lonely_sends, lonely)
    findings.add_rows("unmatched-receive", steps, messages.lonely_receives, lonely)
    unequal = np.flatnonzero(steps.count[messages.send] != steps.count[messages.receive])
    partner = dict(
        zip(
            messages.receive[unequal[:CAP]].tolist(),
            messages.send[unequal[:CAP]].tolist(),
            strict=True,
        )
    )

    def mismatch(row: int) -> str:
        send = partner[row]
        counts = f"{int(steps.count[row])} units are expected, {int(steps.count[send])} are sent"
        return f"{counts}: this {action(steps, row)} matches {describe(steps, send)}"

    findings.add_rows("count-mismatch", steps, messages.receive[unequal], mismatch)
