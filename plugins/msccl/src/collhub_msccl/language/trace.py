"""Record of a program: its operations as plain numbers, its instructions, and its contract.

As a `Trace` of numbers and lists, the record leaves the process that executed the program.

`Host` defines the effect of `XML()` and `Check()`: they print if a program is used as a library; in
the reader's process `child` replaces this.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collhub_msccl.language.chunks import Buffer, Chunk, list_chunks
from collhub_msccl.language.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Origin,
    RankBuffers,
    ReduceScatter,
)

if TYPE_CHECKING:
    from collhub_msccl.language.program import MSCCLProgram

_PACKAGE_FOLDER = str(Path(__file__).parent)


def find_calling_file() -> str:
    """Return the file name of the nearest caller outside the package `collhub_msccl.language`.

    If all callers are inside the package, it is the file of the outermost caller.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE_FOLDER):
        frame = frame.f_back
    return frame.f_code.co_filename


class Host:
    """Behaviour of the library: print to standard output."""

    def record_program(self, program: MSCCLProgram) -> None:
        """Called when a program begins."""

    def record_empty_slot(self, what: str) -> None:
        """Note that a program has requested an empty slot and got None.

        `what`: name of the slot, for a message if the program fails.
        """

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
        """Build a trace from the result of `to_json`; a contract of None stays None.

        Raise `KeyError` without a field `contract`. Raise `TypeError` if another field is
        missing or a field is unknown, in the trace or its contract, and if the contract is not
        a mapping. The values of the fields are not checked.
        """
        contract = value["contract"]
        stated = None if contract is None else TracedContract(**contract)
        return cls(**{**value, "contract": stated})


class ThreadblockPolicy(Enum):
    """Assignment of thread blocks.

    `auto` leaves it to the writer of the runtime's file; `manual` uses sendtb and recvtb.
    """

    auto = "auto"
    manual = "manual"

    def __str__(self) -> str:
        return self.value


class ReplicationPolicy(Enum):
    """Layout of the chunks of instances: adjacent (`interleaved`), or part by part
    (`duplicated`)."""

    duplicated = "duplicated"
    interleaved = "interleaved"

    def __str__(self) -> str:
        return self.value


class Instruction(Enum):
    """Type of a step; the values are the types of MSCCL-IR."""

    nop = "nop"
    send = "s"
    recv = "r"
    recv_copy_send = "rcs"
    recv_reduce_send = "rrs"
    recv_reduce_copy = "rrc"
    recv_reduce_copy_send = "rrcs"
    copy = "cpy"
    reduce = "re"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """`size` chunks of a buffer of a rank, from `index` on."""

    rank: int
    buffer: Hashable
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction of a rank before fusion.

    `tb`: declared thread block or -1; `line`: of the program, or -1.
    """

    inst: Instruction
    rank: int
    src: ChunkRef
    dst: ChunkRef
    tb: int = -1
    channel: int = -1
    line: int = -1


BufferNames = list[dict[int, Hashable]]
"""For each rank, a mapping from the number of a buffer in the trace to the buffer."""


def list_instructions(
    operations: Sequence[tuple[int, ...]], numbers: Sequence[dict[Hashable, int]]
) -> list[Op]:
    """List the instructions of operations: one `Op` per local operation, two per message.

    The order is that of the operations. An operation within a rank is a `copy` or `reduce` with the
    send block. A message is a `send` on the source rank with the send block, then on the
    destination rank a `recv` (of a copy) or `recv_reduce_copy` with the receive block. Both have
    the same source, destination, channel and line.

    `operations`: rows of `OPERATION_FIELDS`. `numbers`: for each rank, the number of each of its
    buffers in the trace. Raises `KeyError` for a number without buffer.
    """
    # Each number denotes one buffer of a rank, so the tables can be inverted.
    names = [{number: buffer for buffer, number in of_rank.items()} for of_rank in numbers]
    instructions: list[Op] = []
    # In the order of `OPERATION_FIELDS`.
    for (
        kind,
        src_rank,
        src_buffer,
        src_index,
        dst_rank,
        dst_buffer,
        dst_index,
        size,
        send_block,
        receive_block,
        channel,
        line,
    ) in operations:
        src = ChunkRef(src_rank, names[src_rank][src_buffer], src_index, size)
        dst = ChunkRef(dst_rank, names[dst_rank][dst_buffer], dst_index, size)
        if src_rank == dst_rank:
            local = Instruction.copy if kind == COPY else Instruction.reduce
            instructions.append(Op(local, src_rank, src, dst, send_block, channel, line))
            continue
        receive = Instruction.recv if kind == COPY else Instruction.recv_reduce_copy
        instructions += [
            Op(Instruction.send, src_rank, src, dst, send_block, channel, line),
            Op(receive, dst_rank, src, dst, receive_block, channel, line),
        ]
    return instructions


_KINDS: dict[type[Collective], str] = {
    AllReduce: "all-reduce",
    AllGather: "all-gather",
    AllToAll: "all-to-all",
    ReduceScatter: "reduce-scatter",
    Broadcast: "broadcast",
}
_MEANING_METHODS = ("init_buffers", "check", "get_buffer_index", "get_destination")


def find_kind(collective: Collective) -> str:
    """Return the hub's kind of a collective, such as `all-reduce`, or `custom`.

    A derived class has the kind of the known class, unless it overrides a method that defines the
    meaning: `init_buffers`, `check`, `get_buffer_index` or `get_destination`. Then it is `custom`,
    as are all other classes.
    """
    # A derived class may rename things or set defaults.
    for known, kind in _KINDS.items():
        if isinstance(collective, known) and all(
            getattr(type(collective), method) is getattr(known, method)
            for method in _MEANING_METHODS
        ):
            return kind
    return "custom"


def build_contract(program: MSCCLProgram, initial: Sequence[RankBuffers]) -> TracedContract:
    """Build the contract of a collective that is defined only by its `check` method.

    `initial`: buffers of every rank before the first operation. `defined` has one boolean per rank:
    whether any slot of its input is not None. `expected` depends on `check`, which is called once
    on the finished program:
    - True (or another true value): the final outputs are the required result. There is one row
      (rank, index, source rank, source index) per chunk, by rank, by index, then in the order of
      the sum. Repeated chunks of a sum give repeated rows; empty slots give none. The source is the
      input slot where the chunk was initially (`_find_origins`).
    - None: `expected` is None (undefined).
    - Another false value: `ValueError` is raised.

    Errors of `check` pass through. Raises `ValueError` of `_find_origins` for data that is
    initially in an output slot, and `KeyError` if a final output has a chunk that was in no input
    slot.
    """
    origins = _find_origins(program.collective, initial)
    defined = [any(value is not None for value in buffers[Buffer.input]) for buffers in initial]
    verdict = program.collective.check(program)
    if verdict is None:
        return TracedContract(defined, None)
    if not verdict:
        raise ValueError(
            f"the check of {type(program.collective).__name__} refuses the result of the program"
        )
    # A sum has one row per chunk.
    rows: list[list[int]] = []
    for rank, buffers in enumerate(program.buffers):
        for index, value in enumerate(buffers.get(Buffer.output, ())):
            rows += [[rank, index, *origins[id(chunk)]] for chunk in list_chunks(value)]
    return TracedContract(defined, rows)


def _find_origins(collective: Collective, initial: Sequence[RankBuffers]) -> dict[int, Origin]:
    """Map the `id` of every initial chunk object to the (rank, index) of its input slot.

    `initial`: buffers of each rank after `init_buffers`. They must stay alive as long as
    the result is used, because objects are distinguished by identity: `init_buffers` may
    give equal chunks to several ranks.

    - Only objects of the class `Chunk` in inputs count; other values there are ignored.
    - If one object is in several slots, the slot of its fields `origin_rank` and
      `origin_index` is taken if the object is there, otherwise the first slot.
    - An output slot must be None. Exception: the collective is in place, and the input slot
      of the same rank and index has the same object.

    Raises `ValueError` for any other value in an output slot.
    """
    origins: dict[int, Origin] = {}
    for rank, buffers in enumerate(initial):
        for index, value in enumerate(buffers[Buffer.input]):
            if not isinstance(value, Chunk):
                continue
            # A chunk in several slots counts where its own fields locate it.
            is_at_origin = (rank, index) == (value.origin_rank, value.origin_index)
            if is_at_origin or id(value) not in origins:
                origins[id(value)] = rank, index
        inputs = buffers[Buffer.input]
        for index, value in enumerate(buffers.get(Buffer.output, ())):
            is_shared = collective.inplace and index < len(inputs) and inputs[index] is value
            if value is not None and not is_shared:
                raise ValueError(
                    f"init_buffers: data in Buffer.output[{index}] of rank {rank}, "
                    "expected in Buffer.input"
                )
    return origins
