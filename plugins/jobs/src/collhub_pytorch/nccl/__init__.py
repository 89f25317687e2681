"""Workloads from the calls that NCCL and its tools record: Inspector, profiler plugin, logs."""
