"""The command `collhub topology`."""
