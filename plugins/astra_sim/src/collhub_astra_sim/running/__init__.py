"""Runs of the real ASTRA-sim: its process, what it prints, and whether one is installed."""
