#!/usr/bin/env -S python3 -P
"""Run schedule.json through nccl4py, one process a rank, and check the result.

It is compared with what the collective's definition says.
Needs a GPU for every rank, and: python -m pip install "nccl4py[cu13]" torch
Start it as: python -P -m torch.distributed.run --nproc-per-node N run_nccl4py.py --id-file NEW_FILE
or by mpirun or srun; the rank is read from RANK, OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID.
"""

from __future__ import annotations

import sys

# Launchers start ranks without -P: a torch.py beside this file must not be run in torch's place.
if not sys.flags.safe_path:
    del sys.path[0]

import argparse
import importlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

# Kinds of records and numbers of buffers, as in schedule.hpp.
SEND, RECV, COPY, REDUCE = range(4)
INPUT, OUTPUT = range(2)
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
# Binary digits of the significand; the other types hold more than is used.
DIGITS = {"bfloat16": 8, "float16": 11, "float32": 24}
OPS = ("sum", "prod", "min", "max", "avg")
LARGEST_VALUE = 250


@dataclass(frozen=True)
class Buffers:
    """Memory of one rank: any array with slices, and the elements of a block."""

    memory: Any
    begin: list[int]
    block: int

    def region(self, buffer: int, offset: int, count: int) -> Any:
        """Return a view of `count` blocks of a buffer, from block `offset` on.

        `buffer` is the number of the buffer. Bounds are not checked: a region that is too long
        continues in the next buffer.
        """
        first = (self.begin[buffer] + offset) * self.block
        return self.memory[first : first + count * self.block]


@dataclass(frozen=True)
class Calls:
    """What runs the records, on regions of memory.

    `group` is the context around all messages of a level.
    """

    send: Callable[[Any, int], None]
    recv: Callable[[Any, int], None]
    group: Callable[[], AbstractContextManager[Any]]
    copy: Callable[[Any, Any], object]
    reduce: Callable[[Any, Any], object]


def run_records(records: list[list[int]], buffers: Buffers, calls: Calls) -> None:
    """Run the records of one rank, level by level.

    All messages of a level are one group, so that no order of them can deadlock; then comes what
    the rank does on its own.
    """
    # Records are sorted by level, which is their fourth number.
    for _, level in groupby(records, key=lambda record: record[3]):
        rows = list(level)
        messages = [row for row in rows if row[0] <= RECV]
        if messages:
            with calls.group():
                for row in messages:
                    _post(row, buffers, calls)
        # Lanes share no memory: what one does on its own may run behind messages of another one.
        for row in rows:
            if row[0] > RECV:
                _work(row, buffers, calls)


def _post(row: list[int], buffers: Buffers, calls: Calls) -> None:
    """Hand a message to NCCL, which starts it when the group ends.

    `row` is a record of the schedule. A send reads from its source; a record of any other kind
    receives into its target. Offsets and count are in blocks.
    """
    kind, source, target, _, peer, source_offset, target_offset, count, _ = row
    if kind == SEND:
        calls.send(buffers.region(source, source_offset, count), peer)
    else:
        calls.recv(buffers.region(target, target_offset, count), peer)


def _work(row: list[int], buffers: Buffers, calls: Calls) -> None:
    """Execute a record of the schedule that copies or reduces data within this rank.

    A COPY overwrites the target with the source. A record of any other kind reduces the
    source into the target. Offsets and count are in blocks.
    """
    kind, source, target, _, _, source_offset, target_offset, count, _ = row
    read = buffers.region(source, source_offset, count)
    written = buffers.region(target, target_offset, count)
    if kind == COPY:
        calls.copy(written, read)
    else:
        calls.reduce(written, read)


def values(torch: Any, rank: int, count: int, num_ranks: int, dtype: str, op: str) -> Any:
    """Return the INPUT of a rank, a CPU tensor of `count` elements of type `dtype`.

    The elements are pseudo-random small integers, equal in every run, whose reduction is
    exact in any order. For `prod` they are 1, -1, 2 or -2; 2 and -2 occur only on ranks 0
    to 7, so a product has at most eight factors of two. For all other operators they are 0
    to a maximum of at most 250, which is so small that the sum over all ranks is exact in
    the type. The maximum is at least 1, so for bfloat16 this is true only up to 256 ranks.
    """
    # Knuth's multiplicative hash, so that neither ranks nor neighbouring elements are alike.
    mixed = torch.arange(count, dtype=torch.int64) * 2654435761 + rank * 40503
    if op == "prod":
        sizes = 1 + mixed % 251 % 2 if rank < 8 else torch.ones_like(mixed)
        signs = 1 - 2 * (mixed % 239 % 2)
        numbers = sizes * signs
    else:
        exact = 2 ** DIGITS.get(dtype, 31)
        largest = max(1, min(LARGEST_VALUE, exact // num_ranks))
        numbers = mixed % (largest + 1)
    return numbers.to(getattr(torch, dtype))


def reductions(torch: Any) -> dict[str, Callable[[Any, Any], object]]:
    """Functions that reduce a source into a target, by operator.

    An average is a sum that is divided at the end.
    """
    return {
        "sum": lambda target, source: target.add_(source),
        "avg": lambda target, source: target.add_(source),
        "prod": lambda target, source: target.mul_(source),
        "min": lambda target, source: torch.minimum(target, source, out=target),
        "max": lambda target, source: torch.maximum(target, source, out=target),
    }


def divide(values: Any, count: int) -> None:
    """Divide in place; integers are rounded towards zero."""
    values.div_(count, rounding_mode=None if values.is_floating_point() else "trunc")


def promised(
    torch: Any, schedule: dict[str, Any], rank: int, block: int, dtype: str, op: str
) -> Iterator[tuple[slice, Any]]:
    """Yield (slice of elements of OUTPUT, expected contents) for each promised unit of a rank.

    A unit has `block` elements. The contents are computed from the test data of all ranks
    (`values`), without communication. A promise (offset, source, source offset, count) gives
    `count` units from `source` to units from `offset` on. Source -1 stands for all ranks, in order.
    Several contributions to a unit are reduced with `op`, in the order of the promises. For avg,
    each unit is then divided by the number of ranks, also one with a single contribution; integers
    are rounded towards zero.

    Units are yielded in the order of their first contribution; units without a promise are left
    out. Contents are CPU tensors of the type `dtype`.
    """
    num_ranks, reduce = schedule["num_ranks"], reductions(torch)[op]
    inputs = []
    for source, memory in enumerate(schedule["memory"]):
        count = memory["size"][INPUT] * block
        inputs.append(values(torch, source, count, num_ranks, dtype, op))
    output: dict[int, Any] = {}
    for unit_index, unit in _contributions(schedule["promises"][rank], inputs, block):
        if unit_index in output:
            reduce(output[unit_index], unit)
        else:
            output[unit_index] = unit.clone()
    for unit_index, unit in output.items():
        if op == "avg":
            divide(unit, num_ranks)
        yield slice(unit_index * block, (unit_index + 1) * block), unit


def _contributions(
    promises: list[list[int]], inputs: list[Any], block: int
) -> Iterator[tuple[int, Any]]:
    """(block of OUTPUT, elements that go into it) for all that a rank is promised."""
    for offset, source, source_offset, count in promises:
        # All ranks, reduced, where no source is named.
        for part in inputs if source < 0 else [inputs[source]]:
            for k in range(count):
                first = (source_offset + k) * block
                yield offset + k, part[first : first + block]


def main() -> int:
    """Run the `schedule.json` in the folder of this script, check and time it, print JSON.

    The GPU is number `LOCAL_RANK` (without it, `--rank`) modulo the number of GPUs. After the first
    run, OUTPUT must equal the expected contents of `promised` exactly. Then `--repeats` runs are
    timed and not checked. The line has `ok` (whether OUTPUT was right), `rank`, `dtype`, and
    `time_s`, the median of these times in seconds. Returns the exit status: 0 if right, 1 if wrong.

    Raises `SystemExit` with status 2 for wrong arguments. The status is 1, with a message, for a
    missing library or GPU, a `--size` that is negative or no multiple of the units, and an id that
    rank 0 does not write in time.
    """
    schedule = json.loads(Path(__file__).with_name("schedule.json").read_text(encoding="ascii"))
    arguments = _arguments(schedule)
    nccl, torch = _libraries()
    # Launchers number the ranks of a machine by LOCAL_RANK.
    torch.cuda.set_device(
        int(os.environ.get("LOCAL_RANK", arguments.rank)) % torch.cuda.device_count()
    )
    run = _DeviceRun(schedule, arguments, nccl, torch)
    run.fill()
    run.once()
    is_right = run.is_right()
    times = [run.once() for _ in range(arguments.repeats)]
    run.communicator.destroy()
    report = {
        "ok": is_right,
        "rank": arguments.rank,
        "dtype": arguments.dtype,
        "time_s": statistics.median(times),
    }
    print(json.dumps(report))
    return 0 if is_right else 1


class _DeviceRun:
    """The schedule of one rank on its GPU."""

    def __init__(
        self, schedule: dict[str, Any], arguments: argparse.Namespace, nccl: Any, torch: Any
    ) -> None:
        self.schedule = schedule
        self.arguments = arguments
        self.torch = torch
        self.num_ranks = schedule["num_ranks"]
        self.layout = schedule["memory"][arguments.rank]
        dtype = getattr(torch, arguments.dtype)
        self.block = _block_elements(arguments, schedule, dtype.itemsize)
        unique_id = _shared_id(nccl, arguments)
        self.communicator = nccl.Communicator.init(self.num_ranks, arguments.rank, unique_id)
        # A rank may take part without memory of its own.
        elements = max(1, self.layout["total"] * self.block)
        memory = torch.zeros(elements, dtype=dtype, device="cuda")
        self.buffers = Buffers(memory, self.layout["begin"], self.block)
        self.calls = self._calls(nccl)

    def _calls(self, nccl: Any) -> Calls:
        """Return the calls that execute the records of this rank on the GPU.

        Sends and receives are those of NCCL. Copies and reductions are those of PyTorch. All run on
        PyTorch's current stream, so they are ordered. An average is summed here and divided in
        `once`. `group` is NCCL's context for a group of calls.
        """
        communicator = self.communicator
        stream = self.torch.cuda.current_stream().cuda_stream
        return Calls(
            lambda region, peer: communicator.send(region, peer, stream=stream),
            lambda region, peer: communicator.recv(region, peer, stream=stream),
            nccl.group,
            lambda target, source: target.copy_(source),
            reductions(self.torch)[self.arguments.op],
        )

    def _whole(self, buffer: int) -> Any:
        """All elements of a buffer."""
        return self.buffers.region(buffer, 0, self.layout["size"][buffer])

    def fill(self) -> None:
        """Put the test data of this rank into INPUT, where the collective reads it.

        A rank whose input is not defined, such as one that is not the root of a broadcast,
        keeps the content of INPUT.
        """
        if not self.layout["is_defined"]:
            return
        rank, dtype, op = self.arguments.rank, self.arguments.dtype, self.arguments.op
        count = self.layout["size"][INPUT] * self.block
        input_values = values(self.torch, rank, count, self.num_ranks, dtype, op)
        self._whole(INPUT).copy_(input_values)

    def once(self) -> float:
        """Run the schedule of this rank once; return the seconds until the GPU has finished.

        For `avg`, this includes the division of OUTPUT by the number of ranks. INPUT is not
        restored, so in place a further run starts from the result of the last one.
        """
        begin = time.perf_counter()
        run_records(self.schedule["records"][self.arguments.rank], self.buffers, self.calls)
        if self.arguments.op == "avg":
            divide(self._whole(OUTPUT), self.num_ranks)
        # Launches return before their work is done.
        self.torch.cuda.synchronize()
        return time.perf_counter() - begin

    def is_right(self) -> bool:
        """Return whether OUTPUT holds exactly what the collective promises to this rank.

        Elements without a promise are not compared, so the result is true without promises.
        """
        rank, dtype, op = self.arguments.rank, self.arguments.dtype, self.arguments.op
        output = self._whole(OUTPUT).cpu()
        expected = promised(self.torch, self.schedule, rank, self.block, dtype, op)
        return all(self.torch.equal(output[elements], unit) for elements, unit in expected)


def _libraries() -> tuple[Any, Any]:
    """Return the modules `nccl.core` (nccl4py) and torch.

    They are imported only now because that takes seconds. Exits with a message and status 1
    if one is not installed, or if torch finds no GPU.
    """
    try:
        nccl = importlib.import_module("nccl.core")
        torch = importlib.import_module("torch")
    except ImportError as error:
        sys.exit(f'{error}; install them by: python -m pip install "nccl4py[cu13]" torch')
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU here; `make double` builds the C++ program for the CPU")
    return nccl, torch


def _arguments(schedule: dict[str, Any]) -> argparse.Namespace:
    parser = _parser(schedule)
    arguments = parser.parse_args()
    if arguments.rank is None or not 0 <= arguments.rank < schedule["num_ranks"]:
        parser.error(f"--rank: expected 0..{schedule['num_ranks'] - 1}, got {arguments.rank}")
    if arguments.op == "avg" and not schedule["is_reducing"]:
        parser.error("--op avg: this collective does not reduce over all ranks")
    if arguments.repeats < 1:
        parser.error("--repeats: expected 1 or more")
    return arguments


def _parser(schedule: dict[str, Any]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Run schedule.json through nccl4py, one process a rank."
    )
    parser.add_argument(
        "--id-file",
        required=True,
        type=Path,
        help="new file, visible to all ranks, for NCCL's unique id",
    )
    parser.add_argument(
        "--rank", type=int, default=_rank_of_environment(), help="default: RANK and the like"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--op", choices=OPS, default=schedule["reduce_op"])
    parser.add_argument(
        "--size", type=int, default=0, help="bytes of the full buffer (default: about 1 MiB)"
    )
    parser.add_argument("--repeats", type=int, default=20)
    return parser


def _rank_of_environment() -> int | None:
    """Return the rank that a launcher gave to this process through the environment, or None.

    The variables of torchrun, Open MPI, MPICH and Slurm are tried in this order. Raises
    `ValueError` for a value that is no integer.
    """
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        if name in os.environ:
            return int(os.environ[name])
    return None


def _block_elements(
    arguments: argparse.Namespace, schedule: dict[str, Any], element_bytes: int
) -> int:
    """Return the number of elements per block with which the full buffer has `--size` bytes.

    A valid size is a multiple of S, the blocks of the full buffer times `element_bytes`.
    Size 0 means the smallest multiple of S that is at least 1 MiB. Exits with a message and
    status 1 for a negative size and for any other number.
    """
    step = int(schedule["blocks"]) * element_bytes
    size = int(arguments.size)
    if size % step or size < 0:
        sys.exit(f"--size {size}: not a multiple of {step} bytes")
    if size:
        return size // step
    # The first size of whole blocks from 1 MiB on.
    return -(-(1 << 20) // step)


def _shared_id(nccl: Any, arguments: argparse.Namespace) -> Any:
    """Return NCCL's id of the communicator, which rank 0 creates and all ranks read from a file.

    Rank 0 writes the id to `--id-file` with `.part` appended, then moves it to `--id-file`, so that
    others never read a part of it. An existing file is replaced. All ranks then read `--id-file` as
    soon as it exists, so another rank may read the file of an earlier run. Without the file, a rank
    exits after 60 seconds with a message and status 1.
    """
    if arguments.rank == 0:
        # Moved when it is complete: others must not read a part of it.
        draft = arguments.id_file.with_name(arguments.id_file.name + ".part")
        draft.write_bytes(nccl.get_unique_id().as_bytes)
        draft.replace(arguments.id_file)
    # A rank 0 that failed must not leave the others behind.
    deadline = time.monotonic() + 60
    while not arguments.id_file.exists():
        if time.monotonic() > deadline:
            sys.exit(f"{arguments.id_file}: rank 0 did not write it within 60 seconds")
        time.sleep(0.05)
    return nccl.UniqueId.from_bytes(arguments.id_file.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
