"""Spreading: bring every chunk from its origin to all who need it, as TACOS does."""
