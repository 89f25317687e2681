"""Relations between units and contributions: the substitution of one in another, and one form."""

from __future__ import annotations

import numpy as np
from collhub_columns import BoolArray, Int64Array, expanded_ranges

from hub_core.model import ALL_RANKS, Contributions, InputError

# Four columns of eight bytes a row, and as many again while they are sorted: half a gigabyte each.
_MOST_ROWS = 1 << 24


def substituted(first: Contributions, second: Contributions, num_ranks: int) -> Contributions:
    """Replace every contribution of `second` by what `first` puts in its place.

    A join of two tables on (rank, unit). Raises `InputError` for more than 2^24 rows.
    """
    second = named(second, num_ranks)
    largest = np.maximum(first.offset.max(initial=0), second.source_unit.max(initial=0))
    width = 1 + int(largest)
    cell = first.rank * width + first.offset
    order = np.argsort(cell, kind="stable")
    cell = cell[order]

    # The rows of `first` that fill a unit stand together; each of them takes the place of it.
    wanted = second.source_rank * width + second.source_unit
    low = np.searchsorted(cell, wanted)
    times = np.searchsorted(cell, wanted, side="right") - low
    _refuse_too_many(int(times.sum()))
    taken = np.repeat(np.arange(len(second)), times)
    origin = order[expanded_ranges(low, times)]
    return Contributions(
        second.rank[taken],
        second.offset[taken],
        first.source_rank[origin],
        first.source_unit[origin],
    )


def named(rows: Contributions, num_ranks: int) -> Contributions:
    """The same relation without the abbreviation for every rank.

    Raises `InputError` for more than 2^24 abbreviated rows.
    """
    abbreviated = int(np.count_nonzero(rows.source_rank == ALL_RANKS))
    _refuse_too_many(abbreviated * num_ranks)
    return rows.with_ranks_named(num_ranks)


def are_equal(one: Contributions, other: Contributions) -> bool:
    """Whether two relations in canonical form are the same."""
    columns = ("rank", "offset", "source_rank", "source_unit")
    pairs = [(getattr(one, name), getattr(other, name)) for name in columns]
    return all(np.array_equal(mine, yours) for mine, yours in pairs)


# A relation may hold a row more than once: a contribution that arrives twice. Its canonical form is
# found by counting. The sources of one unit are a group. As often as the rarest of all ranks is
# named in it, all of them are: so many rows of each become one abbreviated row, and what is left is
# named. That is the only form with as few rows, whatever form was given, so two relations are equal
# where their canonical forms are. Cost: two sorts of the rows.


def canonical(rows: Contributions, num_ranks: int) -> Contributions:
    """The one way to write a relation.

    Rows are sorted by (rank, offset, source unit, source rank), and every rank is abbreviated
    wherever all of them contribute.
    """
    table = np.stack([rows.rank, rows.offset, rows.source_unit, rows.source_rank])
    table, times = _counted(table, np.ones(len(rows), np.int64))
    is_new = _differs_from_before(table[:3])
    group = np.cumsum(is_new) - 1
    common = _times_of_all_ranks(table[3], times, group, num_ranks)
    if common.any():
        everyone = table[:, is_new].copy()
        everyone[3] = ALL_RANKS
        is_named = table[3] != ALL_RANKS
        left = times - np.where(is_named, common[group], 0)
        table, times = _counted(
            np.concatenate([table, everyone], axis=1),
            np.concatenate([left, common]),
        )
    rank, offset, source_unit, source_rank = np.repeat(table, times, axis=1)
    return Contributions(rank, offset, source_rank, source_unit)


def _times_of_all_ranks(
    source_rank: Int64Array, times: Int64Array, group: Int64Array, num_ranks: int
) -> Int64Array:
    """Per group, how often all ranks are named in it: the least of their times, int64."""
    is_named = source_rank != ALL_RANKS
    groups = group.max(initial=-1) + 1
    distinct = np.bincount(group[is_named], minlength=groups)
    common = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(common, group[is_named], times[is_named])
    # Rows are distinct here: as many as ranks, and every rank is among them.
    return np.where(distinct == num_ranks, common, 0)


def _counted(table: Int64Array, times: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Distinct columns in order, and how often each occurs; `times`: how often each counts."""
    order = np.lexsort(table[::-1])
    table, times = table[:, order], times[order]
    starts = np.flatnonzero(_differs_from_before(table))
    if len(starts):
        times = np.add.reduceat(times, starts)
    return table[:, starts], times


def _differs_from_before(table: Int64Array) -> BoolArray:
    """Per column, whether it is not the one before; the first one is not."""
    differs = np.ones(table.shape[1], np.bool_)
    is_other = table[:, 1:] != table[:, :-1]
    differs[1:] = is_other.any(axis=0)
    return differs


def _refuse_too_many(rows: int) -> None:
    if rows > _MOST_ROWS:
        size = f"{rows} contributions in its contract (limit {_MOST_ROWS})"
        raise InputError(
            f"too large to compose: the result holds {size}",
            cure="compose a smaller instance",
            code="too-large",
        )
