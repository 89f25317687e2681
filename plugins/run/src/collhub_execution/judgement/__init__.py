"""Compare outputs with the definition of the collective, and compute bandwidths."""
