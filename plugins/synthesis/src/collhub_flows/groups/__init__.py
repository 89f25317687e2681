"""Collectives of several process groups at the same time on one network."""
