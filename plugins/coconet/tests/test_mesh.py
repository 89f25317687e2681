"""Meshes of several axes: types by axis, refusals, execution, documents, workloads and times."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from collhub_coconet import (
    LOCAL,
    REPLICATED,
    Binding,
    Layout,
    Program,
    ProgramBuilder,
    RefusedMoveError,
    Value,
    all_gather,
    all_reduce,
    all_to_all,
    as_slice,
    at_root,
    broadcast,
    compare,
    matmul,
    movable,
    norm,
    on_mesh,
    partial,
    program_from_json,
    program_to_json,
    reduce,
    reduce_scatter,
    reorder,
    send,
    slice_of,
    sliced,
    split,
    tanh,
    text,
    update,
)
from collhub_coconet.documents.from_workload import extract_program
from collhub_coconet.documents.json_document import bind_sizes, bound_from_json
from collhub_coconet.execution.array_operations import collect, distribute
from collhub_coconet.execution.comparison import draw_arguments
from collhub_coconet.execution.ranks import simulate_ranks
from collhub_coconet.execution.running import execute
from collhub_coconet.lowering.flat import flatten
from collhub_coconet.lowering.timing import Machine, makespan
from collhub_coconet.lowering.workload import lower
from collhub_coconet.search.explore import count_uneven_values

import hub_core
from hub_core.model import InputError, JobCollective

S0, S1, R, P = sliced(0), sliced(1), REPLICATED, partial("sum")


class Names:
    """Tensors of shape [B, S]; `x(dp=..., tp=...)` declares one with these layouts."""

    def __init__(self) -> None:
        self.build = ProgramBuilder("mesh", ("dp", "tp"), B=(1, 64), S=(1, 64), H=(1, 64))
        self._count = 0

    def x(self, dp: Layout = R, tp: Layout = R, shape: tuple[str, ...] = ("B", "S")) -> Value:
        self._count += 1
        layout = {"dp": dp, "tp": tp}
        return self.build.argument(f"x{self._count}", "float32", *shape, layout=layout)


LEGAL: list[tuple[Callable[[Names], Value], str]] = [
    (lambda n: all_reduce(n.x(tp=P), axes="tp"), "(R, R)"),
    (lambda n: all_reduce(n.x(S0, P), axes="tp"), "(S_0, R)"),
    (lambda n: all_reduce(n.x(P, P), axes=("dp", "tp")), "(R, R)"),
    (lambda n: reduce_scatter(n.x(S0, P), 0, axes="tp"), "(S_0, S_0)"),
    (lambda n: reduce_scatter(n.x(P, P), 1, axes=("tp", "dp")), "(S_1, S_1)"),
    (lambda n: all_gather(n.x(S0, S0), axes="tp"), "(S_0, R)"),
    (lambda n: all_gather(n.x(S0, S0), axes=("dp", "tp")), "(R, R)"),
    (lambda n: all_gather(n.x(S0, S1), axes="dp"), "(R, S_1)"),
    (lambda n: all_to_all(n.x(S0, S0), 1, axes="tp"), "(S_0, S_1)"),
    (lambda n: slice_of(n.x(S0), 0, axes="tp"), "(S_0, S_0)"),
    (lambda n: send(n.x(S0, S1)), "(S_0, S_1)"),
    (lambda n: reduce(n.x(S0, P), 1, axes="tp"), "(S_0, @1)"),
    (lambda n: broadcast(reduce(n.x(S0, P), 1, axes="tp"), 1, axes="tp"), "(S_0, R)"),
    (lambda n: n.x(S0, S1) + n.x(S0), "(S_0, S_1)"),
    (lambda n: n.x(S0, S0) * n.x(S0), "(S_0, S_0)"),
    (lambda n: n.x(R, P) + n.x(R, P), "(R, P(sum))"),
    (lambda n: n.x(S0, P) * n.x(S0), "(S_0, P(sum))"),
    (lambda n: matmul(n.x(S0, S1), n.x(R, S0, ("S", "H"))), "(S_0, P(sum))"),
    (lambda n: matmul(n.x(S0), n.x(R, S1, ("S", "H"))), "(S_0, S_1)"),
    (lambda n: matmul(n.x(P, R), n.x(R, P, ("S", "H"))), "(P(sum), P(sum))"),
    (lambda n: norm(n.x(S0, S1)), "(R, R)"),
    (lambda n: norm(n.x(S0, LOCAL)), "(R, L)"),
]

ILLEGAL: list[tuple[Callable[[Names], Value], str]] = [
    (lambda n: all_reduce(n.x(tp=P)), "AllReduce names no axis of the mesh; axes of the mesh: dp"),
    (lambda n: all_reduce(n.x(tp=P), axes="ep"), "the mesh has no axis ep"),
    (lambda n: all_reduce(n.x(tp=P), axes=("tp", "tp")), "axis tp twice"),
    (lambda n: all_reduce(n.x(tp=P), axes="dp"), "on axis dp: a local operand is expected"),
    (lambda n: all_reduce(n.x(tp=P), "max", axes="tp"), r"is P\(sum\), which max does not reduce"),
    (lambda n: tanh(n.x(tp=P)), r"on axis tp: x1 is P\(sum\), a partial result, and Tanh"),
    (lambda n: n.x(tp=P) * n.x(tp=P), "a partial result, and Multiply reads full values"),
    (lambda n: n.x(tp=P) + 1.0, "a partial result, and Add reads full values"),
    (lambda n: matmul(n.x(tp=P), n.x(R, P, ("S", "H"))), "a partial result, and MatMul"),
    (lambda n: all_gather(n.x(S0, S0), axes="dp"), "axis tp cuts the blocks of dp again"),
    (lambda n: slice_of(n.x(R, S0), 0, axes="dp"), "axis tp cuts the blocks of dp again"),
    (lambda n: n.x(S0, S0) + n.x(R, S0), "is not sliced along axis dp, but along tp"),
    (lambda n: all_gather(n.x(S0, S1), axes=("dp", "tp")), "the axes slice different dimensions"),
    (lambda n: reduce(n.x(P, P), axes=("dp", "tp")), "a root on one axis, not on several"),
    (lambda n: reduce(n.x(S0, P), 1, axes="tp") * 2.0, "on axis tp: _1 is valid on root 1 only"),
    (lambda n: all_reduce(reduce(n.x(tp=P), axes="tp"), axes="tp"), "is valid on root 0 only"),
    (lambda n: broadcast(reduce(n.x(tp=P), axes="tp"), 1, axes="tp"), "is valid on root 0 only"),
    (lambda n: n.x(S0, R) + n.x(S1, R), "on axis dp: operands are sliced along different"),
]


@pytest.mark.parametrize(("make", "layout"), LEGAL)
def test_types_follow_the_table_on_every_axis(make: Callable[[Names], Value], layout: str) -> None:
    assert str(make(Names()).type.layout) == layout


@pytest.mark.parametrize(("make", "message"), ILLEGAL, ids=[text for _, text in ILLEGAL])
def test_illegal_layouts_on_an_axis_are_refused(
    make: Callable[[Names], Value], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make(Names())
    assert caught.value.diagnostics[0].cure


def test_layout_of_an_argument_must_fit_the_mesh() -> None:
    build = ProgramBuilder("p", ("dp", "tp"))
    with pytest.raises(InputError, match="the mesh has no axis ep; axes of the mesh: dp, tp"):
        build.argument("x", "float32", 4, layout={"ep": S0})
    with pytest.raises(InputError, match="two reductions, whose order is open"):
        build.argument("x", "float32", 4, layout={"dp": P, "tp": partial("max")})
    with pytest.raises(InputError, match="is one of 3 axes; state one layout for each axis: dp"):
        build.argument("y", "float32", 4, layout=on_mesh(S0, R, R))


def test_slices_of_two_axes_nest_with_empty_blocks() -> None:
    kind = Names().x(S0, S0).type
    binding = Binding.of_mesh((2, 3), {"B": 5, "S": 1})
    assert [binding.bounds(kind, rank)[0] for rank in range(6)] == [
        *((0, 1), (1, 2), (2, 3)), *((3, 4), (4, 5), (5, 5)),
    ]  # fmt: skip
    whole = np.arange(5.0).reshape(5, 1)
    np.testing.assert_array_equal(collect(distribute(whole, kind, binding), kind, binding), whole)


@pytest.mark.parametrize(("size", "count"), [(6, 0), (3, 1), (4, 1), (5, 1)])
def test_a_value_is_uneven_if_an_axis_does_not_divide_the_block_of_the_one_before(
    size: int, count: int
) -> None:
    build = ProgramBuilder("one", ("dp", "tp"), B=(1, 64))
    x = build.argument("x", "float64", "B", 6, layout={"dp": S0, "tp": S0})
    program = build.program(all_gather(x, axes=("dp", "tp")).named("y"))
    assert count_uneven_values(program, Binding.of_mesh((2, 3), {"B": size})) == count


def product(narrow: str = "float64") -> Program:
    """Column- and row-parallel products of a batch, then the gradient-like sum over the batch."""
    build = ProgramBuilder("product", ("dp", "tp"), B=(1, 64))
    x = build.argument("x", narrow, "B", 6, layout={"dp": S0})
    w = build.argument("w", narrow, 6, 5, layout={"tp": S1})
    v = build.argument("v", narrow, 5, 6, layout={"tp": S0})
    state = build.state("t", narrow, "B", 6, layout={"dp": S0})
    y = all_reduce(matmul(tanh(matmul(x, w)), v), axes="tp").named("y")
    z = (tanh(y) + x).named("z")
    return build.program(update(state, z).named("new"), norm(z).named("length"))


@pytest.mark.parametrize("mesh", [(2, 3), (3, 2), (1, 4), (4, 1)])
def test_execution_on_a_mesh_equals_dense_arrays(mesh: tuple[int, int]) -> None:
    program, binding = product(), Binding.of_mesh(mesh, {"B": 5})
    data = draw_arguments(program, binding, 1)
    arguments = {
        one.name: distribute(data[one.name], one.type, binding) for one in program.arguments
    }
    run = simulate_ranks(program, binding, arguments)
    x, w, v = data["x"], data["w"], data["v"]
    z = np.tanh(np.tanh(x @ w) @ v) + x
    np.testing.assert_allclose(collect(run.values["z"], program.types["z"], binding), z, 1e-12)
    assert float(run.values["length"][-1]) == pytest.approx(np.linalg.norm(z))


def test_a_communication_over_several_axes_is_that_of_all_their_ranks() -> None:
    build = ProgramBuilder("all", ("pp", "dp", "tp"), N=(1, 64))
    x = build.argument("x", "float64", "N", layout={"pp": P, "tp": P})
    s = reduce_scatter(x, 0, axes=("pp", "tp")).named("s")
    total = all_reduce(x, axes=("tp", "pp")).named("total")
    program = build.program(all_gather(s, axes=("pp", "tp")).named("g"), total)
    binding = Binding.of_mesh((2, 2, 3), {"N": 7})
    data = draw_arguments(program, binding, 3)
    arguments = {"x": distribute(data["x"], program.types["x"], binding)}
    run = simulate_ranks(program, binding, arguments)
    expected = data["x"].sum(axis=(0, 1))
    for name in ("g", "total"):
        for part in run.values[name]:
            np.testing.assert_allclose(part, expected, 1e-12)
    assert str(program.types["s"].layout) == "(S_0, R, S_0)"
    # Blocks of 4 and 3, cut into 2, 2, 0 and 1, 1, 1; both ranks of `dp` have the same one.
    assert [len(part) for part in run.values["s"]] == [2, 2, 0, 2, 2, 0, 1, 1, 1, 1, 1, 1]
    groups = {group.ranks for group in lower(program, binding).groups}
    assert (0, 1, 2, 6, 7, 8) in groups
    assert compare(program, split(program, "total", 0).program, binding).ok


def test_transformations_work_on_one_axis_of_a_mesh() -> None:
    program, binding = product("float32"), Binding.of_mesh((2, 3), {"B": 5})
    moved = split(program, "y", 1).program
    moved = reorder(moved, "y", movable(moved, "y")).program
    assert compare(program, moved, binding).ok
    sharded = as_slice(moved, ["t"]).program
    assert str(sharded.types["t"].layout) == "(S_0, S_1)"
    assert "ReduceScatter(+, " in text(sharded)
    assert compare(program, sharded, binding).ok
    # The batch is cut by `dp` first, and again by `tp`.
    assert compare(program, split(program, "y", 0).program, binding).ok


def test_moves_that_do_not_nest_are_refused() -> None:
    build = ProgramBuilder("inner", ("dp", "tp"), N=(1, 8))
    x = build.argument("x", "float32", "N", layout={"dp": P, "tp": S0})
    program = build.program(all_reduce(x, axes="dp").named("y"))
    with pytest.raises(RefusedMoveError, match="axis tp cuts the blocks of dp again"):
        split(program, "y", 0)


def test_documents_and_workloads_keep_the_mesh() -> None:
    program, binding = product("float32"), Binding.of_mesh((2, 3), {"B": 5})
    assert program_from_json(program_to_json(program)) == program
    workload = lower(program, binding)
    bound = extract_program(workload)
    assert (bound.program, bound.binding) == (program, binding)
    assert "mesh dp, tp\n" in text(program)
    rows = workload.nodes.is_kind(hub_core.model.NodeKind.COLLECTIVE)
    first = np.flatnonzero(rows & (workload.nodes.rank == 4))
    groups = [workload.groups[group].ranks for group in workload.nodes.group[first].tolist()]
    # The all-reduce goes over `tp`; the norm of slices of the batch over `dp`.
    assert groups == [(3, 4, 5), (1, 4)]


def test_axes_of_one_rank_have_no_collectives() -> None:
    nodes = lower(product("float32"), Binding.of_mesh((4, 1), {"B": 5})).nodes
    assert set(nodes.collective.tolist()) == {-1, JobCollective.ALL_REDUCE}
    assert (nodes.collective >= 0).sum() == 4


def test_numbers_of_ranks_come_from_document_or_option() -> None:
    document = program_to_json(product())
    with pytest.raises(InputError, match="the ranks along axis dp are not stated"):
        bound_from_json(document.encode(), "p", sizes={"B": 4})
    bound = bound_from_json(document.encode(), "p", sizes={"B": 4}, mesh={"dp": 2, "tp": 4})
    assert bound.binding == Binding.of_mesh((2, 4), {"B": 4})
    stated = json.loads(document) | {"mesh_sizes": [3, 2]}
    bound = bound_from_json(json.dumps(stated).encode(), "p", sizes={"B": 4}, mesh={"tp": 4})
    assert bound.binding.mesh == (3, 4)
    with pytest.raises(InputError, match="the mesh has no axis ep; axes of the mesh: dp, tp"):
        bind_sizes(product(), None, {"B": 4}, {"ep": 2})
    with pytest.raises(InputError, match="a mesh of 2 x 2 has not 6 ranks"):
        Binding(6, {}, (2, 2))
    wrong = document.replace('"tp": {', '"ep": {')
    with pytest.raises(InputError, match="argument w: the mesh has no axis ep"):
        program_from_json(wrong)


def test_times_of_a_mesh_are_those_of_its_axes() -> None:
    build = ProgramBuilder("sum", ("dp", "tp"))
    x = build.argument("x", "float32", 2**20, layout={"tp": P})
    program = build.program(all_reduce(x, axes="tp"))
    machine = Machine(1e15, 1e15, topology="fully-connected:8?bandwidth=50GB/s&latency=0ns")
    times = [
        makespan(program, Binding.of_mesh(mesh, {}), machine).time_s for mesh in ((4, 2), (2, 4))
    ]
    # A ring of n ranks sends 2 (n - 1) / n of the tensor.
    assert times == pytest.approx([2**22 / 50e9, 1.5 * 2**22 / 50e9], rel=1e-3)


def test_graph_of_a_mesh_is_not_executed() -> None:
    program, binding = product("float32"), Binding.of_mesh((2, 2), {"B": 4})
    flat = flatten(program, binding, hub_core.parse_topology("ring:4"))
    with pytest.raises(InputError, match="several axes: its graph is only timed"):
        execute(flat, {})


def test_value_at_a_root_is_sent_broadcast_or_written_there() -> None:
    build = ProgramBuilder("root", N=(1, 8))
    g = build.argument("g", "float32", "N", layout=LOCAL)
    state = build.state("t", "float32", "N", layout=at_root(1))
    total = reduce(g, 1).named("total")
    written = update(state, total).named("written")
    program = build.program(written, send(total), broadcast(total, 1))
    assert program.types["written"].layout == at_root(1)
    assert compare(program, program, Binding(3, {"N": 5})).ok
    with pytest.raises(InputError, match="value is float32"):
        update(build.state("s", "float32", "N"), total)
    mesh = ProgramBuilder("p", ("a", "b"))
    x = mesh.argument("x", "float32", 4, layout={"a": P})
    wrong = mesh.program(reduce(x, 1, axes="a"))
    with pytest.raises(InputError, match="root 1 is no rank of 1"):
        bind_sizes(wrong, None, {}, {"a": 1, "b": 2})


def momentum_on_a_mesh() -> Program:
    """Momentum of weights that are divided along `tp`, with gradients of the ranks of `dp`."""
    build = ProgramBuilder("momentum", ("dp", "tp"), N=(1, 2**24))
    gradient = build.argument("g", "float32", "N", layout={"dp": partial("sum"), "tp": sliced(0)})
    score = build.argument("score", "float32", "N", layout={"tp": partial("sum")})
    m = build.state("m", "float32", "N", layout={"tp": sliced(0)})
    w = build.state("w", "float32", "N", layout={"tp": sliced(0)}, whole_after=True)
    m1 = update(m, 0.9 * m + all_reduce(gradient, axes="dp").named("g1")).named("m1")
    total = all_reduce(score, axes="tp").named("total")
    return build.program(total, m1, update(w, w - 0.1 * m1).named("w1"))


def test_search_uses_the_group_of_every_axis() -> None:
    program = momentum_on_a_mesh()
    binding = Binding.of_mesh((2, 3), {"N": 2**20})
    options = {"topology": "torus:3x2", "simulate": "1"}
    result, _ = hub_core.transform(lower(program, binding), "search", options=options)
    bound = extract_program(result)
    assert bound.binding.axis_sizes == (2, 3)
    small = Binding.of_mesh((2, 3), {"N": 13})
    assert compare(program, bound.program, small).ok
    record = bound.history[-1]
    assert str(record["times_are"]).startswith("simulated")
    assert isinstance(record["means"], dict)
    assert "total" in record["means"]
    predicted, before = record["predicted_ns"], record["predicted_before_ns"]
    assert isinstance(predicted, int)
    assert isinstance(before, int)
    # No rank sends fewer than 4/3 of 4 MiB over the two links of `tp`, or half of the gradient.
    assert 4 / 3 * 2**22 / 100e9 * 1e9 < predicted < before
    assert any(stage.family != "pointwise" for stage in bound.program.stages)
    with pytest.raises(InputError, match="the mesh dp=2,tp=3 has 6 ranks, ring:8 8"):
        hub_core.transform(lower(program, binding), "search", options={"topology": "ring:8"})


@pytest.mark.once
@pytest.mark.once
def test_ranks_of_an_axis_without_links_use_the_routes_of_the_network() -> None:
    # The ranks of `dp` are no neighbours on the ring.
    binding = Binding.of_mesh((2, 3), {"N": 2**16})
    result, _ = hub_core.transform(
        lower(momentum_on_a_mesh(), binding),
        "search",
        options={"topology": "ring:6", "simulate": "1"},
    )
    assert str(extract_program(result).history[-1]["times_are"]).startswith("simulated")
