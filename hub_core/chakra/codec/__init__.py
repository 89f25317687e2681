"""Bytes of execution traces to columns of nodes and back, whatever the nodes mean."""
