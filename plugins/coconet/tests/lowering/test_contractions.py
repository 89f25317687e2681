"""Products behind a communication: tiles start as chunks arrive, and nothing is read too early."""

from __future__ import annotations

import numpy as np
import pytest
from attention_parallel import ring_attention
from collhub_coconet import (
    Binding,
    Program,
    ProgramBuilder,
    all_gather,
    matmul,
    overlap,
    sliced,
    tanh,
)
from collhub_coconet.execution.running import execute_and_compare
from collhub_coconet.lowering.algorithms import Choice
from collhub_coconet.lowering.flat_program import KernelSegment
from collhub_coconet.lowering.grids import Grid, derive_product_grid, find_needed_chunks
from collhub_coconet.lowering.timing import Machine, makespan
from flat_programs import flat_of, registry
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import NodeKind

SIZES = {"S": 7, "K": 5, "N": 5, "A": 3, "D": 2}
ALGORITHMS = [Choice("ring"), Choice("ring", 3), Choice("pat", 2), Choice("tacos", tiles=2)]


def gathered_product(*, is_sliced: bool = False) -> Program:
    """Sequence parallel: rows are gathered, and multiplied with columns of a weight."""
    build = ProgramBuilder("layer", S=(1, 2**20), K=(1, 2**14), N=(1, 2**14))
    x = build.argument("x", "float32", "S", "K", layout=sliced(0))
    w = build.argument("w", "float32", "K", "N", **({"layout": sliced(1)} if is_sliced else {}))
    whole = all_gather(x).named("whole")
    return build.program(tanh(matmul(whole, w).named("y")).named("o"))


@pytest.mark.parametrize("choice", ALGORITHMS, ids=str)
@pytest.mark.parametrize("is_sliced", [False, True])
@pytest.mark.parametrize("members", [["whole", "y"], ["whole", "y", "o"]])
def test_product_behind_a_gathering_is_executed_in_tiles(
    choice: Choice, is_sliced: bool, members: list[str]
) -> None:
    before = gathered_product(is_sliced=is_sliced)
    after = overlap(before, members).program
    flat = flat_of(after, 4, choice, SIZES)
    found = execute_and_compare(before, flat, seed=5)
    assert found.ok, found.differences
    tiles = [len(part.tiles) for part in flat.parts if isinstance(part, KernelSegment)]
    # At least two on each rank, where the whole would be one.
    assert min(tiles[:1]) >= 8


@pytest.mark.parametrize("choice", ALGORITHMS, ids=str)
def test_ring_attention_multiplies_keys_as_they_arrive(choice: Choice) -> None:
    before = ring_attention()
    after = overlap(before, ["keys", "scores", "weights"]).program
    flat = flat_of(after, 3, choice, SIZES)
    found = execute_and_compare(before, flat, seed=2)
    assert found.ok, found.differences


def test_first_tile_waits_for_no_message() -> None:
    # A rank has its own rows from the start, so that it multiplies them first.
    after = overlap(gathered_product(), ["whole", "y"]).program
    flat = flat_of(after, 4, Choice("ring"), {"S": 8, "K": 4, "N": 4})
    nodes = flat.workload.nodes
    number = next(place for place, part in enumerate(flat.parts) if isinstance(part, KernelSegment))
    rows = np.flatnonzero(flat.part == number)
    parents = [nodes.data_indices[nodes.data_indptr[row]] for row in rows.tolist()]
    is_received = (nodes.kind[parents] == NodeKind.RECV).reshape(4, 4)
    assert is_received.tolist() == [[False, True, True, True]] * 4
    # Each waits for its own rows alone.
    assert np.diff(nodes.data_indptr)[rows].tolist() == [1] * 16


def test_overlap_of_a_gathering_and_its_product_hides_the_shorter_one() -> None:
    before = gathered_product(is_sliced=True)
    after = overlap(before, ["whole", "y"]).program
    binding = Binding(8, {"S": 8192, "K": 4096, "N": 8192})
    machine = Machine(90e12, 1e15, topology="ring:8?bandwidth=50GB/s&latency=0ns")
    times = [
        makespan(one, binding, machine, {"": Choice("ring", 1)}, registry=registry()).time_s
        for one in (before, after)
    ]
    # 58.7 MB at 50 GB/s, and 2 * 8192 * 4096 * 1024 operations: formulas of the specification.
    gathering = 7 / 8 * 8192 * 4096 * 4 / 50e9
    product = 2 * 8192 * 4096 * 8192 / 8 / 90e12
    assert times[0] == pytest.approx(gathering + product, rel=0.02)
    assert times[1] == pytest.approx(max(gathering, product) + product / 8, rel=0.02)


@given(
    st.lists(st.integers(1, 6), min_size=3, max_size=3),
    st.integers(1, 4),
    st.integers(1, 5),
    st.booleans(),
)
def test_needed_chunks_are_those_with_elements_of_the_same_rows(
    sizes: list[int], blocks: int, parts: int, is_sliced: bool
) -> None:
    rows, terms, columns = sizes
    operand = Grid((rows, terms), 0, blocks, parts)
    across = 1 if is_sliced and blocks > 1 else None
    product = Grid((rows, columns), 0, blocks, parts, across)
    chunks = np.arange(product.chunks)
    index, wanted = find_needed_chunks(product, operand, 1, chunks)
    found = set(zip(chunks[index].tolist(), wanted.tolist(), strict=True))
    for chunk in chunks.tolist():
        needed_rows = set((product.elements(chunk) // columns).tolist())
        for other in range(operand.chunks):
            has_rows = not needed_rows.isdisjoint((operand.elements(other) // terms).tolist())
            # Nothing that is needed may be left out; empty chunks may stand between.
            assert not has_rows or (chunk, other) in found
            assert has_rows or not len(operand.elements(other)) or (chunk, other) not in found


def test_product_needs_all_of_what_is_gathered_along_its_sum() -> None:
    build = ProgramBuilder("p", S=(1, 8), K=(1, 8), N=(1, 8))
    x = build.argument("x", "float32", "S", "K", layout=sliced(1))
    w = build.argument("w", "float32", "K", "N")
    program = build.program(matmul(all_gather(x).named("whole"), w).named("y"))
    binding = Binding(2, {"S": 4, "K": 4, "N": 4})
    operand = Grid((4, 4), 1, 2, 1)
    assert derive_product_grid(program, binding, program.by_name["y"], "whole", operand) is None
    after = overlap(program, ["whole", "y"]).program
    assert execute_and_compare(
        program, flat_of(after, 2, Choice("ring", 2), dict(binding.sizes))
    ).ok
