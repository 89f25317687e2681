"""The `collhub` program, one file a command."""
