"""Collectives of several process groups at once, on one network."""
