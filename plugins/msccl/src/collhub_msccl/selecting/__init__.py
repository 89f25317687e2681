"""Folders of programs among which the runtimes choose by size."""
