"""Runs on this machine for Collective Hub: two executors that need numpy alone, `collhub run`."""
