"""What two collectives promise when one follows the other, and which collective of the field that is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from hub_core.composition.memory import Usage, contract_of, required_units
from hub_core.model.collectives import ALL_RANKS, Collective, Contributions, CustomContract
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import REDUCING, CollectiveKind, ReduceOp

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_MOST_ROWS = 1 << 24
_UNROOTED = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


def followed_by(first: CustomContract, second: CustomContract) -> CustomContract:
    """The contract of `second` on what `first` leaves in OUTPUT; nothing is expected where one of them states nothing."""
    expected = None
    if first.expected is not None and second.expected is not None:
        expected = _substituted(first.expected, second.expected, len(first.defined))
    return CustomContract(first.input_units, second.output_units, first.defined, expected)


def promise(contract: CustomContract, usage: Usage, op: ReduceOp) -> Collective:
    """The collective with this contract: one of the field where the contracts are equal, else a custom one.

    Sizes of buffers that hold no data before or results after do not tell collectives apart, as long as the steps
    (`usage`) stay inside; a custom collective gets no more of them than that. Claims to be out of place, for now.
    """
    expected = (
        None if contract.expected is None else canonical(contract.expected, len(contract.defined))
    )
    sizes = (
        np.where(contract.defined, contract.input_units, usage.reached_input),
        np.maximum(usage.reached_output, required_units(contract)),
    )
    unit_count = max(1, int(sizes[0].max()), int(sizes[1].max()))
    trimmed = CustomContract(*sizes, contract.defined, expected)
    for kind, root in _candidates(trimmed) if expected is not None else ():
        found = _candidate(kind, root, unit_count, trimmed, op)
        if found is not None:
            return found
    return Collective(
        CollectiveKind.CUSTOM, len(contract.defined), unit_count, reduce_op=op, contract=trimmed
    )


def with_ranks_named(rows: Contributions, num_ranks: int) -> Contributions:
    """The same relation without the abbreviation for every rank. Raises `InputError` where that is too large."""
    everyone = np.flatnonzero(rows.source_rank == ALL_RANKS)
    if not len(everyone):
        return rows
    _refuse_too_many(len(everyone) * num_ranks)
    times = np.ones(len(rows), np.int64)
    times[everyone] = num_ranks
    taken = np.repeat(np.arange(len(rows)), times)
    within = np.arange(len(taken)) - np.repeat(np.cumsum(times) - times, times)
    source_rank = np.where(rows.source_rank[taken] == ALL_RANKS, within, rows.source_rank[taken])
    return Contributions(rows.rank[taken], rows.offset[taken], source_rank, rows.source_unit[taken])


def canonical(rows: Contributions, num_ranks: int) -> Contributions:
    """The one way to write a relation: sorted, and every rank abbreviated wherever all of them contribute."""
    table, times = _counted(
        np.stack([rows.rank, rows.offset, rows.source_unit, rows.source_rank]), None
    )
    is_new = np.append(True, np.any(table[:3, 1:] != table[:3, :-1], axis=0))[: table.shape[1]]
    group = np.cumsum(is_new) - 1
    named = table[3] != ALL_RANKS
    distinct = np.bincount(group[named], minlength=int(is_new.sum()))
    common = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(common, group[named], times[named])
    common = np.where(distinct == num_ranks, common, 0)
    if common.any():
        everyone = table[:, is_new].copy()
        everyone[3] = ALL_RANKS
        times = np.concatenate([times - np.where(named, common[group], 0), common])
        table, times = _counted(np.concatenate([table, everyone], axis=1), times)
    rank, offset, source_unit, source_rank = np.repeat(table, times, axis=1)
    return Contributions(rank, offset, source_rank, source_unit)


def _counted(table: Int64Array, times: Int64Array | None) -> tuple[Int64Array, Int64Array]:
    """Distinct columns in order, and how often each occurs (`times`: how often each counts)."""
    order = np.lexsort(table[::-1])
    table = table[:, order]
    times = np.ones(len(order), np.int64) if times is None else times[order]
    starts = np.flatnonzero(
        np.append(True, np.any(table[:, 1:] != table[:, :-1], axis=0))[: len(order)]
    )
    return table[:, starts], np.add.reduceat(times, starts) if len(starts) else times


def _substituted(first: Contributions, second: Contributions, num_ranks: int) -> Contributions:
    """Replace every contribution of `second` by what `first` puts in its place."""
    second = with_ranks_named(second, num_ranks)
    width = 1 + int(max(first.offset.max(initial=0), second.source_unit.max(initial=0)))
    cell = first.rank * width + first.offset
    order = np.argsort(cell, kind="stable")
    wanted = second.source_rank * width + second.source_unit
    low, high = (
        np.searchsorted(cell[order], wanted),
        np.searchsorted(cell[order], wanted, side="right"),
    )
    times = high - low
    _refuse_too_many(int(times.sum()))
    taken = np.repeat(np.arange(len(second)), times)
    within = np.arange(len(taken)) - np.repeat(np.cumsum(times) - times, times)
    origin = order[low[taken] + within]
    return Contributions(
        second.rank[taken],
        second.offset[taken],
        first.source_rank[origin],
        first.source_unit[origin],
    )


def _refuse_too_many(rows: int) -> None:
    if rows > _MOST_ROWS:
        message = f"too large to compose: the result holds {rows} contributions in its contract (limit {_MOST_ROWS})"
        raise InputError(message, cure="compose a smaller instance", code="too-large")


def _candidates(contract: CustomContract) -> Iterator[tuple[CollectiveKind, int | None]]:
    """Kinds with the root that the contract suggests: the only rank with data before, or with results after."""
    yield from ((kind, None) for kind in _UNROOTED)
    assert contract.expected is not None
    sources, targets = np.flatnonzero(contract.defined), np.unique(contract.expected.rank)
    if len(sources) == 1:
        yield from (
            (kind, int(sources[0])) for kind in (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
        )
    if len(targets) == 1:
        yield from (
            (kind, int(targets[0])) for kind in (CollectiveKind.REDUCE, CollectiveKind.GATHER)
        )


def _candidate(
    kind: CollectiveKind, root: int | None, unit_count: int, contract: CustomContract, op: ReduceOp
) -> Collective | None:
    """The collective of this kind, if it promises just what `contract` (canonical) says."""
    num_ranks = len(contract.defined)
    if unit_count % num_ranks and kind not in (
        CollectiveKind.BROADCAST,
        *REDUCING - {CollectiveKind.REDUCE_SCATTER},
    ):
        return None
    candidate = Collective(kind, num_ranks, unit_count, root, reduce_op=op)
    stated = contract_of(candidate)
    defined = stated.defined
    agrees = bool(np.array_equal(defined, contract.defined))
    agrees = agrees and bool(
        np.array_equal(stated.input_units[defined], contract.input_units[defined])
    )
    agrees = agrees and bool(np.all(stated.input_units >= contract.input_units))
    agrees = agrees and bool(np.all(stated.output_units >= contract.output_units))
    return (
        candidate if agrees and _are_equal(stated.expected, contract.expected, num_ranks) else None
    )


def _are_equal(stated: Contributions | None, given: Contributions | None, num_ranks: int) -> bool:
    assert stated is not None
    assert given is not None
    one = canonical(stated, num_ranks)
    columns = ("rank", "offset", "source_rank", "source_unit")
    return all(np.array_equal(getattr(one, name), getattr(given, name)) for name in columns)
