"""The comparison finds what differs, and runs operations as their definitions say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_coconet import (
    LOCAL,
    Binding,
    Kind,
    Operation,
    Program,
    ProgramBuilder,
    Value,
    all_gather,
    all_reduce,
    broadcast,
    compare,
    conv,
    dropout,
    matmul,
    norm,
    reduce,
    reduce_scatter,
    sliced,
    split,
    split_at_root,
)
from collhub_coconet.execution.array_operations import (
    collect,
    compute_global_indices,
    distribute,
    draw_dropout_mask,
)
from collhub_coconet.execution.comparison import draw_arguments
from collhub_coconet.execution.ranks import simulate_ranks

from hub_core.model import InputError

RANKS = Binding(3, {"N": 7, "M": 4})


def scattered() -> tuple[ProgramBuilder, Value]:
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    x = build.argument("x", "float32", "N", "M", layout=LOCAL)
    return build, reduce_scatter(x).named("s")


def changed(program: Program, name: str, **fields: object) -> Program:
    """The program with other attributes of one operation."""
    operations = [
        replace(one, **fields) if one.name == name else one  # type: ignore[arg-type]
        for one in program.operations
    ]
    return replace(program, operations=tuple(operations))


def test_another_value_is_found() -> None:
    build, s = scattered()
    program = build.program(all_gather(s * 2).named("y"))
    assert compare(program, program, RANKS).ok
    wrong = changed(program, "_2", operands=("s", 2.0000002))
    assert compare(program, wrong, RANKS).differences == ("y differs",)


def test_another_dropout_mask_is_found() -> None:
    build, s = scattered()
    program = build.program(all_gather(dropout(s, 0.5, 1)).named("y"))
    wrong = changed(program, "_2", seed=2)
    assert "dropout masks differ" in compare(program, wrong, RANKS).differences


def test_a_norm_of_one_rank_alone_is_found() -> None:
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    r = build.argument("r", "float32", "N", "M", layout=sliced(0))
    b = norm(all_gather(r).named("g")).named("b")
    program = build.program(b)
    # The norm of another slice instead of the whole.
    cut = Operation("c", Kind.MULTIPLY, ("r", 0.999))
    operations = (cut, Operation("b", Kind.NORM, ("c",)))
    wrong = replace(program, operations=operations)
    (difference,) = compare(program, wrong, RANKS).differences
    assert difference.startswith("b differs by")


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("element", ["float16", "float32", "float64", "int32", "int64"])
def test_split_all_reduce_is_equal_bit_by_bit(num_ranks: int, element: str) -> None:
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    x = build.argument("x", element, "N", "M", layout=LOCAL)
    program = build.program(all_reduce(x).named("z"))
    binding = Binding(num_ranks, {"N": 5, "M": 3})
    for after in (split(program, "z", 0), split(program, "z", 1), split_at_root(program, "z", 1)):
        assert compare(program, after.program, binding).ok


def test_reduction_is_over_all_ranks() -> None:
    build = ProgramBuilder("p", N=(1, 64))
    x = build.argument("x", "int64", "N", layout=LOCAL)
    program = build.program(
        all_reduce(x).named("sum"),
        all_reduce(x, "prod").named("prod"),
        all_reduce(x, "replace").named("last"),
        all_gather(reduce_scatter(x, 0, "max")).named("max"),
        broadcast(reduce(x, 1, "min"), 1).named("min"),
    )
    whole = np.arange(21).reshape(3, 7) % 5
    found = simulate_ranks(program, RANKS, {"x": list(whole)}).values
    expected = {
        "sum": whole.sum(0),
        "prod": whole.prod(0),
        "last": whole[2],
        "max": whole.max(0),
        "min": whole.min(0),
    }
    for name, values in expected.items():
        for rank in range(3):
            np.testing.assert_array_equal(found[name][rank], values)


def test_contractions_are_those_of_numpy() -> None:
    build = ProgramBuilder("p", N=(1, 64), M=(1, 64))
    x = build.argument("x", "float64", "N", "M", layout=sliced(1))
    w = build.argument("w", "float64", "M", 2, layout=sliced(0))
    image = build.argument("image", "float64", "N", 3, 5)
    window = build.argument("window", "float64", 2, 3, 3)
    product = all_reduce(matmul(x, w)).named("product")
    program = build.program(product, conv(image, window).named("image2"))
    data = draw_arguments(program, RANKS, 1)
    arguments = {one.name: distribute(data[one.name], one.type, 3) for one in program.arguments}
    found = simulate_ranks(program, RANKS, arguments).values
    np.testing.assert_allclose(found["product"][2], data["x"] @ data["w"], rtol=1e-13)
    padded = np.pad(data["image"], [(0, 0), (0, 0), (1, 1)])
    shifts = [padded[:, :, shift : shift + 5] for shift in range(3)]
    expected = sum(np.einsum("bcp,oc->bop", shifts[k], data["window"][:, :, k]) for k in range(3))
    np.testing.assert_allclose(found["image2"][0], expected, rtol=1e-12)


def test_mask_of_slices_is_that_of_the_whole() -> None:
    whole = draw_dropout_mask(compute_global_indices((7, 4)), 0.3, 5)
    parts = [
        draw_dropout_mask(compute_global_indices((7, 4), [ends, (0, 4)]), 0.3, 5)
        for ends in ((0, 3), (3, 6), (6, 7))
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_share_of_dropped_elements_is_the_rate(rate: float) -> None:
    keep = draw_dropout_mask(compute_global_indices((100_000,)), rate, 3)
    # Six standard deviations of a binomial distribution.
    assert abs((1 - keep.mean()) - rate) <= 6 * np.sqrt(rate * (1 - rate) / keep.size)


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_blocks_and_the_whole_are_one_another(length: int) -> None:
    build = ProgramBuilder("p", N=(1, 8))
    kind = build.argument("x", "float32", "N", 2, layout=sliced(0)).type
    whole = np.arange(2.0 * length).reshape(length, 2)
    np.testing.assert_array_equal(collect(distribute(whole, kind, 4), kind), whole)


def test_root_that_is_no_rank_is_refused() -> None:
    build = ProgramBuilder("p", N=(1, 8))
    x = build.argument("x", "float32", "N", layout=LOCAL)
    program = build.program(broadcast(x, 3).named("y"))
    with pytest.raises(InputError, match="y: root 3 is no rank of 3"):
        compare(program, program, RANKS)
