"""Whose turn it is on the cards of receivers: pieces that must wait for another sender's piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from collhub_reshard.lowering.transfers import Audience
from collhub_reshard.scheduling.schedule import Piece


@dataclass(frozen=True, slots=True)
class Passed:
    """A piece that has had a card: its unit task, its sender, its end, and where it arrived."""

    row: int
    sender: int
    end: Fraction
    entry: int


@dataclass(slots=True)
class ReceiverTurns:
    """The last piece on every card in and out, in the order of the schedule.

    Without it, senders that are early would share a receiver's card with whom they should follow.
    """

    _last_in: dict[int, Passed] = field(default_factory=dict)
    _last_out: dict[int, Fraction] = field(default_factory=dict)

    def awaited(self, piece: Piece, audience: Audience) -> Passed | None:
        """The piece of another sender that must have arrived before this one may start."""
        own = self._last_out.get(piece.sender, Fraction(0))
        # Chains begin at the first host, behind which the order stays as it is.
        entry = next(iter(audience.hosts))
        before = self._last_in.get(entry)
        if before is None or before.sender == piece.sender:
            return None
        # A sender that is busy until then needs nobody to hold it back.
        return before if before.end > own else None

    def pass_on(self, piece: Piece, row: int, audience: Audience) -> None:
        """Note that a piece is the last on its cards."""
        self._last_out[piece.sender] = piece.end
        for host, devices in audience.hosts.items():
            # The first receiver of a host is where the box comes in.
            self._last_in[host] = Passed(row, piece.sender, piece.end, devices[0])
