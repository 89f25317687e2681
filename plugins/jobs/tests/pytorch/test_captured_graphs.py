"""Captured graphs: archives of torch.export, documents, the table of operators."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from collhub_captured_graphs import (
    CapturedGraph,
    GraphNode,
    Tensor,
    describe_node,
    find_contradiction,
    graph_from_json,
    graph_to_json,
    is_collective,
    read_export,
)
from collhub_captured_graphs.graph import (
    ArgumentValue,
    ElementName,
    GraphInput,
    InputRole,
    Reference,
)
from exported_programs import archive, matrix_product, node, program, tensor

from hub_core.model import InputError


def read(document: Any, **entries: bytes) -> CapturedGraph:
    return read_export(io.BytesIO(archive(document, "p/models/model.json", **entries)), "p.pt2")


def test_archive_gives_operators_shapes_and_outputs() -> None:
    graph = read(matrix_product())
    assert [one.operator for one in graph.nodes] == [
        "aten.mm.default",
        "_c10d_functional.all_reduce.default",
        "_c10d_functional.wait_tensor.default",
    ]
    assert graph.tensors["mm"] == Tensor("mm", "float32", (4, 2))
    assert graph.nodes[1].arguments["reduce_op"] == "sum"
    assert [output.value for output in graph.outputs] == ["y1"]
    assert graph.producer == "torch 2.13.0"


class Bomb:
    """Object whose unpickling ends the test."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("the archive was unpickled",)


def test_pickled_weights_are_not_loaded() -> None:
    graph = read(matrix_product(), **{"p/data/weights/weight_0": pickle.dumps(Bomb())})
    assert len(graph.nodes) == 3


def change_size(document: Any) -> Any:
    sizes = document["graph_module"]["graph"]["tensor_values"]["mm"]["sizes"]
    sizes[0] = {"as_expr": {"expr_str": "u0", "hint": None}}
    return document


def add_branch(document: Any) -> Any:
    branch = node("higher_order.cond", ["b"], true={"as_graph": {"name": "t", "graph": {}}})
    document["graph_module"]["graph"]["nodes"].append(branch)
    values = document["graph_module"]["graph"]["tensor_values"]
    values["b"] = values["mm"]
    return document


def remove_signature(document: Any) -> Any:
    del document["graph_module"]["signature"]
    return document


def change_version(document: Any) -> Any:
    document["schema_version"]["major"] = 99
    return document


def read_unknown_value(document: Any) -> Any:
    nodes = document["graph_module"]["graph"]["nodes"]
    nodes[0]["inputs"][1]["arg"] = tensor("later")
    return document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_size, "value mm has the size 'u0', which is no number"),
        (add_branch, "node b .higher_order.cond|torch.ops.higher_order.cond. has branches"),
        (remove_signature, "the graph is malformed: KeyError 'signature'"),
        (change_version, "schema version 99 is not supported"),
        (read_unknown_value, "node mm .aten.mm.default. reads later, which no earlier node"),
    ],
)
def test_unusable_graph_is_refused_in_one_line(change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        read(change(matrix_product()))
    assert len(refusal.value.diagnostics) == 1
    assert "\n" not in refusal.value.diagnostics[0].message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "no readable archive"),
        (archive({}, "p/data.json"), "the archive has 0 graphs"),
        (archive({}, "p/models/a.json", **{"p/models/b.json": b"{}"}), "the archive has 2 graphs"),
        (archive(matrix_product())[:-30], "no readable archive"),
        (archive(matrix_product())[5:], "no readable archive"),
    ],
)
def test_other_archives_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_export(io.BytesIO(content), "p.pt2")


def test_entry_that_leaves_the_folder_is_not_extracted(tmp_path: Any) -> None:
    entries = {"../../outside": b"text"}
    assert len(read(matrix_product(), **entries).nodes) == 3
    assert list(tmp_path.iterdir()) == []


def test_document_round_trip_is_equal() -> None:
    graph = read(matrix_product())
    assert graph_from_json(graph_to_json(graph).encode(), "p.pt2") == graph


def test_document_keeps_infinite_numbers_and_types() -> None:
    arguments: dict[str, ArgumentValue] = {
        "size": (4,),
        "fill_value": float("-inf"),
        "dtype": ElementName("float32"),
    }
    result = (Tensor("full", "float32", (4,)),)
    full = GraphNode("full", "aten.full.default", arguments, result, frozenset({"dtype"}))
    graph = CapturedGraph("masks", (), (full,), (), file="x")
    assert graph_from_json(graph_to_json(graph).encode(), "x") == graph


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("value", {"name": "x"}, "argument .* is none"),
        ("operator", "os.system('x')", r"\$.nodes\[0\].operator"),
        ("shape", [-1], r"\$.nodes\[0\].results\[0\]"),
    ],
)
def test_malformed_document_is_refused(field: str, value: Any, message: str) -> None:
    document = json.loads(graph_to_json(read(matrix_product())))
    entry = document["nodes"][0]
    if field == "value":
        entry["arguments"]["self"] = value
    elif field == "operator":
        entry["operator"] = value
    else:
        entry["results"][0]["shape"] = value
    with pytest.raises(InputError, match=message):
        graph_from_json(json.dumps(document).encode(), "p.graph.json")


def describe(
    operator: str, shapes: Mapping[str, tuple[int, ...]], result: tuple[int, ...], **more: Any
) -> Any:
    """Costs and slices of one call with tensors of these shapes by argument name."""
    return describe_node(*call_of(operator, shapes, result, **more))


def call_of(
    operator: str, shapes: Mapping[str, tuple[int, ...]], result: tuple[int, ...], **more: Any
) -> tuple[CapturedGraph, GraphNode]:
    """A graph of one call with tensors of these shapes by argument name, and this call."""
    inputs = tuple(
        GraphInput(Tensor(name, "float32", shape), InputRole.INPUT)
        for name, shape in shapes.items()
    )
    arguments = {name: Reference(name) for name in shapes} | more
    call = GraphNode("r", operator, arguments, (Tensor("r", "float32", result),))
    return CapturedGraph("one", inputs, (call,), ()), call


@pytest.mark.parametrize(
    ("operator", "shapes", "result", "work", "sliceable"),
    [
        ("aten.mm.default", {"self": (4, 8), "mat2": (8, 2)}, (4, 2), 128, {"self"}),
        (
            "aten.addmm.default",
            {"self": (2,), "mat1": (4, 8), "mat2": (8, 2)},
            (4, 2),
            128,
            {"mat1"},
        ),
        (
            "aten.linear.default",
            {"input": (3, 4, 8), "weight": (2, 8)},
            (3, 4, 2),
            384,
            {"input"},
        ),
        ("aten.bmm.default", {"self": (5, 4, 8), "mat2": (5, 8, 2)}, (5, 4, 2), 640, {"self", "mat2"}),
        ("aten.gelu.default", {"self": (4, 8)}, (4, 8), 256, {"self"}),
        ("aten.add.Tensor", {"self": (4, 8), "other": (8,)}, (4, 8), 32, {"self"}),
        ("aten.view.default", {"self": (4, 8)}, (32,), 0, {"self"}),
        ("aten.convolution.default", {"input": (2, 3, 8, 8), "weight": (4, 3, 3, 3)}, (2, 4, 6, 6), 15552, {"input"}),
    ],
)  # fmt: skip
def test_work_and_slices_of_operators(
    operator: str,
    shapes: Mapping[str, tuple[int, ...]],
    result: tuple[int, ...],
    work: int,
    sliceable: set[str],
) -> None:
    facts = describe(operator, shapes, result)
    assert (facts.work, facts.sliceable) == (work, sliceable)


def test_attention_counts_four_operations_per_pair_and_element() -> None:
    shape = (2, 4, 16, 8)
    shapes = dict.fromkeys(("query", "key", "value"), shape)
    facts = describe("aten.scaled_dot_product_attention.default", shapes, shape)
    assert facts.work == 4 * 2 * 4 * 16 * 16 * 8
    causal = describe("aten.scaled_dot_product_attention.default", shapes, shape, is_causal=True)
    assert causal.work == facts.work // 2


def test_a_transposed_convolution_has_the_operations_of_its_inputs() -> None:
    shapes = {"input": (2, 4, 6, 6), "weight": (4, 3, 3, 3)}
    facts = describe("aten.convolution.default", shapes, (2, 3, 8, 8), transposed=True)
    assert facts.work == 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)


@pytest.mark.parametrize(
    ("operator", "shapes", "result"),
    [
        ("aten.mm.default", {"self": (), "mat2": ()}, ()),
        ("aten.mm.default", {"self": (3,), "mat2": (3,)}, ()),
        (
            "aten.scaled_dot_product_attention.default",
            {"query": (), "key": (), "value": ()},
            (),
        ),
        (
            "aten.scaled_dot_product_attention.default",
            {"query": (3, 4), "key": (4,), "value": (5,)},
            (3, 5),
        ),
    ],
)
def test_factors_with_too_few_dimensions_are_a_contradiction(
    operator: str, shapes: Mapping[str, tuple[int, ...]], result: tuple[int, ...]
) -> None:
    reason = find_contradiction(*call_of(operator, shapes, result))
    assert reason is not None
    assert "which do not fit" in reason
    describe(operator, shapes, result)


def test_softmax_over_the_first_dimension_keeps_no_slice() -> None:
    assert describe("aten._softmax.default", {"self": (4, 8)}, (4, 8), dim=0).sliceable == set()
    assert describe("aten._softmax.default", {"self": (4, 8)}, (4, 8), dim=-1).sliceable == {"self"}


def test_unknown_operator_has_bytes_and_no_slices() -> None:
    facts = describe("custom.twist.default", {"self": (4, 8)}, (4, 8))
    assert (facts.work, facts.traffic, facts.sliceable, facts.is_known) == (0, 256, set(), False)


def test_waiting_is_no_collective() -> None:
    assert is_collective("_c10d_functional.all_reduce.default")
    assert not is_collective("_c10d_functional.wait_tensor.default")
    assert not is_collective("aten.all_reduce.default")


def test_graph_with_a_value_defined_twice_is_refused() -> None:
    value = tensor("x")
    nodes = [
        node("aten.neg.default", ["a"], self=value),
        node("aten.neg.default", ["a"], self=value),
    ]
    with pytest.raises(InputError, match="value a is defined twice"):
        read(program({"x": (4,)}, nodes, {"a": (4,)}, ["a"]))
