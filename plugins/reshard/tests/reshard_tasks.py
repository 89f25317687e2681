"""Random tasks between hosts, for the laws of schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from collhub_reshard import parse_move, unit_tasks
from collhub_reshard.scheduling.host_tasks import HostTasks, build_host_tasks, build_ideal_network
from collhub_reshard.scheduling.schedule import Piece
from collhub_shardings import Move, UnitTasks
from hypothesis import strategies as st


@st.composite
def specs(draw: st.DrawFn, rank: int = 2) -> str:
    """Every axis of a two-dimensional mesh splits a dimension, or replicates."""
    words = [""] * rank
    for axis in draw(st.permutations("01")):
        place = draw(st.integers(-1, rank - 1))
        if place >= 0:
            words[place] += axis
    return " ".join(f"S{word}" if word else "R" for word in words)


@st.composite
def moves(draw: st.DrawFn) -> Move:
    """A small ragged matrix between two small meshes."""
    sizes = st.integers(1, 3)
    shape = [draw(st.integers(9, 30)) for _ in range(2)]
    sides = [f"mesh({draw(sizes)},{draw(sizes)}): {draw(specs())}" for _ in range(2)]
    return parse_move(f"{shape[0]}x{shape[1]}:float32", *sides)


def between_hosts(found: list[Move], cards: int = 1) -> tuple[UnitTasks, HostTasks]:
    """The tasks of moves on equal cards of 1 GB/s."""
    units = unit_tasks(found)
    hosts = {host for host in units.host_of.tolist() if host >= 0}
    return units, build_host_tasks(units, found, build_ideal_network(hosts, 1e9, cards=cards))


def check_pieces(tasks: HostTasks, pieces: tuple[Piece, ...]) -> None:
    """Every task is sent once as a whole, and no card has more at once than it can do."""
    parts: dict[int, Fraction] = defaultdict(Fraction)
    events: dict[tuple[str, int], list[tuple[Fraction, int]]] = defaultdict(list)
    for piece in pieces:
        assert piece.sender in tasks.senders[piece.task]
        assert piece.start >= tasks.release[piece.task]
        share = piece.last - piece.first
        assert piece.duration == share * tasks.duration(piece.task, piece.sender)
        parts[piece.task] += share
        cards = [("in", host) for host in tasks.receivers[piece.task]]
        for card in [("out", piece.sender), *cards]:
            events[card] += [(piece.start, 1), (piece.end, -1)]
    assert parts == dict.fromkeys(range(len(tasks)), Fraction(1))
    for changes in events.values():
        running = 0
        # Of one time, the ends come first.
        for _, change in sorted(changes):
            running += change
            assert running <= tasks.cards


def changing(*path: object, value: object) -> Callable[[Any], None]:
    """A change of one place in a proof."""

    def change(proof: Any) -> None:
        at = proof
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value

    return change
