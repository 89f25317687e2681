"""Chakra execution traces: the canonical files of algorithms, and what others write."""
