"""Optimal schedules of two special cases, in polynomial time.

Equal tasks with one receiver each: bipartite edge colouring (Koenig 1916). A colour is a time slot;
the edges of a colour share no card. With fixed senders, as many colours suffice as the largest load
of a card; alternating paths find them in O(tasks * hosts).

Tasks that may be interrupted and split over several senders: an open shop with pre-emption
(Gonzalez and Sahni 1976), which reaches the fluid bound. A flow shares the bytes among senders;
then the load matrix is decomposed into matchings, each of which runs for as long as its tightest
entry allows. Tasks that every host receives are scheduled first, one after the other; other sets of
receivers are not covered (`can_split`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import Piece, share_among_senders

_End = tuple[str, int]


def is_colourable(tasks: HostTasks) -> bool:
    """Return whether edge colouring applies: all tasks take the same time from all senders and have
    one receiver each, hosts have one card, and no task has a release time. False without tasks.
    """
    times = {ticks for row in tasks.durations for ticks in row}
    are_single = all(len(hosts) == 1 for hosts in tasks.receivers)
    return len(times) == 1 and are_single and tasks.cards == 1 and not any(tasks.release)


def schedule_by_colours(tasks: HostTasks) -> tuple[Piece, ...]:
    """Build the schedule with the fewest slots for the most even choice of senders.

    A colour of the edge (sender, first receiver) is a slot; all tasks have the duration of the
    first. Every task is one piece in its slot. Pieces are sorted by start (ticks), then by task.
    """
    senders = _choose_even_senders(tasks)
    edges = [(senders[task], tasks.receivers[task][0]) for task in range(len(tasks))]
    colours = colour_edges(edges)
    ticks = tasks.durations[0][0]
    pieces = [
        Piece(task, senders[task], Fraction(colour * ticks), Fraction(ticks))
        for task, colour in enumerate(colours)
    ]
    return tuple(sorted(pieces, key=lambda piece: (piece.start, piece.task)))


def _choose_even_senders(tasks: HostTasks) -> list[int]:
    """Return a sender for every task so that the maximum number of tasks of a sender is as small as
    the bound allows; all tasks have equal size. The flow of the fluid bound is rounded, groups with
    few senders first: a task goes to a host below the limit, and among these to the one with the
    largest remaining share.
    """
    sharing = share_among_senders(tasks, range(len(tasks)))
    size = tasks.bytes[0]
    load: dict[int, int] = {}
    limit = -(-sharing.time_s // (tasks.durations[0][0] * tasks.tick_s))
    chosen = [0] * len(tasks)
    for (senders, _), members in sorted(tasks.classes().items(), key=lambda item: len(item[0][0])):
        shares = {host: sharing.shares.get((senders, host), Fraction(0)) for host in senders}
        for task in members:
            host = max(
                senders, key=lambda candidate: (load.get(candidate, 0) < limit, shares[candidate])
            )
            shares[host] -= size
            load[host] = load.get(host, 0) + 1
            chosen[task] = host
    return chosen


def colour_edges(edges: Sequence[tuple[int, int]]) -> list[int]:
    """Colour the edges (sender, receiver) so that edges with a common end differ.

    The colours are 0, 1, ..., as few as the maximum degree. A sender and a receiver of equal number
    are different ends; equal edges get different colours. The result is in the order of the edges.
    """
    taken: dict[_End, dict[int, int]] = {}
    edge_ends: list[tuple[_End, _End]] = [(("out", a), ("in", b)) for a, b in edges]
    colours = [-1] * len(edges)
    for edge, (left, right) in enumerate(edge_ends):
        at_left, at_right = taken.setdefault(left, {}), taken.setdefault(right, {})
        free_left, free_right = _find_free_colour(at_left), _find_free_colour(at_right)
        if free_left in at_right:
            _swap_path(right, free_left, free_right, edge_ends, taken, colours)
        colours[edge] = free_left
        at_left[free_left] = edge
        at_right[free_left] = edge
    return colours


def _find_free_colour(taken: dict[int, int]) -> int:
    """Return the smallest colour from 0 that is not a key of `taken`, the edges at a node by
    colour.
    """
    colour = 0
    while colour in taken:
        colour += 1
    return colour


def _swap_path(
    start: _End,
    colour: int,
    other_colour: int,
    edge_ends: Sequence[tuple[_End, _End]],
    taken: dict[_End, dict[int, int]],
    colours: list[int],
) -> None:
    """Swap two colours on the path of edges that alternate between them from `start`, so that
    `colour` becomes free there. Changes `taken` (edge by colour at each end) and `colours` (by
    edge). The path alternates between the sides, so it never reaches the other end of the new edge.
    """
    path = []
    node, next_colour = start, colour
    while next_colour in taken[node]:
        edge = taken[node][next_colour]
        path.append(edge)
        left, right = edge_ends[edge]
        node = right if node == left else left
        next_colour = other_colour if next_colour == colour else colour
    for edge in path:
        for end in edge_ends[edge]:
            taken[end].pop(colours[edge], None)
    for edge in path:
        colours[edge] = other_colour if colours[edge] == colour else colour
    for edge in path:
        for end in edge_ends[edge]:
            taken[end][colours[edge]] = edge


_Pair = tuple[int, int]


def can_split(tasks: HostTasks) -> bool:
    """Return whether splitting reaches the fluid bound for these tasks.

    All cards must be equal, with one per host; each task is received by one host or by all hosts,
    and no task has a release time.
    """
    network = tasks.network
    rates = set(network.out_rate.values()) | set(network.in_rate.values())
    everyone = tuple(sorted({host for hosts in tasks.receivers for host in hosts}))
    fit = all(len(hosts) == 1 or hosts == everyone for hosts in tasks.receivers)
    return fit and len(rates) == 1 and network.cards == 1 and not any(tasks.release)


def build_split_schedule(tasks: HostTasks) -> tuple[Piece, ...]:
    """Build pieces whose makespan is the fluid bound.

    Tasks that all hosts receive come first, one after the other, then the matchings of the divided
    remaining tasks, in which every card has at most one piece at a time. Tasks have one receiver or
    are received by all. Pieces are sorted by start, task and first fraction.
    """
    everyone = tuple(sorted({host for hosts in tasks.receivers for host in hosts}))
    shared = [task for task in range(len(tasks)) if len(tasks.receivers[task]) > 1]
    single = [task for task in range(len(tasks)) if len(tasks.receivers[task]) == 1]
    pieces, clock = _schedule_broadcasts(tasks, shared if len(everyone) > 1 else [])
    parts = _divide_among_senders(tasks, single)
    loads: dict[_Pair, Fraction] = {}
    for part in parts:
        pair = part.sender, tasks.receivers[part.task][0]
        loads[pair] = loads.get(pair, Fraction(0)) + part.ticks
    queues = _build_queues(tasks, parts)
    for start, length, matching in _decompose_into_matchings(loads):
        for pair in matching:
            pieces += _run(queues[pair], clock + start, length)
    return tuple(sorted(pieces, key=lambda piece: (piece.start, piece.task, piece.first)))


@dataclass(slots=True)
class _Part:
    """The part of a task that one sender sends: from `first` on, `ticks` long.

    `total`: ticks of the full task.
    """

    task: int
    sender: int
    first: Fraction
    ticks: Fraction
    total: Fraction


def _schedule_broadcasts(tasks: HostTasks, shared: Sequence[int]) -> tuple[list[Piece], Fraction]:
    """Schedule tasks that all hosts receive, one after the other; return (pieces, end) in ticks.

    They start at 0, in the order of `shared`, each as one piece from its first sender.
    """
    clock = Fraction(0)
    pieces = []
    for task in shared:
        # All receiving cards are busy, so one sender is sufficient.
        senders = tasks.senders[task]
        ticks = Fraction(tasks.durations[task][0])
        pieces.append(Piece(task, senders[0], clock, ticks))
        clock += ticks
    return pieces, clock


def _divide_among_senders(tasks: HostTasks, single: Sequence[int]) -> list[_Part]:
    """Divide tasks among the hosts that can send them, so that the busiest host finishes earliest.

    `single`: numbers of the tasks to divide, each of which has one receiver. Tasks that the same
    hosts can send form a group. First, `share_among_senders` computes how many bytes of each group
    every host has to send. Then the tasks are divided in the order of `single`: each task takes
    from its senders, in ascending order, what is left of their shares of its group, until all of
    its bytes have a sender.

    A task may thus have several parts, and a task without bytes has none. A part has its first
    position as a fraction of the task, and its length in ticks, in proportion to the duration of
    the task from its first sender. All numbers are exact fractions. Returns the parts, task by
    task.
    """
    sharing = share_among_senders(tasks, single)
    left = dict(sharing.shares)
    parts = []
    for task in single:
        senders = tasks.senders[task]
        size = Fraction(tasks.bytes[task])
        total = Fraction(tasks.durations[task][0])
        done = Fraction(0)
        for host in senders:
            amount = min(left.get((senders, host), Fraction(0)), size - done)
            if not amount:
                continue
            left[senders, host] -= amount
            part = _Part(task, host, done / size, amount / size * total, total)
            parts.append(part)
            done += amount
    return parts


def _build_queues(tasks: HostTasks, parts: Sequence[_Part]) -> dict[_Pair, list[_Part]]:
    """Build the queue of parts per pair (sender, first receiver); the last entry of a queue is
    next, and it is the first of the pair in `parts`.
    """
    queues: dict[_Pair, list[_Part]] = {}
    for part in reversed(parts):
        pair = part.sender, tasks.receivers[part.task][0]
        queues.setdefault(pair, []).append(part)
    return queues


def _run(queue: list[_Part], start: Fraction, length: Fraction) -> list[Piece]:
    """Take `length` ticks of work from the end of a queue; return the pieces, one after the other.

    They begin at `start` (ticks). Parts that are used up leave the queue, which is changed. A part
    that does not fit is divided; its remainder stays in the queue. Less is taken if the queue is
    shorter.
    """
    pieces = []
    while length and queue:
        part = queue[-1]
        ticks = min(length, part.ticks)
        share = ticks / part.total
        last = part.first + share
        pieces.append(Piece(part.task, part.sender, start, ticks, part.first, last))
        part.first = last
        part.ticks -= ticks
        start += ticks
        length -= ticks
        # The remaining part continues in a later matching.
        if not part.ticks:
            queue.pop()
    return pieces


def _decompose_into_matchings(
    loads: Mapping[_Pair, Fraction],
) -> list[tuple[Fraction, Fraction, list[_Pair]]]:
    """Decompose loads into matchings; return (start, length, pairs) of each, in ticks.

    Together they take the maximum load of a card. A matching covers every card whose load equals
    the remaining time (without slack); it runs until a pair is finished or another card loses its
    slack. Both happen at most once per pair or card, so there are few matchings. Empty without
    loads.
    """
    remaining = {pair: load for pair, load in loads.items() if load}
    matchings = []
    clock = Fraction(0)
    end = max(_sum_loads(remaining).values(), default=Fraction(0))
    while remaining:
        sums = _sum_loads(remaining)
        rest = end - clock
        tight = {card for card, load in sums.items() if load == rest}
        matching = _find_covering_matching(sorted(remaining), tight)
        covered = {("out", a) for a, _ in matching} | {("in", b) for _, b in matching}
        slack = [rest - load for card, load in sums.items() if card not in covered]
        length = min([remaining[pair] for pair in matching] + [s for s in slack if s > 0])
        matchings.append((clock, length, matching))
        for pair in matching:
            remaining[pair] -= length
            if not remaining[pair]:
                del remaining[pair]
        clock += length
    return matchings


def _sum_loads(loads: Mapping[_Pair, Fraction]) -> dict[tuple[str, int], Fraction]:
    """Return the remaining work of every card, keyed by ("out" or "in", host).

    A load counts at its sender's outgoing and at its receiver's incoming card. Others are absent.
    """
    sums: dict[tuple[str, int], Fraction] = {}
    for (sender, receiver), load in loads.items():
        for card in (("out", sender), ("in", receiver)):
            sums[card] = sums.get(card, Fraction(0)) + load
    return sums


def _find_covering_matching(pairs: Sequence[_Pair], tight: set[tuple[str, int]]) -> list[_Pair]:
    """Find a matching that covers every tight card.

    It exists because no card has more work than the remaining time. Every tight sender is matched,
    then every tight receiver by a path that frees no tight card (Mendelsohn and Dulmage 1958).
    """
    to_receivers: dict[int, list[int]] = {}
    to_senders: dict[int, list[int]] = {}
    for sender, receiver in pairs:
        to_receivers.setdefault(sender, []).append(receiver)
        to_senders.setdefault(receiver, []).append(sender)
    receiver_of: dict[int, int] = {}
    sender_of: dict[int, int] = {}
    tight_out = {host for side, host in tight if side == "out"}
    tight_in = {host for side, host in tight if side == "in"}
    for sender in sorted(tight_out):
        _match(sender, to_receivers, receiver_of, sender_of, tight_out, set())
    for receiver in sorted(tight_in - set(sender_of)):
        _match(receiver, to_senders, sender_of, receiver_of, tight_in, set())
    return sorted(receiver_of.items())


def _match(
    node: int,
    edges: Mapping[int, Sequence[int]],
    mine: dict[int, int],
    theirs: dict[int, int],
    needed: set[int],
    seen: set[int],
) -> bool:
    """Match a node, by moving others of its side or displacing one that is not in `needed`.

    Augmenting path search: partners in `seen` are not tried again. Returns False if the node cannot
    be matched; otherwise True, with `mine` (node to partner) and `theirs` (partner to node)
    changed.
    """
    for partner in edges[node]:
        if partner in seen:
            continue
        seen.add(partner)
        holder = theirs.get(partner)
        if holder is not None and not _match(holder, edges, mine, theirs, needed, seen):
            # Displacing keeps `partner` matched, so tight nodes on its side stay covered.
            if holder in needed:
                continue
            del mine[holder]
        mine[node] = partner
        theirs[partner] = node
        return True
    return False
