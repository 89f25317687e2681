"""Divide data among parallel channels, each usable after a set-up time.

The balance of Blink (Wang et al., MLSys 2020, section 3.5), for any number of channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.model import UsageError


@dataclass(frozen=True, slots=True)
class Channel:
    """Rate of the trees over one kind of link, and the time until that link is usable.

    The set-up may be, for example, switching peer access. Raises `UsageError` for a rate that is
    not positive and for a negative time.
    """

    rate_bytes_per_s: float
    setup_s: float = 0.0

    def __post_init__(self) -> None:
        # The comparisons are negated so that NaN is refused as well.
        if not self.rate_bytes_per_s > 0 or not self.setup_s >= 0:
            message = (
                f"a channel of {self.rate_bytes_per_s} bytes/s with a set-up of {self.setup_s} s"
            )
            raise UsageError(message, cure="give a positive rate and no negative time")

    def time_s(self, share_bytes: float) -> float:
        """Time of a share in seconds, set-up included; 0 for an empty share."""
        if not share_bytes:
            return 0.0
        return self.setup_s + share_bytes / self.rate_bytes_per_s


def balanced_shares(size_bytes: float, *channels: Channel) -> tuple[float, ...]:
    """Bytes for every channel such that all channels with a share finish at the same time.

    Channels join in the order of their set-up times; a channel that is ready only after that finish
    time gets 0. For two channels of which only the second needs a set-up T, its share is max(0, (B
    * b2 - T * b1 * b2) / (b1 + b2)) (Blink, section 3.5), so it helps above B = T * b1.
    """
    # The shortest set-up delays all channels equally and does not affect the balance.
    start_s = min(channel.setup_s for channel in channels)
    delays_s = [channel.setup_s - start_s for channel in channels]
    chosen, finish_s = _choose_channels(size_bytes, channels, delays_s)
    shares = [0.0] * len(channels)
    # The first channel takes the rounding remainder, so that the shares add up to the size.
    for number in chosen[1:]:
        share = (finish_s - delays_s[number]) * channels[number].rate_bytes_per_s
        # Rounding may give slightly less than 0 or more than the size.
        shares[number] = min(max(share, 0.0), size_bytes)
    shares[chosen[0]] = max(size_bytes - sum(shares), 0.0)
    return tuple(shares)


def _choose_channels(
    size_bytes: float,
    channels: Sequence[Channel],
    delays_s: Sequence[float],
) -> tuple[list[int], float]:
    """Choose the channels that get a share, and compute their common finish time in s.

    Returns channel numbers in order of set-up, and the time after the first channel's start.
    `delays_s`: start of each channel after the first one's.
    """
    rate = head_start = 0.0
    chosen: list[int] = []
    for number in sorted(range(len(channels)), key=delays_s.__getitem__):
        # The chosen channels have sent everything by the time this channel is ready.
        if chosen and delays_s[number] * rate >= size_bytes + head_start:
            break
        chosen.append(number)
        rate += channels[number].rate_bytes_per_s
        head_start += channels[number].rate_bytes_per_s * delays_s[number]
    return chosen, (size_bytes + head_start) / rate


def combined_rate(size_bytes: float, *channels: Channel) -> float:
    """Bytes per second of all channels together with balanced shares."""
    shares = balanced_shares(size_bytes, *channels)
    times_s = [channel.time_s(share) for channel, share in zip(channels, shares, strict=True)]
    return size_bytes / max(times_s)
