"""The program that registers plans with the runtime, and chooses among them for every call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RegisteredPlan:
    """A plan file, and the calls that it is for; sizes in bytes, both ends included."""

    file: str
    collective: str
    in_place: bool
    min_bytes: int
    max_bytes: int | None


_PROGRAM = '''"""Register tuned plans with MSCCL++; written by `collhub tune`.

Call register(rank) before the communicator is made.
"""

import json
from pathlib import Path

RANKS = @RANKS@
RANKS_PER_NODE = @PER_NODE@
# (collective, in place, smallest and largest bytes of the full buffer or None, file of the plan)
PLANS = [
@PLANS@]
FOLDER = Path(__file__).resolve().parent
NAMES = {}


def chosen(collective, in_place, size):
    """The file of the plan for a call, or None where the runtime keeps the call."""
    for kind, mode, least, most, file in PLANS:
        is_within = least <= size and (most is None or size <= most)
        if (kind, mode) == (collective, in_place) and is_within:
            return file
    return None


def select(algorithms, request):
    """What the runtime asks for every call: an algorithm, or None."""
    if (request.world_size, request.n_ranks_per_node) != (RANKS, RANKS_PER_NODE):
        return None
    in_place = request.buffer_mode().name == "IN_PLACE"
    file = chosen(request.collective, in_place, request.message_size)
    if file is None:
        return None
    return algorithms.get(request.collective, {}).get(plan_name(file))


def plan_name(file):
    """The name of a plan, by which the runtime knows it."""
    if file not in NAMES:
        NAMES[file] = json.loads((FOLDER / file).read_text())["name"]
    return NAMES[file]


def register(rank):
    """Give all plans to the runtime, for this rank."""
    import mscclpp
    from mscclpp import _mscclpp

    load = getattr(_mscclpp, "CppExecutionPlan", None) or _mscclpp.ExecutionPlan
    builder = mscclpp.AlgorithmCollectionBuilder()
    constraint = mscclpp.Algorithm.Constraint(RANKS, RANKS_PER_NODE)
    for _, _, _, _, file in PLANS:
        plan = load(str(FOLDER / file), rank)
        name = plan_name(file)
        algorithm = mscclpp.Algorithm(id=name, execution_plan=plan, constraint=constraint)
        builder.add_algorithm_builder(algorithm)
    builder.set_algorithm_selector(select)
'''


def register_text(plans: Sequence[RegisteredPlan], num_ranks: int, per_node: int) -> str:
    """The program for these plans, each of a call of `num_ranks` ranks, `per_node` on a node."""
    rows = [
        (plan.collective, plan.in_place, plan.min_bytes, plan.max_bytes, plan.file)
        for plan in plans
    ]
    listed = "".join(f"    {row!r},\n" for row in rows)
    text = _PROGRAM.replace("@RANKS@", str(num_ranks)).replace("@PER_NODE@", str(per_node))
    return text.replace("@PLANS@", listed)
