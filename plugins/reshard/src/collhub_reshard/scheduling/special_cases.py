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
from itertools import count

from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import Piece, share_among_senders

_End = tuple[str, int]


def is_colourable(tasks: HostTasks) -> bool:
    """Return whether edge colouring applies: all tasks are equally long and have one receiver each.

    The durations of all tasks from all their senders must be one single number of ticks. In
    addition, every host must have one card, and all release times must be 0. False without
    tasks.
    """
    times = {ticks for row in tasks.durations for ticks in row}
    are_single = all(len(hosts) == 1 for hosts in tasks.receivers)
    return len(times) == 1 and are_single and tasks.cards == 1 and not any(tasks.release)


def schedule_by_colours(tasks: HostTasks) -> tuple[Piece, ...]:
    """Return the schedule with the fewest time slots, given the sender of every task.

    The tasks must satisfy `is_colourable` (equal durations, one receiver each) and have equal
    bytes; there is at least one. Each is one piece. Pieces are sorted by start (ticks), then by
    task.

    - `share_among_senders` divides the bytes as if tasks could be split. The limit of tasks per
      host is the time of this division / duration of a task, rounded up; a host exceeds it if all
      senders of a task have reached it.
    - Tasks are grouped by senders and receivers; groups with fewer senders come first. For each
      task the sender is a host below the limit, of these the one with the most bytes left of its
      share for these senders (less the tasks of the group that it sends), then the first one.
    - Every task is an edge from sender to receiver, and its colour is its slot, so tasks with a
      common card have different slots. Slot k begins at k times the duration of a task.
    """
    ticks = tasks.durations[0][0]
    sharing = share_among_senders(tasks, range(len(tasks)))
    limit = -(-sharing.time_s // (ticks * tasks.tick_s))
    load: dict[int, int] = {}
    senders = [0] * len(tasks)
    for (hosts, _), members in sorted(tasks.classes().items(), key=lambda item: len(item[0][0])):
        # Bytes left of each host; they may become negative.
        left = {host: sharing.shares.get((hosts, host), Fraction(0)) for host in hosts}
        for task in members:
            sender = max(hosts, key=lambda host: (load.get(host, 0) < limit, left[host]))
            left[sender] -= tasks.bytes[0]
            load[sender] = load.get(sender, 0) + 1
            senders[task] = sender
    edges = [(senders[task], tasks.receivers[task][0]) for task in range(len(tasks))]
    colours = colour_edges(edges)
    pieces = [
        Piece(task, senders[task], Fraction(colour * ticks), Fraction(ticks))
        for task, colour in enumerate(colours)
    ]
    return tuple(sorted(pieces, key=lambda piece: (piece.start, piece.task)))


def colour_edges(edges: Sequence[tuple[int, int]]) -> list[int]:
    """Colour the edges (sender, receiver) so that edges with a common end have different colours.

    The colours are 0, 1, ...; their number is the maximum degree, the smallest possible one. A
    sender and a receiver of the same number are different ends. Equal edges get different colours.
    The result is in the order of the edges.
    """
    taken: dict[_End, dict[int, int]] = {}
    edge_ends: list[tuple[_End, _End]] = [(("out", a), ("in", b)) for a, b in edges]
    colours = [-1] * len(edges)
    for edge, (left, right) in enumerate(edge_ends):
        at_left, at_right = taken.setdefault(left, {}), taken.setdefault(right, {})
        free_left = next(colour for colour in count() if colour not in at_left)
        free_right = next(colour for colour in count() if colour not in at_right)
        if free_left in at_right:
            _swap_path(right, free_left, free_right, edge_ends, taken, colours)
        colours[edge] = free_left
        at_left[free_left] = edge
        at_right[free_left] = edge
    return colours


def _swap_path(
    start: _End,
    colour: int,
    other_colour: int,
    edge_ends: Sequence[tuple[_End, _End]],
    taken: dict[_End, dict[int, int]],
    colours: list[int],
) -> None:
    """Swap two colours along a path of edges, so that `colour` becomes free at node `start`.

    The path begins at `start` with an edge of `colour`, alternates between both colours, and ends
    where no next edge exists. Without an edge of `colour` at `start` nothing changes.
    `other_colour` must be free at `start`.

    Changed for the edges of the path: `colours` (colour by edge), and `taken` (edge by colour, for
    each node). `edge_ends`: both nodes by edge.
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
    """Return whether `build_split_schedule` applies to the tasks.

    All these conditions must hold: the rates in and out of all hosts are equal; a host has
    one card; all release times are 0; every task has either one receiving host or all hosts
    that receive any task. The schedule then reaches the fluid bound if all tasks have work
    1, which is not checked here. True for no tasks and equal rates.
    """
    network = tasks.network
    rates = set(network.out_rate.values()) | set(network.in_rate.values())
    everyone = tuple(sorted({host for hosts in tasks.receivers for host in hosts}))
    fit = all(len(hosts) == 1 or hosts == everyone for hosts in tasks.receivers)
    return fit and len(rates) == 1 and network.cards == 1 and not any(tasks.release)


def build_split_schedule(tasks: HostTasks) -> tuple[Piece, ...]:
    """Return a schedule of split tasks whose makespan is the fluid bound, sorted by start.

    The tasks must satisfy `can_split`. Times are in ticks, as exact fractions. First come the tasks
    with several receivers; each of them has all receiving hosts as receivers. They are sent one
    after the other from 0 on, in the order of their numbers, each as one piece from its first
    sender.

    Then the tasks with one receiver are divided among their senders (`_divide_among_senders`). They
    are sent in matchings, one after the other. In a matching, each host sends at most one piece and
    receives at most one piece at a time. So a task can have several pieces, from several senders;
    `first` and `last` are the fractions of the task where a piece begins and ends.

    Pieces of equal start are sorted by task, then by `first`. A task without bytes and with one
    receiver has no piece.
    """
    clock = Fraction(0)
    pieces = []
    for task, receivers in enumerate(tasks.receivers):
        if len(receivers) > 1:
            # All receiving cards are busy, so one sender is sufficient.
            ticks = Fraction(tasks.durations[task][0])
            pieces.append(Piece(task, tasks.senders[task][0], clock, ticks))
            clock += ticks
    single = [task for task in range(len(tasks)) if len(tasks.receivers[task]) == 1]
    loads: dict[_Pair, Fraction] = {}
    queues: dict[_Pair, list[_Part]] = {}
    for part in _divide_among_senders(tasks, single):
        pair = part.sender, tasks.receivers[part.task][0]
        loads[pair] = loads.get(pair, Fraction(0)) + part.ticks
        queues.setdefault(pair, []).append(part)
    for queue in queues.values():
        # The last entry of a queue is next.
        queue.reverse()
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


def _divide_among_senders(tasks: HostTasks, single: Sequence[int]) -> list[_Part]:
    """Divide tasks among the hosts that can send them, so that the busiest host finishes earliest.

    `single`: numbers of the tasks to divide, each of which has one receiver. Tasks with the same
    senders form a group; `share_among_senders` computes the bytes of each group that every host
    sends, i.e. the share of the host. Tasks are divided in the order of `single`. Each task goes
    through its senders in ascending order. It takes from each sender the unused rest of the share
    of this host in the group, until all bytes of the task have a sender.

    A task may have several parts, and a task without bytes has none. The length of a part in ticks
    is its fraction of the task times the duration of the task from its first sender. All numbers
    are exact. Parts are returned task by task. `tasks` is not changed.
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


def _run(queue: list[_Part], start: Fraction, length: Fraction) -> list[Piece]:
    """Remove `length` ticks of work from the end of a queue; return the work as pieces.

    Parts are used from the last one in the queue to the first. The pieces follow one another from
    `start` on (ticks). A part whose work is used up is removed from the queue. A part with more
    work is divided: the piece gets the work from `part.first` on, and the part keeps the rest and
    stays last in the queue. If the queue has less work than `length`, all of it is returned. No
    piece is returned for a length of 0 or an empty queue. `queue` and its parts are changed.
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
    """Divide the loads of (sender, receiver) pairs into matchings, which run one by one.

    A card is a sending or a receiving port. A matching uses every card in at most one pair. Returns
    (start, length, pairs) of each matching, in ticks, by ascending start from 0 without gaps. Loads
    of 0 are ignored; without loads the list is empty. All matchings together take the largest load
    of a card.

    A card is tight if its remaining load equals the remaining time. Each matching uses every tight
    card. It runs until one of its pairs has no load left, or an unused card becomes tight. Each
    occurs at most once per pair or card, so there are few matchings. `loads` is not changed.
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
    """Return the load of every card, by ("out" or "in", host).

    The load of a pair counts for the outgoing card of its sender and the incoming card of its
    receiver. Cards without a pair are absent.
    """
    sums: dict[tuple[str, int], Fraction] = {}
    for (sender, receiver), load in loads.items():
        for card in (("out", sender), ("in", receiver)):
            sums[card] = sums.get(card, Fraction(0)) + load
    return sums


def _find_covering_matching(pairs: Sequence[_Pair], tight: set[tuple[str, int]]) -> list[_Pair]:
    """Find a matching of (sender, receiver) pairs that covers every tight host, sorted by sender.

    The pairs are ascending. `tight`: ("out", host) for senders and ("in", host) for receivers whose
    cards have no slack. First every tight sender, ascending, gets a receiver. Then every uncovered
    tight receiver, ascending, gets a sender. Possible partners are tried in the order of the pairs;
    the first is taken that is free or can be freed. Its former partner is moved to another host or,
    if it is not tight, left without one (Mendelsohn and Dulmage 1958).

    A covering matching exists if no card has more work than the remaining time. Otherwise tight
    hosts may be missing in the result, without an error. A tight host without pairs raises
    `KeyError`. Without tight hosts the result is empty.
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
    """Give a node a partner, moving others to other partners if needed; return whether it worked.

    The partners in `edges[node]` are tried in order. If a partner is taken, its holder gets another
    partner if possible. Otherwise the holder loses its partner, unless it is in `needed`; then the
    next partner is tried. Partners in `seen` are not tried again. `mine` (node to partner),
    `theirs` (partner to node) and `seen` are changed.
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
