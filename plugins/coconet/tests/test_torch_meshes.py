"""Captured graphs with several process groups: axes, layouts, values, and a captured model."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_captured_graphs import graph_from_json
from collhub_captured_graphs.graph import GraphOutput, OutputRole
from collhub_coconet import Kind, coalesce_by_size, compare, movable, reorder, split, statements
from collhub_coconet.documents.json_document import BoundProgram, bound_from_json, bound_to_json
from collhub_coconet.execution.ranks import simulate_ranks
from collhub_coconet.torch_programs.reading import (
    _DOCUMENT,
    parse_groups,
    parse_mesh,
    parse_placements,
)
from collhub_coconet.torch_programs.typing_graphs import TypingChoices, type_graph
from test_torch_programs import Graph

from hub_core.model import InputError, UsageError

MESH = {"dp": 2, "tp": 2}
DP, TP = {"group_name": "1"}, {"group_name": "0"}


def graph_of_mesh() -> Graph:
    """Graph of rank 0 of a mesh of 2 x 2: group 0 is tp, group 1 is dp."""
    graph = Graph()
    graph.groups = {"0": (0, 1), "1": (0, 2)}
    return graph


@pytest.mark.parametrize(
    ("groups", "mesh"),
    [
        ([(0, 1), (0, 2)], {"group_1": 2, "group_0": 2}),
        ([(0, 4), (0, 1, 2, 3)], {"group_0": 2, "group_1": 4}),
        ([(0, 1, 2, 3), (0, 1)], {"axis_0": 2, "group_1": 2}),
        ([(0, 2), (0, 1, 4, 5)], {"axis_0": 2, "group_0": 2, "axis_2": 2}),
        ([(6, 7), (3, 7)], {"group_1": 2, "axis_1": 2, "group_0": 2}),
    ],
)
def test_groups_become_axes(groups: list[tuple[int, ...]], mesh: dict[str, int]) -> None:
    graph = Graph()
    graph.groups = {str(number): ranks for number, ranks in enumerate(groups)}
    x = graph.input("x", 4, placement="L")
    for name in graph.groups:
        x = graph.collective("all_reduce", f"y{name}", x, 4, reduce_op="sum", group_name=name)
    bound = graph.type(x)
    assert dict(zip(bound.program.mesh, bound.binding.mesh, strict=True)) == mesh
    for operation, ranks in zip(bound.program.operations[::2], groups, strict=False):
        axes = [bound.program.mesh.index(axis) for axis in operation.axes or ()]
        assert [rank % bound.binding.num_ranks for rank in ranks] in bound.binding.subgroups(axes)


@pytest.mark.parametrize("groups", [[(0, 1), (0, 3)], [(0, 1, 2), (0, 1)], [(0, 1, 3), (0, 2)]])
def test_groups_of_no_mesh_are_refused(groups: list[tuple[int, ...]]) -> None:
    graph = Graph()
    graph.groups = {str(number): ranks for number, ranks in enumerate(groups)}
    x = graph.input("x", 6, placement="L")
    for name in graph.groups:
        x = graph.collective("all_reduce", f"y{name}", x, 6, reduce_op="sum", group_name=name)
    with pytest.raises(InputError, match=r"fit no mesh|no axes of"):
        graph.type(x)


def test_groups_without_ranks_need_their_axes() -> None:
    graph = graph_of_mesh()
    x = graph.input("x", 4, placement="L")
    y = graph.collective("all_reduce", "y", x, 4, reduce_op="sum", **TP)
    z = graph.collective("all_reduce", "z", y, 4, reduce_op="sum", **DP)
    graph.groups = {}
    with pytest.raises(InputError, match="groups 0 and 1, whose ranks are not stated"):
        graph.type(z)
    groups = parse_groups("0=tp,1=dp")
    bound = graph.type(z, mesh=parse_mesh("dp=4,tp=2"), groups=groups)
    assert bound.binding.num_ranks == 8
    assert statements(bound.program)[-1].endswith("AllReduce(+, y_, dp)  [(R, R)]")
    with pytest.raises(InputError, match="the mesh has no axis pp"):
        graph.type(z, mesh=MESH, groups={**groups, "1": ["pp"]})


@pytest.mark.parametrize("text", ["dp", "dp=0", "dp=2,dp=2", "=2"])
def test_malformed_mesh_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not understood"):
        parse_mesh(text)


def test_placements_name_every_axis() -> None:
    expected = {"w": "R", "x": "(S(0), R)", "y": "(L,S(1))"}
    assert parse_placements("w=R,x=(S(0), R),y=(L,S(1))") == expected
    graph = graph_of_mesh()
    x = graph.input("x", 4, placement="S(0)")
    y = graph.collective("all_reduce", "y", x, 4, reduce_op="sum", **TP)
    z = graph.collective("all_reduce", "z", y, 4, reduce_op="sum", **DP)
    with pytest.raises(InputError, match=r"input x has the placement 'S\(0\)'"):
        graph.type(z)


def build_layer() -> Graph:
    """Row-parallel layer, a gradient that is averaged over dp, and a state of row blocks."""
    graph = graph_of_mesh()
    x = graph.input("x", 6, 4, placement="(L, S(1))")
    w = graph.input("w", 4, 8, placement="(R, S(0))", role="parameter")
    m = graph.input("m", 2, 8, role="state")
    y = graph.call("aten.mm.default", "y", 6, 8, self=x, mat2=w)
    y = graph.collective("all_reduce", "r", y, 6, 8, reduce_op="sum", **TP)
    t = graph.call("aten.t.default", "t", 4, 6, self=x)
    g = graph.call("aten.mm.default", "g", 4, 8, self=t, mat2=y)
    a = graph.collective("reduce_scatter_tensor", "a", g, 2, 8, reduce_op="avg", group_size=2, **DP)
    m1 = graph.call("aten.add.Tensor", "m1", 2, 8, self=m, other=a, alpha=0.5)
    d = graph.collective("all_gather_into_tensor", "d", m1, 4, 8, group_size=2, **DP)
    w1 = graph.call("aten.sub.Tensor", "w1", 4, 8, self=w, other=d)
    square = graph.call("aten.mul.Tensor", "q", 4, 8, self=w1, other=w1)
    n = graph.call("aten.sum.default", "n", self=square)
    n = graph.collective("all_reduce", "norm", n, reduce_op="sum", **TP)
    graph.outputs += [GraphOutput(m1, OutputRole.MUTATION, "m"), GraphOutput(n, OutputRole.OUTPUT)]
    graph.outputs.append(GraphOutput(w1, OutputRole.MUTATION, "w"))
    return graph


def test_values_are_those_of_the_graph() -> None:
    """The program is executed on four ranks, and each step of the graph with numpy."""
    bound = build_layer().type(mesh=MESH)
    program, binding = bound.program, bound.binding
    assert [str(program.types[name].layout) for name in ("y", "r_", "w_updated")] == [
        "(L, P(sum))", "(L, R)", "(R, S_0)",
    ]  # fmt: skip
    draw = np.random.default_rng(0)
    x, w, m = (draw.random(shape, dtype=np.float32) for shape in ((4, 6, 4), (2, 4, 8), (4, 2, 8)))
    # Rank 2 i + j has the coordinates (i, j) on dp and tp.
    blocks = {"x": [*x], "w": [w[rank % 2] for rank in range(4)], "m": [*m]}
    run = simulate_ranks(program, binding, blocks)
    y = [x[rank] @ w[rank % 2] for rank in range(4)]
    y = [y[rank] + y[rank ^ 1] for rank in range(4)]
    g = [x[rank].T @ y[rank] for rank in range(4)]
    mean = [(g[rank] + g[rank ^ 2]) / 2 for rank in range(4)]
    m1 = [m[rank] + 0.5 * mean[rank][rank // 2 * 2 :][:2] for rank in range(4)]
    d = [np.concatenate([m1[rank % 2], m1[rank % 2 + 2]]) for rank in range(4)]
    w1 = [w[rank % 2] - d[rank] for rank in range(4)]
    norm = [(w1[rank] ** 2).sum() + (w1[rank ^ 1] ** 2).sum() for rank in range(4)]
    for name, expected in {"w_updated": w1, "m1": m1, "norm_": norm}.items():
        np.testing.assert_allclose(run.values[name], expected, rtol=1e-5)


def test_document_of_a_mesh_is_read(tmp_path: Path) -> None:
    bound = build_layer().type(mesh=MESH)
    again = bound_from_json(bound_to_json(bound).encode(), "")
    assert again.program.operations == bound.program.operations
    mesh = '"groups": {"0": [0, 1]}, "mesh": ["dp", "tp"], "mesh_sizes": [2, 2]'
    document = _DOCUMENT.replace('"groups": {"0": [0, 1, 2, 3]}', mesh)
    document = document.replace('"placement": "L"', '"placement": "(S(0), L)"')
    program = type_graph(graph_from_json(document.encode(), ""), TypingChoices()).program
    assert program.mesh == ("dp", "tp")
    assert next(one.axes for one in program.operations if one.kind is Kind.ALL_REDUCE) == ("tp",)


def test_random_operator_differs_on_all_axes() -> None:
    graph = graph_of_mesh()
    x = graph.input("x", 4, placement="R")
    y = graph.call("custom.twist.default", "y", 4, self=x)
    assert str(graph.type(y, mesh=MESH).program.types["y"].layout) == "(L, L)"


@pytest.fixture(scope="module")
def model() -> Iterator[tuple[Any, Any]]:
    """Two layers with tensor parallelism on a mesh of 2 x 2 ranks, of which rank 0 is traced."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch_ranks import build_gpt

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    yield build_gpt(mesh), mesh
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_captured_gpt_is_typed_and_transformed_equally(
    model: tuple[Any, Any], tmp_path: Path
) -> None:
    """Forward and backward pass and AdamW; the collectives are those of Megatron's layers."""
    import torch
    from collhub_pytorch import capture

    gpt, mesh = model
    words = torch.zeros(2, 8, dtype=torch.int64)
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-3)
    path = tmp_path / "gpt.graph.json"
    graph = capture(
        gpt, (words, words), mesh, loss=lambda loss: loss, optimizer=optimizer,
        data_parallel="dp", path=path,
    )  # fmt: skip
    assert graph_from_json(path.read_bytes(), "") == graph
    placements = {"input_0": "(L, R)", "input_1": "(L, R)"}
    bound: BoundProgram = type_graph(graph, TypingChoices(placements=placements))
    program = bound.program
    count = len(list(gpt.parameters()))
    collectives = [one for one in program.operations if one.is_communication]
    # Two per layer forward and two backward on tp; one gradient per parameter on dp.
    assert Counter(one.axes for one in collectives) == {("dp",): count, ("tp",): 8}
    assert len(program.states) == 3 * count + 1
    assert str(program.types["blocks_0_down_weight_updated"].layout) == "(R, S_1)"
    moved = program
    for one in [one for one in collectives if one.axes == ("dp",)][:6]:
        moved = split(moved, one.name, 0).program
        moved = reorder(moved, one.name, movable(moved, one.name)).program
    assert compare(program, moved, bound.binding).differences == ()
    joined = coalesce_by_size(program, bound.binding, 1 << 20).program
    assert compare(program, joined, bound.binding).differences == ()
