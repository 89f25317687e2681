"""Spreading: bring every chunk from its origin to all who need it, by matching on the time-expanded network."""
