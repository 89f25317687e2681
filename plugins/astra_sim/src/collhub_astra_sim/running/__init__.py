"""Runs of the real ASTRA-sim: its process, its output, and a check of the installed binary."""
