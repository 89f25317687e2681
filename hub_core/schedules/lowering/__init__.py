"""Convert transfers into rows of a step table."""
