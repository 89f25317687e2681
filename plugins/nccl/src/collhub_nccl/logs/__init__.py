"""Rings and trees of NCCL's logs as algorithms."""
