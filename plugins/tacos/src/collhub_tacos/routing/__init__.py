"""Routing: a path or a tree per chunk, over links whose cost increases with their load."""
