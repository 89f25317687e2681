"""Run several copies of an algorithm side by side, each on its part of finer units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hub_core.composition.blocks import MOST_BLOCKS, MOST_STEPS, BlockMoves, cut_torn_steps
from hub_core.composition.joining import side_by_side
from hub_core.composition.memory import Relocation
from hub_core.composition.naming import composed_provenance
from hub_core.composition.soundness import require_sound
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import MAX_UNITS, Collective, Contributions, CustomContract
from hub_core.model.diagnostics import InputError, UsageError
from hub_core.model.kinds import Buffer
from hub_core.model.steps import StepTable
from hub_core.verification.regions import common_unit

Int64Array = npt.NDArray[np.int64]


def replicate(algorithm: Algorithm, instances: int, interleaved: bool = False) -> Algorithm:
    """`instances` copies of an algorithm on as many times the units, each copy with its own channels and lanes.

    A rank's share of the full buffer is cut in one part a copy; `interleaved`, copy i instead takes the i-th part of
    every block of units that no step divides. Steps on more than one such share or block become several. Stated
    durations are divided. Vendor extensions are dropped. One instance is the algorithm itself.
    """
    if instances < 1:
        raise UsageError(f"{instances} instances run nothing", cure="give 1 or more")
    messages = require_sound(algorithm)
    if instances == 1:
        return algorithm
    _refuse_too_large(algorithm, instances)
    block = common_unit(algorithm) if interleaved else _share(algorithm.collective)
    copies = [_moves(algorithm.collective, block, instances, which) for which in range(instances)]
    steps = _shorter(cut_torn_steps(algorithm.steps, copies[0], messages), instances)
    parts = [
        _in_own_scratch(moves.apply(steps), algorithm.scratch_units * which)
        for which, moves in enumerate(copies)
    ]
    collective = algorithm.collective
    contract = None if collective.contract is None else _contract(collective.contract, copies)
    return Algorithm(
        replace(collective, unit_count=collective.unit_count * instances, contract=contract),
        side_by_side(parts),
        algorithm.scratch_units * instances,
        composed_provenance(
            "replicate", [algorithm], instances, *(["interleaved"] if interleaved else [])
        ),
        algorithm.collective_bytes,
    )


def _refuse_too_large(algorithm: Algorithm, instances: int) -> None:
    units = max(algorithm.collective.unit_count, int(algorithm.scratch_units.max(initial=0)))
    if units > MAX_UNITS // instances:
        raise UsageError(
            f"{instances} instances have more than 2^62 units",
            cure="use fewer instances",
            code="too-large",
        )
    rows = (
        algorithm.collective.contract.expected
        if algorithm.collective.contract is not None
        else None
    )
    size = instances * max(1, len(algorithm.steps), 0 if rows is None else len(rows))
    if size > MOST_STEPS:
        message = (
            f"{instances} instances have {size} steps or rows of the contract (limit {MOST_STEPS})"
        )
        raise UsageError(message, cure="use fewer instances", code="too-large")


def _share(collective: Collective) -> int:
    """Units of a rank's share; for custom collectives the units that divide all buffers."""
    if collective.contract is None:
        return collective.units_per_rank
    sizes = np.concatenate([collective.input_units(), collective.output_units()])
    return max(1, int(np.gcd.reduce(sizes)))


def _moves(collective: Collective, block: int, instances: int, which: int) -> BlockMoves:
    units = max(int(collective.input_units().max()), int(collective.output_units().max()))
    blocks = -(-units // block)
    if blocks > MOST_BLOCKS:
        raise InputError(
            f"too large to replicate: {blocks} blocks of {block} units (limit {MOST_BLOCKS})",
            code="too-large",
        )
    return BlockMoves(block, np.tile(np.arange(blocks, dtype=np.int64) * instances + which, (2, 1)))


def _shorter(steps: StepTable, instances: int) -> StepTable:
    duration = steps.duration_ns
    return replace(steps, duration_ns=np.where(duration > 0, -(-duration // instances), duration))


def _in_own_scratch(steps: StepTable, first_unit: Int64Array) -> StepTable:
    relocation = Relocation.none(steps.num_ranks)
    relocation.move(Buffer.SCRATCH, np.ones(steps.num_ranks, np.bool_), Buffer.SCRATCH, first_unit)
    return relocation.apply(steps)


def _contract(contract: CustomContract, copies: list[BlockMoves]) -> CustomContract:
    sizes = contract.input_units * len(copies), contract.output_units * len(copies)
    rows = contract.expected
    if rows is None:
        return CustomContract(*sizes, contract.defined)
    expected = Contributions(
        np.tile(rows.rank, len(copies)),
        np.concatenate([moves.units(Buffer.OUTPUT, rows.offset) for moves in copies]),
        np.tile(rows.source_rank, len(copies)),
        np.concatenate([moves.units(Buffer.INPUT, rows.source_unit) for moves in copies]),
    )
    return CustomContract(*sizes, contract.defined, expected)
