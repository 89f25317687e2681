"""Pictures of networks, comparisons and runs; `plugin` registers the writers."""
