"""Folders that ASTRA-sim runs as they are: traces, configurations and a script."""
