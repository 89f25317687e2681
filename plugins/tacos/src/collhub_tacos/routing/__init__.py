"""Routing: give every chunk a path or a tree of its own, over links that cost more the fuller they are."""
