"""A schedule of tasks on network cards: the sender and the time of every piece."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collhub_reshard.scheduling.bounds import Bound
from collhub_reshard.scheduling.host_tasks import HostTasks


@dataclass(frozen=True, slots=True)
class Piece:
    """A task, or a part of one, from one sender; `start` and `duration` in ticks.

    `first` and `last`: the part of the task's bytes, from 0 to 1.
    """

    task: int
    sender: int
    start: Fraction
    duration: Fraction
    first: Fraction = Fraction(0)
    last: Fraction = Fraction(1)

    @property
    def end(self) -> Fraction:
        """When it finishes, in ticks."""
        return self.start + self.duration


@dataclass(frozen=True, slots=True)
class HostSchedule:
    """Pieces in order of their start, and their proof.

    `method`: the method that found them. `status`: `optimal` (proved by the bound or the solver) or
    `feasible`. `proof`: `bound`, `solver` or `none`. `lower_bound_ticks`: the best known bound,
    including the solver's.
    """

    pieces: tuple[Piece, ...]
    method: str
    status: str
    proof: str
    bound: Bound
    lower_bound_ticks: Fraction

    @property
    def makespan(self) -> Fraction:
        """When the last piece finishes, in ticks."""
        return max((piece.end for piece in self.pieces), default=Fraction(0))

    @property
    def gap(self) -> float:
        """Excess of the makespan over the lower bound, as a fraction of the bound."""
        lower_bound = self.lower_bound_ticks
        return float(self.makespan / lower_bound - 1) if lower_bound else 0.0

    def late_tasks(self, tasks: HostTasks) -> tuple[int, ...]:
        """Return the tasks that finish after their due times."""
        ends = _find_ends(self.pieces)
        late = []
        for task, end in sorted(ends.items()):
            due = tasks.due[task]
            if due is not None and end > due:
                late.append(task)
        return tuple(late)


Order = Sequence[tuple[int, int]]
"""Tasks with their senders, in the order in which they start."""


class Cards:
    """Times at which the cards of all hosts become free, in one direction."""

    def __init__(self, cards: int) -> None:
        self._cards = cards
        # Hosts are added when tasks name them.
        self._free: dict[int, list[int]] = {}

    def free_at(self, hosts: Iterable[int]) -> int:
        """Return when every one of these hosts has a free card."""
        # The first entry of a heap is its minimum.
        return max((self._free[host][0] for host in hosts if host in self._free), default=0)

    def occupy(self, hosts: Iterable[int], until: int) -> None:
        """Occupy, on every host, the card that becomes free first."""
        for host in hosts:
            free = self._free.setdefault(host, [0] * self._cards)
            heapq.heapreplace(free, until)


def schedule_in_order(tasks: HostTasks, order: Order) -> tuple[Piece, ...]:
    """Schedule tasks in order.

    Every task starts as soon as its cards are free, and never before an earlier task of the order
    on the same cards. Result: sorted by start.
    """
    sending, receiving = Cards(tasks.cards), Cards(tasks.cards)
    pieces = []
    for task, sender in order:
        receivers = tasks.receivers[task]
        free = max(sending.free_at([sender]), receiving.free_at(receivers))
        start = max(free, tasks.release[task])
        ticks = tasks.duration(task, sender)
        sending.occupy([sender], start + ticks)
        receiving.occupy(receivers, start + ticks)
        pieces.append(Piece(task, sender, Fraction(start), Fraction(ticks)))
    return tuple(sorted(pieces, key=lambda piece: (piece.start, piece.task)))


def compute_makespan(pieces: Sequence[Piece]) -> Fraction:
    """Return when the last piece finishes, in ticks; 0 without pieces."""
    return max((piece.end for piece in pieces), default=Fraction(0))


def compute_lateness(tasks: HostTasks, pieces: Sequence[Piece]) -> Fraction:
    """Return the maximum lateness of a task in ticks; 0 if all are on time."""
    worst = Fraction(0)
    for task, end in _find_ends(pieces).items():
        due = tasks.due[task]
        if due is not None:
            worst = max(worst, end - due)
    return worst


def _find_ends(pieces: Sequence[Piece]) -> dict[int, Fraction]:
    """Return when every task finishes: a split one with its last piece."""
    ends: dict[int, Fraction] = {}
    for piece in pieces:
        before = ends.get(piece.task, piece.end)
        ends[piece.task] = max(piece.end, before)
    return ends
