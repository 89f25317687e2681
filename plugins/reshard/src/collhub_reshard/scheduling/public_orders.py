"""The five orders of the public code of Alpa, written anew from their description.

"On Optimizing the Communication of Model Parallelism" (MLSys 2023), alpa-projects/alpa at b8078a9f.
They are what a schedule is compared with, and starting points of a search.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from collhub_shardings import UnitTasks

from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import Cards, Order, in_order, makespan_of

_ROUNDS = 100
# The public search stops after a second; a count of nodes gives the same result everywhere.
_SEARCH_NODES = 5_000


def naive(tasks: HostTasks) -> Order:
    """The first replica sends; destination tiles in order (`no_loadbalance`)."""
    # Whatever the others could do.
    return [(task, senders[0]) for task, senders in enumerate(tasks.senders)]


def size_balanced(tasks: HostTasks) -> Order:
    """The least loaded host sends, in the same order (`loadbalance_size`)."""
    load: dict[int, int] = {}
    order = []
    for task, senders in enumerate(tasks.senders):
        # Of equals the first host, as in the public code.
        sender = min(senders, key=lambda host: load.get(host, 0))
        # The box counts; the public code counted the whole source tile.
        load[sender] = load.get(sender, 0) + tasks.bytes[task]
        order.append((task, sender))
    return order


def device_balanced(tasks: HostTasks, units: UnitTasks) -> Order:
    """The least loaded device sends, in the same order (`normal`)."""
    load: dict[int, int] = {}
    order = []
    for task, row in enumerate(tasks.rows):
        devices = units.senders_of(row).tolist()
        device = min(devices, key=lambda one: load.get(one, 0))
        load[device] = load.get(device, 0) + tasks.bytes[task]
        order.append((task, int(units.host_of[device])))
    return order


def greedy(
    tasks: HostTasks, seed: int, sizes: Sequence[int] | None = None, idle_hosts: int = 0
) -> Order:
    """As many tasks at once as can be, round by round (`loadbalance_order`, `greedy`).

    Of 100 random rounds the one with most tasks is kept, among equals the one with the evenest
    loads. `sizes`: what a task adds to its sender's load, by default its bytes. `idle_hosts`: hosts
    that never send but count for evenness, as those of the destination do in the public class.
    """
    rng = random.Random(seed)
    sizes = tasks.bytes if sizes is None else sizes
    load = {host: 0 for senders in tasks.senders for host in senders}
    left = list(range(len(tasks)))
    order: list[tuple[int, int]] = []
    while left:
        best: tuple[tuple[int, float], list[tuple[int, int]]] | None = None
        for _ in range(_ROUNDS):
            found = _round(tasks, left, load, rng)
            after = dict(load)
            for task, sender in found:
                after[sender] += sizes[task]
            spread = statistics.pstdev([*after.values(), *[0] * idle_hosts])
            key = (len(found), -spread)
            if best is None or key > best[0]:
                best = key, found
        assert best is not None
        for task, sender in best[1]:
            load[sender] += sizes[task]
        order += best[1]
        placed = {task for task, _ in best[1]}
        left = [task for task in left if task not in placed]
    return order


def _round(
    tasks: HostTasks, left: Sequence[int], load: dict[int, int], rng: random.Random
) -> list[tuple[int, int]]:
    """One random round: tasks that share neither a receiver nor a sender."""
    busy_in: set[int] = set()
    busy_out: set[int] = set()
    found = []
    most = max(load.values())
    for task in rng.sample(left, len(left)):
        free = [host for host in tasks.senders[task] if host not in busy_out]
        if not free or busy_in & set(tasks.receivers[task]):
            continue
        weights = [most - load[host] + 1 for host in free]
        sender = rng.choices(free, weights)[0]
        busy_in |= set(tasks.receivers[task])
        busy_out.add(sender)
        found.append((task, sender))
        # No card is left over.
        if len(busy_out) == len(load):
            break
    return found


def searched(tasks: HostTasks) -> Order:
    """Depth first over the next task and its sender (`loadbalance_order`, `search`).

    Cuts a branch where the work that is left, shared evenly, cannot beat the best; other than the
    public estimate this is a bound. Ends after a fixed number of nodes.
    """
    best_order = size_balanced(tasks)
    best = makespan_of(in_order(tasks, best_order))
    for order in _prefixes(tasks):
        time = makespan_of(in_order(tasks, order))
        if time < best:
            best, best_order = time, order
    return best_order


def _prefixes(tasks: HostTasks) -> Iterator[list[tuple[int, int]]]:
    """Whole orders that a depth-first search meets, the earliest possible start first."""
    budget = _SEARCH_NODES
    stack: list[list[tuple[int, int]]] = [[]]
    while stack and budget > 0:
        prefix = stack.pop()
        # A prefix costs as much as it is long.
        budget -= 1 + len(prefix)
        if len(prefix) == len(tasks):
            yield prefix
            continue
        placed = {task for task, _ in prefix}
        choices = _choices(tasks, prefix, placed)
        stack += [[*prefix, choice] for choice in reversed(choices)]


def _choices(tasks: HostTasks, prefix: Order, placed: set[int]) -> list[tuple[int, int]]:
    """The next tasks with their senders, those that can start first in front; few of them."""
    sending, receiving = Cards(tasks.cards), Cards(tasks.cards)
    for piece in in_order(tasks, prefix):
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


def all_orders(
    tasks: HostTasks, units: UnitTasks, seeds: int = 1
) -> dict[str, Callable[[], Order]]:
    """The five orders by name, the greedy one once a seed; made when they are called."""
    found: dict[str, Callable[[], Order]] = {
        "naive": lambda: naive(tasks),
        "normal": lambda: device_balanced(tasks, units),
        "size-balanced": lambda: size_balanced(tasks),
        "search": lambda: searched(tasks),
    }
    # The public code draws without a seed; ours are fixed.
    for seed in range(seeds):
        found[f"greedy-{seed}"] = lambda seed=seed: greedy(tasks, seed)  # type: ignore[misc]
    return found


def time_of(tasks: HostTasks, order: Order) -> Fraction:
    """The time of an order, in ticks."""
    return makespan_of(in_order(tasks, order))
