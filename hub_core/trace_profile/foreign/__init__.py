"""Execution traces of algorithms that others wrote, without the profile."""
