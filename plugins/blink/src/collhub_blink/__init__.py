"""Collectives on optimal packings of spanning trees for Collective Hub."""
