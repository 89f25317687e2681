"""Register tuned plans with MSCCL++; written by `collhub tune`.

Call register(rank) before the communicator is made. Plans always sum: the runtime does not say
which operator a call has, so that max, min and avg would run as a sum.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

RANKS = 0
RANKS_PER_NODE = 0
# (collective, in place, smallest and largest bytes of the full buffer or None, divisor of these
# bytes, file of the plan); the first one that fits serves a call
PLANS: list[tuple[str, bool, int, int | None, int, str]] = []
FOLDER = Path(__file__).resolve().parent
# Collectives whose calls name the bytes of one rank's part.
COUNTED_BY_PART = ("allgather", "reducescatter")
NAMES: dict[str, str] = {}


def choose(
    plans: list[tuple[str, bool, int, int | None, int, str]],
    ranks: int,
    collective: str,
    in_place: bool,
    size: int,
) -> str | None:
    """The file of the plan for a call of `size` bytes, or None where the runtime keeps the call."""
    full = size * ranks if collective in COUNTED_BY_PART else size
    # Releases differ in what they name for a reduce-scatter: the result, or the whole input.
    known = (full, size) if collective == "reducescatter" else (full,)
    for kind, mode, least, most, divisor, file in plans:
        is_within = least <= full and (most is None or full <= most)
        is_divided = not any(number % divisor for number in known)
        if (kind, mode) == (collective, in_place) and is_within and is_divided:
            return file
    return None


def is_in_place(request: Any) -> bool:
    """Whether the result of a call is written over its input, on every rank alike."""
    if request.buffer_mode().name == "IN_PLACE":
        return True
    if request.collective != "reducescatter" or not hasattr(request, "output_buffer"):
        return False
    # The runtime compares the start of both buffers, which in place are equal on rank 0 only.
    offset = request.output_buffer - request.input_buffer
    part = request.rank * request.message_size
    return request.rank > 0 and offset in (part, part // RANKS)


def select(algorithms: Any, request: Any) -> Any:
    """What the runtime asks for every call: an algorithm, or None."""
    if (request.world_size, request.n_ranks_per_node) != (RANKS, RANKS_PER_NODE):
        return None
    call = request.collective, is_in_place(request), request.message_size
    file = choose(PLANS, RANKS, *call)
    if file is None:
        return None
    return algorithms.get(request.collective, {}).get(plan_name(file))


def plan_name(file: str) -> str:
    """The name of a plan, by which the runtime knows it."""
    if file not in NAMES:
        NAMES[file] = json.loads((FOLDER / file).read_text())["name"]
    return NAMES[file]


def register(rank: int) -> None:
    """Give all plans to the runtime, for this rank."""
    mscclpp: Any = import_module("mscclpp")
    native = mscclpp._mscclpp
    load = getattr(native, "CppExecutionPlan", None) or native.ExecutionPlan
    builder = mscclpp.AlgorithmCollectionBuilder()
    # No communicator has 0 ranks. Where `select` keeps a call, the runtime would take any plan of
    # these ranks whose window has the size, and throw where its chunks do not divide it.
    constraint = mscclpp.Algorithm.Constraint(0, 0)
    for file in sorted({file for *_, file in PLANS}):
        plan = load(str(FOLDER / file), rank)
        name = plan_name(file)
        algorithm = mscclpp.Algorithm(id=name, execution_plan=plan, constraint=constraint)
        builder.add_algorithm_builder(algorithm)
    builder.set_algorithm_selector(select)
