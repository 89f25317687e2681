"""Networks as the kernels see them: links by destination, arcs over switches, distances."""
