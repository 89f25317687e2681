"""Exact facts about a network, and whether its NPUs reach one another."""
