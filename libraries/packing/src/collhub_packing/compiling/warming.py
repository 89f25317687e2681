"""Compile kernels beforehand, as `collhub doctor --warm` asks for."""

from __future__ import annotations

import time
from collections.abc import Callable

from collhub_packing.compiling.compilations import compilations
from hub_core.plugin_api import CheckLine, CheckReport

__all__ = ["warmed"]


def warmed(work: Callable[[], None]) -> CheckReport:
    """Do work that runs every kernel, and report what was compiled and whether it was kept."""
    start = time.perf_counter()
    with compilations() as compiled:
        work()
    if not compiled:
        return _report(True, "all compiled and kept on disk before")
    seconds = time.perf_counter() - start
    names = f"{len(compiled)} compiled in {seconds:.1f} s"
    if all(kernel.is_cached for kernel in compiled):
        return _report(True, f"{names} and kept on disk")
    cure = "name a folder that can be written to in NUMBA_CACHE_DIR"
    return _report(False, f"{names}, but no folder to keep them can be written to", cure)


def _report(is_ok: bool, details: str, cure: str = "") -> CheckReport:
    return CheckReport(is_ok, lines=(CheckLine("kernels", is_ok, details, cure),))
