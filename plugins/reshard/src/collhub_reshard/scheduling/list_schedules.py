"""Choose the senders of tasks, order tasks by priority, and improve an order by annealing.

For many tasks an order by priority meets the bound or comes near to it, in time linear in the
number of tasks; it proves nothing. For open shops whose cards are almost fully loaded, such
schedules end some percent above the bound; simulated annealing over orders, within a counted amount
of work, reaches the bound from the best of them or comes within a percent of it in most cases
(benchmarks/reshard/random_pairs.py).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from collhub_linear_programs import LinearProgram, Matrix, solve

from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import Cards, Order, Piece, share_among_senders
from hub_core.columns import Int64Array, row_pointer
from hub_core.plugin_api import SearchBudget

# Nodes of the branch-and-bound tree: deterministic work, at most some tenths of a second.
_MAX_NODES = 2_000
# HiGHS satisfies integrality and rows within 1e-6: its bound is reduced by this.
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Assignment:
    """A sender of every task, and a bound in ticks that holds for every choice of senders."""

    senders: tuple[int, ...]
    lower_bound: int


def assign_senders(tasks: HostTasks) -> Assignment | None:
    """Choose a sender for every task so that the busiest sender finishes earliest, with a bound.

    The time of a sender is the sum of the ticks of its tasks, divided by the cards of a host. A
    task is not divided: five equal tasks on three senders take two rounds, not 5/3. A mixed-integer
    program (HiGHS) chooses, for each class of tasks with equal senders and durations, the number of
    tasks of each sender. In task order, the first tasks of a class get the first sender. Release
    times, due times and receivers do not count. After 2000 nodes of the search, the best choice so
    far is returned.

    If hosts have one card, a task that every receiving host receives excludes all other tasks. Such
    tasks are not part of the program and keep their first sender. `lower_bound` is a lower bound on
    the makespan in ticks: the bound of HiGHS for the program, rounded up, plus the shortest
    duration of each excluding task.

    Returns None if every task has only one sender (also without tasks), if all tasks exclude all
    others, or if HiGHS has no solution after 2000 nodes.
    """
    if all(len(senders) == 1 for senders in tasks.senders):
        return None
    everyone = {host for hosts in tasks.receivers for host in hosts}
    is_exclusive = [tasks.cards == 1 and set(hosts) == everyone for hosts in tasks.receivers]
    constant = sum(min(tasks.durations[task]) for task, is_one in enumerate(is_exclusive) if is_one)
    classes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for task, is_one in enumerate(is_exclusive):
        if not is_one:
            key = tasks.senders[task], tasks.durations[task]
            classes.setdefault(key, []).append(task)
    if not classes:
        return None
    hosts = sorted({host for senders, _ in classes for host in senders})
    row_of = {host: len(classes) + number for number, host in enumerate(hosts)}
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    limits: list[float] = []
    for number, ((senders, ticks), members) in enumerate(classes.items()):
        for host, time in zip(senders, ticks, strict=True):
            column = len(limits)
            rows += [number, row_of[host]]
            columns += [column, column]
            values += [1.0, float(time)]
            limits.append(float(len(members)))
    time_column = len(limits)
    for host in hosts:
        rows.append(row_of[host])
        columns.append(time_column)
        values.append(-float(tasks.cards))
    counts = [float(len(members)) for members in classes.values()]
    matrix = Matrix(
        np.array(rows),
        np.array(columns),
        np.array(values),
        len(classes) + len(hosts),
        time_column + 1,
    )
    is_time = np.arange(time_column + 1) == time_column
    program = LinearProgram(
        is_time.astype(np.float64),
        matrix,
        row_lower=np.array(counts + [-np.inf] * len(hosts)),
        row_upper=np.array(counts + [0.0] * len(hosts)),
        upper=np.array([*limits, np.inf]),
        is_integer=~is_time,
    )
    solution = solve(program, max_nodes=_MAX_NODES)
    if solution is None:
        return None
    chosen = [senders[0] for senders in tasks.senders]
    column = 0
    for (senders, _), members in classes.items():
        counted = np.rint(solution.values[column : column + len(senders)]).astype(np.int64)
        hosts_of_class = np.repeat(np.asarray(senders), counted)
        assert len(hosts_of_class) == len(members), "HiGHS sends every task of a class once"
        for task, host in zip(members, hosts_of_class.tolist(), strict=True):
            chosen[task] = host
        column += len(senders)
    bound = math.ceil(solution.lower_bound * (1 - _TOLERANCE) - _TOLERANCE)
    return Assignment(tuple(chosen), constant + bound)


_Class = tuple[int, tuple[int, ...]]


def balance_senders(tasks: HostTasks) -> list[int]:
    """Choose one sender for every task so that all senders finish at nearly the same time.

    1. All tasks with equal possible senders are a group. The bytes of each group are divided
       among its senders as if tasks could be split, so that the busiest sender finishes
       earliest (`share_among_senders`).
    2. The tasks are taken by descending bytes, ties by number. Each one gets the sender with
       the largest remaining share in the group, ties the first one in the task's list of
       senders. The bytes of the task are then subtracted from this share, which may become
       negative.

    The result is in the order of the tasks; it is empty without tasks.
    """
    sharing = share_among_senders(tasks, range(len(tasks)))
    room = {key: float(share) for key, share in sharing.shares.items()}
    chosen = [0] * len(tasks)
    for task in sorted(range(len(tasks)), key=lambda task_row: -tasks.bytes[task_row]):
        senders = tasks.senders[task]
        sender = max(senders, key=lambda host: room.get((senders, host), 0.0))
        room[senders, sender] = room.get((senders, sender), 0.0) - tasks.bytes[task]
        chosen[task] = sender
    return chosen


def generate_list_orders(tasks: HostTasks, rounds: int, senders: Sequence[int]) -> Iterator[Order]:
    """Yield `rounds` orders by priority, given the sender of each task.

    The first order has no random part; order i disturbs the priorities with seed i and noise 0.1 *
    min(i, 5).
    """
    for seed in range(rounds):
        yield _order_by_priority(tasks, senders, random.Random(seed), noise=0.1 * min(seed, 5))


def _order_by_priority(
    tasks: HostTasks, senders: Sequence[int], rng: random.Random, noise: float
) -> Order:
    """Return the tasks as (task, sender), ordered by list scheduling; times are in ticks.

    Tasks with equal sender and receivers form a queue. Its next task has the earliest release, then
    the earliest due time (none is last), the longest duration, the highest number.

    The next task of the result is the one that can start first: after its release, when the sender
    and all receivers have a free card. It then occupies these cards for its duration. Of equal
    starts, the queue with the largest load is chosen, then the one of the lowest task number. The
    remaining load of a host is the duration of its tasks that are not in the result yet. The load
    of a queue is the product of two factors: the largest load of its hosts, plus a quarter of the
    smaller one of the sender's and the first receiver's; and a random number from 1 to 1 + `noise`,
    which is drawn for every queue at each task.
    """
    queues: dict[_Class, list[int]] = {}
    left_out: dict[int, float] = {}
    left_in: dict[int, float] = {}
    for task, sender in enumerate(senders):
        receivers, ticks = tasks.receivers[task], tasks.duration(task, sender)
        queues.setdefault((sender, receivers), []).append(task)
        left_out[sender] = left_out.get(sender, 0.0) + ticks
        for host in receivers:
            left_in[host] = left_in.get(host, 0.0) + ticks

    def rank_in_queue(task: int) -> tuple[float, float, int]:
        due = tasks.due[task]
        latest = -math.inf if due is None else -float(due)
        return -tasks.release[task], latest, tasks.duration(task, senders[task])

    for queue in queues.values():
        # The last entry of a queue is next.
        queue.sort(key=rank_in_queue)
    sending, receiving = Cards(tasks.cards), Cards(tasks.cards)
    order = []
    while queues:
        best: tuple[tuple[float, float], _Class] | None = None
        for key, queue in queues.items():
            sender, receivers = key
            free = max(sending.free_at([sender]), receiving.free_at(receivers))
            start = float(max(free, tasks.release[queue[-1]]))
            # A busy card at either end counts, the other end breaks the tie.
            load = max(left_out[sender], *(left_in[host] for host in receivers))
            load += 0.25 * min(left_out[sender], left_in[receivers[0]])
            load *= 1 + noise * rng.random()
            if best is None or (start, -load) < best[0]:
                best = (start, -load), key
        assert best is not None
        sender, receivers = best[1]
        task = queues[best[1]].pop()
        if not queues[best[1]]:
            del queues[best[1]]
        ticks = tasks.duration(task, sender)
        free = max(sending.free_at([sender]), receiving.free_at(receivers))
        end = max(free, tasks.release[task]) + ticks
        sending.occupy([sender], end)
        receiving.occupy(receivers, end)
        left_out[sender] -= ticks
        for host in receivers:
            left_in[host] -= ticks
        order.append((task, sender))
    return order


# Temperatures of the rounds, relative to the mean duration of a task.
_TEMPERATURES = (0.03, 0.1, 0.3, 1.0, 0.5, 1.0, 0.5, 1.0)
# Sums of times stay far below the range of int64.
_MAX_TOTAL_TICKS = 1 << 48


def can_anneal(tasks: HostTasks) -> bool:
    """Return whether annealing applies to these tasks.

    There must be at least two, and the sum of their longest durations plus the latest release must
    be below `_MAX_TOTAL_TICKS`.
    """
    total = sum(max(row) for row in tasks.durations) + max(tasks.release, default=0)
    return len(tasks) > 1 and total < _MAX_TOTAL_TICKS


def generate_rotations(tasks: HostTasks, senders: Sequence[int]) -> list[Order]:
    """Return 16 orders of (task, sender) in which the senders serve the receivers in rotation.

    `senders`: the sender of every task. A receiver is the full tuple `tasks.receivers[task]`. With
    S senders and R receivers there are N = max(S, R) rounds. In round t, sender i (i = 0, 1, ...)
    serves receiver (i + t) mod N; numbers from R on are skipped. The 16 orders are nested loops,
    outermost first:

    1. Sorting of (senders, receivers) by load, lowest (+) or highest (-) first: ++, +-, -+, --. The
       load is the sum of the durations of the tasks in ticks. Ties: ascending host or tuple.
    2. The direction: receiver (i + t) mod N, then (i - t) mod N.
    3. All tasks of a pair one after another; then one task of every pair, pair by pair, then the
       second task of every pair, and so on. The longest task of a pair is first, ties by number.

    Equal orders remain. Without tasks all are empty. `ValueError` if a sender is not possible for
    its task.
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
    """Return all pairs (sender, receivers), round by round, in rotation.

    There are N rounds, N being the larger of the two lengths. In round t, the sender at
    position i is paired with the receivers at position (i + t) mod N, or (i - t) mod N with
    `direction` -1, for all senders in order. Positions beyond the end of `receiving` give
    no pair. Each pair occurs once.
    """
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
    """Improve a schedule by simulated annealing; return the best order of (task, sender).

    - `pieces`: the first schedule, with exactly one piece per task, in the order of the tasks
    - `target`: lower bound on the makespan in ticks
    - `max_placements`: limit of the work. Each of the 8 rounds (one per entry of `_TEMPERATURES`)
      has `max_placements` // (8 x tasks) moves, each of which places all tasks once.

    The lower lateness is better, then the lower makespan. Lateness is the longest time by which a
    task ends after its due time, at least 0, and 0 without due times. The order of `pieces` is
    returned if no move is better. Each round starts from the best schedule so far. No move is made
    once its lateness is 0 and its makespan at most `target`.

    Before each round, the limits of `budget` are checked (None: no limits). At a limit the search
    ends, and a cut with the number of missing rounds is recorded. A started round counts all its
    moves as work. Random numbers have a fixed seed. Raises `ValueError` without tasks, and for a
    piece whose sender is no possible sender of its task.
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
    best = kernel.AnnealingState(_make_column(piece.task for piece in pieces), choice)
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
        state = kernel.AnnealingState(best.order.copy(), best.choice.copy())
        working = np.zeros(2, np.int64)
        kernel.anneal(
            columns, state, best, cards, target, moves, temperature * mean, random, outcome, working
        )
    return [
        (task, tasks.senders[task][int(best.choice[task] - choice_start[task])])
        for task in best.order.tolist()
    ]


def _list_hosts(groups: Sequence[tuple[int, ...]]) -> list[int]:
    """Return all hosts of the groups, each once, ascending."""
    return sorted({host for hosts in groups for host in hosts})


def _compute_starts(groups: Sequence[tuple[int, ...]]) -> Int64Array:
    """Return the position of every group in the concatenation of all groups, and the total at the
    end: int64[groups + 1].
    """
    return row_pointer(np.asarray([len(group) for group in groups], np.int64))


def _make_column(values: Iterable[int]) -> Int64Array:
    """Return the values as an int64 array."""
    return np.fromiter(values, np.int64)
