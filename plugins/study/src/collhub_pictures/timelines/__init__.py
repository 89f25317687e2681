"""Runs as timelines: the simulated or measured time of every step."""
