"""What collectives promise, against the definitions of the field written out per unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model.collectives import (
    ALL_RANKS,
    MAX_RANKS,
    Collective,
    Contributions,
    CustomContract,
)
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import ROOTED, STANDARD_KINDS, Buffer, CollectiveKind


def make(kind: CollectiveKind, ranks: int = 3, share: int = 2, root: int = 1) -> Collective:
    return Collective(kind, ranks, ranks * share, root if kind in ROOTED else None, in_place=True)


# Holder (rank r, output unit k) -> the contributions (source rank, source unit), for 3 ranks,
# shares of 2 units, root 1.
ALL = range(3)
DEFINITION = {
    CollectiveKind.ALL_REDUCE: lambda r, k: {(q, k) for q in ALL},
    CollectiveKind.ALL_GATHER: lambda r, k: {(k // 2, k % 2)},
    CollectiveKind.REDUCE_SCATTER: lambda r, k: {(q, 2 * r + k) for q in ALL},
    CollectiveKind.ALL_TO_ALL: lambda r, k: {(k // 2, 2 * r + k % 2)},
    CollectiveKind.BROADCAST: lambda r, k: {(1, k)},
    CollectiveKind.REDUCE: lambda r, k: {(q, k) for q in ALL} if r == 1 else set(),
    CollectiveKind.GATHER: lambda r, k: {(k // 2, k % 2)},
    CollectiveKind.SCATTER: lambda r, k: {(1, 2 * r + k)},
}
SIZES = {
    CollectiveKind.ALL_REDUCE: ([6, 6, 6], [6, 6, 6]),
    CollectiveKind.ALL_GATHER: ([2, 2, 2], [6, 6, 6]),
    CollectiveKind.REDUCE_SCATTER: ([6, 6, 6], [2, 2, 2]),
    CollectiveKind.ALL_TO_ALL: ([6, 6, 6], [6, 6, 6]),
    CollectiveKind.BROADCAST: ([6, 6, 6], [6, 6, 6]),
    CollectiveKind.REDUCE: ([6, 6, 6], [6, 6, 6]),
    CollectiveKind.GATHER: ([2, 2, 2], [0, 6, 0]),
    CollectiveKind.SCATTER: ([0, 6, 0], [2, 2, 2]),
}


@pytest.mark.parametrize("kind", STANDARD_KINDS)
def test_postcondition_is_the_definition(kind: CollectiveKind) -> None:
    found: dict[tuple[int, int], set[tuple[int, int]]] = {}
    rows = make(kind).postcondition()
    assert rows is not None
    for r, k, q, unit in zip(
        *(c.tolist() for c in (rows.rank, rows.offset, rows.source_rank, rows.source_unit)),
        strict=True,
    ):
        found.setdefault((r, k), set()).update({(rank, unit) for rank in (ALL if q < 0 else [q])})
    outputs = [(r, k) for r, size in enumerate(SIZES[kind][1]) for k in range(size)]
    wanted = {place: DEFINITION[kind](*place) for place in outputs if DEFINITION[kind](*place)}
    assert found == wanted


@pytest.mark.parametrize("kind", STANDARD_KINDS)
def test_buffer_sizes_are_those_of_the_collective(kind: CollectiveKind) -> None:
    collective = make(kind)
    assert (collective.input_units().tolist(), collective.output_units().tolist()) == SIZES[kind]


@pytest.mark.parametrize("kind", STANDARD_KINDS)
def test_only_the_root_of_broadcast_and_scatter_holds_data(kind: CollectiveKind) -> None:
    only_root = kind in (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
    assert make(kind).defined_inputs().tolist() == (
        [False, True, False] if only_root else [True] * 3
    )


@given(
    st.sampled_from(STANDARD_KINDS),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
)
def test_buffers_never_overlap_but_for_the_aliases(
    kind: CollectiveKind, ranks: int, share: int, scratch: int, in_place: bool
) -> None:
    collective = make(kind, ranks, share, root=ranks - 1)
    layout = collective.memory_layout(in_place, np.full(ranks, scratch, np.int64))
    owners: dict[int, set[tuple[int, int]]] = {}
    for rank in range(ranks):
        for buffer in (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH):
            for k in range(int(layout.size[rank, buffer])):
                owners.setdefault(int(layout.base[rank, buffer]) + k, set()).add((rank, buffer))
    assert set(owners) == set(range(layout.total))
    shared = [places for places in owners.values() if len(places) > 1]
    assert all(
        {buffer for _, buffer in places} == {Buffer.INPUT, Buffer.OUTPUT} for places in shared
    )
    assert all(len({rank for rank, _ in places}) == 1 for places in owners.values())
    rooted = kind in (CollectiveKind.GATHER, CollectiveKind.SCATTER)
    aliased = (
        share
        if rooted
        else int(np.minimum(collective.input_units(), collective.output_units()).sum())
    )
    assert len(shared) == (aliased if in_place else 0)


@pytest.mark.parametrize(
    ("kind", "rank", "small", "large", "shift"),
    [
        (CollectiveKind.ALL_GATHER, 2, Buffer.INPUT, Buffer.OUTPUT, 4),
        (CollectiveKind.REDUCE_SCATTER, 2, Buffer.OUTPUT, Buffer.INPUT, 4),
        (CollectiveKind.GATHER, 1, Buffer.INPUT, Buffer.OUTPUT, 2),
        (CollectiveKind.SCATTER, 1, Buffer.OUTPUT, Buffer.INPUT, 2),
        (CollectiveKind.ALL_REDUCE, 2, Buffer.INPUT, Buffer.OUTPUT, 0),
        (CollectiveKind.ALL_TO_ALL, 0, Buffer.INPUT, Buffer.OUTPUT, 0),
        (CollectiveKind.BROADCAST, 0, Buffer.INPUT, Buffer.OUTPUT, 0),
    ],
)
def test_in_place_aliases_follow_nccl(
    kind: CollectiveKind, rank: int, small: Buffer, large: Buffer, shift: int
) -> None:
    base = make(kind).memory_layout(True, np.zeros(3, np.int64)).base
    assert base[rank, small] - base[rank, large] == shift


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_ranks": 0}, "number of ranks"),
        ({"num_ranks": MAX_RANKS + 1}, "number of ranks"),
        ({"unit_count": 0}, "unit_count"),
        ({"unit_count": -6}, "unit_count"),
        ({"root": 0}, "root"),
        ({"in_place": False, "out_of_place": False}, "neither"),
        ({"unit_count": 7}, "multiple"),
        ({"kind": CollectiveKind.CUSTOM}, "contract"),
    ],
)
def test_impossible_collective_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        replace(make(CollectiveKind.ALL_GATHER), **change)


@pytest.mark.parametrize("root", [None, -1, 3])
@pytest.mark.parametrize("kind", ROOTED)
def test_rooted_collective_needs_a_root_among_the_ranks(
    kind: CollectiveKind, root: int | None
) -> None:
    with pytest.raises(InputError, match="root"):
        Collective(kind, 3, 6, root)


def test_custom_collective_states_its_own_sizes() -> None:
    sizes = np.asarray([1, 0], np.int64), np.asarray([0, 3], np.int64)
    collective = Collective(
        CollectiveKind.CUSTOM, 2, 3, contract=CustomContract(*sizes, np.asarray([True, False]))
    )
    assert (collective.input_units().tolist(), collective.output_units().tolist()) == (
        [1, 0],
        [0, 3],
    )
    assert collective.postcondition() is None
    assert collective.memory_layout(False, np.zeros(2, np.int64)).total == 4
    assert collective.memory_layout(True, np.zeros(2, np.int64)).total == 4


def test_a_row_for_every_rank_is_a_row_a_rank() -> None:
    columns = [[0, 1], [5, 6], [ALL_RANKS, 2], [7, 8]]
    rows = Contributions(*(np.asarray(column) for column in columns)).with_ranks_named(3)
    found = zip(rows.rank, rows.offset, rows.source_rank, rows.source_unit, strict=True)
    assert list(found) == [(0, 5, 0, 7), (0, 5, 1, 7), (0, 5, 2, 7), (1, 6, 2, 8)]


def test_contents_of_too_many_units_are_not_listed() -> None:
    # Exact weights of measured bandwidths may need 10^13 units.
    collective = Collective(CollectiveKind.SCATTER, 6, 6 * 10**13, 0)
    with pytest.raises(InputError, match=r"too large to list the contents .* 60000000000000 units"):
        collective.postcondition()
