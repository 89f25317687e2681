"""Search for the fastest equivalent program: canonical states, cost models, bounds, simulation."""
