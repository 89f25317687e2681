"""Typing rules: layout, shape and element type of every value."""
