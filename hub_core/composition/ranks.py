"""Run an algorithm on other ranks: under other numbers, or on some ranks of a larger communicator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hub_core.composition.blocks import BlockMoves, cut_torn_steps
from hub_core.composition.contracts import promise, with_ranks_named
from hub_core.composition.memory import Usage, contract_of, usage_of
from hub_core.composition.naming import composed_provenance
from hub_core.composition.placement import Part, is_usable
from hub_core.composition.soundness import require_sound
from hub_core.composition.staging import out_of_place
from hub_core.model.algorithm import Algorithm, message_bytes
from hub_core.model.collectives import MAX_RANKS, Collective, Contributions, CustomContract
from hub_core.model.diagnostics import UsageError
from hub_core.model.kinds import Buffer, CollectiveKind
from hub_core.model.steps import COLUMN_DTYPES, StepTable

Int64Array = npt.NDArray[np.int64]

# Which of INPUT and OUTPUT hold one share for every rank.
_SHARED = {
    CollectiveKind.ALL_GATHER: (Buffer.OUTPUT,),
    CollectiveKind.GATHER: (Buffer.OUTPUT,),
    CollectiveKind.REDUCE_SCATTER: (Buffer.INPUT,),
    CollectiveKind.SCATTER: (Buffer.INPUT,),
    CollectiveKind.ALL_TO_ALL: (Buffer.INPUT, Buffer.OUTPUT),
}


def relabel(algorithm: Algorithm, permutation: Sequence[int]) -> Algorithm:
    """The same collective, in which rank `permutation[r]` does what rank r did; a root moves along.

    Shares that belong to ranks change places with them: share k of the output of an all-gather becomes share
    `permutation[k]`. Steps on several shares that part become several, one a share. Vendor extensions are dropped.
    """
    messages = require_sound(algorithm)
    places = _checked(permutation, algorithm.num_ranks, algorithm.num_ranks)
    moves = _moved_shares(algorithm.collective, places)
    steps = moves.apply(cut_torn_steps(algorithm.steps, moves, messages))
    scratch_units = np.empty_like(algorithm.scratch_units)
    scratch_units[places] = algorithm.scratch_units
    return Algorithm(
        _relabelled_collective(algorithm.collective, places),
        _on_ranks(steps, places, algorithm.num_ranks),
        scratch_units,
        composed_provenance("relabel", [algorithm], " ".join(map(str, permutation))),
        algorithm.collective_bytes,
    )


def embed(algorithm: Algorithm, ranks: Sequence[int], num_ranks: int) -> Algorithm:
    """The algorithm among `num_ranks` ranks, of which `ranks[r]` does what rank r did and the others do nothing.

    The result is a custom collective with the contract of the given one for these ranks; nothing is promised for the
    others. It claims to be in place where the given one does and in place means one buffer for INPUT and OUTPUT; an
    algorithm that then could not be called at all gets copies. Vendor extensions are dropped.
    """
    require_sound(algorithm)
    if not 1 <= num_ranks <= MAX_RANKS:
        raise UsageError(f"{num_ranks} ranks are not in 1..{MAX_RANKS}", code="ranks")
    places = _checked(ranks, algorithm.num_ranks, num_ranks)
    collective, claims = _embedded(algorithm, places, num_ranks)
    if not any(claims):
        algorithm = out_of_place(algorithm)
        collective, claims = _embedded(algorithm, places, num_ranks)
    scratch_units = np.zeros(num_ranks, np.int64)
    scratch_units[places] = algorithm.scratch_units
    stated = algorithm.collective_bytes
    if stated is not None:
        units = np.asarray([collective.unit_count])
        stated = int(message_bytes(stated, algorithm.collective.unit_count, units)[0])
    return Algorithm(
        replace(collective, in_place=claims[0], out_of_place=claims[1]),
        _on_ranks(algorithm.steps, places, num_ranks),
        scratch_units,
        composed_provenance("embed", [algorithm], " ".join(map(str, ranks)), num_ranks),
        stated,
    )


def _checked(ranks: Sequence[int], expected: int, num_ranks: int) -> Int64Array:
    """The new places of ranks 0..`expected`-1, all different and below `num_ranks`."""
    cure = f"name each of the {expected} ranks once, for example {','.join(map(str, range(min(expected, 4))))}"
    cure += ",..." if expected > 4 else ""
    if len(ranks) != expected:
        raise UsageError(
            f"{len(ranks)} ranks are given, the algorithm has {expected}", cure=cure, code="ranks"
        )
    outside = [rank for rank in ranks if not 0 <= rank < num_ranks]
    if outside:
        raise UsageError(f"rank {outside[0]} is not in 0..{num_ranks - 1}", cure=cure, code="ranks")
    places = np.asarray(ranks, np.int64)
    if len(np.unique(places)) < expected:
        doubled = int(np.flatnonzero(np.bincount(places) > 1)[0])
        raise UsageError(f"rank {doubled} is given more than once", cure=cure, code="ranks")
    return places


def _moved_shares(collective: Collective, places: Int64Array) -> BlockMoves:
    """Where the shares of the ranks go, in blocks of a share."""
    place = np.tile(np.arange(len(places), dtype=np.int64), (2, 1))
    for buffer in _SHARED.get(collective.kind, ()):
        place[buffer] = places
    is_whole = collective.kind not in _SHARED
    sizes = np.concatenate([collective.input_units(), collective.output_units()])
    return BlockMoves(max(1, int(sizes.max())) if is_whole else collective.units_per_rank, place)


def _relabelled_collective(collective: Collective, places: Int64Array) -> Collective:
    root = None if collective.root is None else int(places[collective.root])
    contract = collective.contract
    if contract is not None:
        contract = _relabelled_contract(contract, places, len(places))
    return replace(collective, root=root, contract=contract)


def _relabelled_contract(
    contract: CustomContract, places: Int64Array, num_ranks: int
) -> CustomContract:
    """The contract on ranks `places`; other ranks have no data and get none."""
    sizes = np.zeros((2, num_ranks), np.int64)
    sizes[:, places] = contract.input_units, contract.output_units
    defined = np.zeros(num_ranks, np.bool_)
    defined[places] = contract.defined
    rows = contract.expected
    if rows is not None:
        rows = rows if len(places) == num_ranks else with_ranks_named(rows, len(places))
        source = np.where(rows.source_rank >= 0, places[rows.source_rank], rows.source_rank)
        rows = Contributions(places[rows.rank], rows.offset, source, rows.source_unit)
    return CustomContract(sizes[0], sizes[1], defined, rows)


def _embedded(
    algorithm: Algorithm, places: Int64Array, num_ranks: int
) -> tuple[Collective, tuple[bool, bool]]:
    """The collective of all ranks, and whether it may be called in place and out of place."""
    contract = contract_of(algorithm.collective)
    usage = usage_of(algorithm, contract)
    columns = (usage.input, usage.output, usage.reached_input, usage.reached_output)
    wide = Usage(*(_spread(units, places, num_ranks) for units in columns))
    collective = promise(
        _relabelled_contract(contract, places, num_ranks), wide, algorithm.collective.reduce_op
    )
    part = Part(algorithm.collective, usage)
    claims = []
    for in_place in (True, False):
        base = collective.memory_layout(in_place, np.zeros(num_ranks, np.int64)).base[places]
        claims.append(bool(np.all(is_usable(part, base[:, Buffer.INPUT], base[:, Buffer.OUTPUT]))))
    return collective, (claims[0], claims[1])


def _spread(units: Int64Array, places: Int64Array, num_ranks: int) -> Int64Array:
    spread = np.zeros(num_ranks, np.int64)
    spread[places] = units
    return spread


def _on_ranks(steps: StepTable, places: Int64Array, num_ranks: int) -> StepTable:
    """The steps under the new numbers of their ranks."""
    columns = {name: getattr(steps, name) for name in COLUMN_DTYPES}
    is_message = steps.sends | steps.receives
    columns["rank"] = places[steps.rank]
    columns["peer"] = np.where(is_message, places[np.where(is_message, steps.peer, 0)], steps.peer)
    rows = np.arange(len(steps))
    data = steps.data_indices, np.repeat(rows, np.diff(steps.data_indptr))
    control = steps.control_indices, np.repeat(rows, np.diff(steps.control_indptr))
    return StepTable.from_columns(num_ranks, columns, data, control)
