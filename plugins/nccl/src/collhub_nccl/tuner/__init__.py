"""Configurations by which NCCL's example tuner chooses among NCCL's own algorithms."""
