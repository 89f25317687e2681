"""Captured graphs of PyTorch as typed programs: layouts, kinds, collectives, refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from collhub_captured_graphs import CapturedGraph, GraphInput, GraphNode, GraphOutput, Tensor
from collhub_captured_graphs.graph import InputRole, OutputRole, Reference
from collhub_coconet import REPLICATED, Kind, compare, movable, reorder, sliced, split, text
from collhub_coconet.documents.json_document import BoundProgram
from collhub_coconet.execution.ranks import simulate_ranks
from collhub_coconet.program.operations import LOCAL, LayoutRule
from collhub_coconet.torch_programs.typing_graphs import TypingChoices, type_graph

from hub_core import read_workload
from hub_core.model import InputError, UsageError

RANKS = 4


class Graph:
    """Captured graph under construction; values are float32 unless named otherwise."""

    def __init__(self) -> None:
        self.inputs: list[GraphInput] = []
        self.nodes: list[GraphNode] = []
        self.outputs: list[GraphOutput] = []
        self.groups: dict[str, tuple[int, ...]] = {"0": tuple(range(RANKS))}

    def input(self, name: str, *shape: int, placement: str = "", role: str = "input") -> str:
        tensor = Tensor(name, "float32", shape)
        self.inputs.append(GraphInput(tensor, InputRole(role), name, placement))
        return name

    def call(
        self, operator: str, name: str, /, *shape: int, element: str = "float32", **arguments: Any
    ) -> str:
        shapes = {one.tensor.name for one in self.inputs} | {
            tensor.name for node in self.nodes for tensor in node.tensors
        }
        values = {
            key: Reference(value) if isinstance(value, str) and value in shapes else value
            for key, value in arguments.items()
        }
        self.nodes.append(GraphNode(name, operator, values, (Tensor(name, element, shape),)))
        return name

    def collective(self, kind: str, name: str, operand: str, *shape: int, **more: Any) -> str:
        result = self.call(
            f"_c10d_functional.{kind}.default", f"{name}_", *shape, input=operand,
            **{"group_name": "0"} | more,
        )  # fmt: skip
        return self.call("_c10d_functional.wait_tensor.default", name, *shape, tensor=result)

    def type(self, *outputs: str, **choices: Any) -> BoundProgram:
        results = [*self.outputs, *(GraphOutput(name, OutputRole.OUTPUT) for name in outputs)]
        graph = CapturedGraph(
            "graph", tuple(self.inputs), tuple(self.nodes), tuple(results), self.groups
        )
        return type_graph(graph, TypingChoices(**choices))


def layouts(bound: BoundProgram, *names: str) -> list[str]:
    return [str(bound.program.types[name].layout) for name in names]


def test_data_parallel_step_is_typed_and_transformed_equally() -> None:
    graph = Graph()
    w = graph.input("w", 8, 6, placement="R", role="parameter")
    x = graph.input("x", 5, 8, placement="L")
    t = graph.call("aten.t.default", "t", 8, 5, self=x)
    g = graph.call("aten.mm.default", "g", 8, 5, self=t, mat2=graph.input("e", 5, 5))
    g = graph.call(
        "aten.mm.default", "g2", 8, 6, self=g, mat2=graph.input("f", 5, 6, placement="R")
    )
    a = graph.collective("all_reduce", "a", g, 8, 6, reduce_op="avg")
    w1 = graph.call("aten.sub.Tensor", "w1", 8, 6, self=w, other=a, alpha=0.5)
    graph.outputs.append(GraphOutput(w1, OutputRole.MUTATION, "w"))
    bound = graph.type()
    program = bound.program
    assert layouts(bound, "x", "g", "g2", "w_updated") == ["L", "L", "L", "R"]
    assert program.by_name["g"].kind is Kind.MATMUL
    assert program.states["w"].whole_after
    target = next(one.name for one in program.operations if one.kind is Kind.ALL_REDUCE)
    scattered = split(program, target, 0).program
    moved = reorder(scattered, target, movable(scattered, target)).program
    assert compare(program, moved, bound.binding, 3).differences == ()


def test_states_of_a_sharded_optimizer_become_blocks() -> None:
    graph = Graph()
    g = graph.input("g", 8, placement="L")
    m = graph.input("m", 2, role="state")
    s = graph.collective("reduce_scatter_tensor", "s", g, 2, reduce_op="sum", group_size=RANKS)
    d = graph.call("aten.mul.Tensor", "d", 2, self=m, other=0.9)
    m1 = graph.call("aten.add.Tensor", "m1", 2, self=d, other=s)
    w1 = graph.collective("all_gather_into_tensor", "w1", m1, 8, group_size=RANKS)
    graph.outputs.append(GraphOutput(m1, OutputRole.MUTATION, "m"))
    bound = graph.type(w1)
    assert bound.program.states["m"].type.layout == sliced(0)
    assert bound.program.types["m1"].shape == (8,)
    assert bound.program.types["w1_"].layout == REPLICATED
    assert all(one.kind is not Kind.OPAQUE for one in bound.program.operations)


def test_norm_of_blocks_is_one_reduction_of_the_sliced_tensor() -> None:
    graph = Graph()
    g = graph.input("g", 8, placement="L")
    s = graph.collective("reduce_scatter_tensor", "s", g, 2, reduce_op="sum", group_size=RANKS)
    square = graph.call("aten.mul.Tensor", "q", 2, self=s, other=s)
    part = graph.call("aten.sum.default", "part", self=square)
    total = graph.collective("all_reduce", "total", part, reduce_op="sum")
    bound = graph.type(total)
    assert bound.program.types["total_"].layout == REPLICATED
    assert bound.program.by_name["total_"].kind is Kind.SUM
    assert bound.program.by_name["total_"].reads == ("q",)


def test_sum_of_one_block_stays_local() -> None:
    graph = Graph()
    g = graph.input("g", 8, placement="L")
    s = graph.collective("reduce_scatter_tensor", "s", g, 2, reduce_op="sum", group_size=RANKS)
    part = graph.call("aten.sum.default", "part", self=s)
    bound = graph.type(part)
    assert bound.program.types["part"].layout == LOCAL
    source = bound.program.by_name[bound.program.by_name["part"].reads[0]]
    assert source.rule is LayoutRule.TO_LOCAL


def test_all_to_all_exchanges_parts_of_the_first_dimension() -> None:
    graph = Graph()
    x = graph.input("x", 8, 3, placement="L")
    y = graph.collective("all_to_all_single", "y", x, 8, 3, output_split_sizes=(2, 2, 2, 2))
    bound = graph.type(y)
    kinds = [one.kind for one in bound.program.operations]
    assert kinds == [Kind.OPAQUE, Kind.ALL_TO_ALL, Kind.OPAQUE]
    assert bound.program.types["y_"].layout == LOCAL
    assert bound.program.types["y_"].shape == (8, 3)


def exchange(graph: Graph, name: str, x: str, sent: Any, received: Any, columns: int = 3) -> str:
    """Exchange rows with these splits, on this rank."""
    return graph.collective(
        "all_to_all_single", name, x, sum(received), columns,
        input_split_sizes=sent, output_split_sizes=received,
    )  # fmt: skip


def test_dispatch_and_combine_of_experts_are_uneven_exchanges() -> None:
    graph = Graph()
    x = graph.input("x", 8, 3, placement="L")
    w = graph.input("w", 3, 3, placement="L")
    # Rank 1, the one with the most rows, was captured.
    sent, own = (1, 4, 0, 3), (4, 4, 4, 4)
    rows = exchange(graph, "rows", x, sent, own)
    y = graph.call("aten.mm.default", "y", 16, 3, self=rows, mat2=w)
    z = graph.call("aten.add.Tensor", "z", 16, 3, self=y, other=1.0)
    bound = graph.type(exchange(graph, "back", z, own, sent))
    kinds = [one.kind for one in bound.program.operations]
    assert kinds == [Kind.ALL_TO_ALL_V, Kind.MATMUL, Kind.ADD, Kind.ALL_TO_ALL_V]
    assert bound.program.by_name["rows_"].counts == sent * RANKS
    generator = np.random.default_rng(0)
    values = [generator.random((8, 3), np.float32) for _ in range(RANKS)]
    weights = [generator.random((3, 3), np.float32) for _ in range(RANKS)]
    run = simulate_ranks(bound.program, bound.binding, {"x": values, "w": weights})
    for rank in range(RANKS):
        # Every token is multiplied by the weight of the rank to which it is sent.
        experts = np.repeat(np.arange(RANKS), sent)
        expected = [row @ weights[to] + 1 for row, to in zip(values[rank], experts, strict=True)]
        np.testing.assert_allclose(run.values["back_"][rank], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("sent", "received", "message"),
    [
        ((1, 3, 2, 2), (2, 2, 3, 1), "the split sizes of other ranks are unknown"),
        ((1, 3, 2, 2), (2, 2, 2, 2), "has 2 rows for each rank, another rank has 3"),
        ((2, 2, 2, 2), (1, 3, 2, 2), "has 2 rows for each rank, another rank has 3"),
        ((1, 3, 2), (3, 3, 3, 3), "no parts of its rows, one per rank"),
        ((1, 3, 2, 3), (3, 3, 3, 3), "no parts of its rows, one per rank"),
        ((1, 3, 2, "x"), (3, 3, 3, 3), "no parts of its rows, one per rank"),
    ],
)
def test_split_sizes_that_determine_no_table_are_refused(
    sent: Any, received: Any, message: str
) -> None:
    graph = Graph()
    x = graph.input("x", 8, 3, placement="L")
    y = exchange(graph, "y", x, sent, received)
    with pytest.raises(InputError, match=f"all_to_all_single.default.*{message}"):
        graph.type(y)


@pytest.mark.parametrize("is_output", [False, True])
def test_rows_that_other_ranks_do_not_have_are_not_read(is_output: bool) -> None:
    graph = Graph()
    x = graph.input("x", 8, 3, placement="L")
    rows = exchange(graph, "rows", x, (1, 4, 0, 3), (4, 4, 4, 4))
    total = graph.call("aten.sum.dim_IntList", "total", 3, self=rows, dim=(0,))
    with pytest.raises(InputError, match="reads or returns rows that other ranks do not have"):
        graph.type(rows if is_output else total)


def test_unknown_operator_is_opaque_with_its_bytes() -> None:
    graph = Graph()
    x = graph.input("x", 4, 3, placement="R")
    y = graph.call("custom.twist.default", "y", 4, 3, self=x)
    bound = graph.type(y)
    operation = bound.program.by_name["y"]
    assert (operation.kind, operation.work, operation.traffic) == (Kind.OPAQUE, 0, 96)
    # Nothing is known about the operator, so ranks may differ.
    assert bound.program.types["y"].layout == LOCAL


def graph_with_unknown_operator_on_a_block() -> tuple[Graph, str]:
    graph = Graph()
    x = graph.input("x", 2, placement="S(0)")
    return graph, graph.call("custom.twist.default", "y", 2, self=x)


def test_unknown_operator_with_a_sharded_operand_is_refused() -> None:
    graph, y = graph_with_unknown_operator_on_a_block()
    with pytest.raises(
        InputError, match=r"node y .custom.twist.default. has no entry in the table"
    ):
        graph.type(y)


def test_unknown_operator_reads_a_block_as_local_on_request() -> None:
    graph, y = graph_with_unknown_operator_on_a_block()
    bound = graph.type(y, takes_unknown_as_local=True)
    assert bound.program.types["y"].layout == LOCAL


def test_operator_of_the_table_keeps_blocks_or_reads_them_as_local() -> None:
    graph = Graph()
    x = graph.input("x", 2, 6, placement="S(0)")
    rows = graph.call("aten._softmax.default", "rows", 2, 6, self=x, dim=-1, half_to_float=False)
    columns = graph.call("aten._softmax.default", "columns", 2, 6, self=x, dim=0)
    bound = graph.type(rows, columns)
    assert layouts(bound, "rows", "columns") == ["S_0", "L"]
    assert bound.program.types["rows"].shape == (8, 6)


def test_scalar_cannot_be_sharded() -> None:
    graph = Graph()
    x = graph.input("x", placement="S(0)")
    with pytest.raises(InputError, match=r"input x of shape \[\] cannot be S\(0\)"):
        graph.type(x)


def test_tensor_parallel_layer_is_typed_with_its_shards() -> None:
    """The Megatron layer that the corpus lists: columns of w, rows of w2, one all-reduce."""
    graph = Graph()
    x = graph.input("x", 2, 8, placement="R")
    w = graph.input("w", 8, 8, placement="S(1)", role="parameter")
    w2 = graph.input("w2", 8, 8, placement="S(0)", role="parameter")
    inner = graph.call("aten.mm.default", "mm", 2, 8, self=x, mat2=w)
    outer = graph.call("aten.mm.default", "mm_1", 2, 8, self=inner, mat2=w2)
    y = graph.collective("all_reduce", "y", outer, 2, 8, reduce_op="sum")
    bound = graph.type(y)
    assert layouts(bound, "mm", "mm_1", "y_") == ["S_1", "L", "R"]
    assert bound.program.types["mm"].shape == (2, 32)


@pytest.mark.parametrize(
    ("operator", "result", "message"),
    [
        ("mm", (4, 7), "the shape [4, 6]"),
        ("add", (5, 6), "the shapes [4, 6] and [6, 6], which do not fit"),
        ("view", (5, 5), "24 elements of x [4, 6]"),
        ("gelu", (6, 4), "the shape [4, 6]"),
        ("layer_norm", (4, 5), "the shape [4, 6]"),
        ("scaled_dot_product_attention", (4, 5), "the shape [4, 6]"),
    ],
)
def test_result_that_contradicts_its_operands_is_refused(
    operator: str, result: tuple[int, ...], message: str
) -> None:
    graph = Graph()
    x, w = graph.input("x", 4, 6, placement="L"), graph.input("w", 6, 6, placement="R")
    arguments: dict[str, Any] = {
        "mm": {"self": x, "mat2": w},
        "add": {"self": x, "other": w},
        "scaled_dot_product_attention": {"query": x, "key": w, "value": w},
    }.get(operator, {"self": x})
    y = graph.call(f"aten.{operator}.default", "y", *result, **arguments)
    expected = rf"y \(aten.{operator}.default\) has the result .*{re.escape(message)}"
    with pytest.raises(InputError, match=expected):
        graph.type(y)


def test_other_number_of_ranks_is_refused() -> None:
    graph = Graph()
    x = graph.input("x", 4, placement="L")
    y = graph.collective("all_reduce", "a", x, 4, reduce_op="sum")
    with pytest.raises(InputError, match="was captured on 4 ranks, not 8"):
        graph.type(y, num_ranks=8)


@pytest.mark.parametrize(
    ("operator", "arguments", "statement"),
    [
        ("aten.rsub.Scalar", {"other": 1}, "y = 1 - x  [R]"),
        ("aten.neg.default", {}, "y = x * -1.0  [R]"),
        ("aten.rsqrt.default", {}, "y = 1.0 / Sqrt(x)  [R]"),
        ("aten.clamp.default", {"max": 1.0}, "y = Select(x > 1.0, 1.0, x)  [R]"),
        ("aten.relu.default", {}, "y = Select(x < 0.0, 0.0, x)  [R]"),
        ("aten.gelu.default", {}, "y = x * 0.5 * (Erf(x * 0.7071067811865476) + 1.0)  [R]"),
        ("aten.softplus.default", {}, "y = aten.softplus.default(x)  [R]"),
        ("aten.exp.default", {}, "y = Exp(x)  [R]"),
        ("aten.div.Tensor_mode", {"other": 2, "rounding_mode": "floor"},
         "y = aten.div.Tensor_mode(x)  [R]"),
    ],
)  # fmt: skip
def test_operator_becomes_a_statement(
    operator: str, arguments: dict[str, Any], statement: str
) -> None:
    graph = Graph()
    x = graph.input("x", 4, placement="R")
    y = graph.call(operator, "y", 4, self=x, **arguments)
    assert statement in text(graph.type(y).program).splitlines()


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("aten.slice.Tensor", {"end": "n"}),
        ("aten.narrow.default", {"start": 0, "length": "n"}),
        ("aten.permute.default", {"dims": ("n",)}),
    ],
)
def test_positions_that_a_value_gives_make_an_operator_opaque(
    operator: str, arguments: dict[str, Any]
) -> None:
    """Without this rule, the end of the dimension was taken, a wrong result."""
    graph = Graph()
    x = graph.input("x", 4, placement="R")
    n = graph.input("n", placement="R")
    entries = {
        name: tuple(map(Reference, value)) if isinstance(value, tuple) else value
        for name, value in arguments.items()
    }
    y = graph.call(operator, "y", 4, self=x, **entries)
    assert graph.type(y).program.by_name[y].kind is Kind.OPAQUE
    assert graph.type(y).program.by_name[y].reads == (x, n)


def test_a_transposed_scalar_with_dimensions_is_opaque() -> None:
    graph = Graph()
    y = graph.call("aten.permute.default", "y", self=graph.input("s", placement="R"), dims=(0,))
    assert graph.type(y).program.by_name[y].kind is Kind.OPAQUE


def test_a_collective_without_a_tensor_is_refused() -> None:
    graph = Graph()
    y = graph.collective("all_reduce", "y", "no tensor", 4, reduce_op="sum")
    with pytest.raises(InputError, match=r"y_.*reads 0 tensors, but has 1 results"):
        graph.type(y)


GRADIENTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tanh": ("tanh_backward", "output", {}),
    "sigmoid": ("sigmoid_backward", "output", {}),
    "silu": ("silu_backward", "self", {}),
    "relu": ("threshold_backward", "self", {"threshold": 0}),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_of_blocks_is_that_of_the_function(name: str) -> None:
    """Blocks along the last dimension stay blocks; the slope is that of a small difference."""
    operator, argument, more = GRADIENTS[name]
    graph = Graph()
    x = graph.input("x", 3, 2, placement="S(1)")
    gradient = graph.input("g", 3, 2, placement="S(1)")
    y = graph.call(f"aten.{name}.default", "y", 3, 2, self=x)
    read = y if argument == "output" else x
    more = {"grad_output": gradient, argument: read} | more
    slope = graph.call(f"aten.{operator}.default", "slope", 3, 2, **more)
    bound = graph.type(y, slope)
    assert layouts(bound, "y", "slope") == ["S_1", "S_1"]
    random = np.random.default_rng(0)
    values, step = [random.uniform(0.1, 1, (3, 2)) * (-1) ** rank for rank in range(RANKS)], 1e-3
    gradients = [random.uniform(-1, 1, (3, 2)).astype(np.float32) for _ in range(RANKS)]
    runs = [
        simulate_ranks(
            bound.program,
            bound.binding,
            {"x": [(one + shift).astype(np.float32) for one in values], "g": gradients},
        ).values
        for shift in (-step, 0, step)
    ]
    for rank in range(RANKS):
        difference = (runs[2]["y"][rank] - runs[0]["y"][rank]) / (2 * step)
        expected = difference * gradients[rank]
        np.testing.assert_allclose(runs[1]["slope"][rank], expected, atol=1e-3)


def test_document_is_read_as_a_workload(tmp_path: Any) -> None:
    from collhub_coconet.torch_programs.reading import list_archives, list_documents

    for source in (*list_documents(), *list_archives()):
        path = tmp_path / source.name
        path.write_bytes(source.content())
        workload = read_workload(path)
        assert workload.num_ranks == RANKS


def test_malformed_placement_option_is_refused() -> None:
    from collhub_coconet.torch_programs.reading import parse_placements

    assert parse_placements("w=R, x=S(0)") == {"w": "R", "x": "S(0)"}
    with pytest.raises(UsageError, match="placement 'w=X' is not understood"):
        parse_placements("w=X")
