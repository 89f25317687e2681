"""Folders of programs from which the runtimes select by size."""
