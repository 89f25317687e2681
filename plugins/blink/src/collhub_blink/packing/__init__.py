"""Packings of trees for every collective: what carries the rate, and what proves it.

Private to this distribution.
"""
