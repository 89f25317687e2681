"""Algorithms that SCCL, msccl-tools and TACCL write as JSON."""
