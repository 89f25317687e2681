"""Passes over workloads that state their program: one transformation a file."""
