"""Contracts of two collectives in sequence: substitution, canonical form, standard collectives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collhub_compose.buffers import BufferUsage, build_contract, count_required_units
from hub_core.columns import BoolArray, Int64Array, expanded_ranges
from hub_core.model import (
    ALL_RANKS,
    Collective,
    CollectiveKind,
    Contributions,
    CustomContract,
    InputError,
    ReduceOp,
)

# Four columns of eight bytes per row, and the same while they are sorted: half a gigabyte each.
_MAX_ROWS = 1 << 24


def substitute(first: Contributions, second: Contributions, num_ranks: int) -> Contributions:
    """Combine the contributions of two algorithms that run in sequence into those of both together.

    A row means that a unit of a source rank's INPUT is added to a unit of a rank's OUTPUT. Every
    row of `second` is joined with each row of `first` whose rank and offset are its source rank and
    source unit. The new row has the rank and offset of `second`, and the source of `first`. For
    example, 0 <- 1 in `second` and 1 <- 2 in `first` give 0 <- 2. A row of `second` without such a
    row disappears; repeated rows stay repeated.

    Rows of `second` with the source `ALL_RANKS` are first replaced by one row per source rank, from
    0 on; those of `first` stay as they are. The result is ordered as `second`, for equal ones as
    `first`. Raises `InputError` (`too-large`) for a result of more than 2^24 rows, and if the
    replacement needs so many.
    """
    second = expand_all_ranks(second, num_ranks)
    largest = np.maximum(first.offset.max(initial=0), second.source_unit.max(initial=0))
    width = 1 + int(largest)
    cell = first.rank * width + first.offset
    order = np.argsort(cell, kind="stable")
    cell = cell[order]

    # The rows of `first` for one unit are adjacent after sorting; each of them replaces it.
    needed_cell = second.source_rank * width + second.source_unit
    low = np.searchsorted(cell, needed_cell)
    times = np.searchsorted(cell, needed_cell, side="right") - low
    _check_row_count(int(times.sum()))
    second_row = np.repeat(np.arange(len(second)), times)
    origin = order[expanded_ranges(low, times)]
    return Contributions(
        second.rank[second_row],
        second.offset[second_row],
        first.source_rank[origin],
        first.source_unit[origin],
    )


def expand_all_ranks(rows: Contributions, num_ranks: int) -> Contributions:
    """Replace every row with the source `ALL_RANKS` by one row per source rank, from 0 on.

    The new rows take the position of the old one; other rows keep theirs. Return `rows`
    itself if there is no such row. Raise `InputError` (`too-large`) if more than 2^24 new
    rows are needed; the other rows do not count.
    """
    abbreviated = int(np.count_nonzero(rows.source_rank == ALL_RANKS))
    _check_row_count(abbreviated * num_ranks)
    return rows.with_ranks_named(num_ranks)


def are_equal(first: Contributions, second: Contributions) -> bool:
    """Return whether two relations in canonical form are equal.

    Relations in other forms can be unequal although they have the same meaning.
    """
    columns = ("rank", "offset", "source_rank", "source_unit")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in columns)


# A relation may contain a row more than once: a contribution that arrives twice. Its canonical form
# is found by counting. The sources of one unit are a group. The minimum number of occurrences of a
# rank in the group is the number of abbreviated rows; the remaining rows are explicit. That is the
# only form with so few rows, for any input, so two relations are equal if their
# canonical forms are. Cost: two sorts of the rows.


def to_canonical(rows: Contributions, num_ranks: int) -> Contributions:
    """Convert contributions to a form that is equal for equal relations.

    Contributions with equal rank, offset and source unit form a group. Let n be the number of rows
    of the rarest source rank in the group, 0 if one of the `num_ranks` ranks is missing. Then n
    rows of each rank are replaced by n rows with the source `ALL_RANKS` (-1). Rows that already
    have this source are not counted and stay. For example, with 2 ranks, the sources 0, 0 and 1
    become -1 and 0.

    Rows are sorted by rank, then offset, source unit and source rank. Empty contributions stay
    empty. The argument is not changed.
    """
    table = np.stack([rows.rank, rows.offset, rows.source_unit, rows.source_rank])
    table, times = _count_distinct(table, np.ones(len(rows), np.int64))
    is_new = _differs_from_previous(table[:3])
    group = np.cumsum(is_new) - 1
    groups = group.max(initial=-1) + 1
    is_named = table[3] != ALL_RANKS
    distinct = np.bincount(group[is_named], minlength=groups)
    rarest = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(rarest, group[is_named], times[is_named])
    # Rows are distinct: if there are as many as ranks, every rank is among them.
    common = np.where(distinct == num_ranks, rarest, 0)
    if common.any():
        abbreviated = table[:, is_new].copy()
        abbreviated[3] = ALL_RANKS
        remaining = times - np.where(is_named, common[group], 0)
        table, times = _count_distinct(
            np.concatenate([table, abbreviated], axis=1),
            np.concatenate([remaining, common]),
        )
    rank, offset, source_unit, source_rank = np.repeat(table, times, axis=1)
    return Contributions(rank, offset, source_rank, source_unit)


def _count_distinct(table: Int64Array, times: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the distinct columns of a table in sorted order, and the sum of their `times`.

    The first row is the most significant key. Columns whose sum is 0 remain. An empty table
    gives empty results.
    """
    order = np.lexsort(table[::-1])
    table, times = table[:, order], times[order]
    starts = np.flatnonzero(_differs_from_previous(table))
    if len(starts):
        times = np.add.reduceat(times, starts)
    return table[:, starts], times


def _differs_from_previous(table: Int64Array) -> BoolArray:
    """Return whether each column differs from the previous one; True for the first column."""
    differs = np.ones(table.shape[1], np.bool_)
    is_changed = table[:, 1:] != table[:, :-1]
    differs[1:] = is_changed.any(axis=0)
    return differs


def _check_row_count(rows: int) -> None:
    """Raise `InputError` (code `too-large`) for more than `_MAX_ROWS` rows of a contract.

    A row is one contribution of an input unit to an output unit.
    """
    if rows > _MAX_ROWS:
        size = f"{rows} contributions in its contract (limit {_MAX_ROWS})"
        raise InputError(
            f"too large to compose: the result holds {size}",
            cure="compose a smaller instance",
            code="too-large",
        )


# In the order of the trials. For a single rank several kinds have the same contract; the first one
# is used.
_UNROOTED_KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


def compose_contracts(first: CustomContract, second: CustomContract) -> CustomContract:
    """Build the contract of `second` executed on the data that `first` leaves in OUTPUT.

    It has the INPUT sizes and the ranks with data of the first, and the OUTPUT sizes of the second.
    The expected results are those of both in sequence (`substitute`), None if one of the two has
    none. That the contracts fit is not checked. Raises `InputError` for more than 2^24 rows.
    """
    expected = None
    if first.expected is not None and second.expected is not None:
        num_ranks = len(first.defined)
        expected = substitute(first.expected, second.expected, num_ranks)
    return CustomContract(
        first.input_units,
        second.output_units,
        first.defined,
        expected,
    )


def find_collective(contract: CustomContract, usage: BufferUsage, op: ReduceOp) -> Collective:
    """Return a collective with the contract: a standard one if possible, else a custom one.

    First the contract is reduced. An INPUT with data keeps its size. An INPUT without data is as
    long as the steps access it (`usage`). An OUTPUT is as long as the steps access it or the
    expected results need, whichever is more. `unit_count` is the largest size of a buffer, at least
    1.

    The result is the first kind of `_generate_kinds` that fits with `unit_count` and `op`. A kind
    fits if all of this holds:

    - It has the same expected results, and the same data in INPUT of each rank.
    - No other buffer is smaller than that of the reduced contract.
    - If it divides a buffer among the ranks, `unit_count` is a multiple of the number of ranks.

    If no kind fits, or the contract gives no expected results (None), the result is a custom
    collective with the reduced contract. The flags `in_place` and `out_of_place` are the defaults
    of `Collective`. Raises `InputError` (`too-large`) for too many contributions.
    """
    # Steps may use more of a buffer than the contract requires, as working memory.
    inputs = np.where(contract.defined, contract.input_units, usage.reached_input)
    outputs = np.maximum(usage.reached_output, count_required_units(contract))
    expected = contract.expected
    if expected is not None:
        expected = to_canonical(expected, len(contract.defined))
    trimmed = CustomContract(inputs, outputs, contract.defined, expected)
    largest_input = int(trimmed.input_units.max())
    largest_output = int(trimmed.output_units.max())
    unit_count = max(1, largest_input, largest_output)
    for kind, root in _generate_kinds(trimmed):
        match = _match_kind(kind, root, unit_count, trimmed, op)
        if match is not None:
            return match
    return Collective(
        CollectiveKind.CUSTOM,
        len(contract.defined),
        unit_count,
        reduce_op=op,
        contract=trimmed,
    )


def _generate_kinds(contract: CustomContract) -> Iterator[tuple[CollectiveKind, int | None]]:
    """Yield the kinds of collectives that the contract may have, each with its root or None.

    The order is: all-reduce, all-gather, reduce-scatter and all-to-all, without a root. Then follow
    broadcast and scatter, if exactly one rank has data in INPUT (`defined`), which is their root.
    Then follow reduce and gather, if exactly one rank has expected results, which is their root.
    Nothing is yielded if the expected results are None.
    """
    if contract.expected is None:
        return
    for kind in _UNROOTED_KINDS:
        yield kind, None
    sources = np.flatnonzero(contract.defined)
    if len(sources) == 1:
        root = int(sources[0])
        yield CollectiveKind.BROADCAST, root
        yield CollectiveKind.SCATTER, root
    targets = np.unique(contract.expected.rank)
    if len(targets) == 1:
        root = int(targets[0])
        yield CollectiveKind.REDUCE, root
        yield CollectiveKind.GATHER, root


def _match_kind(
    kind: CollectiveKind, root: int | None, unit_count: int, contract: CustomContract, op: ReduceOp
) -> Collective | None:
    """Return the standard collective of this kind and root if `contract` fits it, else None.

    The candidate has `unit_count` units and the operator `op`. `contract` must be in the form
    of `to_canonical` and have expected results. It fits if all of this holds:

    - The kind does not divide buffers among the ranks, or `unit_count` is a multiple of the
      number of ranks.
    - The same ranks have data in INPUT as in the candidate, and equally many units of it.
    - Every other INPUT and every OUTPUT of the candidate is at least as large as that of
      `contract`.
    - The expected results are equal.

    Raise `InputError` (`too-large`) for too many contributions, as `build_contract`.
    """
    num_ranks = len(contract.defined)
    if unit_count % num_ranks and kind.traits.is_split:
        return None
    candidate = Collective(kind, num_ranks, unit_count, root, reduce_op=op)
    candidate_contract = build_contract(candidate)
    defined = candidate_contract.defined
    if not np.array_equal(defined, contract.defined):
        return None
    if not np.array_equal(candidate_contract.input_units[defined], contract.input_units[defined]):
        return None
    # INPUT of a rank without data may have any size: no step reads it.
    inputs_fit = np.all(candidate_contract.input_units >= contract.input_units)
    outputs_fit = np.all(candidate_contract.output_units >= contract.output_units)
    if not (inputs_fit and outputs_fit):
        return None
    assert candidate_contract.expected is not None
    assert contract.expected is not None
    expected = to_canonical(candidate_contract.expected, num_ranks)
    return candidate if are_equal(expected, contract.expected) else None
