"""Resharding on a real topology: streams of boxes over its links, and what the links bound."""
