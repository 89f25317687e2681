"""Search for the best program: canonical states, legal moves, costs, and a front of results."""
