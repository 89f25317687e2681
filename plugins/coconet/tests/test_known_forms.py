"""The search finds the best known form of each example, or a faster one.

A known form is built by its moves. It is timed like the programs of the search.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attention_parallel import ring_attention
from collhub_coconet import (
    Binding,
    Kind,
    Program,
    as_slice,
    compare,
    fuse,
    movable,
    overlap,
    reorder,
    split,
)
from collhub_coconet.search.collective_times import Rates
from collhub_coconet.search.cost_models import FormulaModel
from collhub_coconet.search.explore import explore
from collhub_coconet.transformations.moves import FUSIBLE, grow_stage
from mixed_adam import mixed_adam
from moe import moe
from sharded_training import fsdp, lamb_clipped
from training_step import training_step
from transformer_blocks import attention

RATES = Rates(90e12, 765e9, 50e9, 1e-6, 5e-6)
MODEL = FormulaModel(RATES)


def fuse_computations(program: Program) -> Program:
    """Fuse pointwise operations as a compiler does; collectives stay apart."""
    for operation in program.operations:
        staged = {name for stage in program.stages for name in stage.members}
        if operation.kind in FUSIBLE and operation.name not in staged:
            members = grow_stage(program, operation, allows_communication=False)
            if len(members) > 1:
                program = fuse(program, members).program
    return program


def shard_optimizer(program: Program) -> Program:
    """ZeRO-1 and ZeRO-2: scatter gradients, update slices of states, gather the new weights."""
    for name in [entry.name for entry in program.operations if entry.kind is Kind.ALL_REDUCE]:
        program = split(program, name, 0).program
        program = reorder(program, name, movable(program, name)).program
    states = [name for name, state in program.states.items() if not state.whole_after]
    return fuse_computations(as_slice(program, states).program)


def sequence_parallel(program: Program) -> Program:
    """Tensor and sequence parallelism: dropout and residual work on slices of the positions."""
    program = split(program, "z", 1).program
    return fuse_computations(reorder(program, "z", movable(program, "z")).program)


def check(program: Program, known: Program, binding: Binding, small: Binding) -> None:
    """Check that the winner of the search is at most as slow as a known form, and equal to both."""
    assert compare(program, known, small).ok
    best = explore(program, [binding], MODEL, 5000).fastest(0)
    assert compare(program, best.program, small).ok
    assert best.timings[0].seconds <= 1.0001 * MODEL.timing(known, binding).seconds


CASES: dict[str, tuple[Program, Callable[[Program], Program], Binding, Binding]] = {
    "mixed-precision Adam, ZeRO-1": (
        mixed_adam("float16"), shard_optimizer,
        Binding(16, {"N": 2**26}), Binding(3, {"N": 7}),
    ),
    "training step, ZeRO-2": (
        training_step(1), shard_optimizer,
        Binding(8, {"B": 4096, "H": 2048}), Binding(2, {"B": 4, "H": 6}),
    ),
    "FSDP": (
        fsdp(1), fuse_computations,
        Binding(8, {"B": 4096, "H": 2048}), Binding(2, {"B": 4, "H": 6}),
    ),
    "tensor and sequence parallelism": (
        attention(), sequence_parallel,
        Binding(8, {"B": 8, "S": 1024, "K": 3072, "H": 3072}),
        Binding(2, {"B": 2, "S": 4, "K": 4, "H": 3}),
    ),
    "ring attention": (
        ring_attention(), lambda program: overlap(program, ["keys", "scores"]).program,
        Binding(8, {"A": 16, "S": 4096, "D": 64}), Binding(2, {"A": 2, "S": 4, "D": 3}),
    ),
    "experts": (
        moe(), lambda program: overlap(program, ["inner", "hidden"]).program,
        Binding(8, {"E": 16, "C": 1024, "H": 1024, "F": 4096}),
        Binding(2, {"E": 2, "C": 4, "H": 3, "F": 3}),
    ),
    "LAMB with clipping": (
        lamb_clipped(), shard_optimizer, Binding(16, {"N": 2**26}), Binding(3, {"N": 7}),
    ),
}  # fmt: skip


EXPENSIVE = {"LAMB with clipping", "mixed-precision Adam, ZeRO-1"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.once if name in EXPENSIVE else ()) for name in CASES],
)
def test_search_finds_the_known_form_or_a_faster_one(name: str) -> None:
    program, derive, binding, small = CASES[name]
    check(program, derive(program), binding, small)
