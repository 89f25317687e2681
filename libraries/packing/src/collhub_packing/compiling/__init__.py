"""Typed decorators that compile kernels with numba; import late, because numba takes a second.

numba's cache looks only at the file of the function that it compiles. So a kernel and its parts
stand in one file: a change of a part elsewhere would go unnoticed, and old machine code would run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["inlined", "kernel", "lean_kernel", "lean_part", "part"]

_Function = TypeVar("_Function", bound=Callable[..., object])

# What only compiled code calls needs no way in from Python: that is half of the time to compile.
_WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# numba's name for its run-time that counts who holds an array; without it none can be made.
_WITHOUT_COUNTS: dict[str, Any] = {"_nrt": False}


def kernel(function: _Function) -> _Function:
    """Compile a function on its first call from Python, and keep the machine code on disk.

    The global interpreter lock is released while it runs.
    """
    return _kept(function, {})


def lean_kernel(function: _Function) -> _Function:
    """The same for a function that makes no array, in which no reference to one is counted.

    For loops that take records of many arrays apart again and again: the counts, which are atomic,
    take two thirds of the time of an event loop. Its parts are `lean_part` and `inlined`.
    """
    return _kept(function, _WITHOUT_COUNTS)


def part(function: _Function) -> _Function:
    """Compile a function together with the kernels of its file that call it."""
    compiled = numba.njit(nogil=True, **_WITHOUT_WRAPPERS)(function)
    return cast(_Function, compiled)


def lean_part(function: _Function) -> _Function:
    """Compile a part of a `lean_kernel`, which makes no array either."""
    compiled = numba.njit(nogil=True, **_WITHOUT_COUNTS, **_WITHOUT_WRAPPERS)(function)
    return cast(_Function, compiled)


def inlined(function: _Function) -> _Function:
    """Put a part into the functions that call it before numba infers types, as if written there.

    For what innermost loops call with many arrays: a call counts the references to each of them.
    """
    compiled = numba.njit(nogil=True, inline="always", **_WITHOUT_WRAPPERS)(function)
    return cast(_Function, compiled)


def _kept(function: _Function, options: dict[str, Any]) -> _Function:
    """A kernel whose machine code is kept where there is a folder for it."""
    try:
        compiled = numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:
        # numba finds no folder for its cache that can be written to, as in read-only containers.
        compiled = numba.njit(nogil=True, **options)(function)
    return cast(_Function, compiled)
