"""What is wrong with a workload."""
