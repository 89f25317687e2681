"""The memory of a rank as a numpy array, for every transport that moves bytes of main memory."""

from __future__ import annotations

import numpy as np

from collhub_execution.data.element_types import Array
from collhub_execution.data.reductions import REDUCTIONS
from collhub_execution.ranks.plans import RankTask


class NumpyMemory:
    """An `EngineMemory` on an array of `task.plan.memory_size` elements, a new or a given one."""

    def __init__(self, task: RankTask, memory: Array | None = None) -> None:
        """Use `memory`, or if it is None a new uninitialized array of the input's dtype."""
        # Ranks that share memory pass their part of it.
        if memory is None:
            memory = np.empty(task.plan.memory_size, task.input.dtype)
        self._memory = memory
        self._reduction = REDUCTIONS[task.reduce_op]

    def part(self, start: int, length: int) -> Array:
        """Return a view."""
        return self._memory[start : start + length]

    def fill(self, task: RankTask) -> None:
        """Store INPUT, and the background in all other elements."""
        # The background first, because in place INPUT may be a part of OUTPUT.
        self._memory[:] = task.background
        self.part(task.plan.input_start, len(task.input))[:] = task.input

    def copy(self, destination: Array, source: Array) -> None:
        """destination := source."""
        destination[:] = source

    def reduce(self, destination: Array, source: Array) -> None:
        """destination := destination op source."""
        self._reduction(destination, source, destination)

    def finish(self) -> None:
        """No work is queued."""

    def output(self, task: RankTask) -> Array:
        """Return OUTPUT, a view."""
        return self.part(task.plan.output_start, task.plan.output_size)
