"""Execution traces of algorithms without the profile, written by other programs."""
