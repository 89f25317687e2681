"""The least load of the busiest sender if every task is sent as a whole by one host (HiGHS).

The bound by flow (`bounds.sender_sharing`) lets senders share a task, which a schedule of whole
tasks cannot do: five equal tasks on three senders take two rounds, not 5/3. This module solves the
assignment as a mixed-integer program over classes of equal tasks: x tasks of a class are sent by a
host, as many as the class has are sent in total, and no sender is busy for longer than T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from collhub_reshard.scheduling.host_tasks import HostTasks

# Nodes of the branch-and-bound tree: deterministic work, at most some tenths of a second.
_MAX_NODES = 2_000
# HiGHS keeps whole numbers and rows to 1e-6: its bound is lowered by as much.
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Assignment:
    """A sender of every task, and a bound in ticks that no choice of senders beats."""

    senders: tuple[int, ...]
    lower_bound: int


def assign_senders(tasks: HostTasks) -> Assignment | None:
    """Choose the senders so that the busiest one is busy for the shortest time.

    Tasks that all hosts receive exclude all others if a host has one card: their time is a
    constant that is added to the load of every sender. Returns None if no task has two senders or
    the solver finds nothing within its nodes.
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
