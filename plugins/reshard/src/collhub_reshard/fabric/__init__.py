"""Resharding on a given topology: streams of boxes over its links, and bounds by links."""
