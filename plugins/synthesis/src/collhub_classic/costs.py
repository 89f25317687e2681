"""Costs of algorithms in the alpha-beta model, as textbooks give them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class AlphaBetaCost:
    """Cost of an algorithm: the latencies, plus the time to send a multiple of the collective's
    data.

    `alphas`: number of latencies; `betas`: data sent, as a multiple of the collective's data. Exact
    for ranks that finish a round before they begin the next one, if a message takes alpha + bytes *
    beta and the messages that a rank sends through one port follow each other without a gap:
    Hockney's model, with the port as the only shared resource.
    """

    alphas: int
    betas: Fraction

    def __add__(self, other: AlphaBetaCost) -> AlphaBetaCost:
        """Sum of two costs."""
        return AlphaBetaCost(self.alphas + other.alphas, self.betas + other.betas)

    def time_s(self, alpha_s: float, beta_s_per_byte: float, collective_bytes: int) -> float:
        """Time in s of a collective of `collective_bytes` bytes."""
        return self.alphas * alpha_s + float(self.betas) * collective_bytes * beta_s_per_byte

    def __str__(self) -> str:
        """The cost as a formula, with m for the bytes of the collective: `3 alpha + 7/8 m beta`."""
        return f"{self.alphas} alpha + {self.betas} m beta"


def sum_rounds(*shares: Fraction | int) -> AlphaBetaCost:
    """Sum the cost of rounds.

    Each share is the fraction of the data that the busiest port sends.
    """
    return AlphaBetaCost(len(shares), sum((Fraction(share) for share in shares), Fraction(0)))
