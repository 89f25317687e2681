"""Row-wise reductions, top-k, gather and scatter, reshape, concat, permute, and narrow types."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_coconet import (
    LOCAL,
    REPLICATED,
    Binding,
    ElementType,
    Kind,
    Layout,
    Program,
    ProgramBuilder,
    Value,
    all_gather,
    all_reduce,
    arg_max,
    as_slice,
    at_root,
    broadcast,
    cast,
    compare,
    concat,
    costs,
    erf,
    exp,
    gather,
    index_of,
    legal_moves,
    log,
    matmul,
    movable,
    part,
    partial,
    permute,
    program_from_json,
    program_to_json,
    reduce_scatter,
    reorder,
    reshape,
    row_reduce,
    scatter,
    sliced,
    split,
    text,
    top_k,
    total,
)
from collhub_coconet.documents.from_workload import extract_program
from collhub_coconet.documents.json_document import bind_sizes
from collhub_coconet.execution.array_operations import collect, distribute
from collhub_coconet.execution.comparison import draw_arguments
from collhub_coconet.execution.ranks import simulate_ranks
from collhub_coconet.execution.row_operations import find_top
from collhub_coconet.lowering.timing import Machine, makespan
from collhub_coconet.lowering.workload import lower
from collhub_coconet.program.operations import LayoutRule
from collhub_coconet.transformations.costs import count_memory_bytes
from mixed_adam import mixed_adam
from moe_top_k import moe_top_k
from transformer_mesh import transformer_mesh
from vocabulary_parallel import vocabulary_parallel

from hub_core.model import InputError

S0, S1 = sliced(0), sliced(1)


class Names:
    """Tensors of shape [B, S] and indices [T] with a layout."""

    def __init__(self) -> None:
        self.build = ProgramBuilder("operations", B=(1, 8), S=(1, 8), T=(1, 8))
        self._count = 0

    def x(self, layout: Layout = REPLICATED, *shape: int | str, element: str = "float32") -> Value:
        self._count += 1
        return self.build.argument(
            f"x{self._count}", element, *(shape or ("B", "S")), layout=layout
        )

    def ids(self, layout: Layout = REPLICATED) -> Value:
        return self.x(layout, "T", element="int32")


LEGAL: list[tuple[Callable[[Names], Value], str]] = [
    (lambda n: exp(log(n.x(S0))), "float32[B, S] S_0"),
    (lambda n: row_reduce(n.x(S0), 1, "max"), "float32[B, 1] S_0"),
    (lambda n: row_reduce(n.x(S1), 1, "max"), "float32[B, 1] P(max)"),
    (lambda n: row_reduce(n.x(partial()), 1), "float32[B, 1] P(sum)"),
    (lambda n: all_reduce(row_reduce(n.x(S1), 1, "min"), "min"), "float32[B, 1] R"),
    (lambda n: reduce_scatter(row_reduce(n.x(S1), 1), 0), "float32[B, 1] S_0"),
    (lambda n: arg_max(n.x(S0), 1), "int64[B, 1] S_0"),
    (lambda n: index_of(n.x(S1), 1), "int64[B, S] S_1"),
    (lambda n: index_of(n.x(LOCAL), 1), "int64[B, S] R"),
    (lambda n: top_k(n.x(S0, "B", 8), 3, 1)[0], "float32[B, 3] S_0"),
    (lambda n: top_k(n.x(S0, "B", 8), 3, 1)[1], "int64[B, 3] S_0"),
    (lambda n: gather(n.x(), n.ids()), "float32[T, S] R"),
    (lambda n: gather(n.x(S0), n.ids()), "float32[T, S] P(sum)"),
    (lambda n: gather(n.x(S1), n.ids()), "float32[T, S] S_1"),
    (lambda n: gather(n.x(), n.ids(S0)), "float32[T, S] S_0"),
    (lambda n: scatter(n.ids(), n.x(S1, "T", "S"), "B", "S"), "float32[B, S] S_1"),
    (lambda n: scatter(n.ids(S0), n.x(S0, "T", "S"), "B", "S"), "float32[B, S] P(sum)"),
    (lambda n: reshape(n.x(S0, 8, "B", 6), 2, 4, "B", 3, 2), "float32[2, 4, B, 3, 2] S_0"),
    (lambda n: reshape(n.x(sliced(2), 8, "B", 8), 8, 1, "B", 4, 2), "float32[8, 1, B, 4, 2] S_3"),
    (lambda n: reshape(n.x(S1, "B", "S"), 1, "B", "S", 1), "float32[1, B, S, 1] S_2"),
    (lambda n: reshape(n.x(partial(), 4, 3), 12), "float32[12] P(sum)"),
    (lambda n: concat(n.x(S0, "B", 3), n.x(S0, "B", 4), dimension=1), "float32[B, 7] S_0"),
    (lambda n: part(n.x(S0, "B", 3), 1, 1, 2), "float32[B, 2] S_0"),
    (lambda n: part(n.x(S1, "B", 3), 0, 1, 2), "float32[2, 3] S_1"),
    (lambda n: permute(n.x(S0, "B", "S", "T"), 2, 0, 1), "float32[T, B, S] S_1"),
    (lambda n: matmul(n.x(LOCAL), n.x(LOCAL, "S", "T")), "float32[B, T] L"),
    (lambda n: cast(n.x(partial()), "float16"), "float16[B, S] P(sum)"),
    (lambda n: total(n.x(partial())), "float32[] P(sum)"),
]

ILLEGAL: list[tuple[Callable[[Names], Value], str]] = [
    (lambda n: row_reduce(n.x(), 2), r"x1\[B, S\] has no dimension 2"),
    (lambda n: row_reduce(n.x(), 1, "replace"), "a row has no last rank"),
    (lambda n: row_reduce(n.x(partial()), 1, "max"), "a partial result, and RowReduce reads full"),
    (lambda n: row_reduce(n.x(element="bool"), 1), "is bool"),
    (lambda n: arg_max(n.x(S1), 1), "ArgMax has no rule for layout S_1; AllGather the sliced"),
    (lambda n: top_k(n.x(S1, "B", 8), 2, 1)[0], "TopValues has no rule for layout S_1"),
    (lambda n: top_k(n.x(S0, "B", 8), 9, 1)[0], "the 9 largest of 8 elements are requested"),
    (lambda n: gather(n.x(), n.x()), "integers are expected"),
    (lambda n: gather(n.x(S0), n.ids(S0)), "Gather has no rule for layout S_0 and S_0"),
    (lambda n: scatter(n.ids(), n.x(), "B", "S"), r"values \[B, S\] do not fit \[B, S\]"),
    (lambda n: reshape(n.x(), "S", "B"), "has not the elements of"),
    (lambda n: reshape(n.x(REPLICATED, 4, 3), 5, 2), "has not the elements of"),
    (lambda n: reshape(n.x(S1, 4, 3), 12), "Reshape has no rule for layout S_1"),
    (lambda n: concat(n.x(), n.x(), dimension=1), "those along dimension 1 are numbers"),
    (lambda n: concat(n.x(S1, 4, 3), n.x(S1, 4, 3), dimension=1), "Concat has no rule"),
    (lambda n: concat(n.x(S0, "B", 3), n.x(S0, "B"), dimension=1), "do not fit"),
    (lambda n: part(n.x(S0, "B", 3), 0, 1, 2), "Part has no rule"),
    (lambda n: part(n.x(S0, "B", 3), 1, 2, 2), "positions 2..3 of 3 are requested"),
    (lambda n: part(n.x(S0, "B", 3), 2, 0, 1), "has no dimension 2"),
    (lambda n: scatter(n.ids(), n.x(REPLICATED, "T", "S"), "Z", "S"), "symbol Z is not defined"),
    (lambda n: scatter(n.ids(), n.x(REPLICATED, "T", "S"), -1, "S"), "a size is -1"),
    (lambda n: index_of(n.x(), -1), "count dimensions from 0"),
    (lambda n: permute(n.x(), 0, 0), "order 0, 0 is none of 2 dimensions"),
    (lambda n: cast(n.x(partial()), "int8"), "a cast to int8 does not add up"),
    (lambda n: all_reduce(row_reduce(n.x(S1), 1, "max")), r"P\(max\), which sum does not reduce"),
    (lambda n: n.x(element="bfloat16") + n.x(), "element types differ: bfloat16 and float32"),
]


@pytest.mark.parametrize(("make", "expected"), LEGAL, ids=[text for _, text in LEGAL])
def test_rule_gives_the_type(make: Callable[[Names], Value], expected: str) -> None:
    names = Names()
    value = make(names)
    assert str(value.type) == expected
    program = names.build.program(value)
    assert program_from_json(program_to_json(program)) == program
    # Every type rule holds for the arrays, too.
    assert compare(program, program, Binding(2, {"B": 3, "S": 5, "T": 4})).ok


@pytest.mark.parametrize(("make", "message"), ILLEGAL, ids=[text for _, text in ILLEGAL])
def test_illegal_operands_are_refused(make: Callable[[Names], Value], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make(Names())
    assert caught.value.diagnostics[0].cure


def run(
    program: Program, binding: Binding, seed: int = 0
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The arguments, and all values, as complete arrays."""
    data = draw_arguments(program, binding, seed)
    arguments = {
        one.name: distribute(data[one.name], one.type, binding) for one in program.arguments
    }
    values = simulate_ranks(program, binding, arguments).values
    types = program.types
    return data, {name: collect(parts, types[name], binding) for name, parts in values.items()}


@pytest.mark.parametrize("ranks", [2, 3])
def test_operations_compute_what_numpy_computes(ranks: int) -> None:
    n = Names()
    x, y, i = n.x(S0, "B", 6, element="float64"), n.x(S1, "B", "S", element="float64"), n.ids()
    values, places = top_k(x, 2, 1)
    made = {
        "highest": all_reduce(row_reduce(y, 1, "max"), "max"),
        "product": row_reduce(x, 1, "prod"),
        "best": arg_max(x, 1),
        "values": values,
        "places": places,
        "index": index_of(y, 1),
        "rows": all_reduce(gather(x, i)),
        "added": scatter(i, all_reduce(gather(x, i)), "B", 6),
        "shaped": reshape(x, "B", 3, 2),
        "joined": concat(x, x * 2.0, dimension=1),
        "permuted": permute(reshape(x, "B", 3, 2), 2, 0, 1),
        "part": part(x, 1, 2, 3),
        "erf": erf(x),
    }
    program = n.build.program(*made.values())
    data, found = run(program, Binding(ranks, {"B": 5, "S": 4, "T": 7}))
    found = {name: found[value.name] for name, value in made.items()}
    x, y, i = data["x1"], data["x2"], data["x3"]
    np.testing.assert_array_equal(found["highest"], y.max(axis=1, keepdims=True))
    np.testing.assert_allclose(found["product"], x.prod(axis=1, keepdims=True), 1e-12)
    np.testing.assert_array_equal(found["best"], x.argmax(axis=1, keepdims=True))
    np.testing.assert_array_equal(found["values"], -np.sort(-x, axis=1)[:, :2])
    np.testing.assert_array_equal(found["places"], np.argsort(-x, axis=1, kind="stable")[:, :2])
    np.testing.assert_array_equal(found["index"], np.broadcast_to(np.arange(4), (5, 4)))
    # Indices outside of the table give zeros.
    rows = np.where(i[:, None] < 5, x[np.minimum(i, 4)], 0)
    np.testing.assert_array_equal(found["rows"], rows)
    added = np.zeros((5, 6))
    np.add.at(added, i[i < 5], rows[i < 5])
    np.testing.assert_allclose(found["added"], added, 1e-12)
    np.testing.assert_array_equal(found["shaped"], x.reshape(5, 3, 2))
    np.testing.assert_array_equal(found["joined"], np.concatenate([x, 2 * x], axis=1))
    np.testing.assert_array_equal(found["permuted"], x.reshape(5, 3, 2).transpose(2, 0, 1))
    np.testing.assert_array_equal(found["part"], x[:, 2:5])
    np.testing.assert_array_equal(found["erf"], np.vectorize(math.erf)(x))


def test_first_of_equal_elements_is_the_largest() -> None:
    places = find_top(np.array([[1, 3, 3, 2, 3]]), 1, 4)
    np.testing.assert_array_equal(places, [[1, 2, 4, 3]])


def test_reshape_of_slices_needs_ranks_that_divide_both_sizes() -> None:
    build = ProgramBuilder("heads")
    program = build.program(reshape(build.argument("x", "float32", 4, 12, layout=S1), 4, 6, 2))
    assert compare(program, program, Binding(3, {})).ok
    message = "4 ranks do not divide the sizes 12 and 6 of the sliced dimension; AllGather"
    with pytest.raises(InputError, match=message):
        bind_sizes(program, 4, {})
    with pytest.raises(InputError, match=message):
        lower(program, Binding(4, {}))


def test_top_k_needs_as_many_elements() -> None:
    build = ProgramBuilder("top", N=(1, 8))
    program = build.program(*top_k(build.argument("x", "float32", "N"), 3, 0))
    with pytest.raises(InputError, match="_1: the 3 largest of 2 elements; state a larger size"):
        bind_sizes(program, 2, {"N": 2})


def test_root_of_an_argument_must_be_a_rank() -> None:
    build = ProgramBuilder("root")
    program = build.program(broadcast(build.argument("x", "float32", 4, layout=at_root(3)), 3))
    assert compare(program, program, Binding(4, {})).ok
    with pytest.raises(InputError, match="argument x: root 3 is no rank of 2"):
        bind_sizes(program, 2, {})


def test_placement_that_does_not_fit_is_one_line_with_the_file(
    collhub: Callable[..., Any], tmp_path: Path
) -> None:
    build = ProgramBuilder("heads")
    program = build.program(reshape(build.argument("x", "float32", 4, 12, layout=S1), 4, 6, 2))
    path = tmp_path / "heads.program.json"
    path.write_text(program_to_json(program))
    done = collhub("inspect", path, "-O", "num_ranks=4")
    assert (done.code, done.out) == (1, "")
    assert len(done.err.splitlines()) == 1
    assert "4 ranks do not divide the sizes 12 and 6 of the sliced dimension" in done.err
    assert collhub("inspect", path, "-O", "num_ranks=3").code == 0


def test_opaque_operators_with_sharded_operands_are_refused_on_every_axis() -> None:
    build = ProgramBuilder("opaque", ("dp", "tp"), B=(1, 8))
    layout = {"dp": S0, "tp": S1}
    x = build.argument("x", "float32", "B", 4, layout=layout)
    attributes = {"call": "{}", "shape": ("B", 4), "element": ElementType.FLOAT32}
    attributes |= {"work": 1, "traffic": 1}
    for rule in (LayoutRule.PER_RANK, LayoutRule.ROWS):
        with pytest.raises(InputError, match=f"which the rule {rule} does not permit; AllGather"):
            build.apply(Kind.OPAQUE, (x,), rule=rule, **attributes)
    rows = all_gather(x, axes="tp")
    assert str(
        build.apply(Kind.OPAQUE, (rows,), rule=LayoutRule.ROWS, **attributes).type.layout
    ) == ("(S_0, R)")


def test_softmax_of_gathered_rows_moves_to_slices() -> None:
    build = ProgramBuilder("softmax", B=(1, 8), S=(1, 8))
    x = build.argument("x", "float32", "B", "S", layout=LOCAL)
    g = all_reduce(x).named("g")
    powers = exp(g - row_reduce(g, 1, "max"))
    program = build.program((powers / row_reduce(powers, 1)).named("o"))
    moved = split(program, "g", 0).program
    moved = reorder(moved, "g", movable(moved, "g")).program
    kinds = [str(one.kind) for one in moved.operations]
    assert (kinds[0], kinds[-1], kinds.count("RowReduce")) == ("ReduceScatter", "AllGather", 2)
    assert compare(program, moved, Binding(3, {"B": 5, "S": 7})).ok
    # Along the reduced dimension the rows would be cut.
    across = split(program, "g", 1).program
    assert movable(across, "g") == []


def test_gather_reads_as_many_rows_as_it_writes() -> None:
    build = ProgramBuilder("embedding")
    table = build.argument("table", "float32", 1000, 8)
    program = build.program(gather(table, build.argument("i", "int32", 4)))
    binding = Binding(2, {})
    # Four indices of 4 bytes, four rows of 32 bytes read and written.
    assert count_memory_bytes(program, program.operations, binding) == 16 + 2 * 4 * 32


def test_an_operand_of_which_an_index_needs_the_shape_is_read_by_other_operations() -> None:
    build = ProgramBuilder("positions")
    x = build.argument("x", "float32", 8, 4)
    program = build.program(index_of(x, 0), exp(x))
    index, power = program.operations
    binding = Binding(2, {})
    indices = binding.bytes_of_rank(program.types[index.name])
    assert count_memory_bytes(program, [index], binding) == indices
    # The exponential reads and writes 32 numbers of 4 bytes.
    assert count_memory_bytes(program, [power], binding) == 2 * 128
    assert count_memory_bytes(program, [index, power], binding) == indices + 2 * 128


@pytest.mark.parametrize("element", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_narrow_types_compute_and_compare_in_their_own_precision(element: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    build = ProgramBuilder("narrow", B=(1, 8))
    x = build.argument("x", element, "B", 4, layout=LOCAL)
    g = all_reduce(x).named("g")
    y = build.program((g * g + g).named("o"), row_reduce(g, 1, "max"), total(g))
    binding = Binding(3, {"B": 5})
    moved = split(y, "g", 0).program
    moved = reorder(moved, "g", movable(moved, "g")).program
    assert compare(y, moved, binding).ok
    data, found = run(y, binding)
    dtype = np.dtype(np.int8 if element == "int8" else getattr(ml_dtypes, element))
    assert found["o"].dtype == dtype
    added = (data["x"][0] + data["x"][1]) + data["x"][2]
    np.testing.assert_array_equal(found["o"], added * added + added)
    assert extract_program(lower(moved, binding)).program == moved
    assert makespan(moved, binding, Machine(1e12, 1e11, launch_s=1e-6)).time_s > 0


def test_error_bound_of_a_sum_is_that_of_the_narrow_type() -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    build = ProgramBuilder("sum", N=(1, 64))
    x = build.argument("x", "bfloat16", "N", layout=LOCAL)
    program = build.program(total(all_reduce(x).named("g")).named("s"))
    moved = split(program, "g").program
    moved = reorder(moved, "g", ["s"]).program
    result = compare(program, moved, Binding(3, {"N": 50}))
    assert result.ok
    assert set(result.errors) == {"s"}


EXAMPLES = [
    (vocabulary_parallel(), Binding.of_mesh((2, 3), {"T": 5, "V": 7, "H": 4})),
    (moe_top_k(), Binding(3, {"T": 5, "E": 4, "H": 3, "F": 5})),
    (transformer_mesh(4, 2, hidden=6), Binding.of_mesh((2, 2), {"B": 3, "S": 5})),
    (mixed_adam("float16"), Binding(3, {"N": 7})),
]


@pytest.mark.parametrize(("program", "binding"), EXAMPLES, ids=lambda one: getattr(one, "name", ""))
def test_every_move_of_an_example_keeps_its_meaning(program: Program, binding: Binding) -> None:
    moves = legal_moves(program, binding)
    assert moves
    for move in moves:
        assert compare(program, move.rewrite.program, binding).ok
    assert extract_program(lower(program, binding)).program == program
    assert program_from_json(program_to_json(program)) == program
    assert makespan(program, binding, Machine(1e12, 1e11, launch_s=1e-6)).time_s > 0


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def test_vocabulary_parallel_loss_is_the_cross_entropy() -> None:
    program = vocabulary_parallel("float64")
    binding = Binding.of_mesh((2, 3), {"T": 5, "V": 7, "H": 4})
    data, found = run(program, binding)
    chances = softmax(data["table"][data["tokens"]] @ data["head"])
    expected = -np.log(np.take_along_axis(chances, data["targets"], axis=1)).sum()
    assert float(found["loss"]) == pytest.approx(expected, rel=1e-12)


def test_tokens_go_to_the_experts_of_the_largest_scores() -> None:
    sizes = {"T": 5, "E": 4, "H": 3, "F": 5}
    data, found = run(moe_top_k("float64"), Binding(3, sizes))
    x = data["x"]
    scores = softmax(x @ data["router"])
    expected = x.copy()
    for token in range(5):
        for expert in np.argsort(-scores[token])[:2]:
            hidden = np.tanh(x[token] @ data["w1"][expert])
            expected[token] += scores[token, expert] * (hidden @ data["w2"][expert])
    np.testing.assert_allclose(found["o"], expected, 1e-12)


def test_transformer_block_on_a_mesh_is_that_of_dense_arrays() -> None:
    program = transformer_mesh(4, 2, "float64", hidden=6)
    data, found = run(program, Binding.of_mesh((2, 2), {"B": 3, "S": 5}))

    def normalized(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * gain)

    x = data["x"]
    rows = normalized(x, data["gain1"])
    q, k, v = (
        (rows @ data[name]).reshape(3, 5, 4, 2).transpose(0, 2, 1, 3) for name in ("wq", "wk", "wv")
    )
    context = softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(2)) @ v
    y = context.transpose(0, 2, 1, 3).reshape(3, 5, 8) @ data["wo"] + x
    expected = np.tanh(normalized(y, data["gain2"]) @ data["w1"]) @ data["w2"] + y
    np.testing.assert_allclose(found["o"], expected, 1e-10)


def test_mixed_adam_reaches_the_form_of_zero() -> None:
    program = mixed_adam()
    moved = split(program, "reduced").program
    moved = reorder(moved, "reduced", movable(moved, "reduced")).program
    binding = Binding(2, {"N": 1024})
    sharded = as_slice(moved, ["master", "m", "v"]).program
    gathers = [one for one in sharded.operations if str(one.kind) == "AllGather"]
    # Only the new weights travel, as 2 bytes each.
    assert [str(sharded.types[one.name].element) for one in gathers] == ["bfloat16"]
    saved = costs(program, binding).state_bytes - costs(sharded, binding).state_bytes
    assert saved == 3 * 4 * 512
    assert "AllGather" in text(sharded)


def test_all_gather_of_narrow_weights_keeps_them() -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    build = ProgramBuilder("weights", N=(1, 8))
    w = build.argument("w", "float8_e4m3fn", "N", layout=S0)
    data, found = run(build.program(all_gather(w).named("o")), Binding(3, {"N": 7}))
    np.testing.assert_array_equal(found["o"], data["w"])
