"""Compile kernels with numba, kept on disk where there is a folder for it.

Import it late, and every module that uses it: importing numba takes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., object])

# What only compiled code calls needs no way in from Python; half of the time to compile would
# go there.
_WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(function: _Function) -> _Function:
    """Compile on the first call and keep the machine code; the typed form of `numba.njit`."""
    try:
        compiled = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # No folder for the cache can be written to.
        compiled = numba.njit(nogil=True)(function)
    return cast(_Function, compiled)


def part(function: _Function) -> _Function:
    """Compile with the kernel that calls it, which must be in the same file.

    Numba's cache looks at no other file: it would keep machine code of a part that has changed.
    """
    compiled = numba.njit(nogil=True, **_WITHOUT_WRAPPERS)(function)
    return cast(_Function, compiled)


def inlined(function: _Function) -> _Function:
    """Put into the kernel that calls it before numba infers types, as if written there.

    For what is called in the innermost loops with many arrays: a call counts their references.
    """
    compiled = numba.njit(nogil=True, inline="always", **_WITHOUT_WRAPPERS)(function)
    return cast(_Function, compiled)
