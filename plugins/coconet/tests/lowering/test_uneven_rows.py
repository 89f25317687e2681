"""Uneven collectives in flat graphs: chunks of rows, overlapped with computations, and their times."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from collhub_coconet import (
    LOCAL,
    Binding,
    Program,
    ProgramBuilder,
    RefusedMoveError,
    all_gather_v,
    all_reduce,
    all_to_all_v,
    compare,
    fuse,
    matmul,
    overlap,
    program_from_json,
    program_to_json,
    reduce_scatter_v,
    sliced,
    tanh,
    text,
)
from collhub_coconet.execution.running import execute_and_compare
from collhub_coconet.lowering.algorithms import Choice, select_fallbacks
from collhub_coconet.lowering.flat import flatten
from collhub_coconet.lowering.flat_program import FlatProgram, KernelSegment, extract_algorithm
from collhub_coconet.lowering.timing import Machine, makespan
from collhub_coconet.program.operations import UNEVEN_COLLECTIVES
from collhub_coconet.transformations.moves import legal_rewrites
from expert_tokens import expert_tokens
from flat_programs import registry
from random_programs import random_moves, random_uneven_program

from hub_core import parse_topology, verify

# Row i, column j: rows that rank i sends to rank j. Rank 3 receives the most, rank 2 none.
COUNTS = [[1, 2, 0, 3], [0, 0, 0, 5], [2, 2, 0, 1], [0, 1, 0, 0]]
BACK = [list(column) for column in zip(*COUNTS, strict=True)]
RANKS = Binding(4, {})
CHAIN = ["dispatched", "inner", "hidden", "y", "combined"]


def network(num_ranks: int) -> Any:
    return parse_topology(f"fully-connected:{num_ranks}", registry=registry())


def experts(back: list[list[int]] = BACK) -> Program:
    """Dispatch, two products with another width between them, and a combine."""
    build = ProgramBuilder("experts")
    x = build.argument("x", "float32", 6, 3, layout=LOCAL)
    w1 = build.argument("w1", "float32", 3, 5, layout=LOCAL)
    w2 = build.argument("w2", "float32", 5, 3, layout=LOCAL)
    dispatched = all_to_all_v(x, COUNTS).named("dispatched")
    # Not zero for rows of zeros.
    hidden = (tanh(matmul(dispatched, w1).named("inner")) + 1.0).named("hidden")
    y = matmul(hidden, w2).named("y")
    return build.program(all_to_all_v(y, back).named("combined"), hidden)


def chained() -> Program:
    program = experts()
    names = [one.name for one in program.operations]
    return overlap(program, names).program


@pytest.mark.parametrize("chunks", [1, 2, 3, 7])
def test_an_overlapped_layer_of_experts_is_executed_chunk_by_chunk(chunks: int) -> None:
    flat = flatten(
        chained(), RANKS, network(4), {"": Choice("direct", chunks)}, registry=registry()
    )
    for seed in range(3):
        found = execute_and_compare(experts(), flat, seed)
        assert found.ok, found.differences


def test_a_computation_waits_for_its_chunk_of_rows_only() -> None:
    flats = [
        flatten(one, RANKS, network(4), {"": Choice("direct", 3)}, registry=registry())
        for one in (chained(), experts())
    ]
    # Four kernels on 4 ranks, in 3 tiles each.
    assert list(map(count_tiles, flats)) == [4 * 4 * 3, 4 * 4]


def count_tiles(flat: FlatProgram) -> int:
    """Number of computations on all ranks, without those of collectives."""
    return sum(len(part.tiles) for part in flat.parts if isinstance(part, KernelSegment))


def test_a_chunk_is_an_algorithm_for_its_counts() -> None:
    flat = flatten(experts(), RANKS, network(4), {"": Choice("direct", 2)}, registry=registry())
    tables = []
    for chunk in range(2):
        algorithm = extract_algorithm(flat, "dispatched", chunk)
        assert verify(algorithm).ok
        assert algorithm.collective.counts is not None
        tables.append(algorithm.collective.counts.table)
    assert (tables[0] + tables[1]).tolist() == COUNTS
    assert tables[0].tolist() == [[0, 1, 0, 1], [0, 0, 0, 2], [1, 1, 0, 0], [0, 0, 0, 0]]


def test_chunks_need_the_rows_of_one_chunk() -> None:
    back = [[0, 0, 2, 1], [2, 0, 2, 1], [0, 0, 0, 0], [3, 5, 1, 0]]
    program = experts(back)
    names = [one.name for one in program.operations]
    assert overlap(program, names[:-1]).program.chains
    with pytest.raises(RefusedMoveError, match="combined: its counts need other blocks of rows"):
        overlap(program, names)


def test_chunks_of_equal_parts_are_no_chunks_of_rows() -> None:
    build = ProgramBuilder("mixed")
    g = build.argument("g", "float32", 4, 3, layout=LOCAL)
    total = all_reduce(g).named("total")
    y = (build.argument("z", "float32", 4, 3, layout=LOCAL) + total).named("y")
    program = build.program(reduce_scatter_v(y, [2, 2]).named("scattered"))
    with pytest.raises(
        RefusedMoveError,
        match=r"scattered: its chunks or those of total are no chunks of rows.*\(row-blocks\)",
    ):
        overlap(program, ["total", "y", "scattered"])


def test_a_chain_has_exchanges_along_the_same_axes() -> None:
    """Block i of a dispatch along dp is of rank i of dp; a combine along ep sends it to ep."""
    build = ProgramBuilder("mesh", mesh=("dp", "ep"))
    x = build.argument("x", "float32", 8, 4, layout={"dp": LOCAL, "ep": LOCAL})
    sent = all_to_all_v(x, [[1, 2], [3, 2]], axes="dp").named("sent")
    program = build.program(all_to_all_v(sent, [[1, 3], [2, 2]], axes="ep").named("back"))
    message = r"back: it exchanges rows along other axes than sent.*\(row-blocks\)"
    with pytest.raises(RefusedMoveError, match=message):
        overlap(program, ["sent", "back"])


@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_uneven_sequence_parallelism_overlaps_with_sliced_products(
    chunks: int, algorithm: str
) -> None:
    build = ProgramBuilder("sequence")
    x = build.argument("x", "float32", 5, 4, layout=LOCAL)
    w = build.argument("w", "float32", 4, 6, layout=sliced(1))
    v = build.argument("v", "float32", 6, 4, layout=sliced(0))
    counts = [2, 0, 5, 1]
    gathered = all_gather_v(x, counts).named("gathered")
    y = matmul(tanh(matmul(gathered, w).named("h")).named("t"), v).named("y")
    before = build.program(reduce_scatter_v(y, counts).named("z"))
    after = overlap(before, ["gathered", "h", "t", "y", "z"]).program
    assert compare(before, after, RANKS).ok
    flat = flatten(after, RANKS, network(4), {"": Choice(algorithm, chunks)}, registry=registry())
    assert count_tiles(flat) == 3 * 4 * chunks
    found = execute_and_compare(before, flat, seed=2)
    assert found.ok, found.differences


def uneven_shards(gathered: list[int] | None = None) -> Program:
    """A step on uneven shards of a gradient: scatter, compute, gather."""
    counts = [2, 0, 5, 1]
    build = ProgramBuilder("shards")
    g = build.argument("g", "float32", 8, 3, layout=LOCAL)
    m = build.argument("m", "float32", 5, 3, layout=LOCAL)
    s = reduce_scatter_v(g, counts).named("s")
    u = (m * 0.9 + s).named("u")
    return build.program(all_gather_v(u, gathered or counts).named("a"), u)


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_a_scatter_of_rows_is_fused_with_its_computation_and_gather(
    algorithm: str, chunks: int
) -> None:
    before = uneven_shards()
    after = fuse(before, [one.name for one in before.operations]).program
    assert [stage.family for stage in after.stages] == ["RSV-C-AGV"]
    assert program_from_json(program_to_json(after)) == after
    flat = flatten(after, RANKS, network(4), {"": Choice(algorithm, chunks)}, registry=registry())
    assert count_tiles(flat) == 4 * chunks
    found = execute_and_compare(before, flat, seed=1)
    assert found.ok, found.differences
    partly = fuse(before, [one.name for one in before.operations if one.name != "a"]).program
    assert [stage.family for stage in partly.stages] == ["ReduceScatterV"]


def test_a_fused_gather_has_the_rows_of_the_scatter() -> None:
    program = uneven_shards([5, 1, 1, 1])
    with pytest.raises(RefusedMoveError, match=r"a: it gathers other rows than s .*slices-only"):
        fuse(program, [one.name for one in program.operations])


@pytest.mark.parametrize("name", ["dispatched", "gathered"])
def test_exchanges_and_gathers_of_rows_are_not_fused(name: str) -> None:
    build = ProgramBuilder("moves")
    x = build.argument("x", "float32", 6, 3, layout=LOCAL)
    rows = all_to_all_v(x, COUNTS) if name == "dispatched" else all_gather_v(x, [1, 0, 6, 2])
    program = build.program((rows.named(name) * 2.0).named("y"))
    with pytest.raises(RefusedMoveError, match=f"{name}: All.*V only moves rows"):
        fuse(program, [name, "y"])


def test_overlap_hides_the_exchanges_of_experts() -> None:
    before = expert_tokens(tokens=64, popularity=(5, 1, 1, 1))
    after = overlap(before, CHAIN).program
    binding = Binding(4, {"H": 1024, "F": 1024})
    machine = Machine(2e12, 1e12, topology="fully-connected:4?bandwidth=1GB/s&latency=0ns")
    seconds = [
        makespan(one, binding, machine, {"": Choice("direct", chunks, tiles=chunks)}).time_s
        for one, chunks in ((before, 1), (before, 4), (after, 1), (after, 4))
    ]
    # Rank 0 receives 40 rows of 4 KiB from each other rank, and computes them with 40 of its own.
    computation = 2 * 2 * 160 * 1024 * 1024 / 2e12
    exchange = 40 * 4096 / 1e9
    assert seconds[0] == pytest.approx(computation + 2 * exchange, rel=0.05)
    assert seconds[1] == pytest.approx(seconds[0], rel=0.05)
    assert seconds[2] == pytest.approx(seconds[0], rel=0.05)
    # The first chunk of the dispatch and the last one of the combine are not hidden.
    assert seconds[3] < seconds[0] - exchange
    assert seconds[3] >= max(computation, 2 * exchange)


def test_an_exchange_along_an_axis_of_a_mesh_is_timed() -> None:
    build = ProgramBuilder("mesh", mesh=("dp", "ep"))
    x = build.argument("x", "float32", 64, 1024, layout={"dp": LOCAL, "ep": LOCAL})
    program = build.program(all_to_all_v(x, [[0, 64], [16, 0]], axes="ep").named("y"))
    machine = Machine(1e12, 1e12, topology="fully-connected:4?bandwidth=1GB/s&latency=0ns")
    found = makespan(program, Binding.of_mesh((2, 2), {}), machine, {"": Choice("direct")})
    assert found.time_s == pytest.approx(64 * 4096 / 1e9, rel=0.01)


def check_random(seed: int) -> set[str]:
    """Compare a random program with its transformed form and its flat graph; return the kinds."""
    choice = random.Random(seed)
    ranks = choice.choice([2, 3, 4])
    before = random_uneven_program(seed, ranks)
    after, _ = random_moves(before, seed + 1)
    if not after.chains:
        chains = [rewrite.program for rewrite in legal_rewrites(after, ["overlap"])]
        after = choice.choice(chains or [after])
    binding = Binding(ranks, {"M": 3})
    found = compare(before, after, binding, seed)
    assert found.ok, f"{seed}: {found.differences}\n{text(before)}\n{text(after)}"
    chunks = choice.choice([1, 2, 3, 5])
    choices = {**select_fallbacks(after, chunks), "": Choice("ring", chunks)}
    flat = flatten(after, binding, network(ranks), choices, registry=registry())
    executed = execute_and_compare(before, flat, seed)
    assert executed.ok, f"{seed}: {executed.differences}\n{text(after)}"
    kinds = {str(one.kind) for one in after.operations if one.kind in UNEVEN_COLLECTIVES}
    return {*kinds, *(["overlap"] if after.chains else [])}


KINDS = {"AllToAllV", "AllGatherV", "ReduceScatterV", "overlap"}


def test_random_programs_with_uneven_collectives_are_equal() -> None:
    assert set[str]().union(*map(check_random, range(30))) == KINDS


@pytest.mark.slow
def test_five_hundred_programs_with_uneven_collectives_are_equal() -> None:
    assert set[str]().union(*map(check_random, range(1000, 1500))) == KINDS


@pytest.mark.once
def test_the_search_overlaps_a_layer_of_experts(collhub: Any, tmp_path: Any) -> None:
    program = expert_tokens(tokens=64, popularity=(5, 1, 1, 1))
    path = tmp_path / "experts.program.json"
    path.write_text(program_to_json(program))
    out = tmp_path / "fast.program.json"
    network = ("--search", "--topology", "switch:4?bandwidth=2GB/s&latency=1us", "--jobs", "1")
    run = collhub("transform", path, *network, "--size", "H=1024,F=1024", "-o", out)
    assert run.code == 0, run.err
    assert "times are simulated" in run.err
    (chain,) = json.loads(out.read_text())["chains"]
    assert chain["members"][0] == "dispatched"
    assert chain["members"][-1] == "combined"
