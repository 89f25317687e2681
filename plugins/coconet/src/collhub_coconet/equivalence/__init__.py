"""Equivalence of programs: simulate their ranks, and compare the results."""
