"""Costs of algorithms in the alpha-beta model, as the textbooks state them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class AlphaBetaCost:
    """`alphas` latencies, and the time of a link for `betas` times the data of the collective.

    Exact for ranks that finish a round before they begin the next one, where a message takes
    alpha + bytes * beta and the messages that a rank sends through one port follow each other
    without a gap: Hockney's model, with the port as the only thing that is shared.
    """

    alphas: int
    betas: Fraction

    def __add__(self, other: AlphaBetaCost) -> AlphaBetaCost:
        return AlphaBetaCost(self.alphas + other.alphas, self.betas + other.betas)

    def time_s(self, alpha_s: float, beta_s_per_byte: float, collective_bytes: int) -> float:
        """Seconds for a collective of so many bytes."""
        return self.alphas * alpha_s + float(self.betas) * collective_bytes * beta_s_per_byte

    def __str__(self) -> str:
        """The cost as a formula, m for the bytes of the collective: `3 alpha + 7/8 m beta`."""
        return f"{self.alphas} alpha + {self.betas} m beta"


def rounds_of(*shares: Fraction | int) -> AlphaBetaCost:
    """A round for every share: the part of the data that the busiest port sends in it."""
    return AlphaBetaCost(len(shares), sum((Fraction(share) for share in shares), Fraction(0)))
