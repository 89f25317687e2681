"""Phases: put spreadings, reversals, routes and trees together to the algorithm of a collective."""
