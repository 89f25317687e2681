"""Runs on this host for Collective Hub: two executors that need only numpy, and `collhub run`."""
