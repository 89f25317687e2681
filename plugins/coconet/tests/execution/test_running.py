"""Flat programs on real arrays: equal to the original, and no dependency can be left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_coconet import LOCAL, Binding, Kind, ProgramBuilder, all_reduce, sqrt
from collhub_coconet.execution.array_operations import apply_pointwise, distribute
from collhub_coconet.execution.comparison import draw_arguments
from collhub_coconet.execution.running import (
    draw_order,
    execute,
    execute_and_compare,
    find_waiting_edges,
)
from collhub_coconet.lowering.algorithms import Choice
from collhub_coconet.lowering.flat_program import FlatProgram
from flat_programs import flat_of, pair_of
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import random_moves, random_program

from hub_core.columns import topological_levels
from hub_core.model import InputError, NodeColumns

LABELS = ["adam", "lamb", "attention", "mlp", "boundary"]
ALGORITHMS = [Choice("ring", 2), Choice("pat"), Choice("tacos", tiles=3), Choice("blink", 2)]


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("choice", ALGORITHMS, ids=lambda one: str(one.algorithm))
def test_execution_equals_the_untransformed_program(label: str, choice: Choice) -> None:
    before, after = pair_of(label)
    flat = flat_of(after, 4, choice)
    for seed in range(2):
        found = execute_and_compare(before, flat, seed)
        assert found.ok, found.differences
        assert found.nodes == len(flat.workload.nodes)
        # Reductions over ranks add in another order: within the bound, and far below it.
        assert found.errors
        assert max(found.errors.values()) < 1


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from([2, 3, 4]),
    st.sampled_from([5, 8, 11]),
    st.sampled_from([3, 8]),
    st.sampled_from([Choice("ring", 2), Choice("direct"), Choice("ring", 3, at_once=1)]),
    st.booleans(),
)
def test_random_programs_are_executed_alike(
    seed: int, num_ranks: int, rows: int, columns: int, choice: Choice, is_rearranging: bool
) -> None:
    before = random_program(seed, is_rearranging=is_rearranging)
    after, moves = random_moves(before, seed + 1)
    flat = flat_of(after, num_ranks, choice, {"N": rows, "M": columns})
    found = execute_and_compare(before, flat, seed)
    assert found.ok, (found.differences, moves)


@pytest.mark.parametrize(("label", "algorithm"), [("adam", "ring"), ("adam", "tacos"), ("adam", "pat"), ("attention", "direct"), ("boundary", "ring")])  # fmt: skip
def test_every_missing_dependency_is_an_error(label: str, algorithm: str) -> None:
    before, after = pair_of(label)
    flat = flat_of(after, 3, Choice(algorithm), SMALL)
    arguments = arguments_of(flat)
    nodes = flat.workload.nodes
    judged = 0
    for parent, child in zip(*(side.tolist() for side in nodes.data_edges), strict=True):
        lacking = without(flat, parent, child)
        order, is_implied = latest(lacking, parent, child)
        if is_implied:
            continue
        judged += 1
        with pytest.raises(InputError) as caught:
            execute(lacking, arguments, order=order)
        assert caught.value.diagnostics[0].code == "not-there"
    assert judged > len(nodes) // 4
    assert before.outputs


SMALL = {"B": 1, "S": 6, "K": 3, "H": 4, "F": 3, "N": 12}


def arguments_of(flat: FlatProgram) -> dict[str, list[np.ndarray]]:
    data = draw_arguments(flat.program, flat.binding, 0)
    ranks = flat.binding.num_ranks
    return {one.name: distribute(data[one.name], one.type, ranks) for one in flat.program.arguments}


def without(flat: FlatProgram, parent: int, child: int) -> FlatProgram:
    nodes = flat.workload.nodes
    parents, children = nodes.data_edges
    is_kept = (parents != parent) | (children != child)
    columns = {name: getattr(nodes, name) for name in ("rank", "kind", "peer", "tag", "bytes")}
    table = NodeColumns.from_columns(
        nodes.num_ranks, columns, (parents[is_kept], children[is_kept]), nodes.control_edges
    )
    return replace(flat, workload=replace(flat.workload, nodes=table))


def latest(flat: FlatProgram, parent: int, child: int) -> tuple[list[int], bool]:
    """An order with all that does not wait for `parent` before it; whether `child` does."""
    parents, children = find_waiting_edges(flat.workload)
    order = topological_levels(len(flat.workload.nodes), parents, children).nodes.tolist()
    followers: dict[int, list[int]] = {}
    for one, other in zip(parents.tolist(), children.tolist(), strict=True):
        followers.setdefault(one, []).append(other)
    behind = {parent}
    for row in order:
        if row in behind:
            behind.update(followers.get(row, ()))
    ahead = [row for row in order if row not in behind]
    return ahead + [row for row in order if row in behind], child in behind


def test_an_order_of_a_seed_is_one_order() -> None:
    flat = flat_of(pair_of("adam")[1], 3, Choice("ring"))
    first, again, other = (list(draw_order(flat.workload, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(first) == list(range(len(flat.workload.nodes)))


def test_power_of_one_element_rounds_as_that_of_many() -> None:
    # A stride of 0 makes numpy square instead: found by random programs.
    value = np.array(0.55660945, np.float32)
    two = np.asarray(2.0, np.float32)
    alone = apply_pointwise(Kind.POWER, [value, two])
    among = apply_pointwise(Kind.POWER, [value.reshape(1), two])
    assert alone.tobytes() == among.tobytes()


def test_a_nan_does_not_hide_the_error_bound_of_the_other_elements() -> None:
    build = ProgramBuilder("roots", N=(1, 64))
    # Roots of negative numbers are NaN.
    x = build.argument("x", "float32", "N", layout=LOCAL)
    before = build.program(all_reduce(sqrt(x + 0.9)).named("y"))
    flat = flat_of(before, 4, Choice("ring"), {"N": 64})
    with np.errstate(invalid="ignore"):
        found = execute_and_compare(before, flat)
    assert np.isnan(found.values["y"][0]).any()
    assert found.ok, found.differences
    assert 0 < found.errors["y"] < 1


def test_sums_of_whole_numbers_are_equal_bit_by_bit() -> None:
    build = ProgramBuilder("sum", N=(1, 64))
    total = all_reduce(build.argument("x", "int64", "N", layout=LOCAL)) + 1
    before = build.program(total.named("total"))
    flat = flat_of(before, 4, Choice("direct"), {"N": 19})
    found = execute_and_compare(before, flat)
    assert found.ok
    assert not found.errors
    assert Binding(4, {"N": 19}) == flat.binding
