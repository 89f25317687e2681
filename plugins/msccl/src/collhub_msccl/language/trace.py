"""What a program did, as plain numbers and lists.

This is the form in which it leaves the process that ran it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

COPY, REDUCE = 0, 1
INPUT, OUTPUT, FIRST_SCRATCH = 0, 1, 2
# src and dst first, then what the program states of how it runs.
OPERATION_FIELDS = (
    "kind",
    "src_rank",
    "src_buffer",
    "src_index",
    "dst_rank",
    "dst_buffer",
    "dst_index",
    "size",
    "send_block",
    "receive_block",
    "channel",
    "line",
)


@dataclass(frozen=True, slots=True)
class StatedContract:
    """What a user-defined collective starts from and ends with, in chunks of one instance.

    `defined`: ranks that hold data at the start. `expected`: rows (rank, output index, source rank,
    source index), or None where the collective states no outcome.
    """

    defined: list[bool]
    expected: list[list[int]] | None


@dataclass(frozen=True, slots=True)
class Trace:
    """The operations of a program in its order, and what they stand in.

    `kind`: of the hub's collectives. `has_two_buffers`: a user-defined collective keeps input and
    output apart. `*_sizes`: chunks of each rank's buffers, of one instance. `operations`: rows of
    `OPERATION_FIELDS`; a buffer is 0 for input, 1 for output, 2 and up for the scratch buffers of
    the rank by age; a thread block or channel that the program did not state, and a line that is
    not known, is -1. A reduction adds src to dst.
    """

    name: str
    protocol: str
    kind: str
    num_ranks: int
    chunk_factor: int
    root: int
    is_in_place: bool
    has_two_buffers: bool
    instances: int
    is_interleaved: bool
    is_manual: bool
    line: int
    input_sizes: list[int]
    output_sizes: list[int]
    scratch_sizes: list[list[int]]
    contract: StatedContract | None
    operations: list[tuple[int, ...]]

    def to_json(self) -> dict[str, Any]:
        """The trace as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Trace:
        """The trace of `to_json`. Raises `TypeError` or `KeyError` for anything else."""
        contract = value["contract"]
        stated = None if contract is None else StatedContract(**contract)
        return cls(**{**value, "contract": stated})

    def dumps(self) -> str:
        """The trace as JSON text."""
        return json.dumps(self.to_json(), separators=(",", ":"))
