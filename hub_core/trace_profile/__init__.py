"""Chakra execution traces: the canonical files of algorithms, and traces of other programs."""
