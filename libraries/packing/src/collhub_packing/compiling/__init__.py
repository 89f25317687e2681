"""Typed decorators that compile kernels with numba; import late, because numba takes a second.

numba's cache looks only at the file of the function that it compiles. So a kernel and its parts
stand in one file: a change of a part elsewhere would go unnoticed, and old machine code would run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["inlined", "kernel", "part"]

_Function = TypeVar("_Function", bound=Callable[..., object])

# What only compiled code calls needs no way in from Python: that is half of the time to compile.
_WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(function: _Function) -> _Function:
    """Compile a function on its first call from Python, and keep the machine code on disk.

    The global interpreter lock is released while it runs.
    """
    try:
        compiled = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        # numba finds no folder for its cache that can be written to, as in read-only containers.
        compiled = numba.njit(nogil=True)(function)
    return cast(_Function, compiled)


def part(function: _Function) -> _Function:
    """Compile a function together with the kernels of its file that call it."""
    compiled = numba.njit(nogil=True, **_WITHOUT_WRAPPERS)(function)
    return cast(_Function, compiled)


def inlined(function: _Function) -> _Function:
    """Put a part into the functions that call it before numba infers types, as if written there.

    For what innermost loops call with many arrays: a call counts the references to each of them.
    """
    compiled = numba.njit(nogil=True, inline="always", **_WITHOUT_WRAPPERS)(function)
    return cast(_Function, compiled)
