"""Run an algorithm on other ranks: renumbered, or on some ranks of a larger number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collhub_compose.buffers import (
    BlockMoves,
    BufferUsage,
    build_contract,
    divide_torn_steps,
    measure_usage,
)
from collhub_compose.contracts import expand_all_ranks, find_collective
from collhub_compose.inputs import build_provenance, check_composable
from collhub_compose.placement import PlacedPart, is_usable, make_out_of_place
from hub_core.columns import Int64Array, group_of_entry
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
    """Renumber the ranks of an algorithm: rank `permutation[r]` does the work of rank r.

    The root and the parts of the buffers that belong to ranks are renumbered too: part k of the
    output of an all-gather becomes part `permutation[k]`. A custom collective keeps its buffers;
    the ranks in its contract are renumbered. A step on several parts is divided if they are not
    adjacent in the same order afterwards. The steps of a rank keep their order. The kind and the
    size in bytes are kept, extensions are dropped, and the provenance describes the operation.

    Raises `InputError` if the algorithm cannot be composed (`check_composable`), for a collective
    with uneven parts (`uneven-parts`), and for more than 2^28 steps (`too-large`). Raises
    `UsageError` (`ranks`) if `permutation` is not a permutation of the ranks.
    """
    messages = check_composable(algorithm)
    new_ranks = _check_places(permutation, algorithm.num_ranks, algorithm.num_ranks)
    moves = _build_share_moves(algorithm.collective, new_ranks)
    divided = divide_torn_steps(algorithm.steps, moves, messages)
    root, contract = algorithm.collective.root, algorithm.collective.contract
    if root is not None:
        root = int(new_ranks[root])
    if contract is not None:
        contract = _relabel_contract(contract, new_ranks, algorithm.num_ranks)
    scratch_units = np.empty_like(algorithm.scratch_units)
    scratch_units[new_ranks] = algorithm.scratch_units
    return Algorithm(
        replace(algorithm.collective, root=root, contract=contract),
        _renumber_steps(moves.apply(divided), new_ranks, algorithm.num_ranks),
        scratch_units,
        build_provenance("relabel", [algorithm], _format_ranks(permutation)),
        algorithm.collective_bytes,
    )


def embed(algorithm: Algorithm, ranks: Sequence[int], num_ranks: int) -> Algorithm:
    """Execute an algorithm on some of `num_ranks` ranks: rank `ranks[r]` does the work of rank r.

    The other ranks are idle, without data and results. The data of each rank stay at their
    offsets. The collective is a standard one if its contract is equal (`find_collective`),
    otherwise custom. Its size is its number of units times the bytes per unit of `algorithm`,
    rounded up; None remains None. Extensions are dropped, and the provenance describes the
    operation.

    The result supports each mode (in place, out of place) in which calls have the buffers that the
    algorithm needs. If no mode is possible, copies are added so that it works out of place
    (`make_out_of_place`, with its `UsageError` `no-result`).

    Raises `InputError` if the algorithm cannot be composed (`check_composable`) or is too large.
    Raises `UsageError` (`ranks`) unless `num_ranks` is in 1..`MAX_RANKS` and `ranks` are distinct
    ranks of 0..`num_ranks` - 1, one per rank of the algorithm.
    """
    check_composable(algorithm)
    if not 1 <= num_ranks <= MAX_RANKS:
        message = f"{num_ranks} ranks are not in 1..{MAX_RANKS}"
        raise UsageError(message, code="ranks")
    new_ranks = _check_places(ranks, algorithm.num_ranks, num_ranks)
    collective, modes = _embed_collective(algorithm, new_ranks, num_ranks)
    if not any(modes):
        algorithm = make_out_of_place(algorithm)
        collective, modes = _embed_collective(algorithm, new_ranks, num_ranks)
    collective_bytes = algorithm.collective_bytes
    if collective_bytes is not None:
        # The result may have fewer units than the algorithm: idle ranks have no share.
        units = np.asarray([collective.unit_count])
        sizes = message_bytes(collective_bytes, algorithm.collective.unit_count, units)
        collective_bytes = int(sizes[0])
    return Algorithm(
        replace(collective, in_place=modes[0], out_of_place=modes[1]),
        _renumber_steps(algorithm.steps, new_ranks, num_ranks),
        _spread_values(algorithm.scratch_units, new_ranks, num_ranks),
        build_provenance("embed", [algorithm], _format_ranks(ranks), num_ranks),
        collective_bytes,
    )


def _format_ranks(ranks: Sequence[int]) -> str:
    """Return the ranks in the given order as a text, separated by spaces."""
    words = [str(rank) for rank in ranks]
    return " ".join(words)


def _check_places(ranks: Sequence[int], expected: int, num_ranks: int) -> Int64Array:
    """Return `ranks` as an int64 array in the given order, after checking them.

    There must be exactly `expected` distinct numbers, each in 0..`num_ranks` - 1. Otherwise
    `UsageError` (`ranks`) is raised for the first of: a wrong number of ranks, the first rank out
    of range, the smallest rank that occurs more than once. Its cure has an example of at most 4
    ranks, such as `0,1,2,3,...` for 5 expected ranks. If `expected` is 0, an empty list is valid.
    """
    outside = [rank for rank in ranks if not 0 <= rank < num_ranks]
    doubled = sorted(rank for rank, count in Counter(ranks).items() if count > 1)
    if len(ranks) != expected:
        message = f"{len(ranks)} ranks are given, the algorithm has {expected}"
    elif outside:
        message = f"rank {outside[0]} is not in 0..{num_ranks - 1}"
    elif doubled:
        message = f"rank {doubled[0]} is given more than once"
    else:
        return np.asarray(ranks, np.int64)
    example = ",".join(str(rank) for rank in range(expected)[:4])
    more = ",..." if expected > 4 else ""
    cure = f"name each of the {expected} ranks once, for example {example}{more}"
    raise UsageError(message, cure=cure, code="ranks")


def _build_share_moves(collective: Collective, new_ranks: Int64Array) -> BlockMoves:
    """Build the moves of the ranks' shares in INPUT and OUTPUT when ranks are renumbered.

    Share r moves to position `new_ranks[r]`. In INPUT shares move if the collective divides INPUT
    by target rank (reduce-scatter, scatter, all-to-all). In OUTPUT they move if it divides OUTPUT
    by source rank (all-gather, gather, all-to-all). Otherwise share r stays at position r.

    The block size is `units_per_rank` if the collective divides one of its buffers. If it divides
    none, as an all-reduce or a custom collective, it is the size of the largest buffer of a rank,
    at least 1, and nothing moves. Raises `InputError` (`uneven-parts`) for a collective with uneven
    parts.
    """
    place = np.tile(np.arange(len(new_ranks), dtype=np.int64), (2, 1))
    traits = collective.kind.traits
    if not traits.is_split:
        # A single block contains all data and is not moved.
        sizes = np.concatenate([collective.input_units(), collective.output_units()])
        return BlockMoves(max(1, int(sizes.max())), place)
    # Shares are renumbered like their ranks.
    if traits.split_by_target:
        place[Buffer.INPUT] = new_ranks
    if traits.split_by_source:
        place[Buffer.OUTPUT] = new_ranks
    return BlockMoves(collective.units_per_rank, place)


def _relabel_contract(
    contract: CustomContract, new_ranks: Int64Array, num_ranks: int
) -> CustomContract:
    """Renumber the ranks of a contract, and extend it to `num_ranks` ranks.

    `new_ranks`: int64, new number of every rank of the contract, all distinct. All other ranks are
    idle: they have empty buffers, no data and no results. Offsets and units do not change.

    Expected results keep their order, and their target and source ranks are renumbered. A source
    `ALL_RANKS` is kept if there are no idle ranks. Otherwise it would include them, so the row is
    replaced by one row per rank of the contract. A contract without expected results has none
    afterwards. Raises `InputError` (`too-large`) if rows with `ALL_RANKS` are replaced by more than
    2^24 rows.
    """
    defined = np.zeros(num_ranks, np.bool_)
    defined[new_ranks] = contract.defined
    rows = contract.expected
    if rows is not None:
        if len(new_ranks) < num_ranks:
            # "All ranks" would include idle ranks.
            rows = expand_all_ranks(rows, len(new_ranks))
        is_rank = rows.source_rank >= 0
        source = np.where(is_rank, new_ranks[rows.source_rank], rows.source_rank)
        rows = Contributions(new_ranks[rows.rank], rows.offset, source, rows.source_unit)
    return CustomContract(
        _spread_values(contract.input_units, new_ranks, num_ranks),
        _spread_values(contract.output_units, new_ranks, num_ranks),
        defined,
        rows,
    )


def _embed_collective(
    algorithm: Algorithm, new_ranks: Int64Array, num_ranks: int
) -> tuple[Collective, tuple[bool, bool]]:
    """Find the collective of an algorithm on some of `num_ranks` ranks, and its possible modes.

    Rank r of the algorithm becomes rank `new_ranks[r]`; other ranks have no data and no results.
    The collective is the first standard one with this contract, otherwise a custom one
    (`find_collective`). Its own modes are the defaults of `Collective`; the caller sets them.

    The modes are (in place, out of place): whether the algorithm works with the buffers of calls of
    the collective in this mode, on all of its ranks (`is_usable`). Both can be False. Raises
    `InputError` (`too-large`) if ranks times units exceed 2^25, or for more than 2^24 expected
    contributions.
    """
    contract = build_contract(algorithm.collective)
    usage = measure_usage(algorithm, contract)
    wide = BufferUsage(
        _spread_values(usage.input, new_ranks, num_ranks),
        _spread_values(usage.output, new_ranks, num_ranks),
        _spread_values(usage.reached_input, new_ranks, num_ranks),
        _spread_values(usage.reached_output, new_ranks, num_ranks),
    )
    spread = _relabel_contract(contract, new_ranks, num_ranks)
    collective = find_collective(spread, wide, algorithm.collective.reduce_op)
    part = PlacedPart(algorithm.collective, usage)
    in_place = _is_callable(part, collective, new_ranks, in_place=True)
    out_of_place = _is_callable(part, collective, new_ranks, in_place=False)
    return collective, (in_place, out_of_place)


def _is_callable(
    part: PlacedPart, collective: Collective, new_ranks: Int64Array, *, in_place: bool
) -> bool:
    """Return whether an algorithm works with the buffers of a larger collective in one mode.

    `in_place` selects the mode: calls in place or out of place. `new_ranks`: the rank of
    `collective` for each rank of the algorithm `part`. The algorithm must be usable
    (`is_usable`) on each of these ranks; other ranks of the collective are idle and have no
    effect.
    """
    # Idle ranks do not matter.
    no_scratch = np.zeros(collective.num_ranks, np.int64)
    base = collective.memory_layout(in_place, no_scratch).base[new_ranks]
    usable = is_usable(part, base[:, Buffer.INPUT], base[:, Buffer.OUTPUT])
    return bool(usable.all())


def _spread_values(units: Int64Array, new_ranks: Int64Array, num_ranks: int) -> Int64Array:
    """Return int64[num_ranks] with the value of rank r at `new_ranks[r]`, and 0 for idle ranks."""
    spread = np.zeros(num_ranks, np.int64)
    spread[new_ranks] = units
    return spread


def _renumber_steps(steps: StepTable, new_ranks: Int64Array, num_ranks: int) -> StepTable:
    """Return the steps as a table of `num_ranks` ranks, with rank r renamed to `new_ranks[r]`.

    The rows are grouped by new rank, and the rows of a rank keep their order. The peers of messages
    are renamed too; those of local steps have no meaning and are kept. The dependencies are the
    same ones between the moved rows, and the other columns do not change. `new_ranks` must have
    distinct ranks below `num_ranks`; `InputError` (`rank-range`) for a step on another rank.
    """
    columns = {name: getattr(steps, name) for name in COLUMN_DTYPES}
    columns["rank"] = new_ranks[steps.rank]
    is_message = steps.sends | steps.receives
    # The peer of a local step is meaningless and stays unchanged.
    peer = np.where(is_message, steps.peer, 0)
    columns["peer"] = np.where(is_message, new_ranks[peer], steps.peer)
    return StepTable.from_columns(
        num_ranks,
        columns,
        (steps.data_indices, group_of_entry(steps.data_indptr)),
        (steps.control_indices, group_of_entry(steps.control_indptr)),
    )
