"""Typed decorators that compile kernels with numba; import late, because numba takes a second.

numba's cache checks only the file of the function that it compiles. Keep a kernel and its parts in
one file: a change of a part in another file would not be noticed, and outdated machine code would
run.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["inlined", "kernel", "lean_kernel", "lean_part", "part"]

_Function = TypeVar("_Function", bound=Callable[..., object])

# Functions called only by compiled code need no Python wrapper, which is half of the compile time.
_WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# numba's runtime, which counts references to arrays; without it a function cannot create arrays.
_WITHOUT_COUNTS: dict[str, Any] = {"_nrt": False}


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
    """Compile a part of a `lean_kernel`; it must not create arrays either."""
    compiled = numba.njit(nogil=True, **_WITHOUT_COUNTS, **_WITHOUT_WRAPPERS)(function)
    return cast(_Function, compiled)


def inlined(function: _Function) -> _Function:
    """Inline a function into its callers before numba infers types, as if it were written there.

    For calls with many arrays in innermost loops: a call counts the references to each array.
    """
    compiled = numba.njit(nogil=True, inline="always", **_WITHOUT_WRAPPERS)(function)
    return cast(_Function, compiled)


def _compile_cached(function: _Function, options: dict[str, Any]) -> _Function:
    """Compile a function with a cache on disk, or without one if no cache folder is writable."""
    try:
        compiled = numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:
        # numba finds no writable cache folder, as in read-only containers.
        compiled = numba.njit(nogil=True, **options)(function)
    _ignore_unreadable_index(compiled)
    return cast(_Function, compiled)


def _ignore_unreadable_index(compiled: Any) -> None:
    """Let a cache whose index cannot be read count as empty.

    numba reads the types of all stored signatures before it compares the stamp of the source, so
    that an index of an earlier version fails if it names a class that has moved since.
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
