"""Pictures of networks and of runs; see `plugin` for what this offers to the hub."""
