"""Kernels of execution times: they run as plain Python, or as machine code on large programs.

See `list_kernels` for the two forms of a kernel; their results are equal.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple


class LinkSteps(NamedTuple):
    """Steps of a program on links that messages share, one entry per step.

    `is_send`: 1 for a step that sends. `time`: of its units on a link. `partner`: step at the other
    side of a message, NONE without one. `waits`: number of steps that it waits for; the steps that
    wait for step s are `children[child_start[s]:child_start[s + 1]]`. `ranks`: their number.
    """

    rank: Any
    is_send: Any
    time: Any
    partner: Any
    waits: Any
    child_start: Any
    children: Any
    ranks: int


class LinkState(NamedTuple):
    """State of a simulation, with zeros at first.

    By step: `missing`, how many steps it still waits for; `ready`, the steps in the order in which
    they became ready; `has_begun`, `has_arrived`: 1 if so. `free`: by rank the time at which the
    link out of it becomes free, then by rank that of the link into it.
    """

    missing: Any
    ready: Any
    has_begun: Any
    has_arrived: Any
    free: Any


def order_rows(waits: Any, child_start: Any, children: Any, missing: Any) -> Any:
    """Return a topological order of rows; of the rows that are ready the lowest one is next.

    `waits`: number of rows that each row waits for. The rows that wait for row r are
    `children[child_start[r]:child_start[r + 1]]`. `missing`: zeros, one for each row. The order is
    shorter if there is a cycle. Cost: n log n in rows.
    """
    ready = [0 for _ in range(0)]
    order = [0 for _ in range(0)]
    for row in range(len(waits)):
        missing[row] = waits[row]
        if waits[row] == 0:
            # An ascending list is a heap.
            ready.append(row)
    while len(ready) > 0:
        row = heapq.heappop(ready)
        order.append(row)
        for place in range(child_start[row], child_start[row + 1]):
            child = children[place]
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(ready, child)
    return order


def relax_begins(parents: Any, children: Any, lasting: Any, begin: Any) -> Any:
    """Return the earliest begin of every step, the longest path to it.

    Step `children[i]` begins no earlier than `lasting[i]` after the begin of step `parents[i]`. The
    entries must be in an order of execution of the parents. `begin`: zeros at first. Cost: linear.
    """
    for index in range(len(parents)):
        earliest = begin[parents[index]] + lasting[index]
        if earliest > begin[children[index]]:
            begin[children[index]] = earliest
    return begin


def simulate_links(steps: LinkSteps, state: LinkState, latency: int) -> int:
    """Run a simulation; return the time at which the last message arrives, or 0 without messages.

    The unit is that of `steps.time`. A message crosses the link out of its sender, then the link
    into its receiver. It occupies each link for its time, and reaches the end of the link one
    latency later. Each link carries one message at a time, in the order in which messages reach it;
    at equal times the message that was queued first for its previous link comes first. A send step
    finishes when its message has arrived. A receive finishes when its message has arrived and the
    steps before it have finished. Local steps take no time. Steps that can never begin are ignored.
    Every send needs a matching receive (not checked).

    Of the steps that become ready together, those that wait for the first finished step come first,
    then lower ones. Cost: n log n in steps.
    """
    # Messages in transit: (arrival time, number, sending step, 1 on the link to the receiver).
    events = [(0, 0, 0, 0) for _ in range(0)]
    now, number, first_ready, end_of_ready = 0, 0, 0, 0
    # Finished steps, whose children become ready before any further step begins.
    finished_steps = [0 for _ in range(0)]
    for step in range(len(steps.rank)):
        state.missing[step] = steps.waits[step]
        if steps.waits[step] == 0:
            state.ready[end_of_ready] = step
            end_of_ready += 1
    while True:
        # Begin all ready steps, which can make further ones ready.
        while first_ready < end_of_ready or len(finished_steps) > 0:
            if len(finished_steps) > 0:
                finished = finished_steps.pop()
                for place in range(steps.child_start[finished], steps.child_start[finished + 1]):
                    child = steps.children[place]
                    state.missing[child] -= 1
                    if state.missing[child] == 0:
                        state.ready[end_of_ready] = child
                        end_of_ready += 1
                continue
            step = state.ready[first_ready]
            first_ready += 1
            state.has_begun[step] = 1
            if steps.is_send[step] != 0:
                link = steps.rank[step]
                state.free[link] = max(state.free[link], now) + steps.time[step]
                heapq.heappush(events, (state.free[link] + latency, number, step, 0))
                number += 1
            elif steps.partner[step] < 0 or state.has_arrived[step] != 0:
                finished_steps.append(step)
        if len(events) == 0:
            return now
        now, _, step, is_to_rank = heapq.heappop(events)
        receiver = steps.partner[step]
        if is_to_rank == 0:
            link = steps.ranks + steps.rank[receiver]
            state.free[link] = max(state.free[link], now) + steps.time[step]
            heapq.heappush(events, (state.free[link] + latency, number, step, 1))
            number += 1
            continue
        state.has_arrived[receiver] = 1
        # The receive, if it has begun, finishes before the send: the last entry is taken first.
        finished_steps.append(step)
        if state.has_begun[receiver] != 0:
            finished_steps.append(receiver)
