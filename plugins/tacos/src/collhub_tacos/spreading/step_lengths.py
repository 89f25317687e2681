"""Steps of equal length in which messages of one size can go."""

from __future__ import annotations

# Where the latency is many times what a message takes, shorter steps cost more than they bring.
_MOST_LAG = 64


def step_lengths(busy_ps: int, arrival_ps: int) -> list[int]:
    """Shortest steps, and the shortest with one less to the arrival; at most 64 to it."""
    # What arrives between two steps waits for the next: longer steps may lose less by that.
    most = min(-(-arrival_ps // busy_ps), _MOST_LAG)
    fewest = max(1, min(arrival_ps // busy_ps, _MOST_LAG))
    lags = sorted({most, fewest}, reverse=True)
    return [max(busy_ps, -(-arrival_ps // lag)) for lag in lags]
