"""Configurations with which NCCL's example tuner chooses among NCCL's built-in algorithms."""
