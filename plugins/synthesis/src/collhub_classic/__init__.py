"""Synthesizers of classic collective algorithms: rings, trees, butterflies and more."""
