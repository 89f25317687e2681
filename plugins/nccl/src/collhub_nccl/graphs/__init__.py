"""Rings and trees of NCCL: read from graph files and logs, recognised in algorithms, written."""
