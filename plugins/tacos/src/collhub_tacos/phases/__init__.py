"""Phases: algorithms of collectives, combined from spreadings, reversals, routes and trees."""
