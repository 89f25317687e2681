#!/usr/bin/env python3
"""Run schedule.json through nccl4py, one process a rank, and compare the result with the collective's definition.

Needs a GPU for every rank, and: python -m pip install "nccl4py[cu13]" torch
Start it as: torchrun --nproc-per-node N run_nccl4py.py --id-file NEW_FILE
or by mpirun or srun; the rank is read from RANK, OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

SEND, RECV, COPY, REDUCE = range(4)
INPUT, OUTPUT = range(2)
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
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
        """`count` blocks of a buffer from `offset` on."""
        first = (self.begin[buffer] + offset) * self.block
        return self.memory[first : first + count * self.block]


@dataclass(frozen=True)
class Calls:
    """What runs the records: messages, the group around those of a level, copies and reductions of regions."""

    send: Callable[[Any, int], None]
    recv: Callable[[Any, int], None]
    group: Callable[[], AbstractContextManager[Any]]
    copy: Callable[[Any, Any], object]
    reduce: Callable[[Any, Any], object]


def run_records(records: list[list[int]], buffers: Buffers, calls: Calls) -> None:
    """Run the records of one rank: all messages of a level in one group, then what the rank does on its own."""
    for _, level in groupby(records, key=lambda record: record[3]):
        rows = list(level)
        messages = [row for row in rows if row[0] <= RECV]
        if messages:
            with calls.group():
                for row in messages:
                    _post(row, buffers, calls)
        for row in rows[len(messages) :]:
            _work(row, buffers, calls)


def _post(row: list[int], buffers: Buffers, calls: Calls) -> None:
    kind, source, target, _, peer, source_offset, target_offset, count = row
    if kind == SEND:
        calls.send(buffers.region(source, source_offset, count), peer)
    else:
        calls.recv(buffers.region(target, target_offset, count), peer)


def _work(row: list[int], buffers: Buffers, calls: Calls) -> None:
    kind, source, target, _, _, source_offset, target_offset, count = row
    work = calls.copy if kind == COPY else calls.reduce
    work(buffers.region(target, target_offset, count), buffers.region(source, source_offset, count))


def values(torch: Any, rank: int, count: int, num_ranks: int, dtype: str, op: str) -> Any:
    """The INPUT of a rank: small whole numbers whose reduction over all ranks is exact in any order."""
    mixed = torch.arange(count, dtype=torch.int64) * 2654435761 + rank * 40503
    if op == "prod":
        sizes = 1 + mixed % 251 % 2 if rank < 8 else torch.ones_like(mixed)
        return (sizes * (1 - 2 * (mixed % 239 % 2))).to(getattr(torch, dtype))
    largest = max(1, min(LARGEST_VALUE, 2 ** DIGITS.get(dtype, 31) // num_ranks))
    return (mixed % (largest + 1)).to(getattr(torch, dtype))


def reductions(torch: Any) -> dict[str, Callable[[Any, Any], object]]:
    """Reduce a source into a target, by operator; an average is a sum that is divided at the end."""
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
    """(elements of OUTPUT, what they must hold) by the definition of the collective."""
    memory, reduce = schedule["memory"], reductions(torch)[op]
    inputs = [
        values(torch, r, memory[r]["size"][INPUT] * block, schedule["num_ranks"], dtype, op)
        for r in range(schedule["num_ranks"])
    ]
    output: dict[int, Any] = {}
    for offset, source, source_offset, count in schedule["promises"][rank]:
        for part in inputs if source < 0 else [inputs[source]]:
            for k in range(count):
                unit = part[(source_offset + k) * block : (source_offset + k + 1) * block]
                if offset + k in output:
                    reduce(output[offset + k], unit)
                else:
                    output[offset + k] = unit.clone()
    for place, unit in output.items():
        if op == "avg":
            divide(unit, schedule["num_ranks"])
        yield slice(place * block, (place + 1) * block), unit


def main() -> int:
    """Run, compare, time; one JSON line. Exit status 0: right, 1: wrong, 2: usage."""
    schedule = json.loads(Path(__file__).with_name("schedule.json").read_text(encoding="ascii"))
    arguments = _arguments(schedule)
    nccl, torch = _libraries()
    rank, dtype = arguments.rank, getattr(torch, arguments.dtype)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
    block = _block_elements(arguments, schedule, dtype.itemsize)
    communicator = nccl.Communicator.init(schedule["num_ranks"], rank, _shared_id(nccl, arguments))
    stream = torch.cuda.current_stream().cuda_stream
    layout = schedule["memory"][rank]
    buffers = Buffers(
        torch.zeros(max(1, layout["total"] * block), dtype=dtype, device="cuda"),
        layout["begin"],
        block,
    )
    calls = Calls(
        lambda region, peer: communicator.send(region, peer, stream=stream),
        lambda region, peer: communicator.recv(region, peer, stream=stream),
        nccl.group,
        lambda target, source: target.copy_(source),
        reductions(torch)[arguments.op],
    )

    def once() -> float:
        begin = time.perf_counter()
        run_records(schedule["records"][rank], buffers, calls)
        if arguments.op == "avg":
            divide(buffers.region(OUTPUT, 0, layout["size"][OUTPUT]), schedule["num_ranks"])
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    if layout["is_defined"]:
        given = values(
            torch,
            rank,
            layout["size"][INPUT] * block,
            schedule["num_ranks"],
            arguments.dtype,
            arguments.op,
        )
        buffers.region(INPUT, 0, layout["size"][INPUT]).copy_(given)
    once()
    output = buffers.region(OUTPUT, 0, layout["size"][OUTPUT]).cpu()
    is_right = all(
        torch.equal(output[place], unit)
        for place, unit in promised(torch, schedule, rank, block, arguments.dtype, arguments.op)
    )
    times = [once() for _ in range(arguments.repeats)]
    communicator.destroy()
    print(
        json.dumps(
            {
                "ok": is_right,
                "rank": rank,
                "dtype": arguments.dtype,
                "time_s": statistics.median(times),
            }
        )
    )
    return 0 if is_right else 1


def _libraries() -> tuple[Any, Any]:
    """nccl4py and torch, imported when the arguments are known to be right."""
    try:
        nccl, torch = (importlib.import_module(name) for name in ("nccl.core", "torch"))
    except ImportError as error:
        sys.exit(f'{error}; install them by: python -m pip install "nccl4py[cu13]" torch')
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU here; `make double` builds the C++ program for the CPU")
    return nccl, torch


def _arguments(schedule: dict[str, Any]) -> argparse.Namespace:
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
    arguments = parser.parse_args()
    if arguments.rank is None or not 0 <= arguments.rank < schedule["num_ranks"]:
        parser.error(f"--rank: expected 0..{schedule['num_ranks'] - 1}, got {arguments.rank}")
    if arguments.op == "avg" and not schedule["is_reducing"]:
        parser.error("--op avg: this collective does not reduce over all ranks")
    if arguments.repeats < 1:
        parser.error("--repeats: expected 1 or more")
    return arguments


def _rank_of_environment() -> int | None:
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    return next((int(os.environ[name]) for name in names if name in os.environ), None)


def _block_elements(
    arguments: argparse.Namespace, schedule: dict[str, Any], element_bytes: int
) -> int:
    step = int(schedule["blocks"]) * element_bytes
    if arguments.size % step or arguments.size < 0:
        sys.exit(f"--size {arguments.size}: not a multiple of {step} bytes")
    return int(arguments.size or -(-(1 << 20) // step) * step) // step


def _shared_id(nccl: Any, arguments: argparse.Namespace) -> Any:
    """The communicator's id, which rank 0 makes and the others wait for."""
    draft = arguments.id_file.with_name(arguments.id_file.name + ".part")
    if arguments.rank == 0:
        draft.write_bytes(bytes(nccl.get_unique_id()))
        draft.replace(arguments.id_file)
    deadline = time.monotonic() + 60
    while not arguments.id_file.exists():
        if time.monotonic() > deadline:
            sys.exit(f"{arguments.id_file}: rank 0 did not write it within 60 seconds")
        time.sleep(0.05)
    return nccl.UniqueId.from_bytes(arguments.id_file.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
