"""See which kernels are compiled, which takes seconds, while others come from the cache on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numba.core import event

__all__ = ["COMPILING", "CompiledKernel", "compilations"]

COMPILING = "compiling kernels, once after installation"
"""What a synthesizer reports while kernels are compiled."""

_EVENT = "numba:compile"


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel that was compiled.

    `is_cached`: whether its machine code was kept on disk, so that it need not be done again.
    """

    name: str
    is_cached: bool


@contextlib.contextmanager
def compilations(told: Callable[[], None] = lambda: None) -> Iterator[list[CompiledKernel]]:
    """Collect the kernels that are compiled while the body runs.

    `told()` is called when one begins and when it ends. What a kernel calls is part of it.
    """
    listener = _Listener(told)
    with event.install_listener(_EVENT, listener):
        yield listener.compiled


class _Listener(event.Listener):
    """Listener as numba calls it; it compiles one kernel at a time, under a lock of its own."""

    def __init__(self, told: Callable[[], None]) -> None:
        """Begin with no kernels; `told()` is called when one begins and when it ends."""
        self.compiled: list[CompiledKernel] = []
        self._told = told
        self._depth = 0

    def on_start(self, event: Any) -> None:
        """A kernel begins, or a part of the one that is compiled."""
        self._depth += 1
        if self._depth == 1:
            self._told()

    def on_end(self, event: Any) -> None:
        """A kernel ends, or a part of it."""
        self._depth -= 1
        if self._depth == 0:
            dispatcher = event.data["dispatcher"]
            is_cached = dispatcher.stats.cache_path is not None
            self.compiled.append(CompiledKernel(dispatcher.py_func.__qualname__, is_cached))
            self._told()
