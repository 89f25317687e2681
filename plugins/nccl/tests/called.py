"""The emitted library on the test double, called as a training job calls it: from C, by ctypes.

Ranks are threads of this process.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_execution.testing import in_threads
from collhub_nccl.programs.schedule_tables import ScheduleTables, format_schedule_cpp
from emitted import NAMES, make

Array = npt.NDArray[Any]
# As nccl.h numbers them.
DATATYPES = {
    "uint8": 1,
    "int32": 2,
    "int64": 4,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS, TIMEOUT = 0, 4, 5, 6, 7, 8


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class _Config(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("blocking", "low", "high", "share")]


@dataclass(frozen=True)
class Call:
    """Arguments of the library's function; buffers are arrays, or None."""

    send: Array | None
    recv: Array | None
    count: int
    dtype: str = "float32"
    op: str = "sum"
    stream: int | None = None


class Double:
    """A library that was built for one schedule, with the test double in it."""

    def __init__(self, path: Path, num_ranks: int) -> None:
        self.calls = ctypes.CDLL(str(path))
        self.num_ranks = num_ranks
        self._error = self.calls[NAMES.functions["error"]]
        self._error.restype = ctypes.c_char_p

    def run(self, communicator: int, call: Call) -> int:
        """Call the library and return the status."""
        status: int = self.calls[NAMES.functions["run"]](
            _address(call.send),
            _address(call.recv),
            ctypes.c_size_t(call.count),
            DATATYPES[call.dtype],
            OPS[call.op],
            ctypes.c_void_p(communicator),
            ctypes.c_void_p(call.stream),
        )
        return status

    def error(self) -> str:
        """Why the last call of this thread failed."""
        text: bytes = self._error()
        return text.decode()

    def level(self, communicator: int) -> int:
        """The level that the last call of a communicator has posted."""
        level: int = self.calls[NAMES.functions["level"]](ctypes.c_void_p(communicator))
        return level

    def release(self, communicator: int) -> int:
        """Give back what a communicator has."""
        status: int = self.calls[NAMES.functions["release"]](ctypes.c_void_p(communicator))
        return status

    def fail(self, call: str, after: int = 0, status: int = REMOTE_ERROR) -> None:
        """Let a call of NCCL of this thread fail."""
        self.calls.collhub_double_fail(call.encode(), after, status)

    def count_of(self, call: str) -> int:
        """Calls of NCCL of this name that this thread made."""
        count: int = self.calls.collhub_double_calls(call.encode())
        return count

    def open_groups(self) -> int:
        """Groups of this thread that are not closed."""
        count: int = self.calls.collhub_double_open_groups()
        return count

    def stream(self) -> int:
        """A new stream."""
        made = ctypes.c_void_p()
        assert self.calls.cudaStreamCreate(ctypes.byref(made)) == SUCCESS
        assert made.value
        return made.value

    def synchronize(self, stream: int) -> None:
        """Wait for a stream."""
        assert self.calls.cudaStreamSynchronize(ctypes.c_void_p(stream)) == SUCCESS

    def on_ranks(self, work: Callable[[int, int], Any], blocking: bool = True) -> list[Any]:
        """Results of work(rank, communicator) on all ranks at once; communicators are ended."""
        unique = _UniqueId()
        assert self.calls.ncclGetUniqueId(ctypes.byref(unique)) == SUCCESS

        def on_rank(rank: int) -> Any:
            with self._communicator(unique, rank, blocking) as communicator:
                return work(rank, communicator)

        return in_threads(on_rank, self.num_ranks)

    @contextmanager
    def _communicator(self, unique: _UniqueId, rank: int, blocking: bool) -> Iterator[int]:
        communicator = ctypes.c_void_p()
        config = _Config(int(blocking), 0, 0, 0)
        status = self.calls.ncclCommInitRankConfig(
            ctypes.byref(communicator), self.num_ranks, unique, rank, ctypes.byref(config)
        )
        assert status == (SUCCESS if blocking else IN_PROGRESS)
        assert communicator.value
        try:
            yield communicator.value
        finally:
            assert self.release(communicator.value) == SUCCESS
            self.calls.ncclCommDestroy(communicator)


def built(folder: Path, stated: ScheduleTables, target: Path) -> Double:
    """The library of a schedule; `folder` holds the objects that are the same for all."""
    (folder / "schedule.cpp").write_text(format_schedule_cpp(stated), encoding="ascii")
    # The clock of files may be too coarse for make to see the change.
    (folder / "schedule.o").unlink(missing_ok=True)
    name = f"lib{NAMES.library}_double.so"
    make(folder, name)
    # Under a path of its own: a process loads what one path names once.
    copied = target / f"{len(list(target.iterdir()))}.so"
    shutil.copy(folder / name, copied)
    return Double(copied, stated.program.num_ranks)


def random_inputs(
    num_ranks: int, count: int, dtype: str = "float32", op: str = "sum"
) -> list[Array]:
    """Whole numbers, whose reductions are exact."""
    rng = np.random.default_rng(count * 31 + num_ranks)
    low, high = (1, 3) if op == "prod" else (0, 16)
    return [rng.integers(low, high, count).astype(dtype) for _ in range(num_ranks)]


def reduced(inputs: list[Array], op: str) -> Array:
    """The reduction of all ranks' inputs."""
    functions = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum}
    total: Array = functions.get(op, np.maximum).reduce(inputs, dtype=inputs[0].dtype)
    if op != "avg":
        return total
    divided = total / len(inputs)
    return (np.trunc(divided) if total.dtype.kind == "i" else divided).astype(total.dtype)


def _address(array: Array | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)
