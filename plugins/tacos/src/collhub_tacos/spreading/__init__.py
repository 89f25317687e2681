"""Spreading: bring every chunk from its origin to all NPUs that need it, as in TACOS."""
