"""Runs as users ask for them, by `collhub run` or scripts of clusters: options, data, verdict."""
