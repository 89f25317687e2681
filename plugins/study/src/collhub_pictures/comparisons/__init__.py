"""Comparisons as pictures and pages: bandwidth over size, a line an algorithm, and the bound."""
