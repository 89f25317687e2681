"""Explain NCCL's choice for a call, and compare it with logs and measured times."""
