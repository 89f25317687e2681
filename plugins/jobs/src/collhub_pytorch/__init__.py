"""PyTorch traces: `profile` records a job, `read_profiles` reads the files as a workload.

`capture` writes the program of a module as a document, in a script that has PyTorch.
"""

from __future__ import annotations

from collhub_captured_graphs.capture import capture

from collhub_pytorch.formats import ProfileOptions
from collhub_pytorch.profiling import profile, read_profiles

__all__ = ["ProfileOptions", "capture", "profile", "read_profiles"]
