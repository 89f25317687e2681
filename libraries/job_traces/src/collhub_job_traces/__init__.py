"""Chakra execution traces of whole jobs, read as workloads and written byte for byte."""

from __future__ import annotations

from collhub_job_traces.claims import claims, has_job_nodes
from collhub_job_traces.groups import parsed_groups
from collhub_job_traces.options import JobReadOptions
from collhub_job_traces.read import EXTENSION, read
from collhub_job_traces.write import PROFILE, write

__all__ = [
    "EXTENSION", "PROFILE", "JobReadOptions", "claims", "has_job_nodes", "parsed_groups", "read",
    "write",
]  # fmt: skip
