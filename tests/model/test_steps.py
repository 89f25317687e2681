"""The step table: what it accepts, how it orders, what it refuses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.steps import COLUMN_DTYPES, StepTable, StepTableBuilder


def table(ranks: list[int], edges: Sequence[tuple[int, int]] = (), num_ranks: int = 3) -> StepTable:
    """COMPUTE steps whose `count` is the position in the given order."""
    columns = {"rank": ranks, "kind": [StepKind.COMPUTE] * len(ranks), "count": range(len(ranks))}
    return StepTable.from_columns(
        num_ranks,
        {k: np.asarray(v) for k, v in columns.items()},
        tuple(zip(*edges, strict=True)) or ((), ()),
    )


def test_rows_are_grouped_by_rank_in_the_given_order() -> None:
    steps = table([2, 0, 2, 0])
    assert steps.rank.tolist() == [0, 0, 2, 2]
    assert steps.count.tolist() == [1, 3, 0, 2]
    assert steps.rank_indptr.tolist() == [0, 2, 2, 4]


def test_dependencies_follow_their_rows() -> None:
    steps = table([2, 0, 2, 0], [(0, 2), (1, 3)])
    assert [(int(p), int(c)) for p, c in zip(*steps.edges(), strict=True)] == [(0, 1), (2, 3)]


def test_forward_dependencies_reorder_the_rows_of_their_rank_only() -> None:
    steps = table([0, 0, 0, 1, 1], [(2, 0)])
    assert steps.count.tolist() == [1, 2, 0, 3, 4]


def test_repeated_dependencies_are_kept_once_and_ascending() -> None:
    steps = table([0, 0, 0], [(1, 2), (0, 2), (1, 2)])
    assert steps.data_indices.tolist() == [0, 1]
    assert steps.data_indptr.tolist() == [0, 0, 0, 2]


def test_edges_merge_data_and_control() -> None:
    builder = StepTableBuilder(1)
    first = builder.add(0, StepKind.COMPUTE)
    builder.add(0, StepKind.COMPUTE, data=[first], control=[first])
    parents, children = builder.build().edges()
    assert (parents.tolist(), children.tolist()) == ([0], [1])


@given(st.data())
def test_dependencies_always_point_to_earlier_rows_of_the_same_rank(data: st.DataObject) -> None:
    ranks = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))
    rows = st.integers(0, len(ranks) - 1)
    order = data.draw(st.permutations(range(len(ranks))))
    pairs = data.draw(st.lists(st.tuples(rows, rows), max_size=12))
    edges = [(order[min(a, b)], order[max(a, b)]) for a, b in pairs if a != b]
    edges = [(a, b) for a, b in edges if ranks[a] == ranks[b]]
    steps = table(ranks, edges)
    parents, children = steps.edges()
    assert np.all(parents < children)
    assert np.array_equal(steps.rank[parents], steps.rank[children])
    assert {
        (int(steps.count[p]), int(steps.count[c])) for p, c in zip(parents, children, strict=True)
    } == set(edges)


@pytest.mark.parametrize(
    ("ranks", "edges", "reason"),
    [
        ([0, 3], [], "row 1 names rank 3, which is not in 0..2"),
        ([0, -1], [], "row 1 names rank -1, which is not in 0..2"),
        ([0, 1], [(0, 1)], "another rank"),
        ([0, 0], [(0, 2)], "does not exist"),
        ([0, 0], [(-1, 1)], "does not exist"),
        ([0, 0], [(0, 1), (1, 0)], "cycle"),
        ([0], [(0, 0)], "cycle"),
    ],
)
def test_impossible_dependencies_and_ranks_are_refused(
    ranks: list[int], edges: list[tuple[int, int]], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        table(ranks, edges)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("lane", 2**31),
        ("peer", -(2**31) - 1),
        ("src_buffer", 256),
        ("dst_buffer", 4),
        ("kind", 6),
        ("kind", -1),
    ],
)
def test_value_outside_its_column_is_refused(column: str, value: int) -> None:
    columns = {
        "rank": np.zeros(1, np.int64),
        "kind": np.zeros(1, np.int64),
        column: np.asarray([value]),
    }
    with pytest.raises(InputError, match=column):
        StepTable.from_columns(1, columns)


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(InputError, match="peer has 2 rows"):
        StepTable.from_columns(1, {"rank": [0], "kind": [0], "peer": [1, 2]})


def test_unknown_column_of_the_builder_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        StepTableBuilder(1).add(0, StepKind.SEND, colour=1)


def test_columns_are_read_only_and_of_the_documented_types() -> None:
    steps = table([0, 1])
    for name, dtype in COLUMN_DTYPES.items():
        column = getattr(steps, name)
        assert column.dtype == dtype
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


def test_later_changes_of_the_given_arrays_do_not_reach_the_table() -> None:
    given_ranks = np.zeros(2, np.int32)
    steps = StepTable.from_columns(2, {"rank": given_ranks, "kind": np.zeros(2, np.uint8)})
    given_ranks[:] = 1
    assert steps.rank.tolist() == [0, 0]


def test_missing_columns_take_their_defaults() -> None:
    steps = table([0])
    assert (
        int(steps.peer[0]),
        int(steps.lane[0]),
        int(steps.duration_ns[0]),
        int(steps.source_line[0]),
    ) == (-1, -1, -1, -1)
    assert int(steps.src_buffer[0]) == int(steps.dst_buffer[0]) == Buffer.UNKNOWN


def test_location_counts_steps_within_the_rank() -> None:
    steps = table([0, 0, 1])
    assert (steps.location(2).rank, steps.location(2).step) == (1, 0)
    assert str(steps.location(1, "a.xml")) == "a.xml: rank 0, step 1"


def test_empty_table_is_a_table() -> None:
    steps = table([])
    assert len(steps) == 0
    assert steps.num_ranks == 3
    assert [side.tolist() for side in steps.edges()] == [[], []]


def test_both_ends_of_a_message_name_one_source_and_one_destination() -> None:
    builder = StepTableBuilder(2)
    builder.add(0, StepKind.SEND, peer=1, src_buffer=Buffer.INPUT, count=1)
    builder.add(1, StepKind.RECV, peer=0, dst_buffer=Buffer.OUTPUT, count=1)
    source, destination = builder.build().ends(np.arange(2))
    assert (source.tolist(), destination.tolist()) == ([0, 0], [1, 1])
