"""Schedules on the links of a network: their times, and an independent verification."""
