"""Captured graphs with several process groups: axes, layouts, values, and a captured model."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from math import erf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from collhub_captured_graphs import graph_from_json
from collhub_captured_graphs.graph import (
    ElementName,
    GraphNode,
    GraphOutput,
    OutputRole,
    Reference,
    Tensor,
)
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


@pytest.mark.parametrize(
    ("groups", "mesh", "message"),
    [
        ([(0, 1), (0, 10**12)], {}, "the graph has 2000000000000 ranks, 2 to 65536 are read"),
        ([(0, 1), (0, 2)], {"dp": 10**6, "tp": 10**6}, "ranks, 2 to 65536 are read"),
        ([(0, 1), ()], {}, r"has ranks \[\], no axes of a mesh"),
        ([(0, 1), ()], MESH, r"has ranks \[\], no axes of the mesh dp 2 x tp 2"),
        ([(0, 0), (0, 1)], {}, r"has ranks \[0, 0\], no axes of a mesh"),
    ],
)
def test_impossible_groups_are_refused(
    groups: list[tuple[int, ...]], mesh: dict[str, int], message: str
) -> None:
    graph = Graph()
    graph.groups = {str(number): ranks for number, ranks in enumerate(groups)}
    x = graph.input("x", 6, placement="L")
    for name in graph.groups:
        x = graph.collective("all_reduce", f"y{name}", x, 6, reduce_op="sum", group_name=name)
    with pytest.raises(InputError, match=message):
        graph.type(x, mesh=mesh)


def test_mesh_of_one_axis_has_its_name() -> None:
    graph = Graph()
    x = graph.input("x", 4, placement="R")
    y = graph.collective("all_reduce", "y", x, 4, reduce_op="avg")
    bound = graph.type(y, mesh={"dp": 4})
    assert (bound.program.mesh, bound.binding.num_ranks) == (("dp",), 4)
    assert statements(bound.program)[-1] == "y_ = AllReduce(+, view(x), dp) / 4.0  [R]"
    array = np.arange(4, dtype=np.float32)
    values = simulate_ranks(bound.program, bound.binding, {"x": [array] * 4}).values
    np.testing.assert_array_equal(values["y_"][0], array)


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


@pytest.mark.parametrize("text", ["dp", "dp=0", "dp=2,dp=2", "=2", "dp=" + "1" * 5000])
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


GROUPS = {"0": (0, 1), "1": (0, 2), "2": (0, 1, 2, 3)}


def gelu(x: Any, form: str) -> Any:
    """GELU in float64: with the error function, or with tanh."""
    if form == "tanh":
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x / 2 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


class RandomRun:
    """Random graph of rank 0 with its values on four ranks, computed step by step with numpy.

    `is_extended`: with lists, parts, tables, masks, reductions and gradients, too.
    """

    def __init__(self, seed: int, *, is_extended: bool = False) -> None:
        self.is_extended = is_extended
        self.draw = Random(seed)
        self.random = np.random.default_rng(seed)
        self.graph = graph_of_mesh()
        self.graph.groups = dict(GROUPS)
        self.arguments: dict[str, list[Any]] = {}
        self.values: dict[str, list[Any]] = {}
        for number in range(4):
            placements = [self.draw.choice(["R", "L", "S(0)", "S(1)"]) for _ in range(2)]
            name = self.graph.input(f"x{number}", 4, 4, placement=f"({', '.join(placements)})")
            distinct = self.random.uniform(-1, 1, (2, 2, 4, 4)).astype(np.float32)
            # Ranks have equal values on an axis where a value is replicated.
            index = [
                [coordinate * (placement != "R") for coordinate, placement in
                 zip(divmod(rank, 2), placements, strict=True)]
                for rank in range(4)
            ]  # fmt: skip
            self.arguments[name] = [distinct[i, j] for i, j in index]
        self.values |= self.arguments

    def members(self, group: str, rank: int) -> list[int]:
        """Ranks of the group of a rank that has this name on it."""
        match group:
            case "0":
                return [rank // 2 * 2, rank // 2 * 2 + 1]
            case "1":
                return [rank % 2, rank % 2 + 2]
        return [0, 1, 2, 3]

    def add(self, number: int) -> None:
        """Add a random node; values are square matrices of 4 rows."""
        kinds = ["unary", "binary", "mm", "t", "view", *["group"] * 3]
        if self.is_extended:
            kinds += ["parts", "list", "rows", "batches", "table", "mask", "gradient"]
        name, kind = f"n{number}", self.draw.choice(kinds)
        x, y = (self.draw.choice([*self.values]) for _ in range(2))
        a, b = self.values[x], self.values[y]
        call = self.graph.call
        if kind == "unary":
            call("aten.tanh.default", name, 4, 4, self=x)
            self.values[name] = [np.tanh(one) for one in a]
        elif kind == "binary":
            operator = self.draw.choice(["add", "mul"])
            call(f"aten.{operator}.Tensor", name, 4, 4, self=x, other=y)
            function = np.add if operator == "add" else np.multiply
            self.values[name] = [function(one, two) for one, two in zip(a, b, strict=True)]
        elif kind == "view":
            shape = self.draw.choice([(2, 2, 4), (4, 2, 2), (16,), (2, 2, 2, 2), (8, 2), (4, 1, 4)])
            call("aten.view.default", f"{name}_v", *shape, self=x, size=shape)
            call("aten.tanh.default", f"{name}_t", *shape, self=f"{name}_v")
            call("aten.view.default", name, 4, 4, self=f"{name}_t", size=(4, 4))
            self.values[name] = [np.tanh(one) for one in a]
        elif kind == "mm":
            call("aten.mm.default", name, 4, 4, self=x, mat2=y)
            self.values[name] = [one @ two for one, two in zip(a, b, strict=True)]
        elif kind == "t":
            call("aten.t.default", name, 4, 4, self=x)
            self.values[name] = [one.T for one in a]
        elif kind == "group":
            self.add_collectives(name, x, a)
        else:
            self.values[name] = getattr(self, f"add_{kind}")(name, x, y, a, b)

    def add_parts(self, name: str, x: str, y: str, a: list[Any], b: list[Any]) -> list[Any]:
        """Cut along a dimension, in one of four ways, and join in the other order."""
        call, axis = self.graph.call, self.draw.randrange(2)
        shape = (2, 4) if axis == 0 else (4, 2)
        first, last = f"{name}_a", f"{name}_b"
        kind = self.draw.choice(["split", "slice", "unbind", "select"])
        if kind in ("split", "slice"):
            if kind == "split":
                operator = self.draw.choice(["split.Tensor", "split_with_sizes.default"])
                sizes = {"split_size": 2} if operator == "split.Tensor" else {"split_sizes": (2, 2)}
                parts = (Tensor(first, "float32", shape), Tensor(last, "float32", shape))
                arguments: dict[str, Any] = {"self": Reference(x), **sizes, "dim": axis}
                self.graph.nodes.append(GraphNode(name, f"aten.{operator}", arguments, parts))
            else:
                for part, start in ((first, 0), (last, 2)):
                    end = start + 2
                    call("aten.slice.Tensor", part, *shape, self=x, dim=axis, start=start, end=end)
            tensors = (Reference(last), Reference(first))
            call("aten.cat.default", f"{name}_c", 4, 4, tensors=tensors, dim=axis - 2)
            call("aten.mul.Tensor", name, 4, 4, self=f"{name}_c", other=y)
            return [np.roll(one, 2, axis) * two for one, two in zip(a, b, strict=True)]
        rows = [f"{name}_{row}" for row in range(4)]
        if kind == "unbind":
            parts = tuple(Tensor(row, "float32", (4,)) for row in rows)
            arguments = {"self": Reference(x), "dim": axis}
            self.graph.nodes.append(GraphNode(name, "aten.unbind.int", arguments, parts))
        else:
            for row, part in enumerate(rows):
                call("aten.select.int", part, 4, self=x, dim=axis, index=row - 4)
        tensors = tuple(Reference(row) for row in rows)
        stacked = self.draw.randrange(2)
        call("aten.stack.default", f"{name}_c", 4, 4, tensors=tensors, dim=stacked)
        call("aten.mul.Tensor", name, 4, 4, self=f"{name}_c", other=y)
        turned = [one if axis == stacked else one.T for one in a]
        return [one * two for one, two in zip(turned, b, strict=True)]

    def add_list(self, name: str, x: str, y: str, a: list[Any], b: list[Any]) -> list[Any]:
        """Apply an operator of lists; both results are used."""
        parts = tuple(Tensor(f"{name}_{part}", "float32", (4, 4)) for part in "ab")
        lists = {"self": (Reference(x), Reference(y)), "other": (Reference(y), Reference(x))}
        operator = self.draw.choice(["add", "mul", "maximum"])
        node = GraphNode(f"{name}_l", f"aten._foreach_{operator}.List", lists, parts)
        self.graph.nodes.append(node)
        self.graph.call("aten.add.Tensor", name, 4, 4, self=f"{name}_a", other=f"{name}_b", alpha=2)
        functions: dict[str, Any] = {"add": np.add, "mul": np.multiply, "maximum": np.maximum}
        return [3 * functions[operator](one, two) for one, two in zip(a, b, strict=True)]

    def add_rows(self, name: str, x: str, y: str, a: list[Any], b: list[Any]) -> list[Any]:
        """Center rows or columns by their sum, mean or maximum."""
        axis, kind = self.draw.randrange(2), self.draw.choice(["sum", "mean", "amax"])
        shape = (1, 4) if axis == 0 else (4, 1)
        operator = {"sum": "sum.dim_IntList", "mean": "mean.dim", "amax": "amax.default"}[kind]
        self.graph.call(f"aten.{operator}", f"{name}_r", *shape, self=x, dim=(axis,), keepdim=True)
        self.graph.call("aten.sub.Tensor", name, 4, 4, self=y, other=f"{name}_r")
        reduce: Any = {"sum": np.sum, "mean": np.mean, "amax": np.max}[kind]
        return [two - reduce(one, axis=axis, keepdims=True) for one, two in zip(a, b, strict=True)]

    def add_batches(self, name: str, x: str, y: str, a: list[Any], b: list[Any]) -> list[Any]:
        """Permute batches of matrices, multiply and add them, and permute back."""
        call, order = self.graph.call, self.draw.choice([(1, 0, 2), (0, 2, 1), (2, 0, 1)])
        for part, operand in (("x", x), ("y", y)):
            call("aten.view.default", f"{name}_{part}", 4, 2, 2, self=operand, size=(4, 2, 2))
            sizes = [(4, 2, 2)[axis] for axis in order]
            operand = f"{name}_{part}"
            call("aten.permute.default", f"{operand}p", *sizes, self=operand, dims=order)
        x, y, turned = f"{name}_xp", f"{name}_yp", [sizes[0], sizes[2], sizes[1]]
        call("aten.transpose.int", f"{name}_t", *turned, self=y, dim0=-1, dim1=1)
        square = (*sizes[:2], sizes[1])
        call("aten.bmm.default", f"{name}_m", *square, self=x, mat2=f"{name}_t")
        call(
            "aten.baddbmm.default", f"{name}_b", *sizes, self=x, batch1=f"{name}_m", batch2=y,
            beta=0.5, alpha=2,
        )  # fmt: skip
        call("aten.view.default", name, 4, 4, self=f"{name}_b", size=(4, 4))
        results = []
        for one, two in zip(a, b, strict=True):
            p, q = (entry.reshape(4, 2, 2).transpose(order) for entry in (one, two))
            product = p @ q.transpose(0, 2, 1)
            results.append((0.5 * p + 2 * product @ q).reshape(4, 4))
        return results

    def add_table(self, name: str, x: str, y: str, a: list[Any], b: list[Any]) -> list[Any]:
        """Look rows up by the place of the largest elements, or add up the rows of equal places."""
        call = self.graph.call
        call("aten.mul.Scalar", f"{name}_h", 4, 4, self=x, other=0.0)
        call("aten.lt.Scalar", f"{name}_z", 4, 4, element="bool", self=f"{name}_h", other=1.0)
        call(
            "aten._to_copy.default",
            f"{name}_j",
            4,
            4,
            element="int64",
            self=f"{name}_z",
            dtype=ElementName("int64"),
        )
        call("aten.select.int", f"{name}_i", 4, element="int64", self=f"{name}_j", dim=1, index=0)
        if self.draw.random() < 0.5:
            call("aten.embedding.default", name, 4, 4, weight=y, indices=f"{name}_i")
            return [np.repeat(two[1:2], 4, 0) for two in b]
        call(
            "aten.embedding_dense_backward.default", name, 4, 4, grad_output=y,
            indices=f"{name}_i", num_weights=4, padding_idx=-1, scale_grad_by_freq=False,
        )  # fmt: skip
        return [np.eye(4, dtype=np.float32)[[1]].T * two.sum(0) for two in b]

    def add_mask(self, name: str, x: str, y: str, a: list[Any], b: list[Any]) -> list[Any]:
        """Combine comparisons, and choose by them."""
        call, less = self.graph.call, self.draw.choice(["le", "ge", "ne", "gt"])
        joined = self.draw.choice(["logical_and", "logical_or"])
        call(f"aten.{less}.Tensor", f"{name}_p", 4, 4, element="bool", self=x, other=y)
        call("aten.lt.Scalar", f"{name}_q", 4, 4, element="bool", self=y, other=0.0)
        parts = {"self": f"{name}_p", "other": f"{name}_q"}
        call(f"aten.{joined}.default", f"{name}_m", 4, 4, element="bool", **parts)
        call("aten.logical_not.default", f"{name}_n", 4, 4, element="bool", self=f"{name}_m")
        call("aten.where.self", name, 4, 4, condition=f"{name}_n", self=x, other=y)
        compare = {"le": np.less_equal, "ge": np.greater_equal, "ne": np.not_equal}
        function: Any = compare.get(less, np.greater)
        join = np.logical_and if joined == "logical_and" else np.logical_or
        return [
            np.where(join(function(one, two), two < 0), two, one)
            for one, two in zip(a, b, strict=True)
        ]

    def add_gradient(self, name: str, x: str, y: str, a: list[Any], b: list[Any]) -> list[Any]:
        """GELU, or its gradient, in one of two forms."""
        form = self.draw.choice(["none", "tanh"])
        more = {"approximate": form}
        is_gradient = self.draw.random() < 0.5
        operator = "gelu_backward" if is_gradient else "gelu"
        more |= {"grad_output": y} if is_gradient else {}
        self.graph.call(f"aten.{operator}.default", name, 4, 4, self=x, **more)
        results = []
        for one, two in zip(a, b, strict=True):
            wide, step = one.astype(np.float64), 1e-5
            value = gelu(wide, form)
            if is_gradient:
                value = two * (gelu(wide + step, form) - gelu(wide - step, form)) / (2 * step)
            results.append(value.astype(np.float32))
        return results

    def add_collectives(self, name: str, x: str, a: list[Any]) -> None:
        """Add a collective, or a gather and a scatter, which have other shapes in between."""
        group = self.draw.choice([*GROUPS])
        size = len(GROUPS[group])
        more: dict[str, Any] = {"group_name": group}
        parts = [[a[member] for member in self.members(group, rank)] for rank in range(4)]
        reduction = self.draw.choice(["sum", "avg", "max"])
        functions: dict[str, Any] = {"sum": np.sum, "avg": np.mean, "max": np.max}
        reduce = functions[reduction]
        if self.draw.random() < 0.5:
            self.graph.collective("all_reduce", name, x, 4, 4, reduce_op=reduction, **more)
            self.values[name] = [reduce(np.stack(one), axis=0) for one in parts]
            return
        more |= {"group_size": size}
        first, last = "all_gather_into_tensor", "reduce_scatter_tensor"
        if self.draw.random() < 0.5:
            self.graph.collective(first, f"{name}_g", x, 4 * size, 4, **more)
            self.graph.collective(last, name, f"{name}_g", 4, 4, reduce_op=reduction, **more)
            self.values[name] = a if reduction != "sum" else [one * size for one in a]
            return
        self.graph.collective(last, f"{name}_s", x, 4 // size, 4, reduce_op=reduction, **more)
        self.graph.collective(first, name, f"{name}_s", 4, 4, **more)
        self.values[name] = [reduce(np.stack(one), axis=0) for one in parts]


def check_random_graph(seed: int, *, is_extended: bool = False) -> set[str]:
    """Compare a random graph with its program on every rank; return the names of its kinds."""
    expected = RandomRun(seed, is_extended=is_extended)
    for number in range(12):
        expected.add(number)
    names = [name for name in expected.values if name not in expected.arguments][-6:]
    for name in names:
        # A name of its own, since equal outputs are one output of the program.
        expected.graph.call("aten.mul.Scalar", f"out_{name}", 4, 4, self=name, other=2.0)
    bound = expected.graph.type(*(f"out_{name}" for name in names), mesh=MESH)
    run = simulate_ranks(bound.program, bound.binding, expected.arguments)
    for output, name in zip(bound.program.outputs, names, strict=True):
        for rank in range(4):
            value = 2 * expected.values[name][rank]
            scale = np.abs(value).max() + 1e-6
            error = np.abs(run.values[output][rank] - value).max() / scale
            assert error < 1e-3 or not np.isfinite(scale), (name, rank)
    again = bound_from_json(bound_to_json(bound).encode(), "")
    assert again.program.types == bound.program.types
    return {str(one.kind) for one in bound.program.operations}


@pytest.mark.parametrize(
    "seed", [*range(40), *(pytest.param(n, marks=pytest.mark.slow) for n in range(40, 400))]
)
def test_random_graphs_on_a_mesh_compute_the_values_of_each_rank(seed: int) -> None:
    """Layouts never change a value: the program equals the graph on every rank."""
    check_random_graph(seed)


def test_heads_of_tensor_parallel_attention_stay_sharded() -> None:
    """Column-parallel projections, attention, a row-parallel projection: one all-reduce."""
    graph = graph_of_mesh()
    x = graph.input("x", 10, 8, placement="(S(0), R)")
    heads = []
    for name in ("q", "k", "v"):
        w = graph.input(f"w{name}", 8, 8, placement="(R, S(1))")
        y = graph.call("aten.mm.default", f"{name}1", 10, 8, self=x, mat2=w)
        y = graph.call("aten.view.default", f"{name}2", 2, 5, 2, 4, self=y, size=(2, 5, 2, 4))
        heads.append(
            graph.call("aten.transpose.int", f"{name}3", 2, 2, 5, 4, self=y, dim0=1, dim1=2)
        )
    names = dict(zip(("query", "key", "value"), heads, strict=True))
    fused = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    y = graph.call(fused, "a", 2, 2, 5, 4, **names)
    y = graph.call("aten.transpose.int", "a1", 2, 5, 2, 4, self=y, dim0=1, dim1=2)
    y = graph.call("aten.view.default", "a2", 10, 8, self=y, size=(10, 8))
    w = graph.input("wo", 8, 8, placement="(R, S(0))")
    y = graph.call("aten.mm.default", "o", 10, 8, self=y, mat2=w)
    y = graph.collective("all_reduce", "r", y, 10, 8, reduce_op="sum", **TP)
    program = graph.type(y, mesh=MESH).program
    layouts = [str(program.types[name].layout) for name in ("q3", "a", "o", "r_")]
    assert layouts == ["(S_0, S_1)", "(S_0, S_1)", "(S_0, P(sum))", "(S_0, R)"]


def test_indices_of_an_embedding_count_in_the_block_of_a_rank() -> None:
    """A Gather of a table in blocks of rows would count in the complete table."""
    graph = graph_of_mesh()
    table = graph.input("table", 4, 3, placement="(S(0), S(1))")
    ids = graph.input("ids", 2, placement="R")
    cast = {"self": ids, "dtype": ElementName("int64")}
    ids = graph.call("aten._to_copy.default", "i", 2, element="int64", **cast)
    y = graph.call("aten.embedding.default", "y", 2, 3, weight=table, indices=ids)
    bound = graph.type(y, mesh=MESH)
    assert str(bound.program.types[bound.program.outputs[0]].layout) == "(L, L)"
    tables = [np.full((4, 3), rank, np.float32) for rank in range(4)]
    arguments = {"table": tables, "ids": [np.ones(2, np.float32)] * 4}
    values = simulate_ranks(bound.program, bound.binding, arguments).values
    for rank, value in enumerate(values[bound.program.outputs[0]]):
        np.testing.assert_array_equal(value, tables[rank][:2])


EXTENDED_KINDS = {
    *("Part", "Concat", "Permute", "Gather", "Scatter", "BatchMatMul", "Erf", "RowReduce"),
    *("Select", "Equal", "Less", "Greater"),
}


@pytest.mark.once
def test_random_graphs_with_all_typed_operators_compute_the_values_of_each_rank() -> None:
    kinds = set[str]().union(*(check_random_graph(seed, is_extended=True) for seed in range(40)))
    assert kinds >= EXTENDED_KINDS


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 2000, 200))
def test_two_thousand_random_graphs_compute_the_values_of_each_rank(start: int) -> None:
    for seed in range(start, start + 200):
        check_random_graph(seed, is_extended=True)


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


@pytest.mark.filterwarnings("ignore")
def test_dtensors_of_two_axes_have_their_layouts(model: tuple[Any, Any], tmp_path: Path) -> None:
    """A weight in blocks along both axes is gathered over dp, as FSDP with tensor parallelism."""
    import torch
    from collhub_pytorch import capture
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    _, mesh = model

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            up = distribute_tensor(torch.randn(8, 16), mesh, [Shard(0), Shard(1)])
            down = distribute_tensor(torch.randn(16, 8), mesh, [Replicate(), Shard(0)])
            self.up, self.down = torch.nn.Parameter(up), torch.nn.Parameter(down)

        def forward(self, x: Any) -> Any:
            up: Any = self.up
            y: Any = torch.tanh(x @ up.redistribute(mesh, [Replicate(), Shard(1)])) @ self.down
            assert y.placements == (Shard(0), Partial("sum"))
            return y.redistribute(mesh, [Shard(0), Replicate()])

    x = distribute_tensor(torch.randn(12, 8), mesh, [Shard(0), Replicate()])
    graph = capture(Layers(), (x,), mesh, path=tmp_path / "layers.graph.json")
    bound = type_graph(graph, TypingChoices())
    assert statements(bound.program) == [
        "all_gather_into_tensor = AllGather(up, dp)  [(R, S_1)]",
        "mm = MatMul(input_0, all_gather_into_tensor)  [(S_0, S_1)]",
        "mm_1 = MatMul(Tanh(mm), down)  [(S_0, P(sum))]",
        "all_reduce = AllReduce(+, mm_1, tp)  [(S_0, R)]",
    ]
    assert [str(one.type) for one in bound.program.arguments] == [
        "float32[8, 16] (S_0, S_1)", "float32[16, 8] (R, S_0)", "float32[12, 8] (S_0, R)",
    ]  # fmt: skip
