"""Observe which kernels are compiled instead of loaded from the disk cache, and compile in
advance.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numba.core import event

from hub_core.plugin_api import CheckLine, CheckReport

__all__ = ["COMPILING", "CompiledKernel", "compilations", "compile_kernels"]

COMPILING = "compiling kernels, once after installation"
"""Progress text of a synthesizer while kernels are compiled."""

_EVENT = "numba:compile"


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel that was compiled.

    `is_cached`: its machine code is cached on disk for the next run.
    """

    name: str
    is_cached: bool


@contextlib.contextmanager
def compilations(on_change: Callable[[], None] = lambda: None) -> Iterator[list[CompiledKernel]]:
    """Context manager that collects the kernels compiled while its body runs.

    `on_change()` is called when a compilation begins and when it finishes. Functions that a kernel
    calls count as part of it.
    """
    listener = _Listener(on_change)
    with event.install_listener(_EVENT, listener):
        yield listener.compiled


class _Listener(event.Listener):
    """Listener for numba's compile events.

    Numba compiles one kernel at a time, under its own lock.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        """Start without kernels.

        `on_change()` is called when a compilation begins and when it finishes.
        """
        self.compiled: list[CompiledKernel] = []
        self._on_change = on_change
        self._depth = 0

    def on_start(self, event: Any) -> None:
        """Count the beginning of a kernel's compilation, or of a part of it."""
        self._depth += 1
        if self._depth == 1:
            self._on_change()

    def on_end(self, event: Any) -> None:
        """Count the end of a compilation; record the kernel once all of its parts are compiled."""
        self._depth -= 1
        if self._depth == 0:
            dispatcher = event.data["dispatcher"]
            is_cached = dispatcher.stats.cache_path is not None
            self.compiled.append(CompiledKernel(dispatcher.py_func.__qualname__, is_cached))
            self._on_change()


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
