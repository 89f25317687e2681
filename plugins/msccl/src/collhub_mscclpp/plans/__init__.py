"""Parsed execution plans and the meaning of the names in them."""
