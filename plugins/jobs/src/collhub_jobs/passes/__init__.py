"""Passes over whole jobs, one file a pass."""
