"""Expand the collectives of whole jobs into the messages of algorithms."""
