"""Runs as timelines: when every step took place, simulated or measured."""
