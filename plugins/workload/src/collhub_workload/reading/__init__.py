"""From traces to workloads."""
