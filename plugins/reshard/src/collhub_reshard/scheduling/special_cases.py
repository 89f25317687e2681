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

from collhub_reshard.scheduling.bounds import share_among_senders
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import Piece

_End = tuple[str, int]


def is_colourable(tasks: HostTasks) -> bool:
    """Whether all tasks take one time, have one receiver each and none is released later."""
    times = {ticks for row in tasks.durations for ticks in row}
    are_single = all(len(hosts) == 1 for hosts in tasks.receivers)
    return len(times) == 1 and are_single and tasks.cards == 1 and not any(tasks.release)


def schedule_by_colours(tasks: HostTasks) -> tuple[Piece, ...]:
    """The schedule with the fewest slots for the evenest choice of senders."""
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
    """Senders whose largest load is as small as whole tasks allow.

    The flow of the fluid bound, rounded group by group: rests go where most is missing.
    """
    sharing = share_among_senders(tasks, range(len(tasks)))
    size = tasks.bytes[0]
    load: dict[int, int] = {}
    limit = -(-sharing.time_s // (tasks.durations[0][0] * tasks.tick_s))
    chosen = [0] * len(tasks)
    for (senders, _), members in sorted(tasks.classes().items(), key=lambda item: len(item[0][0])):
        shares = {host: sharing.shares.get((senders, host), Fraction(0)) for host in senders}
        for task in members:
            # Full hosts come last; among others the one with most of its share left.
            host = max(senders, key=lambda one: (load.get(one, 0) < limit, shares[one]))
            shares[host] -= size
            load[host] = load.get(host, 0) + 1
            chosen[task] = host
    return chosen


def colour_edges(edges: Sequence[tuple[int, int]]) -> list[int]:
    """Colours 0, 1, ... of the edges (sender, receiver), as few as the largest degree."""
    taken: dict[_End, dict[int, int]] = {}
    ends: list[tuple[_End, _End]] = [(("out", a), ("in", b)) for a, b in edges]
    colours = [-1] * len(edges)
    for edge, (left, right) in enumerate(ends):
        at_left, at_right = taken.setdefault(left, {}), taken.setdefault(right, {})
        free_left, free_right = _find_free_colour(at_left), _find_free_colour(at_right)
        if free_left in at_right:
            _swap_path(right, free_left, free_right, ends, taken, colours)
        colours[edge] = free_left
        at_left[free_left] = edge
        at_right[free_left] = edge
    return colours


def _find_free_colour(taken: dict[int, int]) -> int:
    """The first colour that an end has not."""
    colour = 0
    while colour in taken:
        colour += 1
    return colour


def _swap_path(
    start: _End,
    colour: int,
    other: int,
    ends: Sequence[tuple[_End, _End]],
    taken: dict[_End, dict[int, int]],
    colours: list[int],
) -> None:
    """Swap two colours on the path from `start`, so that `colour` becomes free there.

    The path alternates between the sides, so that it never comes to the other end of the new edge.
    """
    path = []
    node, wanted = start, colour
    while wanted in taken[node]:
        edge = taken[node][wanted]
        path.append(edge)
        left, right = ends[edge]
        node = right if node == left else left
        wanted = other if wanted == colour else colour
    for edge in path:
        for end in ends[edge]:
            taken[end].pop(colours[edge], None)
    for edge in path:
        colours[edge] = other if colours[edge] == colour else colour
    for edge in path:
        for end in ends[edge]:
            taken[end][colours[edge]] = edge


_Pair = tuple[int, int]


def can_split(tasks: HostTasks) -> bool:
    """Whether splitting reaches the fluid bound here: equal cards, one or all hosts receive."""
    network = tasks.network
    rates = set(network.out_rate.values()) | set(network.in_rate.values())
    everyone = tuple(sorted({host for hosts in tasks.receivers for host in hosts}))
    fit = all(len(hosts) == 1 or hosts == everyone for hosts in tasks.receivers)
    return fit and len(rates) == 1 and network.cards == 1 and not any(tasks.release)


def build_split_schedule(tasks: HostTasks) -> tuple[Piece, ...]:
    """Pieces whose makespan is the fluid bound."""
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
    """What one sender does of a task: from `first` on, `ticks` long; `total`: of the whole task."""

    task: int
    sender: int
    first: Fraction
    ticks: Fraction
    total: Fraction


def _schedule_broadcasts(tasks: HostTasks, shared: Sequence[int]) -> tuple[list[Piece], Fraction]:
    """Tasks that all hosts receive, one after the other, from senders in turn."""
    clock = Fraction(0)
    pieces = []
    for task in shared:
        # Every card in is busy, so that one sender is enough.
        senders = tasks.senders[task]
        ticks = Fraction(tasks.durations[task][0])
        pieces.append(Piece(task, senders[0], clock, ticks))
        # The next one can only follow.
        clock += ticks
    return pieces, clock


def _divide_among_senders(tasks: HostTasks, single: Sequence[int]) -> list[_Part]:
    """The tasks cut so that every sender gets its share of their group."""
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
    queues: dict[_Pair, list[_Part]] = {}
    for part in reversed(parts):
        pair = part.sender, tasks.receivers[part.task][0]
        queues.setdefault(pair, []).append(part)
    return queues


def _run(queue: list[_Part], start: Fraction, length: Fraction) -> list[Piece]:
    """Take `length` ticks of work from a queue, whose next part stands last."""
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
        # What is left goes on in a later matching.
        if not part.ticks:
            queue.pop()
    return pieces


def _decompose_into_matchings(
    loads: Mapping[_Pair, Fraction],
) -> list[tuple[Fraction, Fraction, list[_Pair]]]:
    """(start, length, pairs) of matchings that do all loads in the largest row or column sum.

    A matching covers every card that has no slack; it runs until a pair is done or another card
    loses its slack. Both happen at most once a pair or card, so that there are few matchings.
    """
    left = {pair: load for pair, load in loads.items() if load}
    found = []
    clock = Fraction(0)
    end = max(_sum_loads(left).values(), default=Fraction(0))
    while left:
        sums = _sum_loads(left)
        rest = end - clock
        tight = {card for card, load in sums.items() if load == rest}
        matching = _find_covering_matching(sorted(left), tight)
        met = {("out", a) for a, _ in matching} | {("in", b) for _, b in matching}
        slack = [rest - load for card, load in sums.items() if card not in met]
        length = min([left[pair] for pair in matching] + [s for s in slack if s > 0])
        found.append((clock, length, matching))
        for pair in matching:
            left[pair] -= length
            if not left[pair]:
                del left[pair]
        clock += length
    return found


def _sum_loads(loads: Mapping[_Pair, Fraction]) -> dict[tuple[str, int], Fraction]:
    """The work left on every card."""
    sums: dict[tuple[str, int], Fraction] = {}
    for (sender, receiver), load in loads.items():
        for card in (("out", sender), ("in", receiver)):
            sums[card] = sums.get(card, Fraction(0)) + load
    return sums


def _find_covering_matching(pairs: Sequence[_Pair], tight: set[tuple[str, int]]) -> list[_Pair]:
    """A matching that meets every tight card; it exists since no card has more work than is left.

    Every tight sender is matched, then every tight receiver by a path that frees no tight card
    (Mendelsohn and Dulmage 1958).
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
    """Match a node, moving others of its side, or displacing one that need not be met."""
    for other in edges[node]:
        if other in seen:
            continue
        seen.add(other)
        holder = theirs.get(other)
        if holder is not None and not _match(holder, edges, mine, theirs, needed, seen):
            # Displacing keeps `other` matched, so that nothing tight on its side is lost.
            if holder in needed:
                continue
            del mine[holder]
        mine[node] = other
        theirs[other] = node
        return True
    return False
