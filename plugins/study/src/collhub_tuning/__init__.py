"""Which algorithm is best on this topology, for this collective and size."""
