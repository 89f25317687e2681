"""Schedules of packings: chunks, the fastest of several packings, and shares of several channels.

Public is the balance of channels as a calculation.
"""

from __future__ import annotations

from collhub_blink.scheduling.channels import Channel, balanced_shares, combined_rate

__all__ = ["Channel", "balanced_shares", "combined_rate"]
