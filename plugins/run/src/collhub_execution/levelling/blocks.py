"""The number of blocks of the buffers of an algorithm, which inputs must fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Collective, CollectiveKind
from hub_core.verification import common_unit


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Sizes of buffers in blocks, the largest units that divide all regions.

    `full_buffer`: blocks of the full buffer of the collective. `inputs`: int64[num_ranks], blocks
    of every rank's INPUT.
    """

    full_buffer: int
    inputs: Int64Array

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.inputs)


def units_of_block(algorithm: Algorithm) -> int:
    """Return the number of units of the algorithm per block."""
    if algorithm.collective.kind is CollectiveKind.CUSTOM:
        # Its contract refers to single units, which must remain addressable.
        return 1
    return common_unit(algorithm)


def in_blocks(collective: Collective, block_units: int) -> Collective:
    """Return the collective with blocks as its units."""
    return replace(collective, unit_count=collective.unit_count // block_units)


def block_counts(algorithm: Algorithm) -> BlockCounts:
    """Return the block counts of an algorithm, in time linear in its steps."""
    block_units = units_of_block(algorithm)
    collective = in_blocks(algorithm.collective, block_units)
    return BlockCounts(collective.unit_count, collective.input_units())
