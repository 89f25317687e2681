"""Opaque operations: layout rules, costs, documents, and execution with a stand-in."""

from __future__ import annotations

import json

import pytest
from collhub_coconet import (
    LOCAL,
    REPLICATED,
    Binding,
    Kind,
    Program,
    ProgramBuilder,
    Value,
    all_gather,
    all_reduce,
    compare,
    costs,
    movable,
    program_from_json,
    program_to_json,
    reorder,
    sliced,
    split,
    update,
)
from collhub_coconet.program.operations import ElementType, LayoutRule
from collhub_coconet.program.program import check_binding

from hub_core.model import InputError


def apply(
    operands: list[Value],
    rule: str,
    *shape: int,
    work: int = 8,
    traffic: int = 64,
    count: int | None = None,
) -> Value:
    """Add an opaque operation to the program of its operands."""
    return operands[0].builder.apply(
        Kind.OPAQUE,
        operands,
        element=ElementType.FLOAT32,
        call=json.dumps({"operator": "aten.gelu.default"}),
        shape=shape,
        rule=LayoutRule(rule),
        work=work,
        traffic=traffic,
        count=count,
    )


def step() -> Program:
    """Gradients of an opaque backward pass, reduced and applied to a state."""
    builder = ProgramBuilder("step")
    x = builder.argument("x", "float32", 4, 6, layout=LOCAL)
    w = builder.state("w", "float32", 8, 6)
    gradient = apply([x, w], "per_rank", 8, 6).named("gradient")
    total = all_reduce(gradient).named("total")
    return builder.program(update(w, w - total * 0.5).named("w1"))


def test_layout_follows_the_rule_of_an_opaque_operation() -> None:
    builder = ProgramBuilder("rules")
    local = builder.argument("x", "float32", 4, layout=LOCAL)
    same = builder.argument("w", "float32", 4)
    blocks = builder.argument("s", "float32", 8, layout=sliced(0))
    assert apply([same], "per_rank", 4).type.layout == REPLICATED
    assert apply([local, same], "per_rank", 4).type.layout == LOCAL
    assert apply([same], "random", 4).type.layout == LOCAL
    assert apply([blocks, same], "rows", 8).type.layout == sliced(0)
    assert apply([blocks, local], "rows", 8).type.layout == sliced(0)
    assert apply([blocks, same], "parts", 8).type.layout == LOCAL
    assert apply([same], "parts", 8).type.layout == REPLICATED
    assert apply([local], "to_blocks", 8).type.layout == sliced(0)
    assert apply([blocks], "to_local", 4).type.layout == LOCAL


def test_operator_without_a_rule_for_slices_is_refused() -> None:
    builder = ProgramBuilder("rules")
    blocks = builder.argument("s", "float32", 8, layout=sliced(0))
    with pytest.raises(InputError, match="s is S_0, which the rule per_rank does not permit"):
        apply([blocks], "per_rank", 8)


def test_every_dimension_of_a_row_may_be_sliced() -> None:
    builder = ProgramBuilder("rows")
    heads = builder.argument("q", "float32", 2, 8, 6, layout=sliced(1))
    batches = builder.argument("k", "float32", 2, 8, 6, layout=sliced(0))
    sequence = builder.argument("v", "float32", 2, 8, 6, layout=sliced(2))
    assert apply([heads, heads], "rows", 2, 8, 6, count=2).type.layout == sliced(1)
    assert apply([batches], "rows", 2, 8, 6, count=2).type.layout == sliced(0)
    for operands, count in (([heads, batches], 2), ([sequence], 2), ([heads], 1)):
        with pytest.raises(InputError, match="which the rule rows does not permit"):
            apply(operands, "rows", 2, 8, 6, count=count)
    with pytest.raises(InputError, match="4 dimensions of rows are stated"):
        apply([heads], "rows", 2, 8, 6, count=4)


def test_blocks_of_heads_equal_the_complete_tensor() -> None:
    """Slices of a gathered result, whose rows are positions of two dimensions."""
    builder = ProgramBuilder("heads")
    heads = builder.argument("q", "float32", 2, 8, 6, layout=sliced(1))
    whole = builder.program(apply([all_gather(heads)], "rows", 2, 8, 6, count=2).named("y"))
    builder = ProgramBuilder("heads")
    heads = builder.argument("q", "float32", 2, 8, 6, layout=sliced(1))
    cut = builder.program(all_gather(apply([heads], "rows", 2, 8, 6, count=2)).named("y"))
    assert whole.types["y"] == cut.types["y"]


def test_document_keeps_opaque_operations() -> None:
    program = step()
    assert program_from_json(program_to_json(program)) == program


def test_work_and_traffic_of_blocks_are_divided_by_the_ranks() -> None:
    builder = ProgramBuilder("blocks")
    blocks = builder.argument("s", "float32", 8, layout=sliced(0))
    program = builder.program(apply([blocks], "rows", 8, work=80, traffic=640).named("y"))
    of_rank = costs(program, Binding(4, {}))
    assert (of_rank.operations, of_rank.memory_bytes, of_rank.kernels) == (20, 160, 1)


def test_view_between_layouts_costs_nothing() -> None:
    builder = ProgramBuilder("views")
    local = builder.argument("x", "float32", 4, layout=LOCAL)
    block = apply([local], "to_blocks", 16, work=0, traffic=0).named("block")
    program = builder.program(all_gather(block).named("y"))
    assert costs(program, Binding(4, {})).kernels == 1


def test_split_and_reordered_step_with_an_opaque_gradient_is_equal() -> None:
    program = step()
    scattered = split(program, "total", 0).program
    moved = reorder(scattered, "total", movable(scattered, "total")).program
    assert compare(program, moved, Binding(4, {}), 1).differences == ()


def test_rows_of_several_dimensions_may_have_any_sizes() -> None:
    # `count` is the number of dimensions of a row here, not a number of elements.
    builder = ProgramBuilder("rows")
    heads = builder.argument("q", "float32", 1, 8, 6, layout=sliced(1))
    program = builder.program(apply([heads], "rows", 1, 8, 6, count=2).named("y"))
    check_binding(program, Binding(4, {}))
