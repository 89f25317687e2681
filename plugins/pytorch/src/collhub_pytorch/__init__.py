"""PyTorch traces: profiles of real jobs become workloads; `profile` records them."""

from __future__ import annotations

from collhub_pytorch.profiling import profile

__all__ = ["profile"]
