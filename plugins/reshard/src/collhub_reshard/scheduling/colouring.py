"""Equal tasks with one receiver each: the optimum by bipartite edge colouring (Koenig 1916).

A colour is a time slot; the edges of a colour share no card. With the senders fixed, the largest
load of a card is enough colours, found by alternating paths in O(tasks * hosts).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collhub_reshard.scheduling.bounds import sender_sharing
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import Piece

_End = tuple[str, int]


def is_colourable(tasks: HostTasks) -> bool:
    """Whether all tasks take one time, have one receiver each and none is released later."""
    times = {ticks for row in tasks.durations for ticks in row}
    are_single = all(len(hosts) == 1 for hosts in tasks.receivers)
    return len(times) == 1 and are_single and tasks.cards == 1 and not any(tasks.release)


def coloured(tasks: HostTasks) -> tuple[Piece, ...]:
    """The schedule with the fewest slots for the evenest choice of senders."""
    senders = _even_senders(tasks)
    edges = [(senders[task], tasks.receivers[task][0]) for task in range(len(tasks))]
    colours = edge_colours(edges)
    ticks = tasks.durations[0][0]
    pieces = [
        Piece(task, senders[task], Fraction(colour * ticks), Fraction(ticks))
        for task, colour in enumerate(colours)
    ]
    return tuple(sorted(pieces, key=lambda piece: (piece.start, piece.task)))


def _even_senders(tasks: HostTasks) -> list[int]:
    """Senders whose largest load is as small as whole tasks allow.

    The flow of the fluid bound, rounded group by group: rests go where most is missing.
    """
    sharing = sender_sharing(tasks, range(len(tasks)))
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


def edge_colours(edges: Sequence[tuple[int, int]]) -> list[int]:
    """Colours 0, 1, ... of the edges (sender, receiver), as few as the largest degree."""
    taken: dict[_End, dict[int, int]] = {}
    ends: list[tuple[_End, _End]] = [(("out", a), ("in", b)) for a, b in edges]
    colours = [-1] * len(edges)
    for edge, (left, right) in enumerate(ends):
        at_left, at_right = taken.setdefault(left, {}), taken.setdefault(right, {})
        free_left, free_right = _free(at_left), _free(at_right)
        if free_left in at_right:
            _swap_path(right, free_left, free_right, ends, taken, colours)
        colours[edge] = free_left
        at_left[free_left] = edge
        at_right[free_left] = edge
    return colours


def _free(taken: dict[int, int]) -> int:
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
