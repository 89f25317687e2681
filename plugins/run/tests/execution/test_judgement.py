"""References and judgements: every collective's definition by hand, bounds, what is wrong."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from collhub_execution import (
    block_counts,
    block_elements,
    bus_bandwidth,
    element_type,
    exact_inputs,
    judge,
    random_inputs,
    same_bits,
)
from collhub_execution.input_data import (
    are_results_exact,
    divide_averages,
    divide_values,
    significand_bits,
)
from collhub_execution.output_judgement import compute_expected_parts
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import (
    Collective,
    CollectiveKind,
    Contributions,
    ReduceOp,
)
from hub_core.testing import custom_collective, ring_all_reduce

# Two ranks, four elements of input each where all hold all.
A, B = [1, 2, 3, 4], [10, 20, 30, 40]
DEFINITIONS = {
    "all-reduce": ((A, B), ([11, 22, 33, 44], [11, 22, 33, 44])),
    "reduce": ((A, B), (None, [11, 22, 33, 44])),
    "reduce-scatter": ((A, B), ([11, 22], [33, 44])),
    "all-gather": ((A[:2], B[:2]), ([1, 2, 10, 20], [1, 2, 10, 20])),
    "gather": ((A[:2], B[:2]), ([], [1, 2, 10, 20])),
    "all-to-all": ((A, B), ([1, 2, 10, 20], [3, 4, 30, 40])),
    "broadcast": ((A, B), (B, B)),
    "scatter": (([], B), ([10, 20], [30, 40])),
}
ROOTED = ("reduce", "gather", "broadcast", "scatter")


def arrays(
    lists: tuple[list[int] | None, ...], dtype: type = np.int64
) -> list[npt.NDArray[np.generic]]:
    return [np.asarray(values, dtype) for values in lists if values is not None]


@pytest.mark.parametrize("kind", sorted(DEFINITIONS))
def test_every_collective_is_what_its_definition_says(kind: str) -> None:
    inputs, outputs = DEFINITIONS[kind]
    collective = Collective(CollectiveKind(kind), 2, 4, root=1 if kind in ROOTED else None)
    found = compute_expected_parts(collective, arrays(inputs), ReduceOp.SUM, is_exact=True)
    assert found is not None
    parts: list[list[int]] = [[], []]
    for part in found:
        assert part.start == len(parts[part.rank])
        parts[part.rank] += part.expected.values.tolist()
    assert parts == [[] if output is None else output for output in outputs]


@pytest.mark.parametrize(
    ("op", "dtype", "result"),
    [
        (ReduceOp.SUM, np.int32, [-7, 9]),
        (ReduceOp.PROD, np.int32, [10, 20]),
        (ReduceOp.MIN, np.int32, [-5, 4]),
        (ReduceOp.MAX, np.int32, [-2, 5]),
        (ReduceOp.AVG, np.int32, [-3, 4]),
        (ReduceOp.AVG, np.float32, [-3.5, 4.5]),
    ],
)
def test_every_operator_is_what_its_name_says(
    op: ReduceOp, dtype: type, result: list[float]
) -> None:
    inputs = arrays(([-2, 4], [-5, 5]), dtype)
    found = compute_expected_parts(
        Collective(CollectiveKind.ALL_REDUCE, 2, 2), inputs, op, is_exact=True
    )
    assert found is not None
    assert next(found).expected.values.tolist() == result


@pytest.mark.parametrize("kind", ["all-reduce", "reduce-scatter", "all-gather", "all-to-all"])
def test_a_wrong_element_is_found_in_any_part_of_a_large_output(kind: str) -> None:
    collective = Collective(CollectiveKind(kind), 2, 2)
    size = 3_000_000
    inputs = [np.arange(size) + rank for rank in range(2)]
    found = compute_expected_parts(collective, inputs, ReduceOp.SUM, is_exact=True)
    assert found is not None
    units = collective.output_units().tolist()
    block = size // int(collective.input_units()[0])
    outputs = [np.zeros(unit * block, np.int64) for unit in units]
    for part in found:
        outputs[part.rank][part.start : part.start + part.expected.values.size] = (
            part.expected.values
        )
    assert judge(collective, inputs, outputs, ReduceOp.SUM, True).is_right
    for place in (0, (1 << 20) + 7, outputs[1].size - 1):
        outputs[1][place] += 5
        judgement = judge(collective, inputs, outputs, ReduceOp.SUM, True)
        assert (judgement.is_right, judgement.max_abs_error) == (False, 5)
        assert f"at element {place}, expected" in judgement.diagnostics[0].message
        outputs[1][place] -= 5


def custom(expected: Contributions | None) -> Collective:
    return custom_collective(3, 2, expected)


def contributions(*rows: tuple[int, int, int, int]) -> Contributions:
    return Contributions(*(np.asarray(column, np.int64) for column in zip(*rows, strict=True)))


def test_a_custom_contract_is_judged_where_it_states_something() -> None:
    collective = custom(contributions((0, 1, -1, 0), (2, 0, 1, 1), (2, 0, 0, 0)))
    inputs = [np.asarray(values) for values in ([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12])]
    outputs = [np.asarray(values) for values in ([-1, -1, 15, 18], [-1] * 4, [8, 10, -1, -1])]
    assert judge(collective, inputs, outputs, ReduceOp.SUM, True).is_right
    outputs[2][1] += 1
    judgement = judge(collective, inputs, outputs, ReduceOp.SUM, True)
    assert (judgement.is_right, judgement.max_abs_error) == (False, 1)
    assert "OUTPUT has 11 at element 1, expected 10; 1 of 4" in judgement.diagnostics[0].message


def test_averages_of_a_custom_contract_divide_by_its_contributions() -> None:
    collective = custom(contributions((0, 1, -1, 0), (2, 0, 1, 1), (2, 0, 0, 0)))
    outputs = divide_averages(collective, [np.asarray([4.0, 6.0])] * 3)
    assert [output.tolist() for output in outputs] == [[4.0, 2.0], [4.0, 6.0], [2.0, 6.0]]


def test_a_contract_without_result_is_not_judged() -> None:
    outputs = [np.zeros(2)] * 3
    judgement = judge(custom(None), outputs, outputs, ReduceOp.SUM, True)
    assert (judgement.comparison, judgement.max_abs_error) == ("none", None)


ALL_REDUCE = Collective(CollectiveKind.ALL_REDUCE, 3, 3)


@given(
    st.permutations(range(3)),
    st.sampled_from([ReduceOp.SUM, ReduceOp.PROD, ReduceOp.AVG]),
    st.integers(0, 99),
)
def test_any_order_of_reduction_is_within_the_bound(
    order: list[int], op: ReduceOp, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    inputs = [rng.uniform(-2, 2, 30).astype(np.float16) for _ in range(3)]
    function = np.multiply if op is ReduceOp.PROD else np.add
    total = function(function(inputs[order[0]], inputs[order[1]]), inputs[order[2]])
    outputs = divide_averages(ALL_REDUCE, [total] * 3) if op is ReduceOp.AVG else [total] * 3
    assert judge(ALL_REDUCE, inputs, outputs, op, False).is_right


def test_an_error_beyond_the_bound_and_a_nan_are_wrong() -> None:
    inputs = [np.ones(3, np.float32) * np.float32(0.1)] * 3
    good = inputs[0] + inputs[1] + inputs[2]
    for wrong, error in (
        (good * np.float32(1.001), pytest.approx(0.0003, rel=0.01)),
        (good * np.float32("nan"), None),
    ):
        judgement = judge(ALL_REDUCE, inputs, [good, good, wrong], ReduceOp.SUM, False)
        assert (judgement.is_right, judgement.ranks_agree, judgement.max_abs_error) == (
            False,
            False,
            error,
        )
        assert [found.location.rank for found in judgement.diagnostics] == [2]


def test_minima_and_what_is_only_moved_are_compared_by_their_bits() -> None:
    inputs = [np.asarray([0.1, 0.2, 0.3], np.float32)] * 3
    outputs = [inputs[0], inputs[0], np.nextafter(inputs[0], np.float32(1))]
    judgement = judge(ALL_REDUCE, inputs, outputs, ReduceOp.MIN, False)
    assert (judgement.is_right, judgement.comparison) == (False, "bitwise")


def test_bits_tell_zeros_apart_and_a_nan_equals_itself() -> None:
    assert same_bits(np.asarray([np.nan]), np.asarray([np.nan]))
    assert not same_bits(np.asarray([0.0]), np.asarray([-0.0]))


@pytest.mark.parametrize("dtype", [np.int8, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 3)])
def test_bits_are_compared_for_all_shapes_and_element_sizes(
    dtype: type, shape: tuple[int, ...]
) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    # A transposed array has another order in memory.
    assert same_bits(values, values.T.copy().T)
    changed = values.copy()
    changed.reshape(-1)[-1:] += 1
    assert same_bits(values, changed) == (values.size == 0)


@pytest.mark.parametrize("dtype_name", ["float16", "float32", "int32"])
@pytest.mark.parametrize("num_ranks", [2, 8, 40])
def test_exact_inputs_have_exact_sums_and_differ_by_rank_and_place(
    dtype_name: str, num_ranks: int
) -> None:
    dtype = element_type(dtype_name)
    blocks = block_counts(ring_all_reduce(num_ranks))
    inputs = exact_inputs(blocks, 64, dtype, ReduceOp.SUM)
    total = sum(values.astype(object) for values in inputs)
    assert max(total) <= 1 << significand_bits(dtype)  # type: ignore[call-overload]
    assert are_results_exact(num_ranks, dtype, ReduceOp.SUM)
    assert len({values.tobytes() for values in inputs}) == num_ranks
    assert len({block.tobytes() for block in inputs[0].reshape(num_ranks, 64)}) == num_ranks


def test_sums_of_too_many_ranks_are_not_exact() -> None:
    assert not are_results_exact(2048, np.dtype(np.float16), ReduceOp.SUM)
    assert are_results_exact(2048, np.dtype(np.float16), ReduceOp.MAX)


def test_the_same_call_gives_the_same_inputs() -> None:
    blocks = block_counts(ring_all_reduce(3))
    for make in (exact_inputs, random_inputs):
        one, other = (make(blocks, 5, np.dtype(np.float32), ReduceOp.PROD) for _ in range(2))
        assert all(same_bits(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize(("size", "elements"), [(96, 8), (100, 8), (107, 8), (12, 1), (1, 1)])
def test_sizes_are_rounded_down_to_whole_elements_in_every_block(size: int, elements: int) -> None:
    blocks = block_counts(ring_all_reduce(3))
    assert block_elements(blocks, size, np.dtype(np.float32)) == elements


@pytest.mark.parametrize(
    ("kind", "root", "factor"),
    [
        ("all-reduce", None, 1.5),
        ("all-gather", None, 0.75),
        ("reduce-scatter", None, 0.75),
        ("all-to-all", None, 0.75),
        ("broadcast", 0, 1.0),
        ("reduce", 0, 1.0),
        ("gather", 0, 0.75),
        ("scatter", 0, 0.75),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(kind: str, root: int | None, factor: float) -> None:
    assert bus_bandwidth(Collective(CollectiveKind(kind), 4, 4, root), 100, 2.0) == factor * 50


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
def test_quotients_of_integers_round_toward_zero_up_to_the_limits(dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = [limits.min, limits.min + 1, limits.max, 7, 5 if limits.min == 0 else -5]
    expected = [abs(value) // 3 * (1 if value >= 0 else -1) for value in values]
    quotients = divide_values(np.array(values, dtype), 3)
    assert (quotients.tolist(), quotients.dtype) == (expected, dtype)
