"""Compiled programs of XLA (HLO text), read as one workload for all replicas and partitions."""
