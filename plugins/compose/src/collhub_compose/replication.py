"""Run several copies of an algorithm side by side, each on its part of finer units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from collhub_columns import Int64Array

from collhub_compose.buffers.blocks import MOST_BLOCKS, BlockMoves
from collhub_compose.buffers.cutting import MOST_STEPS, cut_torn_steps
from collhub_compose.buffers.relocation import Relocation
from collhub_compose.naming import composed_provenance
from collhub_compose.seams.joining import side_by_side
from collhub_compose.soundness import require_sound
from collhub_compose.units import stated_rows
from hub_core.model import (
    MAX_UNITS,
    Algorithm,
    Buffer,
    Collective,
    Contributions,
    CustomContract,
    InputError,
    StepTable,
    UsageError,
)
from hub_core.verification import common_unit


def replicate(algorithm: Algorithm, instances: int, interleaved: bool = False) -> Algorithm:
    """`instances` copies of an algorithm on as many times the units.

    Each copy has its own channels and lanes. A rank's share of the full buffer is cut in one part a
    copy; `interleaved`, copy i instead takes the i-th part of every block of units that no step
    divides. Steps on more than one such share or block become several. Stated durations are
    divided. Vendor extensions are dropped. One instance is the algorithm itself.

    Raises `UsageError` for less than one instance and for results that are too large.
    """
    if instances < 1:
        raise UsageError(f"{instances} instances run nothing", cure="give 1 or more")
    messages = require_sound(algorithm)
    if instances == 1:
        return algorithm
    _refuse_too_large(algorithm, instances)
    copies = _moves_of_copies(algorithm, instances, interleaved)
    # The copies differ in where blocks go, not in which blocks part: they are cut alike.
    whole = cut_torn_steps(algorithm.steps, copies[0], messages)
    steps = _with_shorter_steps(whole, instances)
    scratch_units = algorithm.scratch_units
    parts = []
    for which, moves in enumerate(copies):
        parts.append(_in_own_scratch(moves.apply(steps), scratch_units * which))
    words = [instances, "interleaved"] if interleaved else [instances]
    return Algorithm(
        _replicated_collective(algorithm.collective, copies),
        side_by_side(parts),
        scratch_units * instances,
        composed_provenance("replicate", [algorithm], *words),
        algorithm.collective_bytes,
    )


def _refuse_too_large(algorithm: Algorithm, instances: int) -> None:
    """Raise `UsageError` for more units than 2^62, and for more rows than memory may hold."""
    scratch = int(algorithm.scratch_units.max(initial=0))
    units = max(algorithm.collective.unit_count, scratch)
    if units > MAX_UNITS // instances:
        raise UsageError(
            f"{instances} instances have more than 2^62 units",
            cure="use fewer instances",
            code="too-large",
        )
    rows = max(1, len(algorithm.steps), stated_rows(algorithm.collective))
    size = instances * rows
    if size > MOST_STEPS:
        what = f"{size} steps or rows of the contract (limit {MOST_STEPS})"
        raise UsageError(
            f"{instances} instances have {what}",
            cure="use fewer instances",
            code="too-large",
        )


def _moves_of_copies(algorithm: Algorithm, instances: int, interleaved: bool) -> list[BlockMoves]:
    """Where the blocks of every copy go: block k of copy i to block `k * instances + i`."""
    collective = algorithm.collective
    block = _units_of_a_share(collective)
    if interleaved:
        block = common_unit(algorithm)
    inputs = int(collective.input_units().max())
    outputs = int(collective.output_units().max())
    blocks = -(-max(inputs, outputs) // block)
    if blocks > MOST_BLOCKS:
        size = f"{blocks} blocks of {block} units (limit {MOST_BLOCKS})"
        raise InputError(f"too large to replicate: {size}", code="too-large")
    first = np.arange(blocks, dtype=np.int64) * instances
    copies = []
    for which in range(instances):
        place = np.tile(first + which, (2, 1))
        copies.append(BlockMoves(block, place))
    return copies


def _units_of_a_share(collective: Collective) -> int:
    """Units of a rank's share; for custom collectives the units that divide all buffers."""
    if collective.contract is None:
        return collective.units_per_rank
    sizes = np.concatenate([collective.input_units(), collective.output_units()])
    return max(1, int(np.gcd.reduce(sizes)))


def _with_shorter_steps(steps: StepTable, instances: int) -> StepTable:
    """Stated durations are those of the whole data, of which a copy has a part; rounded up."""
    duration = steps.duration_ns
    share = -(-duration // instances)
    # -1: not stated.
    shorter = np.where(duration > 0, share, duration)
    return replace(steps, duration_ns=shorter)


def _in_own_scratch(steps: StepTable, first_unit: Int64Array) -> StepTable:
    """The steps with their SCRATCH behind that of the copies before, int64[num_ranks] units."""
    relocation = Relocation.none(steps.num_ranks)
    everywhere = np.ones(steps.num_ranks, np.bool_)
    relocation.move(Buffer.SCRATCH, everywhere, Buffer.SCRATCH, first_unit)
    return relocation.apply(steps)


def _replicated_collective(collective: Collective, copies: Sequence[BlockMoves]) -> Collective:
    # The kind stays: a share of a rank is made of the shares that it has in the copies.
    contract = collective.contract
    if contract is not None:
        contract = _replicated_contract(contract, copies)
    units = collective.unit_count * len(copies)
    return replace(collective, unit_count=units, contract=contract)


def _replicated_contract(contract: CustomContract, copies: Sequence[BlockMoves]) -> CustomContract:
    """The rows of all copies, one copy behind the other, in their places."""
    count = len(copies)
    rows = contract.expected
    if rows is not None:
        offsets = [moves.units(Buffer.OUTPUT, rows.offset) for moves in copies]
        source_units = [moves.units(Buffer.INPUT, rows.source_unit) for moves in copies]
        rows = Contributions(
            np.tile(rows.rank, count),
            np.concatenate(offsets),
            np.tile(rows.source_rank, count),
            np.concatenate(source_units),
        )
    return CustomContract(
        contract.input_units * count,
        contract.output_units * count,
        contract.defined,
        rows,
    )
