"""Execution traces of whole jobs."""
