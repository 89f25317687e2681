"""The version of the core distribution, alone here so that reading it imports nothing."""

__version__ = "0.1.0"
