"""Exhaustive searches for the fewest trees that carry a rate, with proof that fewer do not.

Private to this distribution.
"""
