"""Compile kernels with numba: typed decorators, and reports of the compilations.

Import this module late, because the import of numba takes a second. `compilations` observes which
kernels are compiled instead of loaded from the disk cache.

numba's cache checks only the file of the function that it compiles. Keep a kernel and its parts in
one file: a change of a part in another file would not be noticed, and outdated machine code would
run.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numba
from numba.core import event

from hub_core.plugin_api import CheckLine, CheckReport

__all__ = [
    "COMPILING",
    "CompiledKernel",
    "compilations",
    "compile_kernels",
    "inlined",
    "kernel",
    "lean_kernel",
    "lean_part",
    "part",
]

COMPILING = "compiling kernels, once after installation"


_EVENT = "numba:compile"


# Functions called only by compiled code need no Python wrapper, which is half of the compile time.
_WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


# numba's runtime, which counts references to arrays; without it a function cannot create arrays.
_WITHOUT_COUNTS: dict[str, Any] = {"_nrt": False}


"""Progress text of a synthesizer while kernels are compiled."""


_Function = TypeVar("_Function", bound=Callable[..., object])


def kernel(function: _Function) -> _Function:
    """Compile a function on its first call from Python, and cache the machine code on disk.

    It runs without the global interpreter lock.
    """
    return _compile_cached(function, {})


def lean_kernel(function: _Function) -> _Function:
    """Compile like `kernel`, without counting references to arrays.

    The function must create no array. For loops that repeatedly unpack records of many arrays: the
    counts, which are atomic, take two thirds of the time of an event loop. Its parts are
    `lean_part` and `inlined`.
    """
    return _compile_cached(function, _WITHOUT_COUNTS)


def part(function: _Function) -> _Function:
    """Compile a function that only kernels and parts of its own file call; Python cannot call it.

    It has no cache of its own: its machine code is stored with that of the calling kernel.
    """
    compiled = numba.njit(nogil=True, **_WITHOUT_WRAPPERS)(function)
    return cast(_Function, compiled)


def lean_part(function: _Function) -> _Function:
    """Compile a function without reference counting for `lean_kernel`; it must not create arrays.

    The result can be called from compiled code only. LLVM inlines it into its callers, because a
    call copies the words of all arrays that it passes.
    """
    options = {**_WITHOUT_COUNTS, **_WITHOUT_WRAPPERS, "forceinline": True}
    compiled = numba.njit(nogil=True, **options)(function)
    return cast(_Function, compiled)


def inlined(function: _Function) -> _Function:
    """Compile a function that numba copies into its callers before it infers types.

    Use it for calls with many arrays in innermost loops, because a call counts the references to
    each array.
    """
    compiled = numba.njit(nogil=True, inline="always", **_WITHOUT_WRAPPERS)(function)
    return cast(_Function, compiled)


def _compile_cached(function: _Function, options: dict[str, Any]) -> _Function:
    """Compile a function with a cache on disk, or without one if no cache folder is writable.

    An unreadable index of the cache counts as empty. `options`: of `numba.njit`.
    """
    try:
        compiled = numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:
        # numba finds no writable cache folder, as in read-only containers.
        compiled = numba.njit(nogil=True, **options)(function)
    _ignore_unreadable_index(compiled)
    return cast(_Function, compiled)


def _ignore_unreadable_index(compiled: Any) -> None:
    """Make numba treat a cache on disk whose index cannot be read as empty, instead of failing.

    Replaces the index loader of `compiled`, a function that numba compiles. The new loader returns
    {} if the old one raises `ImportError`, `AttributeError`, `EOFError` or `UnpicklingError`; other
    errors propagate. Such an index names a class that has moved since: numba reads the types of all
    stored signatures before it compares the stamp of the source. A function without a cache on disk
    is unchanged.
    """
    index = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    load = getattr(index, "_load_index", None)
    if index is None or load is None:
        return

    def load_index() -> Any:
        try:
            return load()
        except (ImportError, AttributeError, EOFError, pickle.UnpicklingError):
            return {}

    index._load_index = load_index


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel that was compiled.

    `is_cached`: its machine code is cached on disk for the next run.
    """

    name: str
    is_cached: bool


@contextlib.contextmanager
def compilations(on_change: Callable[[], None] = lambda: None) -> Iterator[list[CompiledKernel]]:
    """Collect the kernels that are compiled while the body of this context manager runs.

    `on_change()` is called when the compilation of a kernel starts and when it finishes. Functions
    that a kernel calls count as part of it.
    """
    listener = _Listener(on_change)
    with event.install_listener(_EVENT, listener):
        yield listener.compiled


class _Listener(event.Listener):
    """Listener for numba's compile events.

    Numba compiles one kernel at a time, under its own lock.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        """Create a listener that has recorded no kernel.

        `compiled` becomes the list of compiled kernels in the order of completion. `on_change()` is
        called when the compilation of a kernel starts, and again when it is listed. Functions that
        a kernel calls are part of it and cause no calls.
        """
        self.compiled: list[CompiledKernel] = []
        self._on_change = on_change
        self._depth = 0

    def on_start(self, event: Any) -> None:
        """Count the start of a compilation; call `on_change()` if no other one is running.

        Compilations are nested: those of functions that a kernel calls start within that of the
        kernel. So only the outermost one, that of a kernel, causes a call. `event` is not used.
        """
        self._depth += 1
        if self._depth == 1:
            self._on_change()

    def on_end(self, event: Any) -> None:
        """Count the end of a compilation; if it is the outermost one, record its kernel.

        Compilations of functions that the kernel calls are nested in that of the kernel and are not
        recorded. The record in `compiled` has the kernel's qualified name and whether numba has a
        cache folder for it. `on_change()` is called afterwards.
        """
        self._depth -= 1
        if self._depth == 0:
            dispatcher = event.data["dispatcher"]
            is_cached = dispatcher.stats.cache_path is not None
            self.compiled.append(CompiledKernel(dispatcher.py_func.__qualname__, is_cached))
            self._on_change()


def compile_kernels(work: Callable[[], None]) -> CheckReport:
    """Run `work`, which must call every kernel, and report whether the kernels are cached on disk.

    - No kernel was compiled: the report passes, as all were cached before; it has no time.
    - All compiled kernels were cached: it passes, with their number and the time of `work` in s.
    - Otherwise: it fails, with number, time and cure (another `NUMBA_CACHE_DIR`).

    Errors of `work` are not caught.
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
    """Return a report with the single line `kernels`; `cure`: how to repair a failure."""
    return CheckReport(is_ok, lines=(CheckLine("kernels", is_ok, details, cure),))
