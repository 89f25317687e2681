"""Methods of public projects, written anew from their descriptions, to compare schedules with.

The five orders of Alpa ("On Optimizing the Communication of Model Parallelism", MLSys 2023,
alpa-projects/alpa at b8078a9f), which are also starting points of the search; the rounds of
Megatron-core; send/recv and local all-gather.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from fractions import Fraction

from collhub_shardings import UnitTasks, device_pairs

from collhub_reshard.scheduling.host_tasks import HostNetwork, HostTasks
from collhub_reshard.scheduling.schedule import Cards, Order, compute_makespan, schedule_in_order

_ROUNDS = 100
# The public search stops after a second; a count of nodes gives the same result everywhere.
_SEARCH_NODES = 5_000


def order_naively(tasks: HostTasks) -> Order:
    """Return (task, sender) pairs in the order of task numbers, that is of destination tiles; the
    first sender of each task sends (`no_loadbalance`).
    """
    return [(task, senders[0]) for task, senders in enumerate(tasks.senders)]


def order_by_size(tasks: HostTasks) -> Order:
    """Return (task, sender) by task number; the host with the fewest bytes so far sends.

    Among equal hosts, the first of the task's senders is taken. The public order
    `loadbalance_size`.
    """
    load: dict[int, int] = {}
    order = []
    for task, senders in enumerate(tasks.senders):
        # Ties go to the first host, as in the public code.
        sender = min(senders, key=lambda host: load.get(host, 0))
        # The load is that of the box; the public code counted the full source tile.
        load[sender] = load.get(sender, 0) + tasks.bytes[task]
        order.append((task, sender))
    return order


def order_by_device(tasks: HostTasks, units: UnitTasks) -> Order:
    """Return (task, sending host) by task number; the device with the fewest bytes so far sends.

    Among equal devices, the first sender of the unit task is taken. The public order `normal`.
    """
    load: dict[int, int] = {}
    order = []
    for task, row in enumerate(tasks.rows):
        devices = units.senders_of(row).tolist()
        device = min(devices, key=lambda candidate: load.get(candidate, 0))
        load[device] = load.get(device, 0) + tasks.bytes[task]
        order.append((task, int(units.host_of[device])))
    return order


def order_greedily(
    tasks: HostTasks, seed: int, sizes: Sequence[int] | None = None, idle_hosts: int = 0
) -> Order:
    """Order the tasks in rounds, each with as many tasks as possible at the same time.

    Returns (task, sender) pairs, round by round; without tasks the list is empty. For each round,
    `_ROUNDS` (100) random candidates are drawn (`_draw_round`). The one with the most tasks is
    taken. Of equal ones, it is that with the smallest standard deviation of the loads after it,
    then the first.

    `sizes`: load by task for its sender, by default its bytes. The deviation (of the population)
    counts all hosts that could send any task, and `idle_hosts` further hosts with load 0. The same
    `seed` gives the same order. This is the public order `loadbalance_order`, greedy.
    """
    rng = random.Random(seed)
    sizes = tasks.bytes if sizes is None else sizes
    load = {host: 0 for senders in tasks.senders for host in senders}
    remaining = list(range(len(tasks)))
    order: list[tuple[int, int]] = []
    while remaining:
        best: tuple[tuple[int, float], list[tuple[int, int]]] | None = None
        for _ in range(_ROUNDS):
            candidate = _draw_round(tasks, remaining, load, rng)
            after = dict(load)
            for task, sender in candidate:
                after[sender] += sizes[task]
            spread = statistics.pstdev([*after.values(), *[0] * idle_hosts])
            key = (len(candidate), -spread)
            if best is None or key > best[0]:
                best = key, candidate
        assert best is not None
        for task, sender in best[1]:
            load[sender] += sizes[task]
        order += best[1]
        placed = {task for task, _ in best[1]}
        remaining = [task for task in remaining if task not in placed]
    return order


def _draw_round(
    tasks: HostTasks, remaining: Sequence[int], load: dict[int, int], rng: random.Random
) -> list[tuple[int, int]]:
    """Draw a random round of tasks that share neither a sender nor a receiver.

    The tasks of `remaining` are tried in random order. A task is left out if any of its receivers
    already receives in this round, or if all its senders send. A host may send one task and receive
    another one. The sender is drawn among the free ones, each with the weight (M - load + 1); M is
    the maximum load of all hosts. The round ends early when all hosts of `load` send.

    `load`: bytes by host, for every sender of a task, not empty; not changed. Returns (task,
    sender) pairs in the drawn order. `rng` advances.
    """
    busy_in: set[int] = set()
    busy_out: set[int] = set()
    chosen = []
    max_load = max(load.values())
    for task in rng.sample(remaining, len(remaining)):
        free = [host for host in tasks.senders[task] if host not in busy_out]
        if not free or busy_in & set(tasks.receivers[task]):
            continue
        weights = [max_load - load[host] + 1 for host in free]
        sender = rng.choices(free, weights)[0]
        busy_in |= set(tasks.receivers[task])
        busy_out.add(sender)
        chosen.append((task, sender))
        # All senders are busy.
        if len(busy_out) == len(load):
            break
    return chosen


def search_order(tasks: HostTasks) -> Order:
    """Search for the order of (task, sender) with the smallest makespan, depth first.

    The search starts with the order by size (`order_by_size`). Another order replaces the best one
    only if its makespan is smaller; release times count in the makespan. A prefix of an order is
    continued by the pairs of `_list_choices`, at most four, the one that can start first first. A
    visited prefix costs 1 plus its length, and the search ends when the cost reaches
    `_SEARCH_NODES` (5000), so the result need not be optimal. With about 100 tasks or more, the
    limit is reached before any other order is complete: the result is then the order by size. This
    is the variant search of the public order `loadbalance_order`.
    """
    best_order = order_by_size(tasks)
    best = compute_makespan(schedule_in_order(tasks, best_order))
    budget = _SEARCH_NODES
    stack: list[list[tuple[int, int]]] = [[]]
    while stack and budget > 0:
        prefix = stack.pop()
        # The cost of a prefix is its length.
        budget -= 1 + len(prefix)
        if len(prefix) < len(tasks):
            placed = {task for task, _ in prefix}
            choices = _list_choices(tasks, prefix, placed)
            stack += [[*prefix, choice] for choice in reversed(choices)]
            continue
        time = compute_makespan(schedule_in_order(tasks, prefix))
        if time < best:
            best, best_order = time, prefix
    return best_order


def _list_choices(tasks: HostTasks, prefix: Order, placed: set[int]) -> list[tuple[int, int]]:
    """Return the next (task, sender) pairs after a prefix: at most four, by earliest start.

    Ties go to the smaller task number, then to the smaller sender. `placed`: tasks of the
    prefix, which are left out. The start of a pair is the time at which its cards are free; its
    own release time does not delay it. Release times of the tasks in the prefix count.
    """
    sending, receiving = Cards(tasks.cards), Cards(tasks.cards)
    for piece in schedule_in_order(tasks, prefix):
        sending.occupy([piece.sender], int(piece.end))
        receiving.occupy(tasks.receivers[piece.task], int(piece.end))
    keyed = []
    for task, senders in enumerate(tasks.senders):
        if task in placed:
            continue
        ready = receiving.free_at(tasks.receivers[task])
        for sender in senders:
            start = max(ready, sending.free_at([sender]))
            keyed.append((start, task, sender))
    keyed.sort()
    return [(task, sender) for _, task, sender in keyed[:4]]


def list_public_orders(
    tasks: HostTasks, units: UnitTasks, seeds: int = 1
) -> dict[str, Callable[[], Order]]:
    """Return the orders of Alpa (MLSys 2023) by name, as functions that compute them.

    An order is a sequence of (task, sender), in which tasks start. The names are `naive`, `normal`,
    `size-balanced`, `search` and, for each of `seeds` seeds from 0 on, `greedy-0`, `greedy-1` and
    so on. Each call of a function computes its order anew, with equal results.
    """
    orders: dict[str, Callable[[], Order]] = {
        "naive": lambda: order_naively(tasks),
        "normal": lambda: order_by_device(tasks, units),
        "size-balanced": lambda: order_by_size(tasks),
        "search": lambda: search_order(tasks),
    }
    # The public code draws without a seed; here seeds are fixed.
    for seed in range(seeds):
        orders[f"greedy-{seed}"] = lambda seed=seed: order_greedily(tasks, seed)  # type: ignore[misc]
    return orders


def compute_order_time(tasks: HostTasks, order: Order) -> Fraction:
    """Return the makespan in ticks if the tasks are scheduled in this order."""
    return compute_makespan(schedule_in_order(tasks, order))


def compute_first_fit_s(units: UnitTasks, network: HostNetwork) -> Fraction:
    """Return the seconds of all messages in rounds by first fit, as in Megatron-core.

    Unit tasks with bytes and their receivers are treated in order. A receiving device that lacks
    the box gets it in one message from the device that has it and has sent the fewest bytes so
    far; ties go to the first one. The message is put in the first round in which neither of its
    two devices has a message, also if both are on one host.

    The result is the sum over the rounds (barriers separate them). A round takes as long as
    its busiest host, in or out, with the rates of its cards together. Messages within a
    host take no time, and latencies do not count. It is 0 without messages.
    """
    task, receiver, is_held = device_pairs(units)
    sent: dict[int, int] = {}
    busy: dict[int, set[int]] = {}
    # By round: the bytes out of each host, and into each host.
    rounds: list[tuple[dict[int, int], dict[int, int]]] = []
    for row, end, has in zip(task.tolist(), receiver.tolist(), is_held.tolist(), strict=True):
        size = int(units.bytes[row])
        if has or not size:
            continue
        senders = units.senders_of(row).tolist()
        start = min(senders, key=lambda device: sent.get(device, 0))
        sent[start] = sent.get(start, 0) + size
        taken = busy.setdefault(start, set()) | busy.setdefault(end, set())
        number = next(candidate for candidate in range(len(taken) + 1) if candidate not in taken)
        busy[start].add(number)
        busy[end].add(number)
        while len(rounds) <= number:
            rounds.append(({}, {}))
        source, target = int(units.host_of[start]), int(units.host_of[end])
        if source != target:
            out, into = rounds[number]
            out[source] = out.get(source, 0) + size
            into[target] = into.get(target, 0) + size
    total_s = Fraction(0)
    for out, into in rounds:
        times = [size / (network.out_rate[host] * network.cards) for host, size in out.items()]
        times += [size / (network.in_rate[host] * network.cards) for host, size in into.items()]
        total_s += max(times, default=Fraction(0))
    return total_s


def compute_send_receive_s(
    units: UnitTasks, network: HostNetwork, gathers: bool = False
) -> Fraction:
    """Return the time in seconds if every receiver gets its boxes by one message (send/recv).

    It is the time of the busiest host in one direction: its bytes, divided by the rate of a card in
    this direction times the number of cards. Messages within a host take no time, and latencies do
    not count. Each message uses the sender device with the fewest bytes so far (messages within
    hosts included), of equal ones the first. Receivers that have the box already get a message too.

    `gathers` (local all-gather): each of the n receivers of a unit task gets only 1/n of its bytes,
    and they exchange these parts within the host. It has an effect only if the receivers of every
    unit task are all on one host. The time is 0 if no data cross hosts.
    """
    # As in the public code, one tile with replicas on several hosts disables it for all.
    gathers = gathers and all(
        len(units.hosts_of(units.receivers_of(row))) == 1 for row in range(len(units))
    )
    sent: dict[int, Fraction] = {}
    out: dict[int, Fraction] = {}
    into: dict[int, Fraction] = {}
    for row in range(len(units)):
        senders = units.senders_of(row).tolist()
        receivers = units.receivers_of(row).tolist()
        share = len(receivers) if gathers else 1
        size = Fraction(int(units.bytes[row]), share)
        for receiver in receivers:
            sender = min(senders, key=lambda device: sent.get(device, Fraction(0)))
            sent[sender] = sent.get(sender, Fraction(0)) + size
            start, end = int(units.host_of[sender]), int(units.host_of[receiver])
            # Messages within a host take no time.
            if start != end:
                out[start] = out.get(start, Fraction(0)) + size
                into[end] = into.get(end, Fraction(0)) + size
    cards = network.cards
    times = [size / (network.out_rate[host] * cards) for host, size in out.items()]
    times += [size / (network.in_rate[host] * cards) for host, size in into.items()]
    return max(times, default=Fraction(0))
