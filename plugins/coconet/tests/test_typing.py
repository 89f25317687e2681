"""The typing rules: each layout rule, and one refusal for each thing that is illegal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from collhub_coconet import (
    LOCAL,
    REPLICATED,
    Binding,
    Kind,
    Layout,
    Operation,
    Program,
    ProgramBuilder,
    Value,
    all_gather,
    all_reduce,
    broadcast,
    cast,
    conv,
    dropout,
    equal,
    largest,
    matmul,
    norm,
    reduce,
    reduce_scatter,
    select,
    send,
    slice_of,
    sliced,
    sqrt,
    tanh,
    total,
    update,
)

from hub_core.model import InputError

LAYOUTS = {"L": LOCAL, "R": REPLICATED, "S_0": sliced(0), "S_1": sliced(1), "S_2": sliced(2)}


class Names:
    """Tensors x_L, x_R, x_S_0, ... of shape [B, S], w_... of [S, H], and others."""

    def __init__(self) -> None:
        self.build = ProgramBuilder("rules", B=(1, 8), S=(1, 8), H=(1, 8))
        self._made: dict[str, Value] = {}

    def __getattr__(self, name: str) -> Value:
        if name not in self._made:
            kind, _, layout = name.partition("_")
            self._made[name] = self._declare(name, kind, LAYOUTS[layout])
        return self._made[name]

    def _declare(self, name: str, kind: str, layout: Layout) -> Value:
        shapes = {"x": ("B", "S"), "w": ("S", "H"), "row": ("S",), "one": (1, "S"), "scalar": ()}
        shapes |= {"image": ("B", 3, 4), "window": (5, 3, 3), "cube": ("H", "B", "S")}
        if kind == "state":
            return self.build.state(name, "float32", "B", "S", layout=layout)
        if kind in ("int", "bool", "far"):
            element = {"int": "int32", "bool": "bool", "far": "float32"}[kind]
            group = int(kind == "far")
            return self.build.argument(name, element, "B", "S", layout=layout, group=group)
        return self.build.argument(name, "float32", *shapes[kind], layout=layout)


LEGAL: list[tuple[Callable[[Names], Value], str]] = [
    (lambda n: all_reduce(n.x_L), "float32[B, S] R"),
    (lambda n: reduce_scatter(n.x_L, 1), "float32[B, S] S_1"),
    (lambda n: all_gather(n.x_S_0), "float32[B, S] R"),
    (lambda n: broadcast(n.x_L, 1), "float32[B, S] R"),
    (lambda n: reduce(n.x_R), "float32[B, S] @0"),
    (lambda n: slice_of(n.x_R, 1), "float32[B, S] S_1"),
    (lambda n: send(n.x_S_0, 2), "float32[B, S] S_0 on group 2"),
    (lambda n: n.x_L + n.x_R, "float32[B, S] L"),
    (lambda n: n.x_S_0 * n.x_R, "float32[B, S] S_0"),
    (lambda n: n.x_S_0 + n.row_R, "float32[B, S] S_0"),
    (lambda n: n.x_S_1 - n.cube_S_2, "float32[H, B, S] S_2"),
    (lambda n: n.x_R / n.one_R, "float32[B, S] R"),
    (lambda n: n.scalar_L * n.x_R, "float32[B, S] L"),
    (lambda n: n.x_S_0 * n.scalar_R, "float32[B, S] S_0"),
    (lambda n: 1 - n.x_R**2, "float32[B, S] R"),
    (lambda n: n.x_R > 0, "bool[B, S] R"),
    (lambda n: select(equal(n.int_R, 1), n.x_S_0, 0.0), "float32[B, S] S_0"),
    (lambda n: cast(n.x_R, "float16"), "float16[B, S] R"),
    (lambda n: tanh(sqrt(n.x_S_1)), "float32[B, S] S_1"),
    (lambda n: dropout(n.x_S_1, 0.1, 3), "float32[B, S] S_1"),
    (lambda n: matmul(n.x_R, n.w_R), "float32[B, H] R"),
    (lambda n: matmul(n.x_S_0, n.w_R), "float32[B, H] S_0"),
    (lambda n: matmul(n.x_R, n.w_S_1), "float32[B, H] S_1"),
    (lambda n: matmul(n.x_S_1, n.w_S_0), "float32[B, H] L"),
    (lambda n: matmul(n.x_L, n.w_R), "float32[B, H] L"),
    (lambda n: matmul(n.x_R, n.w_L), "float32[B, H] L"),
    (lambda n: matmul(n.x_L, n.w_L), "float32[B, H] L"),
    (lambda n: conv(n.image_S_0, n.window_R), "float32[B, 5, 4] S_0"),
    (lambda n: conv(n.image_S_1, n.window_S_1), "float32[B, 5, 4] L"),
    (lambda n: conv(n.image_R, n.window_S_0), "float32[B, 5, 4] S_1"),
    (lambda n: norm(n.x_S_0), "float32[] R"),
    (lambda n: total(n.x_L), "float32[] L"),
    (lambda n: largest(n.x_R), "float32[] R"),
    (lambda n: update(n.state_S_1, n.x_S_1), "float32[B, S] S_1"),
]

ILLEGAL: list[tuple[Callable[[Names], Value], str]] = [
    (lambda n: all_reduce(n.x_R), "a local operand is expected, x_R is replicated"),
    (lambda n: all_reduce(n.x_S_0), "a local operand is expected, x_S_0 is sliced"),
    (lambda n: all_reduce(n.bool_L), "bool_L is bool"),
    (lambda n: reduce_scatter(n.x_L, 2), "no dimension 2"),
    (lambda n: all_gather(n.x_L), "a sliced operand is expected"),
    (lambda n: broadcast(n.x_S_0), "a local or replicated operand is expected"),
    (lambda n: slice_of(n.x_L), "a replicated operand is expected"),
    (lambda n: slice_of(n.row_R, 1), r"row_R\[S\] has no dimension 1"),
    (lambda n: slice_of(n.one_R, 0), "is broadcast along dimension 0"),
    (lambda n: slice_of(n.scalar_R, 0), "a scalar stays replicated"),
    (lambda n: send(n.x_R, 0), "no other group"),
    (lambda n: send(n.x_R, -1), "no other group"),
    (lambda n: n.x_L + n.x_S_0, "a local operand meets a sliced one"),
    (lambda n: n.scalar_L + n.x_S_0, "a local operand meets a sliced one"),
    (lambda n: n.x_S_0 + n.x_S_1, "sliced along different dimensions"),
    (lambda n: n.x_R + n.w_R, "sizes B and S do not fit|sizes H and S do not fit"),
    (lambda n: n.x_R + n.int_R, "element types differ"),
    (lambda n: n.x_R + n.far_R, "operands lie on groups 0, 1"),
    (lambda n: n.int_R / 2, "operands are int32"),
    (lambda n: select(n.x_R, n.x_R, n.x_R), "not bool"),
    (lambda n: sqrt(n.int_R), "a float is expected"),
    (lambda n: dropout(n.x_R, 1.0, 3), "the rate is 1.0"),
    (lambda n: matmul(n.x_S_0, n.w_S_0), "layouts S_0 and S_0 have no product"),
    (lambda n: matmul(n.x_L, n.w_S_0), "layouts L and S_0 have no product"),
    (lambda n: matmul(n.x_R, n.x_R), "do not fit"),
    (lambda n: conv(n.image_S_2, n.window_R), "sliced along positions"),
    (lambda n: conv(n.image_R, n.image_R), "do not fit"),
    (lambda n: norm(n.int_R), "a float is expected"),
    (lambda n: update(n.state_R, n.x_S_0), "AllGather the value"),
    (lambda n: update(n.state_S_0, n.x_R), "bring the value to the state's layout"),
    (lambda n: update(n.x_R, n.x_R), "x_R is no state"),
    (lambda n: update(n.state_R, update(n.state_R, n.x_R)), "updated twice"),
]


@pytest.mark.parametrize(("make", "expected"), LEGAL, ids=[text for _, text in LEGAL])
def test_rule_gives_the_type(make: Callable[[Names], Value], expected: str) -> None:
    assert str(make(Names()).type) == expected


@pytest.mark.parametrize(("make", "message"), ILLEGAL, ids=[text for _, text in ILLEGAL])
def test_illegal_operation_is_refused_with_line_condition_and_cure(
    make: Callable[[Names], Value], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make(Names())
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.location.file == "rules"
    assert diagnostic.location.line is not None
    assert diagnostic.cure


def test_all_mistakes_of_a_program_are_named_at_once() -> None:
    n = Names()
    good = n.build.program(all_reduce(n.x_L) + n.x_R)
    first, second = good.operations
    wrong = (
        Operation("_1", first.kind, ("x_R",), reduction=first.reduction),
        Operation("_2", second.kind, ("_1", "x_R")),
        Operation("_3", second.kind, ("x_R", "nothing")),
    )
    with pytest.raises(InputError) as caught:
        Program(good.name, good.sizes, good.arguments, wrong, ("_2",))
    lines = [(one.location.line, one.code) for one in caught.value.diagnostics]
    # The second line reads what the first one has wrong: nothing is said of it.
    assert lines == [(1, "layout"), (3, "undefined")]


def test_a_refused_argument_leaves_the_builder_as_it_was() -> None:
    build = ProgramBuilder("p")
    with pytest.raises(InputError, match="symbol N is not defined"):
        build.argument("x", "float32", "N")
    x = build.argument("x", "float32", 4)
    with pytest.raises(InputError, match="the name is taken"):
        build.state("x", "int32", 8)
    assert (x.type.element, x.type.shape) == ("float32", (4,))
    with pytest.raises(InputError, match="is no state"):
        build.apply(Kind.UPDATE, (x, x))


def test_values_of_another_builder_are_no_outputs() -> None:
    build, second = ProgramBuilder("p"), ProgramBuilder("q")
    build.argument("x", "float32", 4)
    x = second.argument("x", "float32", 4)
    with pytest.raises(InputError, match="x belongs to program q"):
        build.program(x)


@pytest.mark.parametrize("operand", [None, True, "x"])
def test_operands_are_values_and_numbers(operand: Any) -> None:
    x = ProgramBuilder("p").argument("x", "float32", 4)
    with pytest.raises(TypeError, match="is neither a value nor a number"):
        x + operand


def test_a_refused_operation_leaves_the_builder_as_it_was() -> None:
    n = Names()
    with pytest.raises(InputError):
        all_gather(n.x_R)
    assert len(n.build.program(n.x_R + 1).operations) == 1


def test_symbol_without_bounds_is_refused() -> None:
    with pytest.raises(InputError, match="symbol N is not defined; state the bounds of N"):
        ProgramBuilder("p").argument("x", "float32", "N")


def test_size_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match=r"size N is 0\.\.4"):
        ProgramBuilder("p", N=(0, 4))
    with pytest.raises(InputError, match="a size is 0"):
        ProgramBuilder("p").argument("x", "float32", 0)
    with pytest.raises(InputError, match="size N is 0"):
        Binding(2, {"N": 0})


def test_group_of_one_rank_is_refused() -> None:
    with pytest.raises(InputError, match="nobody to communicate with; state at least 2 ranks"):
        Binding(1, {})


def test_symbol_that_is_not_bound_is_refused() -> None:
    with pytest.raises(InputError, match="symbol N is not bound"):
        Binding(2, {}).shape(("N",))


def test_local_state_is_refused() -> None:
    with pytest.raises(InputError, match="a state is local"):
        ProgramBuilder("p").state("s", "float32", 4, layout=LOCAL)


def test_name_is_given_once() -> None:
    build = ProgramBuilder("p")
    x = build.argument("x", "float32", 4)
    with pytest.raises(InputError, match="cannot be named x"):
        (x + 1).named("x")


def test_last_block_is_shorter_and_nothing_is_dropped() -> None:
    from collhub_coconet.program.operations import block_bounds

    assert [block_bounds(5, 4, rank) for rank in range(4)] == [(0, 2), (2, 4), (4, 5), (5, 5)]
