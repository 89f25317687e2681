"""An order of the calls of a job that agrees with the order of the records of every rank."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from collhub_pytorch.nccl.ranks import JobRanks
from collhub_pytorch.nccl.recorded import CallKey, RecordedCalls


def order_calls(
    calls: RecordedCalls,
    job: JobRanks,
    rows_of_call: Mapping[CallKey, Mapping[int, int]],
    notes: list[str],
) -> Sequence[CallKey]:
    """Order the calls so that every rank issues its calls in the order of its records.

    Where the orders of two ranks contradict each other, that of the lower rank is taken.
    """
    rank_of_kind = [job.rank_of[record_kind.member] for record_kind in calls.kinds]
    key_of_row = {row: key for key, rows in rows_of_call.items() for row in rows.values()}
    queues: dict[int, list[CallKey]] = defaultdict(list)
    for row, kind in enumerate(calls.kind):
        if row in key_of_row:
            queues[rank_of_kind[kind]].append(key_of_row[row])
    for queue in queues.values():
        _sort_by_sequence(queue)
    position = dict.fromkeys(queues, 0)
    missing = {key: len(rows) for key, rows in rows_of_call.items()}
    order: list[CallKey] = []
    is_done: set[CallKey] = set()
    contradictions = 0

    def advance(rank: int) -> CallKey | None:
        """Move to the next open call of a rank; return it if all its ranks have reached it."""
        queue = queues[rank]
        while position[rank] < len(queue) and queue[position[rank]] in is_done:
            position[rank] += 1
        if position[rank] == len(queue):
            return None
        key = queue[position[rank]]
        missing[key] -= 1
        return None if missing[key] else key

    reached = deque(key for rank in sorted(queues) if (key := advance(rank)) is not None)
    while len(order) < len(rows_of_call):
        if not reached:
            contradictions += 1
            rank = next(r for r in sorted(queues) if position[r] < len(queues[r]))
            reached.append(queues[rank][position[rank]])
        key = reached.popleft()
        if key in is_done:
            continue
        order.append(key)
        is_done.add(key)
        for rank in sorted(rows_of_call[key]):
            is_head = position[rank] < len(queues[rank]) and queues[rank][position[rank]] == key
            if is_head and (following := advance(rank)) is not None:
                reached.append(following)
    if contradictions:
        notes.append(
            f"the records of different ranks have different orders at {contradictions} places;"
            " the order of the lower rank is taken"
        )
    return order


def _sort_by_sequence(queue: list[CallKey]) -> None:
    """Sort the calls of every communicator by sequence number, within their positions."""
    positions: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, (communicator, word, _) in enumerate(queue):
        if communicator:
            positions[communicator, word].append(index)
    for places in positions.values():
        keys = sorted(queue[index] for index in places)
        for index, key in zip(places, keys, strict=True):
            queue[index] = key
