"""Classic collective algorithms as synthesizers: rings, trees, butterflies and their kin."""
