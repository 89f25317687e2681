"""PyTorch traces: `profile` records a job, `read_profiles` reads the files as a workload."""

from __future__ import annotations

from collhub_pytorch.formats import ProfileOptions
from collhub_pytorch.profiling import profile, read_profiles

__all__ = ["ProfileOptions", "profile", "read_profiles"]
