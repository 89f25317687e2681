"""PyTorch traces: jobs become workloads by `read_profiles`; `profile` records them."""

from __future__ import annotations

from collhub_pytorch.options import ProfileOptions
from collhub_pytorch.profiling import profile, read_profiles

__all__ = ["ProfileOptions", "profile", "read_profiles"]
