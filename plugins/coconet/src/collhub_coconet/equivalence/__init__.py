"""Equivalence: programs run on simulated ranks, and their results compared."""
