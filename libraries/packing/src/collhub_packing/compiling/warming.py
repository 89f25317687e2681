"""Compile kernels in advance, as `collhub doctor --warm` requests."""

from __future__ import annotations

import time
from collections.abc import Callable

from collhub_packing.compiling.compilations import compilations
from hub_core.plugin_api import CheckLine, CheckReport

__all__ = ["compile_kernels"]


def compile_kernels(work: Callable[[], None]) -> CheckReport:
    """Run `work`, which must call every kernel, and report the compiled kernels and their caching.

    The report fails if some machine code could not be cached on disk.
    """
    start = time.perf_counter()
    with compilations() as compiled:
        work()
    if not compiled:
        return _build_report(True, "all compiled and cached on disk before")
    seconds = time.perf_counter() - start
    names = f"{len(compiled)} compiled in {seconds:.1f} s"
    if all(kernel.is_cached for kernel in compiled):
        return _build_report(True, f"{names} and cached on disk")
    cure = "set NUMBA_CACHE_DIR to a writable folder"
    return _build_report(False, f"{names}, but not cached: no cache folder is writable", cure)


def _build_report(is_ok: bool, details: str, cure: str = "") -> CheckReport:
    """Build the report with its single line."""
    return CheckReport(is_ok, lines=(CheckLine("kernels", is_ok, details, cure),))
