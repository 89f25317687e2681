"""Uneven collectives of programs: types, values, documents, workloads, costs and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
    all_gather_v,
    all_reduce,
    all_to_all,
    all_to_all_v,
    coalesce,
    compare,
    partial,
    program_from_json,
    program_to_json,
    reduce_scatter_v,
    sliced,
    text,
)
from collhub_coconet.documents.from_workload import extract_program, find_program
from collhub_coconet.documents.json_document import bound_from_json
from collhub_coconet.execution.ranks import simulate_ranks
from collhub_coconet.execution.running import execute_and_compare
from collhub_coconet.lowering.algorithms import Choice, count_buffer_bytes
from collhub_coconet.lowering.flat import flatten
from collhub_coconet.lowering.workload import lower
from collhub_coconet.search.collective_times import FormulaTimes, Rates, find_demand
from collhub_coconet.search.hub_algorithms import HubAlgorithms
from collhub_coconet.transformations.costs import costs
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core import parse_topology, write
from hub_core.model import CollectiveKind, InputError

# Row i, column j: rows that rank i sends to rank j.
COUNTS = [[1, 2, 0, 3], [0, 0, 4, 1], [2, 2, 1, 1], [0, 1, 0, 0]]
RANKS = Binding(4, {})


def transposed(counts: list[list[int]]) -> list[list[int]]:
    return [list(column) for column in zip(*counts, strict=True)]


def mixture_of_experts() -> Program:
    """Send tokens to experts by counts, compute, and send the results back."""
    builder = ProgramBuilder("moe")
    tokens = builder.argument("tokens", "float32", 6, 2, layout=LOCAL)
    dispatched = all_to_all_v(tokens, COUNTS).named("dispatched")
    computed = (dispatched * 2.0).named("computed")
    combined = all_to_all_v(computed, transposed(COUNTS)).named("combined")
    return builder.program(combined)


def argument(*shape: int, layout: Layout = LOCAL, element: str = "float32") -> Value:
    return ProgramBuilder("p").argument("x", element, *shape, layout=layout)


def numbered(rows: int, rank: int) -> np.ndarray:
    return (100 * rank + np.arange(2 * rows).reshape(rows, 2)).astype(np.float32)


def test_rows_of_an_exchange_return_to_their_ranks() -> None:
    values = [numbered(6, rank) for rank in range(4)]
    run = simulate_ranks(mixture_of_experts(), RANKS, {"tokens": values})
    for rank, sent in enumerate(np.sum(COUNTS, axis=1)):
        assert np.array_equal(run.values["combined"][rank][:sent], 2 * values[rank][:sent])
        assert not run.values["combined"][rank][sent:].any()


def test_received_rows_are_in_the_order_of_their_senders() -> None:
    values = [numbered(6, rank) for rank in range(4)]
    run = simulate_ranks(mixture_of_experts(), RANKS, {"tokens": values})
    # Rank 1 receives two rows of rank 0 after the one that stays, two of rank 2 and one of rank 3.
    expected = [*values[0][1:3], *values[2][2:4], values[3][0]]
    assert np.array_equal(run.values["dispatched"][1][:5], expected)
    assert not run.values["dispatched"][1][5:].any()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any))
def test_a_gather_of_a_scattered_sum_is_the_sum(counts: list[int]) -> None:
    builder = ProgramBuilder("p")
    x = builder.argument("x", "float32", sum(counts), 2, layout=LOCAL)
    scattered = reduce_scatter_v(x, counts)
    program = builder.program(all_gather_v(scattered, counts).named("y"), all_reduce(x).named("z"))
    values = [numbered(sum(counts), rank) for rank in range(3)]
    run = simulate_ranks(program, Binding(3, {}), {"x": values})
    for rank in range(3):
        assert np.array_equal(run.values["y"][rank], run.values["z"][rank])


def test_equal_counts_are_an_all_to_all() -> None:
    builder = ProgramBuilder("p")
    whole = builder.argument("whole", "float32", 8, 4, layout=sliced(0))
    rows = builder.argument("rows", "float32", 4, 2, layout=LOCAL)
    even = all_to_all(whole, 1).named("even")
    uneven = all_to_all_v(rows, [[2, 2], [2, 2]]).named("uneven")
    values = np.arange(32, dtype=np.float32).reshape(8, 4)
    blocks = [values[:4], values[4:]]
    # The rows for a rank are adjacent: the columns of its block.
    sent = [np.concatenate([block[:2, :2], block[:2, 2:]]) for block in blocks]
    arguments = {"whole": blocks, "rows": sent}
    run = simulate_ranks(builder.program(even, uneven), Binding(2, {}), arguments)
    for rank in range(2):
        rows_of_even = run.values["even"][rank]
        expected = np.concatenate([rows_of_even[:2], rows_of_even[4:6]])
        assert np.array_equal(run.values["uneven"][rank], expected)


def test_an_exchange_along_one_axis_of_a_mesh_is_within_its_ranks() -> None:
    builder = ProgramBuilder("p", mesh=("dp", "ep"))
    x = builder.argument("x", "float32", 3, 2, layout={"dp": LOCAL, "ep": LOCAL})
    program = builder.program(all_to_all_v(x, [[0, 3], [1, 0]], axes="ep").named("y"))
    values = [numbered(3, rank) for rank in range(4)]
    run = simulate_ranks(program, Binding.of_mesh((2, 2), {}), {"x": values})
    assert np.array_equal(run.values["y"][3], values[2])
    assert np.array_equal(run.values["y"][2][:1], values[3][:1])


def test_types_have_the_rows_of_the_rank_with_the_most() -> None:
    x = argument(6, 2)
    assert str(all_to_all_v(x, COUNTS).type) == "float32[5, 2] L"
    assert str(all_gather_v(x, [1, 0, 6, 2]).type) == "float32[9, 2] R"
    assert str(reduce_scatter_v(x, [1, 0, 3, 2]).type) == "float32[3, 2] L"
    assert str(reduce_scatter_v(argument(6, layout=partial()), [4, 2]).type) == "float32[4] L"


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([[1, 2], [3]], "AllToAllV: the row of rank 1 has 1 counts, expected 2"),
        # As many counts as a table of 2 ranks.
        ([[1], [2, 3, 4]], "AllToAllV: the row of rank 0 has 1 counts, expected 2"),
        ([[1, 2], [3, 1.5]], "AllToAllV: rank 1 to rank 1: '1.5' is no integer"),
        ([[0, 0], [0, 0]], "the counts sum to 0 units"),
        ([[0, -1], [1, 0]], "-1 is negative"),
        ([[7, 0], [0, 0]], "x has 6 rows, the counts need 7"),
        ([], "AllToAllV: the table is no list or empty"),
    ],
)
def test_counts_that_do_not_fit_are_refused(counts: list[list[int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        all_to_all_v(argument(6, 2), counts)


def test_counts_may_be_arrays_and_ranges() -> None:
    def get_counts(value: Value) -> tuple[int, ...] | None:
        return value.builder.program(value.named("y")).by_name["y"].counts

    flat = tuple(count for row in COUNTS for count in row)
    for table in (np.array(COUNTS), np.array(COUNTS, np.uint8), [tuple(row) for row in COUNTS]):
        assert get_counts(all_to_all_v(argument(6, 2), table)) == flat
    for counts in (np.arange(3), range(3)):
        assert get_counts(all_gather_v(argument(6, 2), counts)) == (0, 1, 2)
    assert get_counts(reduce_scatter_v(argument(6, 2), np.array([2, 4]))) == (2, 4)


def test_a_scatter_needs_the_sum_of_its_counts() -> None:
    with pytest.raises(InputError, match="x has 6 rows, the counts need 5"):
        reduce_scatter_v(argument(6, 2), [2, 3])


def test_layouts_without_a_rule_are_refused() -> None:
    with pytest.raises(InputError, match="a local operand is expected, x is replicated"):
        all_gather_v(argument(6, layout=REPLICATED), [2, 3])
    with pytest.raises(InputError, match="x is bool, which is not reduced"):
        reduce_scatter_v(argument(6, element="bool"), [2, 4])


def test_the_rows_must_be_a_number() -> None:
    builder = ProgramBuilder("p", N=(1, 100))
    with pytest.raises(InputError, match="the first dimension of x is N"):
        all_gather_v(builder.argument("x", "float32", "N", layout=LOCAL), [2, 3])


def test_counts_of_another_number_of_ranks_are_refused() -> None:
    with pytest.raises(InputError, match="dispatched: counts of 4 ranks, not of 8"):
        lower(mixture_of_experts(), Binding(8, {}))


def test_counts_state_the_ranks_of_a_document() -> None:
    x = argument(6, 2)
    program = x.builder.program(all_gather_v(x, [1, 0, 6, 2, 4]).named("y"))
    document = program_to_json(program).encode()
    assert bound_from_json(document, "p").binding.num_ranks == 5
    with pytest.raises(InputError, match="y: counts of 5 ranks, not of 4"):
        bound_from_json(document, "p", 4)


def tokens_and_scales(kind: str, counts: Sequence[object]) -> Program:
    """Two uneven collectives with equal counts: rows of 2 and of 3 elements."""
    builder = ProgramBuilder("pair")
    layout = partial("sum") if kind == "reduce_scatter_v" else LOCAL
    tokens, scales = (
        builder.argument(name, "float64", 9, columns, layout=layout)
        for name, columns in (("tokens", 2), ("scales", 3))
    )
    call = {
        "all_to_all_v": all_to_all_v,
        "all_gather_v": all_gather_v,
        "reduce_scatter_v": reduce_scatter_v,
    }[kind]
    return builder.program(call(tokens, counts).named("x"), call(scales, counts).named("y"))


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("all_to_all_v", COUNTS),
        ("all_gather_v", [1, 0, 6, 2]),
        ("reduce_scatter_v", [1, 0, 6, 2]),
    ],
)
def test_uneven_collectives_with_equal_counts_share_a_bucket(
    kind: str, counts: Sequence[object]
) -> None:
    program = tokens_and_scales(kind, counts)
    joined = coalesce(program, ["x", "y"]).program
    assert compare(program, joined, RANKS).ok
    assert program_from_json(program_to_json(joined)) == joined
    workload = lower(joined, RANKS)
    # A row has 2 + 3 elements of 8 bytes.
    assert [one.table.tolist() for one in workload.counts] == [(40 * np.array(counts)).tolist()]
    assert extract_program(workload).program == joined
    first, second = (find_demand(joined, RANKS, joined.by_name[name]) for name in "xy")
    assert second is None
    assert first is not None
    assert first.size_bytes == 40 * np.sum(counts)
    network = parse_topology("fully-connected:4")
    for chunks in (1, 2):
        flat = flatten(joined, RANKS, network, {"": Choice("direct", chunks)})
        result = execute_and_compare(program, flat, seed=chunks)
        assert result.ok, result.differences


def test_uneven_collectives_with_other_counts_share_no_bucket() -> None:
    builder = ProgramBuilder("p")
    x = builder.argument("x", "float32", 9, 2, layout=LOCAL)
    first = all_gather_v(x, [1, 2, 3, 3]).named("a")
    program = builder.program(first, all_gather_v(x, [2, 2, 2, 2]).named("b"))
    with pytest.raises(RefusedMoveError, match="element type or counts"):
        coalesce(program, ["a", "b"])


def test_documents_and_text_have_the_counts() -> None:
    program = mixture_of_experts()
    assert program_from_json(program_to_json(program)) == program
    assert "AllToAllV(tokens, (1, 2, 0, 3, 0, 0, 4, 1, 2, 2, 1, 1, 0, 1, 0, 0))" in text(program)


def test_workloads_have_the_bytes_of_the_counts() -> None:
    program = mixture_of_experts()
    workload = lower(program, RANKS)
    # A row has 2 elements of 4 bytes.
    assert [counts.table.tolist() for counts in workload.counts] == [
        (8 * np.array(COUNTS)).tolist(),
        (8 * np.array(COUNTS).T).tolist(),
    ]
    kinds = {workload.kind_of(int(row)) for row in np.flatnonzero(workload.nodes.counts >= 0)}
    assert kinds == {CollectiveKind.ALL_TO_ALL_V}
    assert find_program(workload).program == program


def test_a_rank_sends_at_most_the_largest_row_sum_without_its_own_rows() -> None:
    # Rank 0 keeps 1 of its 6 rows, rank 2 keeps 1 of 6, rank 1 sends all 5: 5 rows of 8 bytes. In
    # the second exchange rank 1 sends 5 rows and keeps none.
    assert costs(mixture_of_experts(), RANKS).sent_bytes == 2 * 5 * 8


@pytest.mark.parametrize("columns", [2**58, 2**61, 2**62])
def test_rows_of_more_bytes_than_the_model_counts_are_refused(columns: int) -> None:
    x = argument(5, columns)
    program = x.builder.program(all_to_all_v(x, [[0, 5], [0, 0]]).named("y"))
    with pytest.raises(
        InputError, match=r"p: y: the rows of its counts have more than 2\^62 bytes"
    ):
        costs(program, Binding(2, {}))


def test_rows_of_as_many_bytes_as_the_model_counts_are_accepted() -> None:
    x = argument(5, 2**58)
    program = x.builder.program(all_to_all_v(x, [[0, 4], [0, 0]]).named("y"))
    # 4 rows of 2^58 columns of 4 bytes.
    assert costs(program, Binding(2, {})).sent_bytes == 2**62


@pytest.mark.once
def test_synthesizers_of_the_hub_state_the_time() -> None:
    program = mixture_of_experts()
    operation = program.by_name["dispatched"]
    demand = find_demand(program, RANKS, operation)
    assert demand is not None
    assert demand.size_bytes == count_buffer_bytes(program, RANKS, operation) == 18 * 8
    times = HubAlgorithms(parse_topology("ring:4"))
    seconds, means = times.find_fastest(demand)
    assert seconds > 0
    offers = {offer.name for offer in times.list_offers(demand)}
    assert means.algorithm in offers
    assert {offer.algorithm.collective.kind for offer in times.list_offers(demand)} == {
        CollectiveKind.ALL_TO_ALL_V
    }


def test_the_formula_counts_every_part_as_the_longest() -> None:
    builder = ProgramBuilder("p")
    x = builder.argument("x", "float32", 8, 2, layout=LOCAL)
    program = builder.program(
        all_gather_v(x, [8, 1, 0, 0]).named("uneven"), all_gather_v(x, [8, 8, 8, 8]).named("even")
    )
    times = FormulaTimes(Rates(1e12, 1e11, 1e9, 1e-6, 0.0))
    demands = [find_demand(program, RANKS, program.by_name[name]) for name in ("uneven", "even")]
    uneven, even = (times.find_fastest(demand) for demand in demands if demand is not None)
    assert uneven == even


@pytest.mark.once
def test_files_of_algorithms_with_other_counts_are_not_offered(tmp_path: Path) -> None:
    network = parse_topology("ring:4")
    demands = []
    for counts in ([1, 0, 6, 2], [2, 2, 3, 2]):
        rows = all_gather_v(argument(6, 2), counts).named("y")
        program = rows.builder.program(rows)
        demand = find_demand(program, RANKS, program.by_name["y"])
        assert demand is not None
        demands.append(demand)
    path = tmp_path / "first.json"
    write(HubAlgorithms(network).list_offers(demands[0])[0].algorithm, path)
    times = HubAlgorithms(network, named=(str(path),))
    is_offered = [
        any(offer.name == str(path) for offer in times.list_offers(demand)) for demand in demands
    ]
    assert is_offered == [True, False]
    reasons = [omission.reason for omission in times.omissions.values()]
    assert any(reason.startswith(f"{path} has other counts") for reason in reasons)
