"""Run random programs with uneven collectives as written modules on gloo; started by a test.

Arguments: ranks, first seed, number of programs, and optionally `overlap`. Prints one line of JSON:
the number of programs, the different results, and the kinds of the uneven collectives.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from collhub_coconet import (
    LOCAL,
    Binding,
    Program,
    ProgramBuilder,
    all_to_all_v,
    matmul,
    overlap,
    tanh,
    text,
)
from collhub_coconet.execution.array_operations import distribute
from collhub_coconet.execution.comparison import draw_arguments
from collhub_coconet.execution.ranks import simulate_ranks
from collhub_coconet.lowering.workload import lower
from collhub_coconet.plugin import TorchModuleOptions
from collhub_coconet.program.operations import UNEVEN_COLLECTIVES
from collhub_coconet.torch_programs.writing import write
from collhub_coconet.transformations.moves import legal_rewrites
from random_programs import random_uneven_program


def find_differences(program: Program, binding: Binding, seed: int, rank: int) -> list[str]:
    """Compare the results of the module of a program on this rank with those of the executor.

    Integers are equal; floats may be rounded differently, as PyTorch adds in another order.
    """
    (artifact,) = write(lower(program, binding), TorchModuleOptions()).artifacts
    module: Any = type(sys)("written")
    exec(compile(artifact.content(), "written", "exec"), vars(module))
    data = draw_arguments(program, binding, seed)
    parts = {one.name: distribute(data[one.name], one.type, binding) for one in program.arguments}
    with np.errstate(all="ignore"):
        expected = simulate_ranks(program, binding, parts).values
    own = {name: torch.from_numpy(arrays[rank].copy()) for name, arrays in parts.items()}
    outputs = module.step(own)
    different = []
    for name in program.outputs:
        actual, array = outputs[name].numpy(), expected[name][rank]
        is_float = array.dtype.kind == "f"
        tolerance = {"rtol": 1e-4, "atol": 1e-4} if is_float else {"rtol": 0, "atol": 0}
        is_equal = actual.shape == array.shape and actual.dtype == array.dtype
        if not is_equal or not np.allclose(actual, array, **tolerance, equal_nan=True):
            different.append(f"seed {seed}, rank {rank}: {name}\n{text(program)}")
    return different


def build_chains(num_ranks: int) -> list[Program]:
    """Layers of experts whose exchanges overlap with their products; also with ranks without rows."""
    programs = []
    for counts in (
        [[(3 * i + 5 * j) % 7 for j in range(num_ranks)] for i in range(num_ranks)],
        [[9 * (i == 0 and j > 0) for j in range(num_ranks)] for i in range(num_ranks)],
    ):
        build = ProgramBuilder("experts")
        x = build.argument("x", "float64", 40, 3, layout=LOCAL)
        w1 = build.argument("w1", "float64", 3, 5, layout=LOCAL)
        w2 = build.argument("w2", "float64", 5, 3, layout=LOCAL)
        b = build.argument("b", "float64", 3)
        dispatched = all_to_all_v(x, counts).named("dispatched")
        hidden = (tanh(matmul(dispatched, w1).named("inner")) + 1.0).named("hidden")
        y = (matmul(hidden, w2).named("product") + b).named("y")
        back = [list(column) for column in zip(*counts, strict=True)]
        combined = all_to_all_v(y, back).named("combined")
        program = build.program((combined * 2.0).named("z"))
        names = [one.name for one in program.operations if one.name != "z"]
        programs.append(overlap(program, names).program)
    return programs


def run_rank(rank: int, folder: str, num_ranks: int, seeds: range, is_overlapped: bool) -> None:
    """Run all programs on one rank; rank 0 prints the results of all."""
    torch.set_num_threads(1)
    distributed: Any = dist
    store = distributed.FileStore(f"{folder}/store", num_ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
    different: list[str] = []
    kinds = set[str]()
    chunked = 0
    for seed in seeds:
        program = random_uneven_program(seed, num_ranks)
        if is_overlapped:
            chains = [rewrite.program for rewrite in legal_rewrites(program, ["overlap"])]
            program = random.Random(seed).choice(chains or [program])
            chunked += bool(program.chains)
        kinds |= {str(one.kind) for one in program.operations if one.kind in UNEVEN_COLLECTIVES}
        different += find_differences(program, Binding(num_ranks, {"M": 3}), seed, rank)
    losses = []
    for program in build_chains(num_ranks):
        binding = Binding(num_ranks, {})
        losses += write(lower(program, binding), TorchModuleOptions()).losses
        different += find_differences(program, binding, 0, rank)
    gathered: list[Any] = [None] * num_ranks
    dist.all_gather_object(gathered, different)
    if rank == 0:
        report = {
            "programs": len(seeds),
            "overlapped": chunked,
            "losses": len(losses),
            "different": [one for entry in gathered for one in entry],
            "kinds": sorted(kinds),
        }
        print(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, first, count = map(int, sys.argv[1:4])
    with tempfile.TemporaryDirectory() as folder:
        processes: Any = torch.multiprocessing
        arguments = (folder, ranks, range(first, first + count), "overlap" in sys.argv[4:])
        processes.start_processes(run_rank, arguments, nprocs=ranks, start_method="fork")
