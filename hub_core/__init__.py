"""Collective Hub: read, verify, simulate and write collective-communication algorithms."""
