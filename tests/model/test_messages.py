"""Pairs of messages against queues, one per connection, and exact sizes of messages."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import (
    Findings,
    InputError,
    StepKind,
    StepTable,
    connection_keys,
    match_messages,
    matched_messages,
    matched_order,
    message_bytes,
    pair_in_order,
)

CONNECTIONS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(-2, 2**31 - 1))
ROWS = st.lists(st.tuples(st.booleans(), CONNECTIONS), max_size=40)


@given(st.lists(CONNECTIONS, min_size=1, max_size=30))
def test_connection_keys_are_ordered_like_the_triples(triples):
    columns = [np.asarray(column) for column in zip(*triples, strict=True)]
    keys = connection_keys(*columns).tolist()
    for key, triple in zip(keys, triples, strict=True):
        for other_key, other in zip(keys, triples, strict=True):
            assert (key < other_key) == (triple < other)


@given(ROWS)
def test_sends_and_receives_meet_in_order_of_their_connection(rows):
    queues: dict[tuple[bool, tuple[int, int, int]], deque[int]] = defaultdict(deque)
    for row, side_and_connection in enumerate(rows):
        queues[side_and_connection].append(row)
    met = set()
    for connection in {connection for _, connection in rows}:
        sends, receives = queues[True, connection], queues[False, connection]
        while sends and receives:
            met.add((sends.popleft(), receives.popleft()))
    columns = np.asarray([connection for _, connection in rows], np.int64).reshape(-1, 3)
    keys = connection_keys(*columns.T)
    is_send = np.asarray([is_send for is_send, _ in rows], np.bool_)
    sends, receives = np.flatnonzero(is_send), np.flatnonzero(~is_send)
    messages = pair_in_order(sends, receives, keys[is_send], keys[~is_send])
    assert set(zip(messages.send.tolist(), messages.receive.tolist(), strict=True)) == met
    assert messages.send.tolist() == sorted(messages.send.tolist())
    assert messages.lonely_sends.tolist() == sorted(set(sends) - {send for send, _ in met})
    assert messages.lonely_receives.tolist() == sorted(set(receives) - {row for _, row in met})


def test_messages_of_a_table_meet_on_their_channel():
    columns = {
        "rank": [0, 0, 1, 1],
        "kind": [StepKind.SEND, StepKind.SEND, StepKind.RECV, StepKind.RECV],
        "peer": [1, 1, 0, 0],
        "channel": [0, 1, 1, 0],
        "count": [1, 1, 1, 1],
    }
    findings = Findings()
    messages = match_messages(StepTable.from_columns(2, columns), findings)
    assert (messages.send.tolist(), messages.receive.tolist()) == ([0, 1], [3, 2])
    assert list(findings) == []


def test_shared_columns_of_matched_messages_are_read_only() -> None:
    columns = {
        "rank": [0, 1],
        "kind": [StepKind.SEND, StepKind.RECV],
        "peer": [1, 0],
        "count": [1, 1],
    }
    messages = matched_messages(StepTable.from_columns(2, columns))
    shared = messages.send, messages.receive, messages.lonely_sends, messages.lonely_receives
    assert not any(column.flags.writeable for column in shared)


def test_the_order_of_a_table_follows_dependencies_and_messages() -> None:
    columns = {
        "rank": [0, 1, 1],
        "kind": [StepKind.SEND, StepKind.RECV, StepKind.SEND],
        "peer": [1, 0, 2],
        "count": [1, 1, 1],
    }
    order = matched_order(StepTable.from_columns(3, columns, data=([1], [2])))
    # The send of rank 1 waits for its receive, and that for the send of rank 0.
    assert order.nodes.tolist() == [0, 1, 2]
    assert order.level_indptr.tolist() == [0, 1, 2, 3]
    shared = order.nodes, order.level_indptr, order.position
    assert not any(column.flags.writeable for column in shared)


def test_messages_with_more_bytes_than_int64_holds_are_refused() -> None:
    counts = np.full(3, 4, np.int64)
    assert message_bytes(2**62, 8, counts).sum() == 3 * 2**61
    with pytest.raises(InputError, match="bytes together, more than can be counted"):
        message_bytes(2**62, 8, np.full(5, 4, np.int64))


@given(st.integers(1, 2**62), st.integers(1, 2**40), st.lists(st.integers(0, 2**41), max_size=8))
def test_message_bytes_sum_exactly_or_are_refused(size: int, units: int, counts: list[int]) -> None:
    exact = [-(-count * size // units) for count in counts]
    try:
        found = message_bytes(size, units, np.asarray(counts, np.int64))
    except InputError:
        assert sum(exact) >= 2**63 * (1 - 1e-8)
        return
    assert found.tolist() == exact
    assert int(found.sum()) == sum(exact)
