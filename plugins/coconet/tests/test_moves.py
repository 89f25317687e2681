"""The list of legal moves, and costs."""

from __future__ import annotations

from adam import adam
from collhub_coconet import (
    Binding,
    Costs,
    Program,
    ProgramBuilder,
    compare,
    costs,
    legal_moves,
    matmul,
    movable,
    program_to_json,
    reorder,
    sliced,
    split,
)
from transformer_blocks import attention

SIZES = Binding(4, {"B": 5, "S": 3, "K": 8, "H": 6, "N": 64})


def texts(program: Program) -> list[str]:
    return [str(move) for move in legal_moves(program, SIZES)]


def test_first_move_of_adam_is_to_split() -> None:
    found = texts(adam())
    assert "split(target=g1, dimension=0)" in found
    assert not any(one.startswith(("reorder", "as-slice")) for one in found)


def test_prefixes_of_what_can_move_are_listed() -> None:
    after = split(attention(), "z").program
    found = [one for one in texts(after) if one.startswith("reorder")]
    assert found == [
        "reorder(target=z, members=_3+_4+o)",
        "reorder(target=z, members=_3+_4)",
        "reorder(target=z, members=_3)",
    ]


def test_every_listed_move_keeps_the_meaning() -> None:
    after = split(adam(), "g1").program
    after = reorder(after, "g1", movable(after, "g1")).program
    moves = legal_moves(after, SIZES)
    assert {move.rewrite.record.transformation for move in moves} >= {"as-slice", "fuse", "overlap"}
    for move in moves:
        assert compare(after, move.rewrite.program, SIZES).ok


def test_moves_are_the_same_each_time() -> None:
    documents = [
        [program_to_json(move.rewrite.program) for move in legal_moves(adam(), SIZES)]
        for _ in range(2)
    ]
    assert documents[0] == documents[1]


def test_effect_of_a_sliced_state_is_the_memory_it_saves() -> None:
    after = split(adam(), "g1").program
    after = reorder(after, "g1", movable(after, "g1")).program
    effects = {str(move): move.effect for move in legal_moves(after, SIZES)}
    # 64 floats, of which a rank keeps a quarter; the AllGather of its new value goes.
    saved = effects["as-slice(states=m)"]
    assert (saved.state_bytes, saved.sent_bytes) == (-192, -192)


def test_costs_of_a_product() -> None:
    build = ProgramBuilder("p", N=(1, 64))
    x = build.argument("x", "float32", 2, "N", layout=sliced(1))
    w = build.argument("w", "float32", "N", 3, layout=sliced(0))
    program = build.program(matmul(x, w).named("y"))
    # A quarter of 64 terms for each of six elements; x, w and y go over the memory once.
    expected = Costs(0, 4 * (2 * 16 + 16 * 3 + 6), 2 * 6 * 16, 0, 1)
    assert costs(program, SIZES) == expected


def test_fusion_reads_once_and_writes_once() -> None:
    build = ProgramBuilder("p", N=(1, 64))
    x, y = (build.argument(name, "float32", "N") for name in "xy")
    program = build.program(((x + y) * x).named("z"))
    (move,) = (one for one in legal_moves(program, SIZES) if str(one).startswith("fuse"))
    # Before: 3 + 3 tensors of 256 bytes; after: x, y and z.
    assert move.effect == Costs(0, -3 * 256, 0, 0, -1)
