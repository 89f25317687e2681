"""Divide data between two channels that run side by side, one of which needs a set-up time first."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.diagnostics import UsageError

__all__ = ["Channel", "balanced_shares", "combined_rate"]


@dataclass(frozen=True, slots=True)
class Channel:
    """What trees over one kind of link carry, and the time until that is usable, such as for switching peer access."""

    rate_bytes_per_s: float
    setup_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.rate_bytes_per_s > 0 or not self.setup_s >= 0:
            message = f"a channel of {self.rate_bytes_per_s} bytes/s with a set-up of {self.setup_s} s"
            raise UsageError(message, cure="give a positive rate and no negative time")

    def time_s(self, share_bytes: float) -> float:
        """Time of a share; nothing needs no set-up."""
        return self.setup_s + share_bytes / self.rate_bytes_per_s if share_bytes else 0.0


def balanced_shares(size_bytes: float, one: Channel, other: Channel) -> tuple[float, float]:
    """Bytes for both channels such that they end together; all for the quicker one where the other starts too late.

    Where only `other` needs a set-up T, its share is max(0, (B * b2 - T * b1 * b2) / (b1 + b2)) (Blink, section 3.5), so
    it helps above B = T * b1.
    """
    rate, other_rate = one.rate_bytes_per_s, other.rate_bytes_per_s
    late = other.setup_s - one.setup_s
    share = (size_bytes * other_rate - late * rate * other_rate) / (rate + other_rate)
    share = min(max(share, 0.0), size_bytes)
    return size_bytes - share, share


def combined_rate(size_bytes: float, one: Channel, other: Channel) -> float:
    """Bytes per second of both channels with balanced shares."""
    shares = balanced_shares(size_bytes, one, other)
    return size_bytes / max(one.time_s(shares[0]), other.time_s(shares[1]))
