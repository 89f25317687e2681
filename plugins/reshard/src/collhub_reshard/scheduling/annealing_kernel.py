"""Simulated annealing over the order of tasks, compiled.

Import it late: numba takes a second. A state is an order of all tasks and a sender of each one. Its
schedule starts every task as soon as its cards are free, never before an earlier task of the order
on the same cards. A move puts one task at another position, swaps two tasks, or chooses another
sender. The cost counts in ticks, for every card, the time after the target at which it becomes
free, the makespan after the target, and the lateness of the latest task, which weighs more than all
else. A worse state is accepted with the probability exp(-increase / temperature) (Metropolis et al.
1953; Kirkpatrick, Gelatt and Vecchi 1983). One move costs O(tasks x receiving hosts of a task); the
file is one kernel for speed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_packing.compiling import lean_kernel, lean_part

from hub_core.columns import Int64Array


class TaskColumns(NamedTuple):
    """Tasks as int64 columns; hosts are numbered from 0 separately for sending and receiving.

    Task u may be sent by `sender[choice_start[u] : choice_start[u + 1]]`, which takes the `ticks`
    at the same positions, to all of `receiver[receiver_start[u] : receiver_start[u + 1]]`. Before
    `release[u]` it does not start; `due[u]` is the time at which it should end.
    """

    choice_start: Int64Array
    sender: Int64Array
    ticks: Int64Array
    receiver_start: Int64Array
    receiver: Int64Array
    release: Int64Array
    due: Int64Array


class AnnealingState(NamedTuple):
    """The order of tasks and the position of each task's sender in `Tasks.sender`."""

    order: Int64Array
    choice: Int64Array


class CardTimes(NamedTuple):
    """Time at which each card (host, card) becomes free, int64, in both directions."""

    sending: Int64Array
    receiving: Int64Array


@lean_part
def _find_first_free(free: Int64Array) -> int:
    """Return the number of the card of a host that becomes free first; the lowest number wins ties.

    `free`: int64, the tick at which each card becomes free; it must not be empty.
    """
    card = 0
    for other in range(1, free.size):
        if free[other] < free[card]:
            card = other
    return card


@lean_part
def _evaluate(
    tasks: TaskColumns, state: AnnealingState, cards: CardTimes, target: int, outcome: Int64Array
) -> float:
    """Build the schedule of a state (order of tasks, sender of each) and return its cost.

    The tasks are placed in the order of `state.order`. A task starts when it is released and its
    chosen sender and all its receivers have a free card; it uses the card of each host that becomes
    free first. `outcome` is set to (lateness, makespan) in ticks; lateness is the largest time by
    which a task ends after its due time, at least 0. The cost is a million times the lateness, plus
    the time by which the makespan exceeds `target`, plus the same for the last end of every card.
    `cards` is working memory.
    """
    cards.sending[:] = 0
    cards.receiving[:] = 0
    makespan = 0
    lateness = 0
    for task in state.order:
        position = state.choice[task]
        out = cards.sending[tasks.sender[position]]
        card = _find_first_free(out)
        start = max(out[card], tasks.release[task])
        first, last = tasks.receiver_start[task], tasks.receiver_start[task + 1]
        for at in range(first, last):
            into = cards.receiving[tasks.receiver[at]]
            start = max(start, into[_find_first_free(into)])
        end = start + tasks.ticks[position]
        out[card] = end
        for at in range(first, last):
            into = cards.receiving[tasks.receiver[at]]
            into[_find_first_free(into)] = end
        makespan = max(makespan, end)
        lateness = max(lateness, end - tasks.due[task])
    outcome[0] = lateness
    outcome[1] = makespan
    excess = max(0, makespan - target)
    for host in range(cards.sending.shape[0]):
        for card in range(cards.sending.shape[1]):
            excess += max(0, cards.sending[host, card] - target)
    for host in range(cards.receiving.shape[0]):
        for card in range(cards.receiving.shape[1]):
            excess += max(0, cards.receiving[host, card] - target)
    return excess + 1e6 * lateness


@lean_part
def _draw_random(random: Int64Array) -> float:
    """Return the next pseudo-random number in [0, 1), and advance the state `random[0]`.

    A 64-bit linear congruential generator (Knuth, MMIX), whose product wraps around.
    """
    random[0] = random[0] * 6364136223846793005 + 1442695040888963407
    # The low bits of such a generator have short periods.
    return float((random[0] >> 11) & 0x1FFFFFFFFFFFFF) / 9007199254740992.0


@lean_part
def _move_task(order: Int64Array, source: int, destination: int) -> None:
    """Move the task at position `source` of the order to position `destination`.

    The tasks in between shift by one position. `order` is changed.
    """
    task = order[source]
    step = 1 if destination > source else -1
    at = source
    while at != destination:
        order[at] = order[at + step]
        at += step
    order[destination] = task


@lean_kernel
def anneal(
    tasks: TaskColumns,
    state: AnnealingState,
    best: AnnealingState,
    cards: CardTimes,
    target: int,
    moves: int,
    temperature: float,
    random: Int64Array,
    best_outcome: Int64Array,
    outcome: Int64Array,
) -> None:
    """Anneal: make `moves` random changes from `state`, and keep the best state in `best`.

    A move takes a random task. With probability 0.3 it chooses the sender again, if the task has
    several; otherwise it moves the task to another position of the order or exchanges it with
    another task. A move is kept if the cost does not rise, or with the probability e^(-rise /
    temperature); otherwise it is undone. The temperature, in ticks, decreases linearly to 0.

    `best` and `best_outcome` (lateness, then makespan decide) hold the best state before the call,
    and are updated. The search ends early if no task is late and the best makespan reaches
    `target`. `cards` and `outcome` are working memory; `random` is the state of the random numbers.
    Both states are changed in place.
    """
    count = state.order.size
    cost = _evaluate(tasks, state, cards, target, outcome)
    for move in range(moves):
        if best_outcome[0] <= 0 and best_outcome[1] <= target:
            return
        kind = _draw_random(random)
        one = int(_draw_random(random) * count)
        other = int(_draw_random(random) * count)
        task = state.order[one]
        first, last = tasks.choice_start[task], tasks.choice_start[task + 1]
        is_choice = last - first > 1 and kind < 0.3
        previous = state.choice[task]
        if is_choice:
            state.choice[task] = first + int(_draw_random(random) * (last - first))
        elif kind < 0.65:
            _move_task(state.order, one, other)
        else:
            state.order[one], state.order[other] = state.order[other], state.order[one]
        changed = _evaluate(tasks, state, cards, target, outcome)
        heat = max(temperature * (1.0 - move / moves), 1e-9)
        if changed <= cost or _draw_random(random) < np.exp((cost - changed) / heat):
            cost = changed
            if outcome[0] < best_outcome[0] or (
                outcome[0] == best_outcome[0] and outcome[1] < best_outcome[1]
            ):
                best_outcome[0] = outcome[0]
                best_outcome[1] = outcome[1]
                # A copy of a slice would allocate memory, which a lean kernel cannot do.
                for at in range(count):
                    best.order[at] = state.order[at]
                    best.choice[at] = state.choice[at]
        elif is_choice:
            state.choice[task] = previous
        elif kind < 0.65:
            _move_task(state.order, other, one)
        else:
            state.order[one], state.order[other] = state.order[other], state.order[one]
