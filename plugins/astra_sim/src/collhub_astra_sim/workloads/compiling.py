"""Compiled code in several files: machine code is kept on disk until one of them changes.

numba notices changes only in the file of the function that it compiles. The digest of all files is
a variable of that function's closure, which is part of the key under which numba keeps it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., object])

# As in `simulating.kernel`: nothing makes an array, so that no references need be counted.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
_INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_HERE = Path(__file__).parent
_NAMES = (
    "compiling", "custom", "kernel", "machine_state", "messages", "native", "nodes", "pools",
    "streams", "custom_tables",
)  # fmt: skip
_BESIDE = ("options.py", "simulating/kernel.py")
_FILES = (*(_HERE / f"{name}.py" for name in _NAMES), *(_HERE.parent / file for file in _BESIDE))


def outlined(function: _Function) -> _Function:
    """Compile when the first caller is compiled; the compiler chooses what to inline."""
    return cast(_Function, numba.njit(**_OPTIONS, **_INNER)(function))


def kept(function: _Function) -> _Function:
    """Compile a closure on its first call and keep the machine code on disk."""
    try:
        return cast(_Function, numba.njit(cache=True, **_OPTIONS)(function))
    except RuntimeError:
        # No folder for the cache can be written to.
        return cast(_Function, numba.njit(**_OPTIONS)(function))


def digest_of_sources() -> int:
    """A number that changes with the files that hold compiled code."""
    return zlib.crc32(b"".join(file.read_bytes() for file in _FILES))
