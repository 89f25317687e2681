"""Profiles of machines: measured tables, fitted constants, and predictions of NCCL's times.

Other distributions use `find_profile`, and the modules `machine_profile` and `prediction`, which
need numpy.
"""

from collhub_machine_profiles.shipped import (
    find_profile,
    load_profile,
    profile_of_text,
    shipped_names,
    shipped_profile,
)

__all__ = [
    "find_profile",
    "load_profile",
    "profile_of_text",
    "shipped_names",
    "shipped_profile",
]
