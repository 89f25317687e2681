"""Flat graphs: who waits for whom, in which order tiles run, and what is refused."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collhub_coconet import LOCAL, Binding, ProgramBuilder, all_reduce, slice_of
from collhub_coconet.lowering.algorithms import Choice
from collhub_coconet.lowering.flat_program import (
    CollectiveRuns,
    FlatProgram,
    KernelSegment,
    extract_algorithm,
)
from collhub_coconet.lowering.grids import Grid
from collhub_coconet.lowering.timing import Machine, compute_peak_bytes, makespan
from collhub_coconet.program.program import Stage
from flat_programs import (
    SIZES,
    flat_of,
    overlapped_block,
    overlapped_boundary,
    pair_of,
    registry,
    scattered,
)
from hypothesis import given
from hypothesis import strategies as st
from transformer_blocks import attention

import hub_core
from hub_core.model import Algorithm, HubError, InputError, NodeKind
from hub_core.testing import ring_all_reduce

ALGORITHMS = ["ring", "tacos", "blink", "pat"]


def part_rows(flat: FlatProgram, name: str) -> tuple[int, np.ndarray]:
    """The part that makes a value, and its rows."""
    for number, part in enumerate(flat.parts):
        is_made = isinstance(part, KernelSegment) and name in {one.name for one in part.operations}
        if is_made or (isinstance(part, CollectiveRuns) and part.operation.name == name):
            return number, np.flatnonzero(flat.part == number)
    raise AssertionError(name)


def parents_of(flat: FlatProgram, row: int) -> list[int]:
    nodes = flat.workload.nodes
    return nodes.data_indices[nodes.data_indptr[row] : nodes.data_indptr[row + 1]].tolist()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_step_waits_for_its_own_tile_alone(algorithm: str) -> None:
    _, after = overlapped_block(is_mlp=False)
    flat = flat_of(after, 4, Choice(algorithm, 2), {**SIZES, "S": 64})
    producer, tiles = part_rows(flat, "y")
    _, steps = part_rows(flat, "z_S_1")
    waits = [sum(flat.part[one] == producer for one in parents_of(flat, row)) for row in steps]
    units = flat.parts[flat.part[steps[0]]].grid.chunks
    assert max(waits) == 1
    # Each tile is of one chunk, computed once on each rank.
    assert len(tiles) == 4 * units


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tiles_run_in_the_order_of_first_use(algorithm: str) -> None:
    # The order is taken from the flat graph alone: the level at which each chunk is first read.
    _, after = overlapped_block(is_mlp=False)
    flat = flat_of(after, 4, Choice(algorithm), {**SIZES, "S": 64})
    producer, tiles = part_rows(flat, "y")
    _, steps = part_rows(flat, "z_S_1")
    part = flat.parts[flat.part[steps[0]]]
    level_of: dict[tuple[int, int], int] = defaultdict(lambda: 1 << 30)
    for row in steps.tolist():
        for parent in parents_of(flat, row):
            if flat.part[parent] == producer:
                level = int(part.contents.level[flat.item[row] % len(part.contents.template)])
                level_of[int(flat.workload.nodes.rank[row]), parent] = min(
                    level, level_of[int(flat.workload.nodes.rank[row]), parent]
                )
    control = flat.workload.nodes.control_edges
    for before, behind in zip(*(side.tolist() for side in control), strict=True):
        if flat.part[before] == flat.part[behind] == producer:
            rank = int(flat.workload.nodes.rank[before])
            assert level_of[rank, before] <= level_of[rank, behind]
    assert len(level_of) == len(tiles)


def test_ring_ranks_begin_with_the_chunk_that_they_send_first() -> None:
    _, after = overlapped_block(is_mlp=False)
    flat = flat_of(after, 4, Choice("ring"), {**SIZES, "S": 64})
    _, tiles = part_rows(flat, "y")
    segment = flat.parts[flat.part[tiles[0]]]
    first = {
        int(flat.workload.nodes.rank[row]): segment.tiles[flat.item[row]] for row in tiles[::-1]
    }
    assert len(set(first.values())) == 4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fused_chunk_waits_for_its_own_reduction_and_no_barrier(algorithm: str) -> None:
    _, after = pair_of("adam")
    flat = flat_of(after, 4, Choice(algorithm, 2), {"N": 4096})
    scatter, _ = part_rows(flat, "g1_S_0")
    computing, rows = part_rows(flat, "mh")
    for row in rows.tolist():
        assert len(parents_of(flat, row)) == 1
        assert flat.part[parents_of(flat, row)[0]] == scatter
    _, gathers = part_rows(flat, "w1_S_0" if "w1_S_0" in after.by_name else "w1")
    assert len(rows) > 4
    assert not (flat.workload.nodes.kind == NodeKind.MARKER).any()
    assert (flat.part == computing).sum() == len(rows)
    assert len(gathers)


def test_kernels_of_their_own_wait_for_all_of_a_collective() -> None:
    after = scattered(attention(), "z", 1)
    flat = flat_of(after, 4, Choice("ring", 4), {**SIZES, "S": 64})
    _, rows = part_rows(flat, "_3")
    scatter, _ = part_rows(flat, "z_S_1")
    assert len(rows) == 4
    for row in rows.tolist():
        # Behind a MARKER, or behind all pieces of the rank.
        kinds = {NodeKind(int(flat.workload.nodes.kind[one])) for one in parents_of(flat, row)}
        pieces = [one for one in parents_of(flat, row) if flat.part[one] == scatter]
        assert kinds == {NodeKind.MARKER} or len(pieces) == 4


def test_nodes_state_their_origin_and_fused_group() -> None:
    _, after = overlapped_boundary()
    flat = flat_of(after, 2, Choice("ring", 2))
    assert all(name.startswith("origin=") for name in flat.workload.names)
    assert "origin=q_S_1 fused_group=stage" in flat.workload.names
    named = flat.workload.nodes.name
    assert named.min() >= 0


def test_operations_and_bytes_of_tiles_add_up_to_the_whole() -> None:
    _, after = overlapped_block(is_mlp=False)
    flat = flat_of(after, 4, Choice("ring", 3, tiles=5), {**SIZES, "S": 61})
    _, rows = part_rows(flat, "y")
    assert len(rows) == 4 * 5
    nodes = flat.workload.nodes
    totals = np.bincount(nodes.rank[rows], nodes.operations[rows])
    assert totals.tolist() == [2 * 2 * 61 * 2 * 16] * 4


@pytest.mark.once
def test_flat_jobs_are_written_verified_and_read_back(tmp_path: Path) -> None:
    _, after = overlapped_boundary()
    flat = flat_of(after, 2, Choice("ring", 2))
    hub_core.write(flat.workload, tmp_path / "job")
    again = hub_core.read_workload(tmp_path / "job")
    assert again.nodes.kind.tolist() == flat.workload.nodes.kind.tolist()
    written = hub_core.write(flat.workload, tmp_path / "astra", format="astra-sim")
    assert len(written.paths) > 4


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
def test_grids_know_which_chunks_share_elements(
    length: int, blocks: int, parts: int, others: int
) -> None:
    one, other = (Grid((length, 3), 0, blocks, count) for count in (parts, others))
    chunks = np.arange(one.chunks)
    index, found = one.overlaps(chunks, other)
    pairs = set(zip(index.tolist(), found.tolist(), strict=True))
    mine = [set(one.elements(chunk).tolist()) for chunk in range(one.chunks)]
    theirs = [set(other.elements(chunk).tolist()) for chunk in range(other.chunks)]
    sharing = {
        (a, b) for a, left in enumerate(mine) for b, right in enumerate(theirs) if left & right
    }
    assert sharing <= pairs
    assert sorted(element for chunk in mine for element in chunk) == list(range(3 * length))


@pytest.mark.once
def test_overlap_hides_the_product() -> None:
    _, chained = overlapped_block(is_mlp=False)
    sizes = {"B": 8, "S": 64, "K": 256, "H": 64}
    machine = Machine(60e9, 1e12, topology="ring:4?bandwidth=1GB/s&latency=0ns")
    binding = Binding(4, sizes)
    choices = {"": Choice("ring", 8)}
    apart = replace(chained, chains=())
    whole = makespan(apart, binding, machine, choices, registry=registry())
    hidden = makespan(chained, binding, machine, choices, registry=registry())
    # K is cut among the ranks; there and back, 3 of 4 blocks of half floats leave each rank.
    product = 2 * 8 * 64 * 64 * 64 / 60e9
    sent = 2 * 8 * 64 * 64 * 2 * 3 / 4 / 1e9
    assert product + sent / 2 < whole.time_s < 1.1 * (product + sent)
    assert hidden.time_s < whole.time_s - 0.7 * product
    assert hidden.peak_bytes_per_rank == whole.peak_bytes_per_rank


def test_peak_memory_counts_what_lives_at_once() -> None:
    # x, w, b and r stay; y and z live together, then z and the sum with b, and so on.
    binding = Binding(4, {"B": 2, "S": 4, "K": 8, "H": 4})
    tensor, rest = 2 * 4 * 4 * 2, (2 * 4 * 2 + 2 * 4 + 4) * 2
    assert compute_peak_bytes(attention(), binding) == tensor + rest + 2 * tensor


def test_peak_memory_counts_the_value_of_which_an_output_is_a_view() -> None:
    build = ProgramBuilder("view", N=(1, 64))
    x = build.argument("x", "float32", "N", layout=LOCAL)
    y = build.argument("y", "float32", "N", layout=LOCAL)
    block = slice_of(all_reduce(x)).named("block")
    program = build.program(block, all_reduce(y).named("total"))
    # Two arguments, and both sums at the end: the block is a part of the first sum.
    assert compute_peak_bytes(program, Binding(4, {"N": 64})) == 4 * 64 * 4


def test_algorithm_without_units_is_refused() -> None:
    good = ring_all_reduce(4)
    steps = replace(good.steps, src_buffer=np.full(len(good.steps), 3, np.uint8))
    timing = replace(good, steps=steps)
    with pytest.raises(HubError):
        flat_of(attention(), 4, Choice(timing))


def test_algorithm_of_another_collective_is_refused() -> None:
    with pytest.raises(InputError, match="is no all-reduce of 3 ranks"):
        flat_of(attention(), 3, Choice(ring_all_reduce(4)))


def test_wrong_algorithm_is_refused() -> None:
    good = ring_all_reduce(4)
    kind = np.where(good.steps.kind == 2, 1, good.steps.kind).astype(np.uint8)
    wrong: Algorithm = replace(good, steps=replace(good.steps, kind=kind))
    with pytest.raises(HubError):
        flat_of(attention(), 4, Choice(wrong))


def test_algorithm_that_is_given_is_taken() -> None:
    flat = flat_of(attention(), 4, Choice(ring_all_reduce(4), 2))
    assert (flat.workload.nodes.kind == NodeKind.SEND).sum() == 2 * 4 * 6


def test_no_chunks_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        Choice("ring", 0)


def test_network_that_is_too_small_is_refused() -> None:
    machine = Machine(1e9, 1e9, topology="ring:2")
    with pytest.raises(InputError, match="2 NPUs for 4 ranks"):
        makespan(attention(), Binding(4, SIZES), machine, registry=registry())


def test_each_kernel_is_launched_once_and_measured_times_hold() -> None:
    binding = Binding(4, {**SIZES, "S": 64})
    plain = Machine(1e12, 1e12, topology="ring:4?bandwidth=1GB/s&latency=0ns")
    before = makespan(attention(), binding, plain, registry=registry()).time_s
    # The product, the all-reduce and three pointwise kernels, one after the other.
    launched = replace(plain, launch_s=1e-5)
    after = makespan(attention(), binding, launched, registry=registry()).time_s
    assert after - before == pytest.approx(5e-5, abs=2e-9)
    measured = replace(plain, measured_s={"y": 1e-3})
    found = makespan(attention(), binding, measured, registry=registry()).time_s
    assert found - before == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_collectives_of_the_graph_have_every_contribution_once(algorithm: str) -> None:
    _, after = overlapped_boundary()
    flat = flat_of(after, 4, Choice(algorithm, 2), {**SIZES, "S": 64})
    for name in ("z_S_1", "q"):
        for piece in range(2):
            assert hub_core.verify(extract_algorithm(flat, name, piece)).ok
    with pytest.raises(InputError, match="o is no collective"):
        extract_algorithm(flat, "o")


def test_contents_show_a_message_that_goes_astray() -> None:
    flat = flat_of(attention(), 4, Choice("direct"), {**SIZES, "S": 64})
    nodes = flat.workload.nodes
    _, rows = part_rows(flat, "z")
    first = rows[(nodes.kind[rows] == NodeKind.SEND) & (nodes.rank[rows] == 0)][:2]
    # Two sends of rank 0 change their tags and peers.
    peer, tag = nodes.peer.copy(), nodes.tag.copy()
    peer[first], tag[first] = peer[first[::-1]], tag[first[::-1]]
    wrong = replace(flat.workload, nodes=replace(nodes, peer=peer, tag=tag))
    assert hub_core.verify(extract_algorithm(flat, "z")).ok
    assert not hub_core.verify(extract_algorithm(replace(flat, workload=wrong), "z")).ok


def test_readers_of_a_view_wait_for_the_value_computed_in_the_same_stage() -> None:
    # A document may have a stage that computes a value and slices it; `fuse` refuses it.
    build = ProgramBuilder("viewed", N=(1, 2**30))
    x = build.argument("x", "float32", "N")
    doubled = (x * 2.0).named("doubled")
    block = slice_of(doubled).named("block")
    program = build.program((block + 1.0).named("result"), doubled)
    program = program.with_stages((Stage("both", "pointwise", ("doubled", "block")),), ())
    flat = flat_of(program, 2, Choice("ring"))
    producer, _ = part_rows(flat, "doubled")
    _, readers = part_rows(flat, "result")
    for row in readers.tolist():
        assert [flat.part[one] for one in parents_of(flat, row)] == [producer]
