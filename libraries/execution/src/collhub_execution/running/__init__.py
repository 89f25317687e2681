"""Runs as users ask for them: options, data, verdict; by `collhub run` and by scripts of clusters."""
