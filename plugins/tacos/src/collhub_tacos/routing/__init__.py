"""Routing: a path or a tree a chunk, over links that cost more the fuller they are."""
