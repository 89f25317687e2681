"""Divide the units of an algorithm, and run copies of it on the finer units.

Copies run in parallel (`replicate`) or one after another in a pipeline (`pipeline`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collhub_compose.buffers import (
    MAX_BLOCKS,
    MAX_STEPS,
    MAX_UNITS_IN_TABLE,
    BlockMoves,
    Relocation,
    divide_torn_steps,
)
from collhub_compose.inputs import build_provenance, check_composable
from collhub_compose.joining import concatenate_independent, concatenate_pieces
from hub_core.model import (
    MAX_UNITS,
    Algorithm,
    Buffer,
    Collective,
    Contributions,
    CustomContract,
    InputError,
    Messages,
    StepTable,
    UsageError,
)
from hub_core.schedules import separate_phases
from hub_core.verification import common_unit


def rescale(algorithm: Algorithm, factor: int) -> Algorithm:
    """Divide every unit into `factor` units; the same data is moved.

    Counts, offsets, scratch and units of the collective, also in its contract and in the table of
    an uneven collective, are multiplied by `factor`. The steps and the size in bytes do not change
    otherwise. Extensions are dropped, and the provenance has the expression
    `rescale(NAME, factor)`. A factor of 1 returns the algorithm itself.

    Raises `UsageError` for a factor below 1. Raises `UsageError` (`too-large`) if units of the
    collective, an offset or scratch exceed 2^62 afterwards. The same error is raised for more than
    `MAX_UNITS_IN_TABLE` rows of the contract.
    """
    if factor < 1:
        raise UsageError(
            f"units cannot be divided into {factor} parts",
            cure="give a factor of 1 or more",
        )
    if factor == 1:
        return algorithm
    collective, steps = algorithm.collective, algorithm.steps
    columns = (steps.src_offset, steps.dst_offset, algorithm.scratch_units)
    largest = max(int(column.max(initial=0)) for column in columns)
    if max(largest, collective.unit_count) > MAX_UNITS // factor:
        message = f"units divided into {factor} parts are more than 2^62"
        raise UsageError(message, code="too-large")
    # The number of steps does not change; the number of contract rows does.
    rows = count_contract_rows(collective) * factor
    if rows > MAX_UNITS_IN_TABLE:
        message = f"a contract of {rows} rows is too large (limit {MAX_UNITS_IN_TABLE})"
        raise UsageError(message, code="too-large")
    contract, counts = collective.contract, collective.counts
    if contract is not None:
        contract = _rescale_contract(contract, factor)
    if counts is not None:
        counts = counts.multiplied(factor)
    units = collective.unit_count * factor
    return Algorithm(
        replace(collective, unit_count=units, contract=contract, counts=counts),
        replace(
            steps,
            src_offset=steps.src_offset * factor,
            dst_offset=steps.dst_offset * factor,
            count=steps.count * factor,
        ),
        algorithm.scratch_units * factor,
        build_provenance("rescale", [algorithm], factor),
        algorithm.collective_bytes,
    )


def count_contract_rows(collective: Collective) -> int:
    """Return the number of contributions in the contract of a custom collective.

    It is 0 for other collectives and for contracts without expected results.
    """
    if collective.contract is None or collective.contract.expected is None:
        return 0
    return len(collective.contract.expected)


def _rescale_contract(contract: CustomContract, factor: int) -> CustomContract:
    """Return the contract for units that are divided into `factor` parts.

    Sizes of buffers are multiplied by `factor`; the ranks with defined input remain. Every row of
    the expected results becomes `factor` rows in sequence: row p maps part p of the source unit to
    part p of the result. With factor 2, the row (unit 3 from source unit 1) becomes (6 from 2) and
    (7 from 3). Contracts without expected results (None) have none afterwards. `contract` is not
    changed.
    """
    expected = contract.expected
    if expected is not None:
        part = np.tile(np.arange(factor, dtype=np.int64), len(expected))
        offset = np.repeat(expected.offset * factor, factor) + part
        source_unit = np.repeat(expected.source_unit * factor, factor) + part
        expected = Contributions(
            np.repeat(expected.rank, factor),
            offset,
            np.repeat(expected.source_rank, factor),
            source_unit,
        )
    return CustomContract(
        contract.input_units * factor,
        contract.output_units * factor,
        contract.defined,
        expected,
    )


def replicate(algorithm: Algorithm, instances: int, interleaved: bool = False) -> Algorithm:
    """Distribute the data of an algorithm over `instances` parallel copies of it.

    Units and scratch become `instances` times as many. Block k of copy i becomes block k *
    `instances` + i. A block is a rank's share of the buffers; with `interleaved` it is the largest
    common unit. Steps whose blocks are then not adjacent are divided into sequential steps.
    Durations above 0 are divided by `instances`, rounded up. Each copy has separate channels, lanes
    and scratch. Its steps follow those of earlier copies on each rank, without dependencies between
    copies. Extensions are dropped. One instance returns the algorithm itself.

    Raises the first of: `UsageError` below one instance; `InputError` of `check_composable` (also
    for one instance); `UsageError` (`too-large`, `_build_copies`); `InputError`
    (`uneven-parts`) for an uneven collective; `InputError` (`too-large`) above `MAX_BLOCKS` blocks
    or `MAX_STEPS` divided steps.
    """
    if instances < 1:
        raise UsageError(f"{instances} instances run nothing", cure="give 1 or more")
    messages = check_composable(algorithm)
    if instances == 1:
        return algorithm
    copies, parts = _build_copies(algorithm, messages, instances, interleaved)
    words = [instances, "interleaved"] if interleaved else [instances]
    return Algorithm(
        _replicate_collective(algorithm.collective, copies),
        concatenate_independent(parts),
        algorithm.scratch_units * instances,
        build_provenance("replicate", [algorithm], *words),
        algorithm.collective_bytes,
    )


def pipeline(algorithm: Algorithm, pieces: int) -> Algorithm:
    """Let an algorithm process its data in `pieces`, one after the other as in a pipeline.

    Units and scratch become `pieces` times as many; piece i is part i of each rank's share of the
    buffers. As in `replicate`, durations above 0 are divided by `pieces` (rounded up), steps whose
    blocks are not adjacent are divided, and extensions are dropped. All pieces use the same
    channels and lanes. On each channel and lane, the steps of a piece precede those of the next
    piece. The pieces have no other dependencies on each other.

    If the algorithm has no lanes, the phases of a connection, such as reduce-scatter and
    all-gather, first get separate channels (`separate_phases`). So a piece need not wait until the
    previous one has passed all phases.

    One piece returns the algorithm itself, after its check. The errors and their order are those of
    `replicate`, with `UsageError` for less than one piece.
    """
    if pieces < 1:
        raise UsageError(f"{pieces} pieces contain no data", cure="give 1 or more")
    messages = check_composable(algorithm)
    if pieces == 1:
        return algorithm
    phased = separate_phases(algorithm)
    copies, parts = _build_copies(phased, messages, pieces, interleaved=False)
    return Algorithm(
        _replicate_collective(algorithm.collective, copies),
        concatenate_pieces(parts),
        algorithm.scratch_units * pieces,
        build_provenance("pipeline", [algorithm], pieces),
        algorithm.collective_bytes,
    )


def _build_copies(
    algorithm: Algorithm, messages: Messages, count: int, interleaved: bool
) -> tuple[list[BlockMoves], list[StepTable]]:
    """Build `count` copies of an algorithm on finer units; return their block moves and steps.

    Both lists have one entry per copy. Copy i has its blocks of INPUT and OUTPUT where
    `_build_moves` puts them. On each rank, its scratch follows that of the previous copies.
    Channels and lanes are those of the algorithm in all copies. `messages`: those of the algorithm.

    Steps whose regions would not remain contiguous are divided, in the same way in all copies
    (`divide_torn_steps`). Known durations above 0 are then divided by `count`, rounded up; -1 and 0
    remain.

    Raises `UsageError` (`too-large`) if `count` times the larger of units and largest scratch is
    above 2^62 (`MAX_UNITS`), or `count` times the largest of steps, rows of the contract and 1
    above 2^28 (`MAX_STEPS`). Then raises `InputError` as `_build_moves`, and (`too-large`) for more
    than `MAX_STEPS` divided steps.
    """
    scratch = int(algorithm.scratch_units.max(initial=0))
    units = max(algorithm.collective.unit_count, scratch)
    if units > MAX_UNITS // count:
        raise UsageError(
            f"{count} instances have more than 2^62 units",
            cure="use fewer instances",
            code="too-large",
        )
    size = count * max(1, len(algorithm.steps), count_contract_rows(algorithm.collective))
    if size > MAX_STEPS:
        limit_text = f"{size} steps or rows of the contract (limit {MAX_STEPS})"
        raise UsageError(
            f"{count} instances have {limit_text}",
            cure="use fewer instances",
            code="too-large",
        )
    copies = _build_moves(algorithm, count, interleaved)
    # The copies differ in the positions of blocks, not in the borders between blocks: all are
    # divided in the same way.
    divided = divide_torn_steps(algorithm.steps, copies[0], messages)
    # The durations are given for all data: each copy has a share of them.
    duration = divided.duration_ns
    share = -(-duration // count)
    # -1: unknown.
    shorter = np.where(duration > 0, share, duration)
    steps = replace(divided, duration_ns=shorter)
    parts = []
    all_ranks = np.ones(algorithm.num_ranks, np.bool_)
    for copy, moves in enumerate(copies):
        relocation = Relocation.none(algorithm.num_ranks)
        first_scratch = algorithm.scratch_units * copy
        relocation.move(Buffer.SCRATCH, all_ranks, Buffer.SCRATCH, first_scratch)
        parts.append(relocation.apply(moves.apply(steps)))
    return copies, parts


def _build_moves(algorithm: Algorithm, instances: int, interleaved: bool) -> list[BlockMoves]:
    """Build the block moves of every copy: block k of copy i moves to block k x `instances` + i.

    A block is a rank's share of the buffers: all units if the buffers are not split. For a custom
    collective it is the greatest common divisor of all buffer sizes, 1 if all are empty. With
    `interleaved`, a block is the largest unit that divides all offsets, counts and sizes of the
    algorithm (`common_unit`).

    The moves are equal in INPUT and OUTPUT. The blocks cover the largest INPUT or OUTPUT of any
    rank. Raises `InputError` (`uneven-parts`) for an uneven collective, also with `interleaved`.
    Raises `InputError` (`too-large`) for more than `MAX_BLOCKS` blocks.
    """
    collective = algorithm.collective
    # An uneven collective is refused here, also with `interleaved`.
    if collective.contract is None:
        block = collective.units_per_rank
    else:
        sizes = np.concatenate([collective.input_units(), collective.output_units()])
        block = max(1, int(np.gcd.reduce(sizes)))
    if interleaved:
        block = common_unit(algorithm)
    inputs = int(collective.input_units().max())
    outputs = int(collective.output_units().max())
    blocks = -(-max(inputs, outputs) // block)
    if blocks > MAX_BLOCKS:
        size = f"{blocks} blocks of {block} units (limit {MAX_BLOCKS})"
        raise InputError(f"too large to replicate: {size}", code="too-large")
    first = np.arange(blocks, dtype=np.int64) * instances
    copies = []
    for copy in range(instances):
        place = np.tile(first + copy, (2, 1))
        copies.append(BlockMoves(block, place))
    return copies


def _replicate_collective(collective: Collective, copies: Sequence[BlockMoves]) -> Collective:
    """Return the collective that all copies of an algorithm execute together.

    It has the units of one copy times the number of copies; kind, root, operator and modes do not
    change. Buffer sizes in a contract are multiplied by the number of copies. Its expected results
    are all rows of the first copy, then all rows of the second one, and so on, moved to where the
    copy has its units; None remains None. `copies`: at least one, the moves of each copy. The
    collective must not be uneven, because counts are not changed. Raises `InputError` for a row of
    the contract whose result or source unit is outside all blocks of the moves.
    """
    # The kind stays the same: a rank's share consists of its shares in the copies.
    count = len(copies)
    units = collective.unit_count * count
    contract = collective.contract
    if contract is None:
        return replace(collective, unit_count=units)
    rows = contract.expected
    if rows is not None:
        offsets = [moves.move_units(Buffer.OUTPUT, rows.offset) for moves in copies]
        source_units = [moves.move_units(Buffer.INPUT, rows.source_unit) for moves in copies]
        rows = Contributions(
            np.tile(rows.rank, count),
            np.concatenate(offsets),
            np.tile(rows.source_rank, count),
            np.concatenate(source_units),
        )
    contract = CustomContract(
        contract.input_units * count,
        contract.output_units * count,
        contract.defined,
        rows,
    )
    return replace(collective, unit_count=units, contract=contract)
