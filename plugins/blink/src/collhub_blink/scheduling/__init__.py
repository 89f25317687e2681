"""Schedules of packings: number of chunks, fastest packing, division among planes.

Public: the balance of channels as a calculation.
"""

from __future__ import annotations

from collhub_blink.scheduling.dividing import Channel, balanced_shares, combined_rate

__all__ = ["Channel", "balanced_shares", "combined_rate"]
