"""Run an algorithm on other ranks: under other numbers, or on some ranks of more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from collhub_columns import Int64Array, group_of_entry

from collhub_compose.buffers.blocks import BlockMoves
from collhub_compose.buffers.cutting import cut_torn_steps
from collhub_compose.buffers.usage import BufferUsage, contract_of, usage_of
from collhub_compose.naming import composed_provenance
from collhub_compose.seams.placement import PlacedPart, is_usable
from collhub_compose.seams.promises import promise
from collhub_compose.seams.relations import named
from collhub_compose.seams.staging import out_of_place
from collhub_compose.soundness import require_sound
from hub_core.model import (
    COLUMN_DTYPES,
    MAX_RANKS,
    Algorithm,
    Buffer,
    Collective,
    Contributions,
    CustomContract,
    StepTable,
    UsageError,
    message_bytes,
)


def relabel(algorithm: Algorithm, permutation: Sequence[int]) -> Algorithm:
    """The same collective, in which rank `permutation[r]` does what rank r did; a root moves along.

    Shares that belong to ranks change places with them: share k of the output of an all-gather
    becomes share `permutation[k]`. Steps on several shares that part become several, one a share.
    Vendor extensions are dropped. Raises `UsageError` for what is no permutation.
    """
    messages = require_sound(algorithm)
    places = _checked_places(permutation, algorithm.num_ranks, algorithm.num_ranks)
    moves = _moved_shares(algorithm.collective, places)
    whole = cut_torn_steps(algorithm.steps, moves, messages)
    scratch_units = np.empty_like(algorithm.scratch_units)
    scratch_units[places] = algorithm.scratch_units
    return Algorithm(
        _relabelled_collective(algorithm.collective, places),
        _on_ranks(moves.apply(whole), places, algorithm.num_ranks),
        scratch_units,
        composed_provenance("relabel", [algorithm], _words(permutation)),
        algorithm.collective_bytes,
    )


def embed(algorithm: Algorithm, ranks: Sequence[int], num_ranks: int) -> Algorithm:
    """The algorithm among `num_ranks` ranks, of which `ranks[r]` does what rank r did.

    The others do nothing. The result is a custom collective with the contract of the given one for
    these ranks; nothing is promised for the others. It claims to be in place where the given one
    does and in place means one buffer for INPUT and OUTPUT; an algorithm that then could not be
    called at all gets copies. Vendor extensions are dropped. Raises `UsageError` for ranks that are
    not different ones of 0..`num_ranks`-1.
    """
    require_sound(algorithm)
    if not 1 <= num_ranks <= MAX_RANKS:
        message = f"{num_ranks} ranks are not in 1..{MAX_RANKS}"
        raise UsageError(message, code="ranks")
    places = _checked_places(ranks, algorithm.num_ranks, num_ranks)
    collective, claims = _embedded(algorithm, places, num_ranks)
    if not any(claims):
        algorithm = out_of_place(algorithm)
        collective, claims = _embedded(algorithm, places, num_ranks)
    return Algorithm(
        replace(collective, in_place=claims[0], out_of_place=claims[1]),
        _on_ranks(algorithm.steps, places, num_ranks),
        _spread(algorithm.scratch_units, places, num_ranks),
        composed_provenance("embed", [algorithm], _words(ranks), num_ranks),
        _bytes_of(algorithm, collective.unit_count),
    )


def _words(ranks: Sequence[int]) -> str:
    """Ranks as the provenance names them."""
    words = [str(rank) for rank in ranks]
    return " ".join(words)


def _bytes_of(algorithm: Algorithm, units: int) -> int | None:
    """The size of so many units, where the algorithm states one."""
    # The whole may have other units than the part: no share of a rank that takes no part.
    stated = algorithm.collective_bytes
    if stated is None:
        return None
    unit_count = algorithm.collective.unit_count
    sizes = message_bytes(stated, unit_count, np.asarray([units]))
    return int(sizes[0])


def _checked_places(ranks: Sequence[int], expected: int, num_ranks: int) -> Int64Array:
    """The new places of ranks 0..`expected`-1, all different and below `num_ranks`, int64."""
    message = _defect_of_places(ranks, expected, num_ranks)
    if message is None:
        return np.asarray(ranks, np.int64)
    example = ",".join(str(rank) for rank in range(expected)[:4])
    more = ",..." if expected > 4 else ""
    cure = f"name each of the {expected} ranks once, for example {example}{more}"
    raise UsageError(message, cure=cure, code="ranks")


def _defect_of_places(ranks: Sequence[int], expected: int, num_ranks: int) -> str | None:
    """Why these are no places for so many ranks among `num_ranks`, or None."""
    if len(ranks) != expected:
        return f"{len(ranks)} ranks are given, the algorithm has {expected}"
    outside = [rank for rank in ranks if not 0 <= rank < num_ranks]
    if outside:
        return f"rank {outside[0]} is not in 0..{num_ranks - 1}"
    times = np.bincount(np.asarray(ranks, np.int64))
    doubled = np.flatnonzero(times > 1)
    if len(doubled):
        return f"rank {int(doubled[0])} is given more than once"
    return None


def _moved_shares(collective: Collective, places: Int64Array) -> BlockMoves:
    """Where the shares of the ranks go, in blocks of a share."""
    place = np.tile(np.arange(len(places), dtype=np.int64), (2, 1))
    traits = collective.kind.traits
    if not traits.is_split:
        # One block that holds all, and stays.
        sizes = np.concatenate([collective.input_units(), collective.output_units()])
        return BlockMoves(max(1, int(sizes.max())), place)
    # Shares change places with the ranks that they belong to.
    if traits.split_by_target:
        place[Buffer.INPUT] = places
    if traits.split_by_source:
        place[Buffer.OUTPUT] = places
    return BlockMoves(collective.units_per_rank, place)


def _relabelled_collective(collective: Collective, places: Int64Array) -> Collective:
    # Root and contract name ranks; everything else of a collective is the same on any.
    root = collective.root
    if root is not None:
        root = int(places[root])
    contract = collective.contract
    if contract is not None:
        contract = _relabelled_contract(contract, places, len(places))
    return replace(collective, root=root, contract=contract)


def _relabelled_contract(
    contract: CustomContract, places: Int64Array, num_ranks: int
) -> CustomContract:
    """The contract on ranks `places`; other ranks have no data and get none."""
    defined = np.zeros(num_ranks, np.bool_)
    defined[places] = contract.defined
    rows = contract.expected
    if rows is not None:
        if len(places) < num_ranks:
            # "All ranks" would mean others now.
            rows = named(rows, len(places))
        is_rank = rows.source_rank >= 0
        source = np.where(is_rank, places[rows.source_rank], rows.source_rank)
        rows = Contributions(places[rows.rank], rows.offset, source, rows.source_unit)
    return CustomContract(
        _spread(contract.input_units, places, num_ranks),
        _spread(contract.output_units, places, num_ranks),
        defined,
        rows,
    )


def _embedded(
    algorithm: Algorithm, places: Int64Array, num_ranks: int
) -> tuple[Collective, tuple[bool, bool]]:
    """The collective of all ranks, and whether it may be called in place and out of place."""
    contract = contract_of(algorithm.collective)
    usage = usage_of(algorithm, contract)
    wide = BufferUsage(
        _spread(usage.input, places, num_ranks),
        _spread(usage.output, places, num_ranks),
        _spread(usage.reached_input, places, num_ranks),
        _spread(usage.reached_output, places, num_ranks),
    )
    spread = _relabelled_contract(contract, places, num_ranks)
    collective = promise(spread, wide, algorithm.collective.reduce_op)
    part = PlacedPart(algorithm.collective, usage)
    in_place = _is_callable(part, collective, places, in_place=True)
    out_of_place = _is_callable(part, collective, places, in_place=False)
    return collective, (in_place, out_of_place)


def _is_callable(
    part: PlacedPart, collective: Collective, places: Int64Array, *, in_place: bool
) -> bool:
    """Whether a part on the ranks `places` works where this collective has its buffers."""
    # On the other ranks nothing happens, so they claim nothing.
    no_scratch = np.zeros(collective.num_ranks, np.int64)
    base = collective.memory_layout(in_place, no_scratch).base[places]
    usable = is_usable(part, base[:, Buffer.INPUT], base[:, Buffer.OUTPUT])
    return bool(usable.all())


def _spread(units: Int64Array, places: Int64Array, num_ranks: int) -> Int64Array:
    """Sizes by rank, at the new places of the ranks; 0 for others."""
    spread = np.zeros(num_ranks, np.int64)
    spread[places] = units
    return spread


def _on_ranks(steps: StepTable, places: Int64Array, num_ranks: int) -> StepTable:
    """The steps under the new numbers of their ranks."""
    columns = {name: getattr(steps, name) for name in COLUMN_DTYPES}
    columns["rank"] = places[steps.rank]
    is_message = steps.sends | steps.receives
    # A local step has no peer, whatever stands there.
    peer = np.where(is_message, steps.peer, 0)
    columns["peer"] = np.where(is_message, places[peer], steps.peer)
    return StepTable.from_columns(
        num_ranks,
        columns,
        (steps.data_indices, group_of_entry(steps.data_indptr)),
        (steps.control_indices, group_of_entry(steps.control_indptr)),
    )
