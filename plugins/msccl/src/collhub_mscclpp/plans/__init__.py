"""Parsed execution plans, and what the names in them mean."""
