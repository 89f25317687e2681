"""Record of a program's operations as plain numbers and lists.

In this form it leaves the process that ran the program.

Also the behaviour of `XML()` and `Check()`: they print if a program is used as a library; in the
reader's process `child` replaces this.
"""

from __future__ import annotations

import json
import sys
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collhub_msccl.language.program import MSCCLProgram

_PACKAGE_FOLDER = str(Path(__file__).parent)


def find_calling_file() -> str:
    """Path of the file of the nearest caller outside of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE_FOLDER):
        frame = frame.f_back
    return frame.f_code.co_filename


class Host:
    """Behaviour of the library: print to standard output."""

    def record_program(self, program: MSCCLProgram) -> None:
        """Called when a program begins."""

    def record_empty_slot(self, what: str) -> None:
        """Called when a program requests an empty slot, named `what`, and gets None."""

    def show_xml(self, program: MSCCLProgram) -> None:
        """Print the program as MSCCL-IR XML."""
        print(program.generate_xml(), end="")

    def show_check(self, program: MSCCLProgram) -> bool:
        """Verify the program, print its errors, and return whether there are none."""
        return program.check()


# A Host has no state, so the default can be shared.
CURRENT_HOST: ContextVar[Host] = ContextVar("msccl_host", default=Host())  # noqa: B039


COPY, REDUCE = 0, 1
INPUT, OUTPUT, FIRST_SCRATCH = 0, 1, 2
# src and dst first, then the program's hints for the execution.
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
class TracedContract:
    """Initial data and result of a user-defined collective, in chunks of one instance.

    `defined`: per rank, whether it has data at the start; `expected`: rows (rank, output index,
    source rank, source index), or None if the collective defines no result.
    """

    defined: list[bool]
    expected: list[list[int]] | None


@dataclass(frozen=True, slots=True)
class Trace:
    """The operations of a program in its order, and their context.

    `kind`: of the hub's collectives. `has_two_buffers`: a user-defined collective has separate
    input and output lists. `*_sizes`: chunks of each rank's buffers, for one instance.
    `operations`: rows of `OPERATION_FIELDS`. Buffers are 0 for input, 1 for output, 2 and up for
    scratch buffers of the rank in order of first use; -1: thread block or channel not given, or
    line unknown. A reduction adds src to dst.
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
    contract: TracedContract | None
    operations: list[tuple[int, ...]]

    def to_json(self) -> dict[str, Any]:
        """The trace as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Trace:
        """Trace from the result of `to_json`. Raises `TypeError` or `KeyError` for other values."""
        contract = value["contract"]
        stated = None if contract is None else TracedContract(**contract)
        return cls(**{**value, "contract": stated})

    def to_json_text(self) -> str:
        """The trace as JSON text."""
        return json.dumps(self.to_json(), separators=(",", ":"))
