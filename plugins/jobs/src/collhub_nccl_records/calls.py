"""One call of NCCL on one rank, as the Inspector, a profiler plugin or a log records it.

Also the lines of such records, and the element types of NCCL (`ncclDataType_t`, NCCL 2.30).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

MAX_LINE_BYTES = 4 << 20
# Operations of the API, by their names in lower-case letters without `nccl`.
COLLECTIVES = (
    "allreduce", "reduce", "allgather", "gather", "scatter", "broadcast", "alltoall",
    "reducescatter",
)  # fmt: skip
MESSAGES = ("send", "recv")
# Operations whose count is that of the segment of one peer, not of the input buffer.
_COUNTS_ONE_PEER = frozenset(("reducescatter", "alltoall", "scatter"))
_LETTERS = re.compile(r"[^a-z]")


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a communicator: the process that runs it, and its rank there.

    `process`: host and process, unique within the job. `communicator`: its hash in hexadecimal, or
    its `name_without_id`.
    `name`: name of the communicator, "" without one. `rank_count`: its ranks, 0 if not recorded.
    `node_count`: its hosts, -1 if not recorded.
    """

    process: str
    communicator: str
    rank: int
    rank_count: int = 0
    name: str = ""
    node_count: int = -1


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call. Values of -1, and of "" for texts, are not recorded.

    `operation`: name in the API without `nccl`, as `AllReduce`. `sequence`: number of the call in
    its communicator. `bytes`: count times size of the type, as in the call. `root`: the root of a
    collective, or the peer of a message, as a rank of the communicator. `duration_us`: time in the
    network, including waiting for other ranks; `start_us`: on the clock of the process.
    `timing_source`: `kernel_gpu`, `kernel_cpu`, `collective_cpu` or `unknown`.
    """

    member: Member
    line: int
    operation: str
    sequence: int
    bytes: int
    dtype: str = ""
    root: int = -1
    duration_us: float = -1
    start_us: float = -1
    timing_source: str = ""

    @property
    def word(self) -> str:
        """The operation in lower-case letters, as `allreduce`."""
        return operation_word(self.operation)

    @property
    def is_message(self) -> bool:
        """Whether the call sends to or receives from one rank."""
        return self.word in MESSAGES


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """A line, or an event in it, that is not used, with the reason and the cure.

    `is_assumption`: the line is used, and `message` is an assumption about it.
    """

    line: int
    message: str
    cure: str = ""
    is_assumption: bool = False


def operation_word(operation: str) -> str:
    """Return an operation in lower-case letters: `ncclAllReduce` and `AllReduce`: `allreduce`."""
    return _LETTERS.sub("", operation.lower().removeprefix("nccl"))


def input_bytes(word: str, size: int, rank_count: int) -> int:
    """Return the bytes of the input buffer of a rank, as `JobCollective` defines them.

    `word`: operation in lower-case letters; `size`: count x size of the type in the call.
    For `reducescatter` (received data), `alltoall` and `scatter` this is one segment, so
    the result is `size` x `rank_count`; for all other words it is `size`. -1 if the size is
    unknown (negative), or a rank count that is needed (below 1).
    """
    if size < 0:
        return -1
    if word not in _COUNTS_ONE_PEER:
        return size
    return size * rank_count if rank_count > 0 else -1


def read_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    r"""Yield (line number from 1, line without its end) for every line, also for empty ones.

    A line ends with a newline or with the stream. All newlines and carriage returns at its end are
    removed: `a\r\r\n` gives `a`. At most 4 MiB are in memory at once.

    The second value is None for a line that is too long: more than 4 MiB with its newline, or 4 MiB
    and more if it has no newline. Its remainder is skipped, and it counts as one line. An empty
    stream yields nothing.
    """
    number = 0
    while line := stream.readline(MAX_LINE_BYTES):
        number += 1
        if line.endswith(b"\n") or len(line) < MAX_LINE_BYTES:
            yield number, line.rstrip(b"\r\n")
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE_BYTES)
        yield number, None


_TYPES = (
    ("int8", 1), ("uint8", 1), ("int32", 4), ("uint32", 4), ("int64", 8), ("uint64", 8),
    ("float16", 2), ("float32", 4), ("float64", 8), ("bfloat16", 2), ("float8e4m3", 1),
    ("float8e5m2", 1),
)  # fmt: skip
_BYTES = dict(_TYPES)
_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "char": "int8",
    "int": "int32",
}


def type_of_number(number: int) -> tuple[str, int]:
    """Return name and bytes of a type by its number in a log; ("", -1) for unknown ones."""
    return _TYPES[number] if 0 <= number < len(_TYPES) else ("", -1)


def type_of_name(text: str) -> tuple[str, int]:
    """Return (name, bytes) of an element type: `ncclFloat32` gives ("float32", 4).

    Case, underscores, outer blanks and the prefix `nccl` are ignored; the aliases `half`,
    `float`, `double`, `char` and `int` are replaced by `float16`, `float32`, `float64`,
    `int8` and `int32`. ("", -1) for unknown types.
    """
    word = text.strip().lower().removeprefix("nccl").replace("_", "")
    word = _ALIASES.get(word, word)
    return (word, _BYTES[word]) if word in _BYTES else ("", -1)
