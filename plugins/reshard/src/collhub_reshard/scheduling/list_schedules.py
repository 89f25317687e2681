"""Choose the senders of tasks, and order tasks by priority.

For many tasks an order by priority meets the bound or comes near to it, in time linear in the
number of tasks; it proves nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from collhub_reshard.scheduling.bounds import share_among_senders
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import Cards, Order

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
    """Choose the senders so that the busiest one finishes earliest.

    The bound by flow (`share_among_senders`) lets senders share a task, which an unsplit schedule
    cannot do: five equal tasks on three senders take two rounds, not 5/3. Solves a mixed-integer
    program (HiGHS) over classes of equal tasks: x tasks of a class are sent by a host, the x of a
    class sum to its size, and no sender is busy for longer than T.

    Tasks that all hosts receive exclude all others if a host has one card: their time is a constant
    that is added to the load of every sender. Returns None if no task has two senders or the solver
    finds no solution within its nodes.
    """
    if all(len(senders) == 1 for senders in tasks.senders):
        return None
    # Imported here: SciPy's optimizers take a third of a second.
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

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
    lower = np.array(counts + [-np.inf] * len(hosts))
    upper = np.array(counts + [0.0] * len(hosts))
    shape = (len(classes) + len(hosts), time_column + 1)
    matrix = coo_array((values, (rows, columns)), shape=shape).tocsr()
    objective = np.zeros(time_column + 1)
    objective[time_column] = 1.0
    is_whole = np.ones(time_column + 1)
    is_whole[time_column] = 0
    solution = milp(
        objective,
        integrality=is_whole,
        bounds=Bounds(0, np.array([*limits, np.inf])),
        constraints=LinearConstraint(matrix, lower, upper),
        options={"node_limit": _MAX_NODES, "mip_rel_gap": 0.0},
    )
    if solution.x is None:
        return None
    chosen = [senders[0] for senders in tasks.senders]
    column = 0
    for (senders, _), members in classes.items():
        counted = np.rint(solution.x[column : column + len(senders)]).astype(np.int64)
        hosts_of_class = np.repeat(np.asarray(senders), counted)
        assert len(hosts_of_class) == len(members), "HiGHS sends every task of a class once"
        for task, host in zip(members, hosts_of_class.tolist(), strict=True):
            chosen[task] = host
        column += len(senders)
    dual_bound = solution.mip_dual_bound if solution.mip_dual_bound is not None else 0.0
    return Assignment(
        tuple(chosen), constant + math.ceil(dual_bound * (1 - _TOLERANCE) - _TOLERANCE)
    )


_Class = tuple[int, tuple[int, ...]]


def balance_senders(tasks: HostTasks) -> list[int]:
    """Choose a sender for every task so that loads are even: largest tasks first.

    A task goes to the host whose share in an even division is furthest from exhausted.
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
    """Yield orders by priority for given senders of the tasks.

    The first order has no random part; later ones disturb the priorities from fixed seeds.
    """
    for seed in range(rounds):
        yield _ListScheduler(
            tasks, list(senders), random.Random(seed), noise=0.1 * min(seed, 5)
        ).order()


@dataclass(slots=True)
class _ListScheduler:
    """State of one run: queues by sender and receivers, and the remaining load of every card."""

    tasks: HostTasks
    senders: list[int]
    rng: random.Random
    noise: float
    left_out: dict[int, float] = field(default_factory=dict)
    left_in: dict[int, float] = field(default_factory=dict)

    def order(self) -> Order:
        """Order all tasks: repeatedly append the task that can start first."""
        queues = self._queues()
        sending, receiving = Cards(self.tasks.cards), Cards(self.tasks.cards)
        order = []
        while queues:
            key = self._next(queues, sending, receiving)
            task = queues[key].pop()
            if not queues[key]:
                del queues[key]
            sender, receivers = key
            ticks = self.tasks.duration(task, sender)
            free = max(sending.free_at([sender]), receiving.free_at(receivers))
            end = max(free, self.tasks.release[task]) + ticks
            sending.occupy([sender], end)
            receiving.occupy(receivers, end)
            self._take(key, ticks)
            order.append((task, sender))
        return order

    def _queues(self) -> dict[_Class, list[int]]:
        """Build the queues by class.

        The last entry of a queue is next: the earliest release, then the earliest due time, then
        the longest task.
        """
        queues: dict[_Class, list[int]] = {}
        for task, sender in enumerate(self.senders):
            key = sender, self.tasks.receivers[task]
            queues.setdefault(key, []).append(task)
            self._take(key, -self.tasks.duration(task, sender))
        for (sender, _), queue in queues.items():
            queue.sort(key=lambda task: self._urgency(task, sender))
        return queues

    def _urgency(self, task: int, sender: int) -> tuple[float, float, int]:
        """Return the sort key of a task in its queue, the most urgent last."""
        due = self.tasks.due[task]
        latest = -float("inf") if due is None else -float(due)
        return -self.tasks.release[task], latest, self.tasks.duration(task, sender)

    def _take(self, key: _Class, ticks: int) -> None:
        """Subtract ticks from the remaining load of the cards of a class."""
        # Negative ticks add load, at the start.
        sender, receivers = key
        self.left_out[sender] = self.left_out.get(sender, 0.0) - ticks
        # A task with many receivers counts at each of them.
        for host in receivers:
            self.left_in[host] = self.left_in.get(host, 0.0) - ticks

    def _next(self, queues: Mapping[_Class, list[int]], sending: Cards, receiving: Cards) -> _Class:
        """Choose the class that can start first.

        Ties go to the class whose cards have the most remaining load.
        """
        best: tuple[float, float] | None = None
        chosen: _Class | None = None
        for key, queue in queues.items():
            sender, receivers = key
            free = max(sending.free_at([sender]), receiving.free_at(receivers))
            start = float(max(free, self.tasks.release[queue[-1]]))
            load = max(self.left_out[sender], *(self.left_in[host] for host in receivers))
            # A busy card at either end counts, the other end breaks the tie.
            load += 0.25 * min(self.left_out[sender], self.left_in[receivers[0]])
            load *= 1 + self.noise * self.rng.random()
            if best is None or (start, -load) < best:
                best, chosen = (start, -load), key
        assert chosen is not None
        return chosen
