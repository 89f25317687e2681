"""Programs of workloads that others made: with attributes, without, and with wrong ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from collhub_coconet import LOCAL as LOCAL_LAYOUT
from collhub_coconet import (
    Binding,
    Kind,
    ProgramBuilder,
    all_reduce,
    compare,
    movable,
    reorder,
    sliced,
)
from collhub_coconet.documents.from_workload import (
    ATTRIBUTE,
    extract_program,
    find_program,
    get_attribute,
)
from collhub_coconet.documents.operator_names import infer_program
from collhub_coconet.lowering.workload import lower
from collhub_coconet.plugin import ScatterOptions
from collhub_coconet.transformations.passes import run_split as split
from collhub_job_traces import attributes_extra

from hub_core.model import InputError, JobCollective, NodeColumns, NodeKind, UsageError, Workload

RANKS = 2


def trace(names: tuple[str, ...], size: int = 64) -> Workload:
    """An all-reduce of 64 bytes, and computations behind it, each reading the one before."""
    count = 1 + len(names)
    rank = np.repeat(np.arange(RANKS), count)
    position = np.tile(np.arange(count), RANKS)
    columns = {
        "rank": rank,
        "kind": np.where(position, NodeKind.COMPUTE, NodeKind.COLLECTIVE),
        "collective": np.where(position, -1, JobCollective.ALL_REDUCE),
        "bytes": np.where(position, -1, size),
        "name": position,
    }
    rows = np.arange(RANKS * count)
    edges = rows[position > 0] - 1, rows[position > 0]
    nodes = NodeColumns.from_columns(RANKS, columns, edges)
    return Workload(nodes, ("all-reduce", *names))


def test_a_node_without_attributes_is_named_with_what_it_lacks() -> None:
    with pytest.raises(InputError, match=r"node 0 \(collective 'all-reduce'\) lacks") as caught:
        extract_program(trace(("aten::mul",)))
    (found,) = caught.value.diagnostics
    assert "operation, operands, element type, shape and layout" in found.message
    assert "infer=true" in found.cure
    assert (found.location.rank, found.location.step) == (0, 0)


def test_operator_names_fill_in_what_is_missing_and_say_so() -> None:
    workload = trace(("aten::mul_", "aten::sqrt", "aten::norm"))
    found = infer_program(workload, "float32")
    kinds = [one.kind for one in found.bound.program.operations]
    assert kinds == [Kind.ALL_REDUCE, Kind.MULTIPLY, Kind.SQRT, Kind.NORM]
    assert found.bound.program.types["n0"].shape == (16,)
    assert len(found.filled_in) == 4
    assert "filled in: node 1 is Multiply(n0, n1_0), with n1_0" in found.filled_in


def io_extra(inputs: list[tuple[tuple[int, ...] | float, str]]) -> str:
    """The extra of a node that states its inputs, as Chakra's converter writes them."""
    values = [0 if isinstance(one, tuple) else one for one, _ in inputs]
    shapes = [list(one) if isinstance(one, tuple) else [] for one, _ in inputs]
    texts = (str(values), str(shapes), str([kind for _, kind in inputs]))
    info = b"".join(
        bytes([place << 3 | 2, len(text)]) + text.encode() for place, text in enumerate(texts, 1)
    )
    return f"+ ={(bytes([8 << 3 | 2, len(info)]) + info).hex()}"


def stating(names: tuple[str, ...], size: int, *extras: str) -> Workload:
    """A trace whose computations state their inputs."""
    workload = trace(names, size)
    count = 1 + len(names)
    extra = np.tile(np.arange(-1, count - 1), RANKS)
    columns = {
        name: getattr(workload.nodes, name)
        for name in ("rank", "kind", "collective", "bytes", "name")
    }
    nodes = NodeColumns.from_columns(RANKS, columns | {"extra": extra}, workload.nodes.data_edges)
    return replace(workload, nodes=nodes, extras=extras)


FLOATS = "Tensor(float)"


def test_stated_shapes_make_matrices() -> None:
    # An all-reduce of 4 x 8 floats, a bias, a product with a weight of 8 x 3, half of it.
    workload = stating(
        ("aten::add", "aten::mm", "aten::mul"),
        4 * 8 * 4,
        io_extra([((4, 8), FLOATS), ((8,), FLOATS), (1.0, "Scalar")]),
        io_extra([((4, 8), FLOATS), ((8, 3), FLOATS)]),
        io_extra([((4, 3), FLOATS), (0.5, "Scalar")]),
    )
    program = infer_program(workload, None).bound.program
    assert [one.kind for one in program.operations] == [
        Kind.ALL_REDUCE, Kind.ADD, Kind.MATMUL, Kind.MULTIPLY,
    ]  # fmt: skip
    shapes = {name: kind.shape for name, kind in program.types.items()}
    assert shapes["n0"] == shapes["n1"] == (4, 8)
    assert shapes["n1_0"] == (8,)
    assert shapes["n2_0"] == (8, 3)
    assert shapes["n3"] == (4, 3)
    assert program.by_name["n3"].operands == ("n2", 0.5)
    # Rows of a product commute with slicing: a move that vectors have not.
    options = ScatterOptions(infer=True, dimension=0)
    after, _ = split(workload, options)
    moved = extract_program(after).program
    assert "n2" in movable(moved, "n0")
    assert compare(program, reorder(moved, "n0", ["n1", "n2"]).program, Binding(RANKS, {})).ok


def test_the_left_operand_of_a_product_is_the_one_of_its_shape() -> None:
    # The gradient of a weight: what the all-reduce gives stands on the right.
    workload = stating(("aten::mm",), 4 * 8 * 4, io_extra([((3, 4), FLOATS), ((4, 8), FLOATS)]))
    program = infer_program(workload, None).bound.program
    assert program.by_name["n1"].operands == ("n1_0", "n0")


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("aten::add", [((4, 8), FLOATS), ((8,), FLOATS), (2.0, "Scalar")], "more than the 2 oper"),
        ("aten::mul", [((3, 3), FLOATS), ((3, 3), FLOATS)], r"reads n0 \(32,\), which its stated"),
        ("aten::mm", [((4, 8), FLOATS)], "lacks the shapes of its operands"),
        # The maximum of two tensors, element by element, is no maximum over one tensor.
        ("aten::max", [((32,), FLOATS), ((32,), FLOATS)], "more than the 1 operands of Max"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    name: str, inputs: list[tuple[tuple[int, ...] | float, str]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        infer_program(stating((name,), 4 * 8 * 4, io_extra(inputs)), "float32")


def test_a_node_that_reads_a_statement_without_operations_is_refused() -> None:
    empty = attributes_extra({ATTRIBUTE: json.dumps({"operations": []})})
    stated = io_extra([((32,), FLOATS), (2.0, "Scalar")])
    with pytest.raises(InputError, match=r"reads node 1 .*which has no operation"):
        infer_program(stating(("aten::mul", "aten::mul"), 4 * 32, empty, stated), "float32")


def test_an_inferred_trace_is_transformed() -> None:
    options = ScatterOptions(infer=True, element="float16")
    after, report = split(trace(("aten::tanh",)), options)
    program = extract_program(after).program
    assert [one.kind for one in program.operations][:2] == [Kind.REDUCE_SCATTER, Kind.ALL_GATHER]
    assert program.types["n1"].shape == (32,)
    assert any(line.startswith("filled in") for line in report.changes)


@pytest.mark.parametrize(
    ("names", "element", "error", "message"),
    [
        (("aten::gelu",), "float32", InputError, "its name is not in the table of operators"),
        (("aten::mm",), "float32", InputError, "lacks the shapes of its operands"),
        (("aten::mul",), None, UsageError, "element type of what is filled in is not stated"),
        (("aten::norm", "aten::mul"), "float32", InputError, "lacks the shape of an operand"),
    ],
)
def test_what_the_table_does_not_tell_is_refused(
    names: tuple[str, ...], element: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        infer_program(trace(names), element)


def test_ranks_that_do_different_things_are_not_one_program() -> None:
    workload = trace(("aten::mul",))
    sizes = np.array([64, -1, 32, -1])
    columns = {name: getattr(workload.nodes, name) for name in ("rank", "kind", "collective")}
    nodes = NodeColumns.from_columns(RANKS, {**columns, "bytes": sizes})
    with pytest.raises(InputError, match="rank 1, which does not do the same as rank 0"):
        infer_program(replace(workload, nodes=nodes), "float32")


def lowered() -> Workload:
    build = ProgramBuilder("p", N=(1, 64))
    x = build.argument("x", "float32", "N", layout=LOCAL_LAYOUT)
    y = all_reduce(x).named("y")
    return lower(build.program((y * 2).named("z")), Binding(2, {"N": 8}))


def changed(workload: Workload, change: dict[str, Any]) -> Workload:
    """The workload whose last node states something else of its operation."""
    row = len(workload.nodes) - 1
    statement = json.loads(get_attribute(workload, row))
    statement["operations"][0] |= change
    extras = list(workload.extras)
    extras[int(workload.nodes.extra[row])] = attributes_extra({ATTRIBUTE: json.dumps(statement)})
    return replace(workload, extras=tuple(extras))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "Squeeze"}, "kind: 'Squeeze' is not one of"),
        ({"operands": ["nobody", 2]}, "z = Multiply.nobody, 2.: nobody is not defined"),
        ({"operands": ["z", 2]}, "z is not defined before it is used"),
        ({"operands": "y"}, "states no list of named objects as 'operations'"),
        ({"operands": [["y"]]}, "states operands that are neither names nor numbers in 'z'"),
        ({"place": "first"}, "states a place that is no integer in 'z'"),
        ({"result": 3}, "states a result that is no object in 'z'"),
        (
            {"result": {"element": "float32", "shape": ["N"], "layout": "local"}},
            "states the result of z otherwise than as float32.N. R",
        ),
    ],
)
def test_wrong_attributes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        extract_program(changed(lowered(), change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arguments": 3}, "states arguments that are no list of names in 'p'"),
        ({"arguments": [["x"]]}, "states arguments that are no list of names in 'p'"),
        ({"operands": 5}, "states operands that are neither names nor numbers in 'p'"),
        ({"operands": None}, "states operands that are neither names nor numbers in 'p'"),
        ({"history": None}, "states a history that is no list of objects in 'p'"),
        ({"history": [3]}, "states a history that is no list of objects in 'p'"),
        ({"bound": 3}, "num_ranks, mesh_sizes and bound of the program are no numbers"),
    ],
)
def test_wrong_fields_of_the_program_are_refused(change: dict[str, Any], message: str) -> None:
    """Documents may come from anyone: they must not end in a TypeError."""
    workload = lowered()
    statement = json.loads(get_attribute(workload, 0))
    statement["program"] |= change
    extras = list(workload.extras)
    extras[int(workload.nodes.extra[0])] = attributes_extra({ATTRIBUTE: json.dumps(statement)})
    with pytest.raises(InputError, match=message):
        extract_program(replace(workload, extras=tuple(extras)))


def test_lowered_workload_has_its_program_until_statements_or_nodes_change() -> None:
    workload = lowered()
    assert find_program(workload) == extract_program(workload)
    assert find_program(workload) is find_program(workload)
    other = changed(workload, {"kind": "Add"})
    assert find_program(other).program.by_name["z"].kind is Kind.ADD
    columns = {name: getattr(workload.nodes, name) for name in ("rank", "kind", "collective")}
    other = replace(workload, nodes=NodeColumns.from_columns(RANKS, columns))
    with pytest.raises(InputError, match="lacks collhub_tensors"):
        find_program(other)


def test_attributes_of_numbers_alone_need_no_header() -> None:
    workload = lowered()
    texts = []
    for row in (0, 1):
        statement = json.loads(get_attribute(workload, row))
        statement.pop("program", None)
        for part in (*statement["operations"], *statement["arguments"]):
            part.pop("result", None)
            part.pop("place", None)
            if "shape" in part:
                part["shape"] = [8]
        texts.append(attributes_extra({ATTRIBUTE: json.dumps(statement)}))
    found = extract_program(replace(workload, extras=tuple(texts)))
    assert found.program.outputs == ("z",)
    assert found.binding.num_ranks == 2


def test_a_slice_of_a_broadcast_bias_is_refused() -> None:
    build = ProgramBuilder("p", N=(1, 64))
    with pytest.raises(InputError, match="is broadcast along dimension 0, its size is 1"):
        build.argument("b", "float32", 1, "N", layout=sliced(0))


def test_a_collective_of_unknown_kind_is_not_in_the_table() -> None:
    columns = {"rank": [0, 1], "kind": [int(NodeKind.COLLECTIVE)] * 2, "bytes": [64, 64]}
    workload = Workload(NodeColumns.from_columns(2, {**columns, "collective": [-1, -1]}))
    with pytest.raises(InputError, match="is a collective that the table does not have"):
        infer_program(workload, "float32")
