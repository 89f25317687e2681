"""From workloads to traces."""
