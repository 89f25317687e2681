"""The rule of the pipeliner in plain Python: a list of events, and of messages that wait."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from collhub_packing.pipelining import Pipelining

from hub_core.model import message_bytes
from hub_core.network import Occupancy


@dataclass
class PlainMessage:
    """One operation for one chunk."""

    number: int
    urgency: tuple[Fraction, int, int, int, int]
    route: list[int]
    size: int
    needs: int
    followers: list[int]
    start: int = -1
    finish: int = -1
    is_root: bool = False


def plain_schedule(pipelining: Pipelining, counts: list[int]) -> tuple[list[int], list[int]]:
    """Start and finish of all messages; for routes of one link."""
    messages = _messages(pipelining, counts)
    topology, is_blocking = pipelining.topology, pipelining.occupancy is Occupancy.ALPHA_BETA
    free_at: dict[int, int] = {}
    ready = [message.number for message in messages if message.needs == 0]
    ending: list[tuple[int, int]] = []
    moments = {0}
    while moments:
        now = min(moments)
        moments.remove(now)
        for time, number in [event for event in ending if event[0] == now]:
            ending.remove((time, number))
            for follower in messages[number].followers:
                messages[follower].needs -= 1
                if messages[follower].needs == 0:
                    ready.append(follower)
        for number in sorted(ready, key=lambda number: messages[number].urgency):
            message = messages[number]
            link = message.route[0]
            if free_at.get(link, 0) > now:
                continue
            serialization = int(np.rint(message.size * 1e12 / topology.bandwidth_bytes_per_s[link]))
            arrival = now + serialization + int(np.rint(topology.latency_s[link] * 1e12))
            is_first_of_many = link not in free_at and message.is_root
            free_at[link] = arrival if is_blocking or is_first_of_many else now + serialization
            message.start, message.finish = now, arrival
            ready.remove(number)
            ending.append((arrival, number))
            moments |= {arrival, free_at[link]}
    return [message.start for message in messages], [message.finish for message in messages]


def _messages(pipelining: Pipelining, counts: list[int]) -> list[PlainMessage]:
    messages: list[PlainMessage] = []
    first_operation, num_npus = 0, pipelining.topology.num_npus
    parts = [stream.part / counts[stream.tree] for stream in pipelining.streams]
    units = int(np.lcm.reduce([part.denominator for part in parts]))
    shares = pipelining.schedule(counts).collective.unit_count // units
    for stream, part in zip(pipelining.streams, parts, strict=True):
        operations = stream.operations
        size = int(
            message_bytes(
                pipelining.collective_bytes, shares * units, np.asarray([int(part * units)])
            )[0]
        )
        for chunk in range(counts[stream.tree]):
            base = len(messages)
            for operation in range(len(operations)):
                number = base + operation
                first = pipelining.routes.indptr[first_operation + operation]
                last = pipelining.routes.indptr[first_operation + operation + 1]
                needs = int(np.count_nonzero(operations.after == operation))
                urgency = (
                    Fraction(chunk, counts[stream.tree]),
                    -int(operations.remaining[operation]),
                    int(operations.root[operation] - operations.source[operation]) % num_npus,
                    int(operations.destination[operation] - operations.source[operation])
                    % num_npus,
                    number,
                )
                followers = [
                    base + int(after) for after in operations.after[operations.before == operation]
                ]
                route = pipelining.routes.links[first:last].tolist()
                messages.append(
                    PlainMessage(number, urgency, route, size, needs, followers, is_root=needs == 0)
                )
        first_operation += len(operations)
    return messages
