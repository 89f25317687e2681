"""Parse workload text of AICB (SimAI, ASTRA-sim 1): policy, parallelism, one row per layer.

Source: aliyun/aicb `SimAI_training_workload_generator.py`, aliyun/SimAI `Workload.cc` (Apache-2.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO, NoReturn

from hub_core.model import InputError, JobCollective, Location

POLICIES = (
    "DATA", "MODEL", "MICRO", "HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
    "HYBRID_DLRM", "HYBRID_DLRM_ENHANCED", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA",
    "HYBRID_CUSTOMIZED", "DISTRIBUTED_INFERENCE",
)  # fmt: skip
_CUSTOMIZED = "HYBRID_CUSTOMIZED"
_ROW_WORDS = 12
_KINDS = {
    "ALLREDUCE": JobCollective.ALL_REDUCE,
    "ALLGATHER": JobCollective.ALL_GATHER,
    "REDUCESCATTER": JobCollective.REDUCE_SCATTER,
    "ALLTOALL": JobCollective.ALL_TO_ALL,
}
# The original reader takes this word for an all-reduce without a group, which does nothing.
_SHADOWED = "ALLREDUCEALLTOALL"
_COMMUNICATION = re.compile(r"([A-Z]{1,20}?)(_EP|_DP_EP)?\Z")
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_MAX_ROWS = 1 << 20
_MAX_GPUS = 1 << 20
TENSOR, DATA, EXPERT, EXPERT_DATA = ROLES = ("tensor", "data", "expert", "expert-data")


@dataclass(frozen=True, slots=True)
class Communication:
    """A collective of a row. `bytes`: as in the file, the complete buffer; `role`: of its group."""

    kind: JobCollective
    role: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Phase:
    """Computation in ns, and the collective after it; None without one."""

    compute_ns: int
    communication: Communication | None


@dataclass(frozen=True, slots=True)
class Layer:
    """One row of the file."""

    name: str
    line: int
    forward: Phase
    input_gradient: Phase
    weight_gradient: Phase
    update_ns: int


@dataclass(frozen=True, slots=True)
class WorkloadText:
    """Contents of a file. `values`: numbers of the first line by key. `notes`: for the user."""

    policy: str
    values: Mapping[str, int]
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()

    def value(self, key: str) -> int:
        """Return a number of the first line, 1 without it."""
        return max(1, self.values.get(key, 1))


class _Words:
    """Words of a file with their lines. Memory: one line."""

    def __init__(self, stream: BinaryIO, file: str) -> None:
        self._stream, self.file = stream, file
        self.line = 0
        self._pending: list[str] = []

    def next_line(self) -> list[str]:
        """Return the words of the next line that is not empty; [] at the end."""
        while content := self._stream.readline(1 << 20):
            self.line += 1
            words = content.decode("utf-8", "replace").split()
            if words:
                return words
        return []

    def rows(self) -> Iterator[str]:
        """Yield the words of all further lines."""
        while words := self.next_line():
            yield from words

    def refuse(self, message: str, cure: str) -> NoReturn:
        """Raise `InputError` at the current line."""
        location = Location(self.file, max(1, self.line))
        raise InputError(message, location=location, cure=cure, code="simai")


def parse_workload(stream: BinaryIO, file: str) -> WorkloadText:
    """Parse a file. Raises `InputError` with the line of the first invalid word."""
    words = _Words(stream, file)
    head = words.next_line()
    policy = head[0] if head else ""
    if policy not in POLICIES:
        listed = ", ".join(POLICIES)
        words.refuse(f"the file begins with {policy[:40]!r}, no policy", f"use one of {listed}")
    notes: list[str] = []
    values = _parse_values(head[1:], words)
    count_words = words.next_line()
    count = int(count_words[0]) if count_words and _NUMBER.match(count_words[0]) else -1
    if len(count_words) != 1 or not 1 <= count <= _MAX_ROWS:
        text = " ".join(count_words)[:40]
        words.refuse(f"{text!r} is not the number of rows, 1 to {_MAX_ROWS}", "correct the line")
    layers = []
    size = _ROW_WORDS + (policy == _CUSTOMIZED)
    for number in range(count):
        row = words.next_line()
        if len(row) < size:
            message = f"row {number + 1} of {count} has {len(row)} of {size} words"
            words.refuse(message, "complete the row, or correct the number of rows")
        if len(row) > size:
            notes.append(f"line {words.line}: {len(row) - size} words behind the row are ignored")
        layers.append(_parse_row(row, words, notes))
    if rest := sum(1 for _ in words.rows()):
        notes.append(f"{rest} words behind the last row are ignored")
    return WorkloadText(policy, values, tuple(layers), tuple(notes[:20]))


def _parse_values(words: list[str], source: _Words) -> dict[str, int]:
    """Parse `key: number` pairs; lists (`checkpoints: 2 0 5`) are skipped."""
    values: dict[str, int] = {}
    for key, text in pairwise(words):
        name = key.removesuffix(":")
        if not key.endswith(":") and key != "pp_comm":
            continue
        if not _NUMBER.match(text):
            source.refuse(f"{name[:40]} is {text[:40]!r}, no number", "write a decimal number")
        values[name] = int(text)
    if values.get("all_gpus", 1) > _MAX_GPUS:
        source.refuse(f"{values['all_gpus']} GPUs; at most {_MAX_GPUS} are read", "correct it")
    return values


def _parse_row(row: list[str], source: _Words, notes: list[str]) -> Layer:
    def number(column: int) -> int:
        if not _NUMBER.match(row[column]):
            message = f"word {column + 1} of the row is {row[column][:40]!r}, no number"
            source.refuse(message, "write a decimal number: times in ns, sizes in bytes")
        return int(row[column])

    def phase(column: int, role: str) -> Phase:
        compute, size = number(column), number(column + 2)
        return Phase(compute, _communication(row[column + 1], size, role, source, notes))

    return Layer(
        row[0][:200],
        source.line,
        phase(2, TENSOR),
        phase(5, TENSOR),
        phase(8, DATA),
        number(11),
    )


def _communication(
    text: str, size: int, role: str, source: _Words, notes: list[str]
) -> Communication | None:
    """Parse a word such as `ALLTOALL_EP`; `role`: of the group without a suffix."""
    match = _COMMUNICATION.match(text)
    word = match[1] if match else ""
    if text == "NONE" or (word in _KINDS and size == 0):
        return None
    if word == _SHADOWED:
        notes.append(f"line {source.line}: {text} does nothing, as in the original reader")
        return None
    if match is None or word not in _KINDS:
        known = ", ".join(_KINDS)
        message = f"{text[:40]!r} is no communication"
        source.refuse(message, f"use NONE, or {known} with _EP, _DP_EP or no suffix")
    roles = {"_EP": EXPERT, "_DP_EP": EXPERT_DATA}
    return Communication(_KINDS[word], roles.get(match[2] or "", role), size)
