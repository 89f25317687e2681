"""Examples of sequence and expert parallelism, and of a second-order optimizer."""

from __future__ import annotations

import pytest
from attention_parallel import ring_attention, ulysses
from collhub_coconet import (
    Binding,
    Kind,
    Program,
    ProgramBuilder,
    RefusedMoveError,
    all_gather,
    all_to_all,
    compare,
    fuse,
    legal_moves,
    overlap,
    reorder,
    sliced,
)
from collhub_coconet.documents.from_workload import extract_program
from collhub_coconet.lowering.workload import lower
from moe import moe
from muon import muon

from hub_core.model import InputError, JobCollective

PROGRAMS = [moe(), ulysses(), ring_attention(), muon()]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_every_move_of_an_example_keeps_its_meaning(program: Program, num_ranks: int) -> None:
    # Five is divided by none of the numbers of ranks.
    binding = Binding(num_ranks, dict.fromkeys(program.sizes, 5))
    moves = legal_moves(program, binding)
    assert moves
    for move in moves:
        assert compare(program, move.rewrite.program, binding).ok
        assert extract_program(lower(move.rewrite.program, binding)).program == move.rewrite.program


def test_experts_exchange_tokens_twice() -> None:
    nodes = lower(moe(), Binding(4, {"E": 8, "C": 12, "H": 5, "F": 7})).nodes
    rows = (nodes.rank == 0) & (nodes.collective == JobCollective.ALL_TO_ALL)
    # The block of a rank: a quarter of 8 * 12 * 5 floats, there and back.
    assert nodes.bytes[rows].tolist() == [480, 480]


def test_ring_attention_overlaps_gathering_with_the_product_that_reads_it() -> None:
    rewrite = overlap(ring_attention(), ["keys", "scores"])
    (chain,) = rewrite.program.chains
    # Chunks of positions, the last dimension of the keys.
    assert chain.dimensions == (1,)


def test_muon_moves_its_momentum_before_the_gathering() -> None:
    names = [str(move) for move in legal_moves(muon(), Binding(2, {"M": 4, "N": 4}))]
    assert "split(target=g1, dimension=1)" in names


def exchanged() -> Program:
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    x = build.argument("x", "float32", "N", "M", layout=sliced(0))
    y = all_to_all(x, 1).named("y")
    return build.program((y * 2).named("z"))


def test_all_to_all_cuts_the_same_tensor_another_way() -> None:
    program = exchanged()
    assert program.types["y"].layout == sliced(1)
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    x = build.argument("x", "float32", "N", "M", layout=sliced(0))
    other = build.program((all_gather(all_to_all(x, 1)) * 2).named("z"))
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    x = build.argument("x", "float32", "N", "M", layout=sliced(0))
    plain = build.program((all_gather(x) * 2).named("z"))
    assert compare(other, plain, Binding(3, {"N": 7, "M": 5})).ok


@pytest.mark.parametrize("dimension", [0, 2])
def test_all_to_all_along_its_own_dimension_or_none_is_refused(dimension: int) -> None:
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    x = build.argument("x", "float32", "N", "M", layout=sliced(0))
    with pytest.raises(InputError, match=f"dimension {dimension}"):
        all_to_all(x, dimension)


def test_all_to_all_is_fused_with_nothing_and_cut_along_no_dimension_it_exchanges() -> None:
    with pytest.raises(RefusedMoveError, match="no one communication"):
        fuse(exchanged(), ["y", "z"])
    with pytest.raises(RefusedMoveError, match="no dimension of y is one"):
        overlap(exchanged(), ["y", "z"])


def test_all_to_all_does_not_move_before_a_gathering() -> None:
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    x = build.argument("x", "float32", "N", "M", layout=sliced(0))
    g = all_gather(x).named("g")
    program = build.program(all_gather(all_to_all(x, 1)).named("y"), (g * 2).named("z"))
    exchange = next(one.name for one in program.operations if one.kind is Kind.ALL_TO_ALL)
    with pytest.raises(RefusedMoveError, match="no member reads g"):
        reorder(program, "g", [exchange])
