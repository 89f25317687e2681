"""Improve a schedule by simulated annealing over orders of tasks, within a counted amount of work.

For open shops whose cards are almost fully loaded, schedules by priority end some percent above the
bound; annealing from the best of them reaches the bound or comes within a percent of it in most
cases (benchmarks/reshard/random_pairs.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

import numpy as np

from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import Order, Piece
from hub_core.columns import Int64Array, row_pointer
from hub_core.plugin_api import SearchBudget

# Temperatures of the rounds, relative to the mean duration of a task.
_TEMPERATURES = (0.03, 0.1, 0.3, 1.0, 0.5, 1.0, 0.5, 1.0)
# Sums of times stay far below the range of int64.
_MAX_TOTAL_TICKS = 1 << 48


def is_applicable(tasks: HostTasks) -> bool:
    """Return whether there are tasks to reorder, and all times are small enough for the kernel."""
    total = sum(max(row) for row in tasks.durations) + max(tasks.release, default=0)
    return len(tasks) > 1 and total < _MAX_TOTAL_TICKS


def generate_rotations(tasks: HostTasks, senders: Sequence[int]) -> list[Order]:
    """Generate orders in which sender i serves receiver i + 1, then i + 2, ...

    As in a Latin square: without contention each sender follows the one before it from receiver to
    receiver. `senders`: the sender of every task. Hosts are sorted by load, descending and
    ascending, so that hosts with little load wait for the others, and rotate in both directions.
    The tasks of a pair are sent one after another, or one per rotation.
    """
    out_load: dict[int, int] = {}
    in_load: dict[tuple[int, ...], int] = {}
    pairs: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for task, sender in enumerate(senders):
        receivers, ticks = tasks.receivers[task], tasks.duration(task, sender)
        out_load[sender] = out_load.get(sender, 0) + ticks
        in_load[receivers] = in_load.get(receivers, 0) + ticks
        pairs.setdefault((sender, receivers), []).append(task)
    for (sender, _), members in pairs.items():
        members.sort(key=lambda task: (-tasks.duration(task, sender), task))
    orders: list[Order] = []
    for sign_out, sign_in in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        sending = sorted(out_load, key=lambda host: (sign_out * out_load[host], host))
        receiving = sorted(in_load, key=lambda group: (sign_in * in_load[group], group))
        for direction in (1, -1):
            rows = [
                (rotation, task, sender)
                for sender, group in _rotate(sending, receiving, direction)
                for rotation, task in enumerate(pairs.get((sender, group), ()))
            ]
            orders.append([(task, sender) for _, task, sender in rows])
            # Stable: the order within a rotation is preserved.
            rows.sort(key=itemgetter(0))
            orders.append([(task, sender) for _, task, sender in rows])
    return orders


def _rotate(
    sending: Sequence[int], receiving: Sequence[tuple[int, ...]], direction: int
) -> list[tuple[int, tuple[int, ...]]]:
    """List all pairs of a sender and receivers: in round t, sender i serves receivers i + t."""
    rounds = max(len(sending), len(receiving))
    return [
        (sender, receiving[position])
        for round_number in range(rounds)
        for number, sender in enumerate(sending)
        if (position := (number + direction * round_number) % rounds) < len(receiving)
    ]


def improve_order(
    tasks: HostTasks,
    pieces: Sequence[Piece],
    target: int,
    max_placements: int,
    budget: SearchBudget | None = None,
) -> Order:
    """Return order and senders of the best schedule of annealing, never worse than `pieces`.

    `target`: a bound of the makespan in ticks, at which the search ends. `max_placements`: limit of
    the work, in tasks placed; the result does not depend on elapsed time. `budget`: at a time
    limit, the search ends between two rounds.
    """
    budget = budget or SearchBudget()
    # Imported here: numba takes a second, and most tasks need no search.
    from collhub_reshard.scheduling import annealing_kernel as kernel

    out = {host: number for number, host in enumerate(_list_hosts(tasks.senders))}
    into = {host: number for number, host in enumerate(_list_hosts(tasks.receivers))}
    choice_start = _compute_starts(tasks.senders)
    latest = np.iinfo(np.int64).max >> 1
    columns = kernel.TaskColumns(
        choice_start,
        _make_column(out[host] for hosts in tasks.senders for host in hosts),
        _make_column(ticks for row in tasks.durations for ticks in row),
        _compute_starts(tasks.receivers),
        _make_column(into[host] for hosts in tasks.receivers for host in hosts),
        _make_column(tasks.release),
        _make_column(latest if due is None else due for due in tasks.due),
    )
    choice = choice_start[:-1].copy()
    for piece in pieces:
        choice[piece.task] += tasks.senders[piece.task].index(piece.sender)
    best = kernel.State(_make_column(piece.task for piece in pieces), choice)
    cards = kernel.CardTimes(
        np.zeros((len(out), tasks.cards), np.int64), np.zeros((len(into), tasks.cards), np.int64)
    )
    dues = [due for due in tasks.due if due is not None]
    ends = {piece.task: int(piece.end) for piece in pieces}
    lateness = max(
        (ends[task] - due for task, due in enumerate(tasks.due) if due is not None), default=0
    )
    outcome = np.array([max(0, lateness) if dues else 0, max(ends.values())], np.int64)
    mean = float(columns.ticks.mean())
    moves = max_placements // (len(_TEMPERATURES) * len(tasks))
    random = np.array([1], np.int64)
    for round_number, temperature in enumerate(_TEMPERATURES):
        if budget.reason:
            rounds = len(_TEMPERATURES)
            budget.cut("annealing", f"{rounds - round_number} of {rounds} rounds")
            break
        budget.count(moves * len(tasks))
        state = kernel.State(best.order.copy(), best.choice.copy())
        working = np.zeros(2, np.int64)
        kernel.anneal(
            columns, state, best, cards, target, moves, temperature * mean, random, outcome, working
        )
    return [
        (task, tasks.senders[task][int(best.choice[task] - choice_start[task])])
        for task in best.order.tolist()
    ]


def _list_hosts(groups: Sequence[tuple[int, ...]]) -> list[int]:
    """Return all hosts of the groups, ascending."""
    return sorted({host for hosts in groups for host in hosts})


def _compute_starts(groups: Sequence[tuple[int, ...]]) -> Int64Array:
    """Return the position of every group in the concatenation of all groups."""
    return row_pointer(np.asarray([len(group) for group in groups], np.int64))


def _make_column(values: Iterable[int]) -> Int64Array:
    """Return the values as an int64 array."""
    return np.fromiter(values, np.int64)
