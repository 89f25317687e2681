"""Packings of trees for every collective, and the bounds that prove their rates.

Private to this distribution.
"""
