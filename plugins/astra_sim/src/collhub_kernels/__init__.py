"""Kernels: functions on tables of numbers that run as plain Python or as machine code.

A kernel and its parts are written once. Small inputs are interpreted, so that a command on a small
file imports no compiler; large inputs run as machine code, which numba produces once and which is
then stored on disk (`machine_code`). Importing this package does not import numba.
"""

from __future__ import annotations

from collhub_kernels.kernels import (
    Kernel,
    compile_at_once,
    compiled,
    outlined,
)

__all__ = ["Kernel", "compile_at_once", "compiled", "outlined"]
