"""Networks for the kernels: links by destination, arcs over switches, distances, symmetries."""
