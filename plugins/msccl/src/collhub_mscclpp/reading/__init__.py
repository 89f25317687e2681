"""Plans as algorithms of the hub."""
