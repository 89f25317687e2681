"""Lowering: a typed program becomes a workload of the hub."""
