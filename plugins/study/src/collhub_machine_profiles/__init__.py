"""Profiles of machines: measured tables, fitted constants, and predictions of NCCL's times.

Other distributions use `find_profile`, `shipped_profiles` and the modules of this package.
"""

from collhub_machine_profiles.shipped import find_profile, shipped_names, shipped_profile

__all__ = ["find_profile", "shipped_names", "shipped_profile"]
