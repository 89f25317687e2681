"""Inputs for runs on real data: patterns whose results are exact, and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collhub_execution.data.element_types import Array, is_floating, significand_bits
from collhub_execution.levelling.blocks import BlockCounts
from hub_core.model import ReduceOp

# Prime, so that no shift by whole blocks of a usual size maps the pattern onto itself.
_TILE = 65521
_LARGEST_VALUE = 250
# Ranks whose factors may be 2; those of all others are 1, so that no product overflows float16.
_DOUBLING_RANKS = 8
_SEED = 0x5EED

_TileMaker = Callable[[np.random.Generator, int], Array]


def block_elements(blocks: BlockCounts, collective_bytes: int, dtype: np.dtype[Any]) -> int:
    """Elements of a block where the full buffer has about `collective_bytes`.

    Rounded down, as nccl-tests do, to whole elements in every block; but at least one of them, as
    empty blocks would show nothing.
    """
    return max(1, collective_bytes // (blocks.full_buffer * dtype.itemsize))


def is_exact(num_ranks: int, dtype: np.dtype[Any], op: ReduceOp) -> bool:
    """Whether the results of `exact_inputs` are exact: sums of too many ranks are not."""
    # Sums grow with the ranks; products of signs and few twos, minima and maxima do not.
    is_sum = op in (ReduceOp.SUM, ReduceOp.AVG)
    return not is_sum or num_ranks < 1 << significand_bits(dtype)


def exact_inputs(
    blocks: BlockCounts, elements: int, dtype: np.dtype[Any], op: ReduceOp
) -> tuple[Array, ...]:
    """One input a rank, small whole numbers whose reduction is exact in any order.

    So results are compared by their bits. `elements`: of a block. Sums stay below 2 to the power of
    `significand_bits` (up to 255 ranks in bfloat16, 2047 in float16, 67 000 in float32), products
    are powers of two with signs. Ranks and places differ; the same call gives the same values.
    """
    limit = 1 << significand_bits(dtype)
    largest = max(1, min(_LARGEST_VALUE, limit // blocks.num_ranks))

    def tile(generator: np.random.Generator, rank: int) -> Array:
        """A pattern of whole numbers."""
        return _exact_tile(generator, rank, op, largest)

    return _tiled(blocks, elements, dtype, tile)


def random_inputs(
    blocks: BlockCounts, elements: int, dtype: np.dtype[Any], op: ReduceOp
) -> tuple[Array, ...]:
    """One input a rank of random numbers: -1 to 1, near 1 for products.

    Integers as in `exact_inputs`.
    """
    if not is_floating(dtype):
        return exact_inputs(blocks, elements, dtype, op)
    # Products of many numbers below 1 would vanish.
    low, high = (0.75, 1.25) if op is ReduceOp.PROD else (-1.0, 1.0)

    def tile(generator: np.random.Generator, rank: int) -> Array:
        """A pattern of random numbers."""
        return generator.uniform(low, high, _TILE)

    return _tiled(blocks, elements, dtype, tile)


def _exact_tile(generator: np.random.Generator, rank: int, op: ReduceOp, largest: int) -> Array:
    """Whole numbers from 0 to `largest`; for products 1 and 2 with signs."""
    if op is not ReduceOp.PROD:
        return generator.integers(0, largest, _TILE, endpoint=True)
    is_doubling = rank < _DOUBLING_RANKS
    factor = generator.integers(1, 3, _TILE) if is_doubling else np.ones(_TILE, np.int64)
    signed: Array = factor * generator.choice([-1, 1], _TILE)
    return signed


def _tiled(
    blocks: BlockCounts, elements: int, dtype: np.dtype[Any], tile: _TileMaker
) -> tuple[Array, ...]:
    """Per rank its pattern as often as fits: drawing every element would take longer than runs."""
    inputs = []
    for rank, size in enumerate((blocks.inputs * elements).tolist()):
        # A seed a rank: what a rank gets does not depend on how many ranks there are.
        generator = np.random.default_rng([_SEED, rank])
        values = tile(generator, rank).astype(dtype)
        inputs.append(np.resize(values, size))
    return tuple(inputs)
