"""One refusal for each precondition, with the condition and the operation that violates it."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from adam import adam
from collhub_coconet import (
    LOCAL,
    Program,
    ProgramBuilder,
    RefusedMoveError,
    Rewrite,
    Value,
    all_gather,
    all_reduce,
    as_slice,
    broadcast,
    cast,
    dropout,
    fuse,
    matmul,
    movable,
    norm,
    overlap,
    reduce_scatter,
    reorder,
    send,
    slice_of,
    sliced,
    split,
    split_at_root,
    update,
)
from lamb import lamb
from transformer_blocks import attention


def check_refused(
    attempt: Callable[[], Rewrite], condition: str, operation: str
) -> RefusedMoveError:
    with pytest.raises(RefusedMoveError) as caught:
        attempt()
    error = caught.value
    assert (error.condition, error.operation) == (condition, operation)
    (diagnostic,) = error.diagnostics
    assert diagnostic.code == f"refused-{condition}"
    assert diagnostic.cure
    return error


def builder() -> tuple[ProgramBuilder, Value]:
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    return build, build.argument("x", "float32", "N", "M", layout=LOCAL)


def gathered(dimension: int = 0) -> tuple[ProgramBuilder, Value]:
    """A program with `s = ReduceScatter(x); g = AllGather(s)`."""
    build, x = builder()
    s = reduce_scatter(x, dimension).named("s")
    return build, all_gather(s).named("g")


# --- split


def test_split_of_what_is_no_all_reduce() -> None:
    check_refused(lambda: split(adam(), "mh"), "target", "mh")
    check_refused(lambda: split(adam(), "nothing"), "target", "nothing")


def test_split_of_an_operator_that_does_not_commute() -> None:
    build, x = builder()
    program = build.program(all_reduce(x, "replace").named("z"))
    check_refused(lambda: split(program, "z"), "commutative", "z")
    check_refused(lambda: split_at_root(program, "z"), "commutative", "z")


def test_split_along_a_dimension_that_is_not_there() -> None:
    check_refused(lambda: split(adam(), "g1", 1), "dimension", "g1")


def test_split_of_a_scalar() -> None:
    build, x = builder()
    program = build.program(all_reduce(norm(x)).named("z"))
    check_refused(lambda: split(program, "z"), "dimension", "z")


# --- reorder


def test_reorder_before_what_is_no_all_gather() -> None:
    check_refused(lambda: reorder(adam(), "g1", ["m1"]), "target", "g1")


def test_reorder_of_members_that_do_not_use_the_all_gather() -> None:
    build, g = gathered()
    y = (build.argument("r", "float32", "N", "M") + 1).named("y")
    program = build.program(g, y)
    check_refused(lambda: reorder(program, "g", ["y"]), "uses-gather", "g")


def test_reorder_of_a_set_that_is_not_closed() -> None:
    build, g = gathered()
    a = (g + 1).named("a")
    b = (a * 2).named("b")
    c = (b + g).named("c")
    program = build.program(c)
    assert "it stands on a path" in str(
        check_refused(lambda: reorder(program, "g", ["a", "c"]), "closed", "b")
    )


def test_consumers_outside_the_set_keep_the_all_gather() -> None:
    build, g = gathered()
    a, b = (g + 1).named("a"), (g * 2).named("b")
    after = reorder(build.program(a, b), "g", ["a"]).program
    assert after.by_name["b"].reads == ("g",)
    assert after.by_name["a"].reads == ("a_S_0",)


@pytest.mark.parametrize("make", [broadcast, lambda g: slice_of(g, 0)], ids=["Broadcast", "Slice"])
def test_reorder_of_what_does_not_commute(make: Callable[[Value], Value]) -> None:
    build, g = gathered()
    program = build.program(make(g).named("y"))
    check_refused(lambda: reorder(program, "g", ["y"]), "commutes", "y")


def test_reorder_of_a_product_whose_row_is_not_the_slice() -> None:
    build, g = gathered(1)
    w = build.argument("w", "float32", "M", "M")
    program = build.program(matmul(g, w).named("y"))
    check_refused(lambda: reorder(program, "g", ["y"]), "commutes", "y")


def test_reorder_of_a_product_with_a_sliced_second_operand() -> None:
    build, g = gathered()
    w = build.argument("w", "float32", "M", "N", layout=sliced(1))
    program = build.program(matmul(g, w).named("y"))
    check_refused(lambda: reorder(program, "g", ["y"]), "commutes", "y")


def test_reorder_with_operands_sliced_along_two_dimensions() -> None:
    build, g = gathered()
    other = build.argument("r", "float32", "N", "M", layout=sliced(1))
    program = build.program((g + other).named("y"))
    check_refused(lambda: reorder(program, "g", ["y"]), "commutes", "y")


def test_local_operand_in_reorder() -> None:
    build, g = gathered()
    other = build.argument("noise", "float32", "N", "M", layout=LOCAL)
    program = build.program((g + other).named("y"))
    error = check_refused(lambda: reorder(program, "g", ["y"]), "no-local-operand", "y")
    assert "noise is local" in str(error)


def test_broadcast_bias_is_not_sliced() -> None:
    after = split(attention(), "z").program
    moved = reorder(after, "z", movable(after, "z")).program
    assert all("b" not in one.reads for one in moved.operations if one.kind == "Slice")


# --- as-slice


def state_program(*, whole_after: bool = False, reads: str = "") -> Program:
    build, g = gathered()
    state = build.state("t", "float32", "N", "M", whole_after=whole_after)
    new = update(state, all_gather(slice_of(state, 0) + slice_of(g, 0))).named("t1")
    outputs = [new]
    if reads == "state":
        outputs.append((state * 2).named("y"))
    if reads == "value":
        outputs.append((new * 2).named("y"))
    if reads == "other slice":
        outputs.append((slice_of(state, 1) * 2).named("y"))
    return build.program(*outputs)


def test_state_is_sliced_where_nothing_hinders() -> None:
    assert str(as_slice(state_program(), ["t"]).program.types["t1"].layout) == "S_0"


def test_as_slice_of_what_is_no_replicated_state() -> None:
    check_refused(lambda: as_slice(state_program(), ["s"]), "replicated-state", "s")
    after = as_slice(state_program(), ["t"]).program
    check_refused(lambda: as_slice(after, ["t"]), "replicated-state", "t")


def test_as_slice_of_a_state_that_is_needed_as_a_whole() -> None:
    check_refused(lambda: as_slice(state_program(whole_after=True), ["t"]), "not-needed-whole", "t")


def test_as_slice_of_a_state_that_is_read_as_a_whole() -> None:
    check_refused(lambda: as_slice(state_program(reads="state"), ["t"]), "sliced-use", "y")


def test_as_slice_of_a_state_whose_new_value_is_read_as_a_whole() -> None:
    check_refused(lambda: as_slice(state_program(reads="value"), ["t"]), "sliced-use", "y")


def test_as_slice_of_a_state_that_is_sliced_along_two_dimensions() -> None:
    check_refused(lambda: as_slice(state_program(reads="other slice"), ["t"]), "one-dimension", "t")


def test_as_slice_of_a_state_whose_value_was_never_sliced() -> None:
    build, g = gathered()
    state = build.state("t", "float32", "N", "M")
    program = build.program(update(state, g + 1).named("t1"))
    check_refused(lambda: as_slice(program, ["t"]), "gathered-value", "t1")


# --- fuse


def test_fusion_around_the_reader_of_a_member() -> None:
    # {a = w + w, c = b + a} around b = AllReduce(a): the public code accepts it, and its order
    # uses b before it is computed.
    build = ProgramBuilder("p", N=(1, 64))
    w = build.argument("w", "float32", "N", layout=LOCAL)
    a = (w + w).named("a")
    b = all_reduce(a).named("b")
    program = build.program((b + a).named("c"))
    check_refused(lambda: fuse(program, ["a", "c"]), "no-cycle", "b")


def test_stages_that_would_wait_for_one_another() -> None:
    build = ProgramBuilder("p", N=(1, 64))
    x, y = (build.argument(name, "float32", "N") for name in "xy")
    a, b = (x + 1).named("a"), (y + 1).named("b")
    c, d = (a * 2).named("c"), (b * 2).named("d")
    program = build.program(c, d)
    once = fuse(program, ["a", "d"]).program
    check_refused(lambda: fuse(once, ["b", "c"]), "no-cycle", "b")


def test_fusion_of_different_layouts() -> None:
    build, g = gathered()
    s = build.argument("r", "float32", "N", "M", layout=sliced(0))
    program = build.program((g * 2).named("a"), (s * 2).named("b"))
    check_refused(lambda: fuse(program, ["a", "b"]), "one-space", "b")


def test_fusion_of_different_shapes() -> None:
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    x, y = build.argument("x", "float32", "N"), build.argument("y", "float32", "M")
    program = build.program((x + 1).named("a"), (y + 1).named("b"))
    check_refused(lambda: fuse(program, ["a", "b"]), "one-space", "b")


def test_fusion_of_different_groups() -> None:
    build = ProgramBuilder("p", N=(1, 64))
    x = build.argument("x", "float32", "N")
    y = build.argument("y", "float32", "N", group=1)
    program = build.program((x + 1).named("a"), (y + 1).named("b"))
    check_refused(lambda: fuse(program, ["a", "b"]), "one-space", "b")


def test_fusion_with_a_matrix_product() -> None:
    names = ["y", "z"]
    check_refused(lambda: fuse(attention(), names), "pointwise", "y")


def test_fusion_of_two_communications() -> None:
    build, x = builder()
    z = all_reduce(x).named("z")
    q = send(z + 1).named("q")
    program = build.program(q)
    check_refused(lambda: fuse(program, ["z", "_2", "q"]), "one-communication", "q")


def test_fusion_of_an_all_gather_alone() -> None:
    build, _ = builder()
    r = build.argument("r", "float32", "N", "M", layout=sliced(0))
    program = build.program(all_gather((r + 1).named("a")).named("g"))
    check_refused(lambda: fuse(program, ["a", "g"]), "one-communication", "g")


def test_fused_all_reduce_reads_slices_only() -> None:
    build, x = builder()
    r = build.argument("r", "float32", "N", "M")
    s = reduce_scatter(x).named("s")
    a = (s + r).named("a")
    program = build.program(all_gather(a).named("g"))
    check_refused(lambda: fuse(program, ["s", "a", "g"]), "slices-only", "a")


def test_fused_all_reduce_gathers_what_it_scatters() -> None:
    build, x = builder()
    r = build.argument("r", "float32", "N", "M", layout=sliced(0))
    s = reduce_scatter(x).named("s")
    program = build.program(all_gather(r * 2).named("g"), (s * 2).named("a"))
    check_refused(lambda: fuse(program, ["s", "a", "_2", "g"]), "slices-only", "g")


def test_one_operation_is_no_set() -> None:
    check_refused(lambda: fuse(adam(), ["mh"]), "several", "mh")


def test_part_of_a_stage_is_not_fused_again() -> None:
    once = fuse(adam(), ["mh", "vh"]).program
    check_refused(lambda: fuse(once, ["mh", "_3"]), "whole-stages", "fused")


def test_a_move_that_tears_a_stage_is_refused() -> None:
    build, g = gathered()
    a, b = (g + 1).named("a"), (g * 2).named("b")
    once = fuse(build.program(a, b), ["a", "b"]).program
    # b would be replicated still, a is a slice.
    check_refused(lambda: reorder(once, "g", ["a"]), "one-space", "b")


# --- overlap


def overlapping() -> Program:
    build, x = builder()
    w = build.argument("w", "float32", "M", "M")
    y = matmul(x, w).named("y")
    z = all_reduce(y).named("z")
    o = (z + 1).named("o")
    return build.program(o, norm(z).named("n"))


def test_overlap_of_members_without_data_between_them() -> None:
    check_refused(lambda: overlap(overlapping(), ["y", "o"]), "consumes", "o")
    check_refused(lambda: overlap(overlapping(), ["z", "y"]), "consumes", "y")


def test_overlap_ordered_by_something_outside() -> None:
    build, x = builder()
    a = all_reduce(x).named("a")
    b = (a + 1).named("b")
    program = build.program((a * b).named("c"))
    check_refused(lambda: overlap(program, ["a", "c"]), "no-other-order", "b")


def test_overlap_across_a_norm() -> None:
    check_refused(lambda: overlap(overlapping(), ["z", "n"]), "chunkable", "n")


def test_overlap_across_the_norm_of_lamb() -> None:
    after = split(lamb(), "g1").program
    after = reorder(after, "g1", movable(after, "g1")).program
    check_refused(lambda: overlap(after, ["u", "b"]), "chunkable", "b")


def test_overlap_along_a_contracted_dimension_only() -> None:
    build = ProgramBuilder("p", N=(1, 64))
    x = build.argument("x", "float32", 1, "N", layout=LOCAL)
    z = all_reduce(x).named("z")
    w = build.argument("w", "float32", "N", 1)
    program = build.program(matmul(z, w).named("y"))
    # Dimension 0 has one row, dimension 1 is summed over.
    check_refused(lambda: overlap(program, ["z", "y"]), "chunkable", "y")


def test_overlap_of_a_part_of_a_stage() -> None:
    build, x = builder()
    z = all_reduce(x).named("z")
    a = (z + 1).named("a")
    b = (a * 2).named("b")
    program = fuse(build.program(b), ["a", "b"], "f").program
    check_refused(lambda: overlap(program, ["z", "a"]), "whole-stages", "a")
    assert overlap(program, ["z", "f"]).program.chains[0].members == ("z", "f")


def test_overlap_of_one_member_in_two_chains() -> None:
    once = overlap(overlapping(), ["y", "z"]).program
    check_refused(lambda: overlap(once, ["z", "o"]), "one-chain", "z")


def test_overlap_is_the_last_transformation() -> None:
    once = overlap(overlapping(), ["y", "z"]).program
    check_refused(lambda: split(once, "z"), "order", "y")
    check_refused(lambda: fuse(once, ["z", "o"]), "order", "y")


def test_overlap_of_one_member() -> None:
    check_refused(lambda: overlap(overlapping(), ["y"]), "several", "y")


# --- records


def test_record_names_the_conditions_that_hold() -> None:
    record = split(adam(), "g1").record
    assert (record.transformation, dict(record.parameters)) == (
        "split",
        {"target": "g1", "dimension": 0},
    )
    assert record.conditions == ("commutative: g1", "dimension: g1")


def test_refusal_goes_to_another_process_and_back() -> None:
    error = check_refused(lambda: split(adam(), "mh"), "target", "mh")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.condition, copy.operation) == (str(error), "target", "mh")


def test_slices_keep_cast_dropout_and_select() -> None:
    build, g = gathered()
    program = build.program(dropout(cast(g, "float64"), 0.5, 1).named("y"))
    assert movable(program, "g") == ["_3", "y"]
