"""Run an algorithm on arrays, one step after the other, in this process."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hub_core import Buffer, InputError, ReduceOp, StepKind
from hub_core.model import MemoryLayout
from hub_core.plugin_api import ExecutionRequest, ExecutionResult, NoOptions

Array = npt.NDArray[np.generic]

# An average is a sum, divided at the end.
_OPERATORS: dict[ReduceOp, Callable[[Array, Array], Array]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


def execute(request: ExecutionRequest, options: NoOptions) -> ExecutionResult:
    """Return every rank's output. Raises `InputError` where steps wait for each other."""
    times = []
    for number in range(request.warmups + request.repeats):
        run = _Run.of(request)
        start = time.perf_counter()
        run.finish()
        if number >= request.warmups:
            times.append(time.perf_counter() - start)
    return ExecutionResult(run.outputs(), tuple(times))


@dataclass(slots=True)
class _Run:
    """One run: the memory of all ranks as rows of one unit, and the messages under way."""

    request: ExecutionRequest
    layout: MemoryLayout
    memory: Array
    flying: defaultdict[tuple[int, int, int], deque[Array]] = field(
        default_factory=lambda: defaultdict(deque)
    )

    @classmethod
    def of(cls, request: ExecutionRequest) -> _Run:
        algorithm = request.algorithm
        if not algorithm.has_contents:
            raise InputError("the algorithm does not say which units its steps touch")
        collective = algorithm.collective
        layout = collective.memory_layout(request.in_place, algorithm.scratch_units)
        widths = {
            divmod(given.size, int(units))
            for given, units in zip(request.inputs, collective.input_units(), strict=True)
            if units
        }
        if len(widths) != 1 or any(rest for _, rest in widths):
            raise InputError("the inputs do not hold a whole number of elements per unit")
        ((width, _),) = widths
        memory = np.zeros((layout.total, width), request.inputs[0].dtype)
        run = cls(request, layout, memory)
        for rank, given in enumerate(request.inputs):
            run.units(rank, Buffer.INPUT)[:] = given.reshape(-1, width)
        return run

    def units(self, rank: int, buffer: int, offset: int = 0, count: int | None = None) -> Array:
        """Units of a buffer, all from `offset` on where no count is given."""
        first = int(self.layout.base[rank, buffer])
        size = int(self.layout.size[rank, buffer])
        last = size if count is None else offset + count
        return self.memory[first + offset : first + last]

    def finish(self) -> None:
        """Let the ranks take turns, each as far as it can get."""
        steps = self.request.algorithm.steps
        borders = steps.rank_indptr.tolist()
        next_rows = borders[:-1]
        while next_rows != borders[1:]:
            before = list(next_rows)
            for rank, last in enumerate(borders[1:]):
                while next_rows[rank] < last and self._step(next_rows[rank]):
                    next_rows[rank] += 1
            if next_rows == before:
                raise InputError("the steps wait for each other: a deadlock")

    def outputs(self) -> tuple[Array, ...]:
        """What every rank holds in OUTPUT."""
        found = []
        for rank in range(self.request.algorithm.num_ranks):
            output = self.units(rank, Buffer.OUTPUT).ravel().copy()
            if self.request.reduce_op is ReduceOp.AVG:
                output = np.divide(output, self.request.algorithm.num_ranks).astype(output.dtype)
            found.append(output)
        return tuple(found)

    def _step(self, row: int) -> bool:
        """Run a step; False where its message is not there yet."""
        steps = self.request.algorithm.steps
        rank, peer, channel = (int(c[row]) for c in (steps.rank, steps.peer, steps.channel))
        kind, count = StepKind(steps.kind[row]), int(steps.count[row])
        if kind is StepKind.COMPUTE:
            return True
        source = self._side(rank, int(steps.src_buffer[row]), int(steps.src_offset[row]), count)
        target = self._side(rank, int(steps.dst_buffer[row]), int(steps.dst_offset[row]), count)
        reduced = _OPERATORS[self.request.reduce_op]
        if kind is StepKind.SEND:
            self.flying[rank, peer, channel].append(source.copy())
        elif kind is StepKind.COPY:
            target[:] = source
        elif kind is StepKind.REDUCE:
            target[:] = reduced(target, source)
        else:
            waiting = self.flying[peer, rank, channel]
            if not waiting:
                return False
            received = waiting.popleft()
            is_reduced = kind is StepKind.RECV_REDUCE
            target[:] = reduced(received, source) if is_reduced else received
        return True

    def _side(self, rank: int, buffer: int, offset: int, count: int) -> Array:
        """The units that one side of a step names; none where the side is not used."""
        if buffer == Buffer.UNKNOWN:
            return self.memory[:0]
        return self.units(rank, buffer, offset, count)
