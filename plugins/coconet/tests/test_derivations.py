"""The derivations of the specification's section 4, step by step, with their counts."""

from __future__ import annotations

from collections import Counter

import pytest
from adam import adam
from collhub_coconet import (
    Binding,
    Kind,
    Program,
    as_slice,
    compare,
    costs,
    fuse,
    movable,
    overlap,
    reorder,
    split,
    statements,
)
from collhub_coconet.program.program import reduces_scalar
from lamb import lamb
from transformer_blocks import attention, mlp, pipeline_boundary

OPTIMIZER = ["m1", "v1", "mh", "vh", "w1"]
BLOCK = Binding(4, {"B": 5, "S": 3, "K": 8, "H": 6, "F": 7})


def kinds(program: Program) -> Counter[Kind]:
    return Counter(one.kind for one in program.operations if one.is_communication)


def scattered(program: Program, target: str, dimension: int = 0) -> Program:
    after = split(program, target, dimension).program
    return reorder(after, target, movable(after, target)).program


def test_adam_has_the_counts_of_the_public_rewriter() -> None:
    # Printed by the rewriter of parasailteam/coconet, commit 52175e2: 7, 9 and 7 operations with
    # 2 collectives, 1 ReduceScatter and 3 AllGathers, 1 and 1.
    first = split(adam(), "g1").program
    second = reorder(first, "g1", OPTIMIZER).program
    third = as_slice(second, ["m", "v"]).program
    assert [len(statements(one)) for one in (first, second, third)] == [7, 9, 7]
    assert kinds(first) == {Kind.REDUCE_SCATTER: 1, Kind.ALL_GATHER: 1}
    assert kinds(second) == {Kind.REDUCE_SCATTER: 1, Kind.ALL_GATHER: 3}
    assert kinds(third) == {Kind.REDUCE_SCATTER: 1, Kind.ALL_GATHER: 1}


def test_adam_becomes_one_fused_all_reduce_with_sliced_moments() -> None:
    after = as_slice(scattered(adam(), "g1"), ["m", "v"]).program
    # All but the last Update, which writes the gathered parameters.
    members = [one.name for one in after.operations if one.name != "w1"]
    fused = fuse(after, members).program
    assert fused.stages[0].family == "RS-C-AG"
    assert [len(kernel) for kernel in fused.kernels()] == [len(members), 1]


@pytest.mark.parametrize(("num_ranks", "elements"), [(2, 64), (4, 64), (8, 1024)])
def test_adam_saves_the_memory_of_the_formula(num_ranks: int, elements: int) -> None:
    # 2 * 4 * N * (p - 1) / p bytes a rank, in float32.
    binding = Binding(num_ranks, {"N": elements})
    before = scattered(adam(), "g1")
    after = as_slice(before, ["m", "v"]).program
    saved = costs(before, binding).state_bytes - costs(after, binding).state_bytes
    assert saved == 2 * 4 * elements * (num_ranks - 1) // num_ranks


def test_optimizer_in_slices_sends_what_the_all_reduce_sent() -> None:
    binding = Binding(4, {"N": 64})
    after = as_slice(scattered(adam(), "g1"), ["m", "v"]).program
    assert costs(after, binding).sent_bytes == costs(adam(), binding).sent_bytes == 2 * 3 * 64


def test_lamb_reduces_one_scalar_more() -> None:
    after = scattered(lamb(), "g1")
    # The norm of the update is of slices; the parameters are replicated, their norm needs none.
    assert [one.name for one in after.operations if reduces_scalar(after, one)] == ["b"]
    assert "b = Norm(u)  [R, AllReduce of one scalar]" in statements(after)
    binding = Binding(4, {"N": 64})
    one_scalar = 2 * (4 * 3 // 4)
    whole = split(lamb(), "g1").program
    gathers = 2 * (3 * 64)
    difference = costs(after, binding).sent_bytes - costs(whole, binding).sent_bytes
    assert difference == one_scalar + gathers


@pytest.mark.parametrize("program", [attention(), mlp()], ids=lambda program: program.name)
def test_model_parallel_block_is_scattered_fused_and_overlapped(program: Program) -> None:
    after = scattered(program, "z")
    lines = statements(after)
    assert lines[-3].startswith("z_S_0 = ReduceScatter(+, y, 0)")
    # The bias has no dimension of the batch: it stays whole.
    residual = "r" if program.name == "attention" else "x"
    expected = f"o_S_0 = Dropout(z_S_0 + b, 0.1, 7) + Slice({residual}, 0)  [S_0]"
    assert lines[-2:] == [expected, "o = AllGather(o_S_0)  [R]"]
    names = [one.name for one in after.operations]
    fused = fuse(after, names[names.index("z_S_0") :], "f").program
    overlapped = overlap(fused, ["y", "f"])
    assert overlapped.program.chains[0].members == ("y", "f")
    assert overlapped.record.notes == ("resources: compute, intra-node link",)


def test_pipeline_boundary_sends_a_slice() -> None:
    after = scattered(pipeline_boundary(), "z")
    assert statements(after) == [
        "z_S_0 = ReduceScatter(+, y, 0)  [S_0]",
        "o = Dropout(z_S_0 + b, 0.1, 7) + Slice(r, 0)  [S_0]",
        "q_S_0 = Send(o, +1)  [S_0 on 1]",
        "q = AllGather(q_S_0)  [R on 1]",
    ]
    send = fuse(after, ["_2", "_3", "_r_S_0", "o", "q_S_0"], "f").program
    assert send.stages[0].family == "Send"
    chain = overlap(send, ["z_S_0", "f", "q"]).record
    assert chain.notes == ("resources: intra-node link, network, intra-node link",)


def test_send_of_a_slice_carries_a_part_of_the_bytes() -> None:
    binding = Binding(4, {"B": 8, "S": 3, "H": 6})
    before = split(pipeline_boundary(), "z").program
    after = reorder(before, "z", ["o", "q"]).program
    whole = 8 * 3 * 6 * 2
    # The sent tensor shrinks to a quarter; ReduceScatter and AllGather stay.
    saved = costs(before, binding).sent_bytes - costs(after, binding).sent_bytes
    assert saved == whole - whole // 4


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(
    "program", [attention(), mlp(), pipeline_boundary()], ids=lambda program: program.name
)
def test_blocks_are_equal_bit_by_bit_along_every_dimension(
    program: Program, num_ranks: int
) -> None:
    for dimension in range(3):
        after = scattered(program, "z", dimension)
        found = compare(program, after, Binding(num_ranks, BLOCK.sizes))
        assert (found.differences, found.errors, found.masks) == ((), {}, 1)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_optimizers_are_equal(num_ranks: int) -> None:
    binding = Binding(num_ranks, {"N": 37})
    for program, names in ((adam(), set()), (lamb(), {"b"})):
        after = as_slice(scattered(program, "g1"), ["m", "v"]).program
        found = compare(program, after, binding)
        assert found.ok
        assert set(found.errors) == names
        assert found.exact == ("m1", "v1", "w1", "state m", "state v", "state w")
