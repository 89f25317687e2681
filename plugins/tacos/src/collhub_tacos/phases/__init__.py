"""Phases: put spreadings, reversals, routes and trees together to the whole of a collective."""
