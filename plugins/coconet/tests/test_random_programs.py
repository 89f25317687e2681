"""Every legal transformation keeps the meaning: random programs, random moves."""

from __future__ import annotations

import pytest
from collhub_coconet import (
    Binding,
    ElementType,
    compare,
    program_from_json,
    program_to_json,
    text,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_programs import random_moves, random_program

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


def test_random_programs_meet_every_transformation() -> None:
    met = {name for seed in range(80) for name in random_moves(random_program(seed), seed)[1]}
    assert met == {"split", "split-at-root", "reorder", "as-slice", "fuse", "overlap"}


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(SEEDS)
@example(0)
def test_documents_keep_transformed_programs(seed: int) -> None:
    program, _ = random_moves(random_program(seed), seed)
    assert program_from_json(program_to_json(program)) == program
