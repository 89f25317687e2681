"""Divide data among channels that run side by side, each usable after a set-up time of its own.

The balance of Blink (Wang et al., MLSys 2020, section 3.5), for any number of channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.model import UsageError


@dataclass(frozen=True, slots=True)
class Channel:
    """What trees over one kind of link carry, and the time until that is usable.

    Such as for switching peer access. Raises `UsageError` for a rate that is not positive and
    for a negative time.
    """

    rate_bytes_per_s: float
    setup_s: float = 0.0

    def __post_init__(self) -> None:
        # Written so that NaN is refused as well.
        if not self.rate_bytes_per_s > 0 or not self.setup_s >= 0:
            message = (
                f"a channel of {self.rate_bytes_per_s} bytes/s with a set-up of {self.setup_s} s"
            )
            raise UsageError(message, cure="give a positive rate and no negative time")

    def time_s(self, share_bytes: float) -> float:
        """Time of a share; nothing needs no set-up."""
        if not share_bytes:
            return 0.0
        return self.setup_s + share_bytes / self.rate_bytes_per_s


def balanced_shares(size_bytes: float, *channels: Channel) -> tuple[float, ...]:
    """Bytes for every channel such that those with a share end together.

    No other is ready before that. Channels are taken in the order of their set-up times while
    they are ready before the others end. Of two where only the second needs a set-up T, its share
    is max(0, (B * b2 - T * b1 * b2) / (b1 + b2)) (Blink, section 3.5), so it helps above
    B = T * b1.
    """
    # What all channels wait for delays all alike, and does not count.
    start_s = min(channel.setup_s for channel in channels)
    late_s = [channel.setup_s - start_s for channel in channels]
    chosen, end_s = _chosen(size_bytes, channels, late_s)
    shares = [0.0] * len(channels)
    # The first channel takes what rounding leaves, so that shares add up.
    for number in chosen[1:]:
        share = (end_s - late_s[number]) * channels[number].rate_bytes_per_s
        # Rounding may leave a little below nothing or above all.
        shares[number] = min(max(share, 0.0), size_bytes)
    shares[chosen[0]] = max(size_bytes - sum(shares), 0.0)
    return tuple(shares)


def _chosen(
    size_bytes: float,
    channels: Sequence[Channel],
    late_s: Sequence[float],
) -> tuple[list[int], float]:
    """Channels that get a share, the first one first, and when they end after its start.

    `late_s`: how much later than the first one each can start.
    """
    rate = head_start = 0.0
    chosen: list[int] = []
    for number in sorted(range(len(channels)), key=late_s.__getitem__):
        # What the others have sent by then is all there is.
        if chosen and late_s[number] * rate >= size_bytes + head_start:
            break
        chosen.append(number)
        rate += channels[number].rate_bytes_per_s
        head_start += channels[number].rate_bytes_per_s * late_s[number]
    return chosen, (size_bytes + head_start) / rate


def combined_rate(size_bytes: float, *channels: Channel) -> float:
    """Bytes per second of all channels with balanced shares."""
    shares = balanced_shares(size_bytes, *channels)
    times_s = [channel.time_s(share) for channel, share in zip(channels, shares, strict=True)]
    return size_bytes / max(times_s)
