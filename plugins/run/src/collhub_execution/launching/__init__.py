"""Executors that use another program to start one process per rank on this host."""
