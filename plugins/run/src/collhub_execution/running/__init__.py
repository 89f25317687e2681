"""Runs for users, by `collhub run` or scripts of clusters: options, data, verdict."""
