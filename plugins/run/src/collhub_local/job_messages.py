"""Convert the messages of a flat job to a custom collective, which executors run on real data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hub_core import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    StepKind,
    StepTable,
    UsageError,
    Workload,
)
from hub_core.columns import Int64Array, counted_positions, labels, row_pointer
from hub_core.model import (
    Contributions,
    CustomContract,
    Messages,
    NodeColumns,
    NodeKind,
    connection_keys,
    pair_in_order,
)

# Contracts have one row per unit.
_MOST_UNITS = 1 << 20
_STEP_KINDS = {NodeKind.SEND: StepKind.SEND, NodeKind.RECV: StepKind.RECV}


def algorithm_of_job(workload: Workload) -> Algorithm:
    """Convert the messages of a job to a custom algorithm, so that executors can run them.

    The algorithm has one step per node, in the order of the nodes, with the same dependencies. A
    SEND moves data from INPUT of its rank to OUTPUT of the receiver. Each message has a separate
    region; regions follow each other without gaps, in the order of the nodes. The k-th send of a
    pair of ranks with equal tag and bytes matches the k-th receive. Unmatched ones remain. Other
    nodes become COMPUTE steps with their duration, which executors do not run.

    The unit is the greatest common divisor of all message sizes. With more than 2^20 units in all
    sends, it is their total bytes / 2^20, rounded up. A message has at least one unit, and full
    units. The collective has the units of all sends; its size is these units times the unit.

    Raises `UsageError` for a job with a collective (`collective`), then for one without a SEND
    (`no-messages`).
    """
    nodes = workload.nodes
    _check(nodes)
    counts, unit_bytes = _count_units(nodes)
    is_send, is_receive = nodes.is_kind(NodeKind.SEND), nodes.is_kind(NodeKind.RECV)
    sent, input_units = _compute_offsets(nodes, np.where(is_send, counts, 0))
    received, output_units = _compute_offsets(nodes, np.where(is_receive, counts, 0))
    # One channel per tag and bytes: messages of a pair with equal ones match in order.
    channel = np.where(is_send | is_receive, labels(nodes.tag, nodes.bytes), 0)
    # All nodes except messages become work.
    step_kinds = [_STEP_KINDS.get(kind, StepKind.COMPUTE) for kind in NodeKind]
    columns: dict[str, npt.ArrayLike] = {
        "rank": nodes.rank,
        "kind": np.asarray(step_kinds, np.uint8)[nodes.kind],
        "peer": np.where(is_send | is_receive, nodes.peer, -1),
        "channel": channel,
        "src_buffer": np.where(is_send, Buffer.INPUT, Buffer.UNKNOWN),
        "src_offset": np.where(is_send, sent, 0),
        "dst_buffer": np.where(is_receive, Buffer.OUTPUT, Buffer.UNKNOWN),
        "dst_offset": np.where(is_receive, received, 0),
        "count": counts,
        "duration_ns": np.where(is_send | is_receive, -1, nodes.duration_ns),
    }
    steps = StepTable.from_columns(
        workload.num_ranks, columns, nodes.data_edges, nodes.control_edges
    )
    messages = _match_messages(nodes, channel)
    contract = CustomContract(
        input_units,
        output_units,
        np.ones(workload.num_ranks, np.bool_),
        _build_contract(nodes, messages, counts, sent, received),
    )
    collective = Collective(
        CollectiveKind.CUSTOM, workload.num_ranks, int(counts[is_send].sum()), contract=contract
    )
    scratch = np.zeros(workload.num_ranks, np.int64)
    size = unit_bytes * collective.unit_count
    return Algorithm(collective, steps, scratch, workload.provenance, size)


def _check(nodes: NodeColumns) -> None:
    """Raise `UsageError` for a job with collectives, otherwise for a job without messages.

    - `collective`: some node is a collective, whose steps are unknown. The message contains the
      identity of the first one in row order.
    - `no-messages`: no node is a SEND, also if there are RECV nodes or no nodes.
    """
    calls = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE))
    if len(calls):
        first = f"node {nodes.identity[calls[0]]}"
        message = f"{first} is a collective without steps, which cannot be run"
        raise UsageError(message, cure="run 'collhub expand' first", code="collective")
    # A buffer without units is invalid.
    if not nodes.is_kind(NodeKind.SEND).any():
        raise UsageError("the job has no messages, so it cannot be run", code="no-messages")


def _count_units(nodes: NodeColumns) -> tuple[Int64Array, int]:
    """Return the size of every node in units (int64[nodes]), and the bytes per unit.

    The unit is the greatest common divisor of the sizes of all SEND and RECV nodes; 1 byte if none
    has a size. If all sends together have more than `_MOST_UNITS` such units, the unit is their
    total divided by `_MOST_UNITS`, rounded up.

    Sizes are rounded up to full units. Other nodes, and messages without a size or of 0 bytes,
    count 1 unit. They do not enter the divisor and the total. Example: messages of 6, 4 and 0 bytes
    have 3, 2 and 1 units of 2 bytes.
    """
    is_message = nodes.is_kind(NodeKind.SEND, NodeKind.RECV)
    # A message without size, or of size 0, is one unit.
    sizes = np.where(is_message, nodes.bytes, 0).clip(0)
    total = int(sizes[nodes.is_kind(NodeKind.SEND)].sum())
    unit = max(int(np.gcd.reduce(sizes)), 1)
    if total > unit * _MOST_UNITS:
        unit = -(-total // _MOST_UNITS)
    return np.maximum(-(-sizes // unit), 1), unit


def _compute_offsets(nodes: NodeColumns, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Place the units of all rows of a rank one after the other, without gaps.

    `counts`: units of each row. Returns the first unit of every row within its rank, int64[rows],
    and the number of units of every rank, int64[ranks].
    """
    running_sum = row_pointer(counts)
    # Rows are grouped by rank: one running sum serves all ranks.
    before = running_sum[nodes.rank_indptr]
    return running_sum[:-1] - before[nodes.rank], np.diff(before)


def _match_messages(nodes: NodeColumns, channel: Int64Array) -> Messages:
    """Match sends with receives: the k-th send with the k-th receive of one connection.

    A connection is a source rank, a destination rank and a `channel` (number per row of `nodes`).
    The k-th send and receive are counted in row order. The result has two columns of row numbers:
    `receive[i]` is the partner of `send[i]`. Pairs ascend by the row of the send.

    Nodes without a partner are no error here. Their rows are in `lonely_sends` and
    `lonely_receives`, both ascending.
    """
    sends = np.flatnonzero(nodes.is_kind(NodeKind.SEND))
    receives = np.flatnonzero(nodes.is_kind(NodeKind.RECV))
    both = np.concatenate([sends, receives])
    source = np.concatenate([nodes.rank[sends], nodes.peer[receives]])
    destination = np.concatenate([nodes.peer[sends], nodes.rank[receives]])
    keys = connection_keys(source, destination, channel[both])
    return pair_in_order(sends, receives, keys[: len(sends)], keys[len(sends) :])


def _build_contract(
    nodes: NodeColumns,
    messages: Messages,
    counts: Int64Array,
    sent: Int64Array,
    received: Int64Array,
) -> Contributions:
    """Build the contract of the messages: every received unit must be the unit that was sent.

    The result has one entry per message and unit, in the order of `messages`, with ascending
    units. Unit i of a message is INPUT unit `sent[send] + i` of the sending rank, and must be
    in OUTPUT unit `received[receive] + i` of the receiving rank. `send` and `receive` are the
    message's rows in `nodes`.

    All arrays have one entry per row of `nodes`. `counts`: units of the row; for a message
    that of its send decides. Lonely sends and receives, and messages of 0 units, have no
    entry.
    """
    send, receive = messages.send, messages.receive
    sizes = counts[send]
    # One row per unit.
    unit = counted_positions(sizes)
    return Contributions(
        np.repeat(nodes.rank[receive].astype(np.int64), sizes),
        np.repeat(received[receive], sizes) + unit,
        np.repeat(nodes.rank[send].astype(np.int64), sizes),
        np.repeat(sent[send], sizes) + unit,
    )
