"""Every legal transformation keeps the meaning: random programs, random moves."""

from __future__ import annotations

import random

import numpy as np
import pytest
from collhub_coconet import (
    Binding,
    ElementType,
    TensorType,
    compare,
    program_from_json,
    program_to_json,
    text,
)
from collhub_coconet.execution.array_operations import (
    collect,
    distribute,
    find_local_axes,
    reduce_over_ranks,
)
from collhub_coconet.execution.comparison import draw_arguments
from collhub_coconet.execution.ranks import simulate_ranks
from collhub_coconet.execution.running import execute_and_compare
from collhub_coconet.lowering.algorithms import Choice, select_fallbacks
from collhub_coconet.lowering.flat import flatten
from collhub_coconet.lowering.timing import Machine, makespan
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_programs import random_extended_program, random_moves, random_program

import hub_core

SEEDS = st.integers(0, 2**31)
RANKS = st.sampled_from([2, 3, 4, 8])
# Most of them are divided by none of the numbers of ranks, and one by nothing at all.
LENGTHS = st.sampled_from([1, 2, 5, 7, 8, 11])


def check(seed: int, num_ranks: int, rows: int, columns: int) -> None:
    before = random_program(seed, is_rearranging=bool(seed % 2))
    after, moves = random_moves(before, seed + 1)
    binding = Binding(num_ranks, {"N": rows, "M": columns})
    for element in (None, ElementType.FLOAT64):
        found = compare(before, after, binding, seed, element)
        assert found.ok, f"{found.differences}\n{moves}\n{text(before)}\n{text(after)}"
    assert all(share <= 1 for share in found.errors.values())


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(SEEDS, RANKS, LENGTHS, LENGTHS)
def test_legal_transformations_keep_the_meaning(
    seed: int, num_ranks: int, rows: int, columns: int
) -> None:
    check(seed, num_ranks, rows, columns)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, derandomize=True, database=None)
@given(SEEDS, RANKS, LENGTHS, LENGTHS)
def test_two_thousand_transformed_programs_are_equal(
    seed: int, num_ranks: int, rows: int, columns: int
) -> None:
    check(seed, num_ranks, rows, columns)


def check_extended(seed: int) -> set[str]:
    """Compare an extended program with its moved form, and return the names of its kinds."""
    before = random_extended_program(seed)
    after, moves = random_moves(before, seed + 1)
    choice = random.Random(seed)
    sizes = {symbol: choice.choice([1, 2, 5, 7, 8, 11]) for symbol in ("N", "M")}
    if len(before.mesh) > 1:
        binding = Binding.of_mesh(choice.choice([(2, 2), (2, 3), (3, 2), (2, 4)]), sizes)
    else:
        binding = Binding(choice.choice([2, 3, 4, 8]), sizes)
    found = compare(before, after, binding, seed)
    assert found.ok, f"{seed}: {found.differences}\n{moves}\n{text(before)}\n{text(after)}"
    assert program_from_json(program_to_json(after)) == after
    return {str(one.kind) for one in after.operations}


NEW_KINDS = {
    *("Exp", "Log", "RowReduce", "ArgMax", "Index", "Gather", "Scatter"),
    *("TopValues", "TopIndices", "Reshape", "Concat", "Part", "Erf"),
    *("Permute", "BatchMatMul"),
}


@pytest.mark.once
def test_legal_transformations_of_extended_programs_keep_the_meaning() -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    met = set[str]().union(*(check_extended(seed) for seed in range(120)))
    assert met >= NEW_KINDS


def complete(parts: list[np.ndarray], kind: TensorType, binding: Binding) -> np.ndarray:
    """The tensor that the arrays of all ranks stand for; partial axes are reduced."""
    tensor = collect(parts, kind, binding)
    for layout in kind.layout.by_axis:
        if layout.reduction is not None:
            tensor = reduce_over_ranks(list(tensor), layout.reduction)
    return tensor.astype(np.float64).reshape(-1)


def test_every_layout_stands_for_the_same_tensor_on_every_mesh() -> None:
    met = set[str]()
    for seed in range(60):
        program = random_extended_program(seed, 14, is_wide=True)
        # Every second program is joined along the first axis, the others along the second one.
        meshes = (3, 2), ((1, 2), (3, 1))[seed % 2]
        cut, joined = (Binding.of_mesh(axes, {"N": 5, "M": 4}) for axes in meshes)
        data = draw_arguments(program, cut, seed)
        values = []
        for binding in (cut, joined):
            arguments = {}
            for one in program.arguments:
                tensor = data[one.name]
                for place, axis in enumerate(find_local_axes(one.type)):
                    if tensor.shape[place] != binding.axis_sizes[axis]:
                        tensor = tensor.sum(axis=place, keepdims=True)
                arguments[one.name] = distribute(tensor, one.type, binding)
            values.append(simulate_ranks(program, binding, arguments).values)
        for one in program.operations:
            kind = program.types[one.name]
            # Parts of an infinite tensor may have no sum.
            with np.errstate(invalid="ignore"):
                first, second = (
                    complete(found[one.name], kind, binding)
                    for found, binding in zip(values, (cut, joined), strict=True)
                )
            finite = np.isfinite(first) & np.isfinite(second)
            np.testing.assert_allclose(first[finite], second[finite], 1e-5, 1e-6, err_msg=str(one))
            partial_reads = any("P(" in str(program.types[name]) for name in one.reads)
            met.add(f"{one.kind}{' of partial' if partial_reads else ''}")
    assert met >= {"AllReduce of partial", "Multiply of partial", "Gather", "RowReduce", "Select"}


@pytest.mark.slow
def test_two_thousand_extended_programs_are_equal() -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    for seed in range(2000):
        check_extended(seed)


@pytest.mark.parametrize("seed", range(12))
def test_flat_graphs_of_extended_programs_are_equal(seed: int) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    before = random_extended_program(seed, 10)
    after, _ = random_moves(before, seed + 1)
    binding = Binding(3, {"N": 5, "M": 4})
    if len(before.mesh) > 1:
        binding = Binding.of_mesh((2, 2), {"N": 5, "M": 4})
        assert makespan(after, binding, Machine(1e12, 1e11)).time_s >= 0
        return
    network = hub_core.parse_topology(f"ring:{3 * after.num_groups}")
    choices = {**select_fallbacks(after, 2), "": Choice("ring", 2)}
    found = execute_and_compare(before, flatten(after, binding, network, choices), seed)
    assert found.ok, f"{found.differences}\n{text(after)}"


def test_random_programs_meet_every_transformation() -> None:
    met = {name for seed in range(80) for name in random_moves(random_program(seed), seed)[1]}
    assert met == {"split", "split-at-root", "reorder", "as-slice", "fuse", "overlap", "coalesce"}


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(SEEDS)
@example(0)
def test_documents_keep_transformed_programs(seed: int) -> None:
    program, _ = random_moves(random_program(seed), seed)
    assert program_from_json(program_to_json(program)) == program
