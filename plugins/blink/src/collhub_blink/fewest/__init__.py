"""Exhaustive searches for the fewest trees at a given rate, with proof that fewer do not exist.

Private to this distribution.
"""
