"""Flat programs of the examples, for tests of lowering and execution."""

from __future__ import annotations

from functools import cache

from adam import adam
from collhub_coconet import (
    LOCAL,
    Binding,
    Kind,
    Program,
    ProgramBuilder,
    all_reduce,
    as_slice,
    fuse,
    movable,
    norm,
    overlap,
    reorder,
    select,
    split,
    sqrt,
    update,
)
from collhub_coconet.lowering.algorithms import Choice, Choices, select_fallbacks
from collhub_coconet.lowering.flat import flatten
from collhub_coconet.lowering.flat_program import FlatProgram
from lamb import lamb
from transformer_blocks import attention, mlp, pipeline_boundary

from hub_core import Registry, Topology, discover, parse_topology

SIZES = {"B": 2, "S": 7, "K": 8, "H": 16, "F": 8, "N": 37}


@cache
def registry() -> Registry:
    return discover()


def scattered(program: Program, target: str, dimension: int = 0) -> Program:
    after = split(program, target, dimension).program
    return reorder(after, target, movable(after, target)).program


def momentum() -> Program:
    """A step of momentum, data parallel."""
    build = ProgramBuilder("momentum", N=(1, 2**30))
    g = build.argument("g", "float32", "N", layout=LOCAL)
    m = build.state("m", "float32", "N")
    w = build.state("w", "float32", "N", whole_after=True)
    m1 = update(m, 0.9 * m + all_reduce(g).named("g1")).named("m1")
    return build.program(m1, update(w, w - 0.01 * m1).named("w1"))


def clip_by_norm(count: int = 1) -> Program:
    """A step of gradient descent on `count` tensors, with gradients clipped by their norm."""
    build = ProgramBuilder("clip", N=(1, 2**30))
    gradients = [
        all_reduce(build.argument(f"g{index}", "float32", "N", layout=LOCAL)).named(f"h{index}")
        for index in range(count)
    ]
    weights = [build.state(f"w{index}", "float32", "N", whole_after=True) for index in range(count)]
    squares = [norm(gradient) ** 2 for gradient in gradients]
    length = squares[0]
    for square in squares[1:]:
        length = length + square
    factor = select(length > 1.0, 1.0 / sqrt(length), 1.0).named("factor")
    steps = [
        update(weight, weight - 0.01 * factor * gradient).named(f"w{index}_1")
        for index, (weight, gradient) in enumerate(zip(weights, gradients, strict=True))
    ]
    return build.program(*steps)


def fused_adam() -> tuple[Program, Program]:
    """Adam, and fuse(RS-C-AG) with sliced moments."""
    before = adam()
    after = as_slice(scattered(before, "g1"), ["m", "v"]).program
    members = [one.name for one in after.operations if one.name != "w1"]
    return before, fuse(after, members, "stage").program


def scattered_lamb() -> tuple[Program, Program]:
    """LAMB, and its norm of slices."""
    before = lamb()
    return before, scattered(before, "g1")


def overlapped_block(*, is_mlp: bool) -> tuple[Program, Program]:
    """A block, and ol(MM, fuse(RS-C-AG))."""
    before = mlp() if is_mlp else attention()
    after = scattered(before, "z", 1)
    names = [one.name for one in after.operations]
    behind = names[names.index("y") + 1 :]
    after = fuse(after, behind, "stage").program
    return before, overlap(after, ["y", "stage"]).program


def overlapped_boundary() -> tuple[Program, Program]:
    """A pipeline boundary, and ol(RS, fuse(C-P2P), AG)."""
    before = pipeline_boundary()
    after = scattered(before, "z", 1)
    names = [one.name for one in after.operations]
    after = fuse(after, names[1:-1], "stage").program
    return before, overlap(after, [names[0], "stage", names[-1]]).program


def pair_of(label: str) -> tuple[Program, Program]:
    """A program of the examples and its rewriting."""
    if label == "adam":
        return fused_adam()
    if label == "lamb":
        return scattered_lamb()
    if label == "boundary":
        return overlapped_boundary()
    return overlapped_block(is_mlp=label == "mlp")


def flat_of(
    program: Program, num_ranks: int, choice: Choice, sizes: dict[str, int] | None = None
) -> FlatProgram:
    """The flat program on links between all pairs of ranks; rooted collectives by trees."""
    groups = 1 + max(kind.group for kind in program.types.values())
    exchanges = {one.name for one in program.operations if one.kind is Kind.ALL_TO_ALL}
    # Of all algorithms of the tests, only rings exchange nothing.
    choices: Choices = {
        name: one
        for name, one in select_fallbacks(program).items()
        if name not in exchanges or choice.algorithm == "ring"
    }
    binding = Binding(num_ranks, sizes or SIZES)
    network = _network(num_ranks * groups)
    return flatten(program, binding, network, {"": choice, **choices}, registry=registry())


@cache
def _network(num_npus: int) -> Topology:
    return parse_topology(f"fully-connected:{num_npus}", registry=registry())
