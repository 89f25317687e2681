"""Inputs for runs on real data: patterns whose results are exact, and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collhub_execution.data.element_types import Array, is_floating, significand_bits
from collhub_execution.levelling.blocks import BlockCounts
from hub_core.model import ReduceOp

# Prime, so that no shift by a multiple of a usual block size maps the pattern to itself.
_TILE = 65521
_LARGEST_VALUE = 250
# Number of ranks whose factors may be 2; the remaining factors are 1, so no product overflows
# float16.
_DOUBLING_RANKS = 8
_SEED = 0x5EED

_TileMaker = Callable[[np.random.Generator, int], Array]


def block_elements(blocks: BlockCounts, collective_bytes: int, dtype: np.dtype[Any]) -> int:
    """Return the elements per block for a full buffer of about `collective_bytes`.

    Rounded down, as in nccl-tests, to an integral number per block; but at least one, because empty
    blocks would test no data.
    """
    return max(1, collective_bytes // (blocks.full_buffer * dtype.itemsize))


def is_exact(num_ranks: int, dtype: np.dtype[Any], op: ReduceOp) -> bool:
    """Return whether the results of `exact_inputs` are exact: sums over too many ranks are not."""
    # Sums grow with the ranks; products of signs and few twos, minima and maxima do not.
    is_sum = op in (ReduceOp.SUM, ReduceOp.AVG)
    return not is_sum or num_ranks < 1 << significand_bits(dtype)


def exact_inputs(
    blocks: BlockCounts, elements: int, dtype: np.dtype[Any], op: ReduceOp
) -> tuple[Array, ...]:
    """Return one input per rank: small integers whose reduction is exact in any order.

    Results can therefore be compared bitwise. `elements`: per block. Sums stay below 2 to the power
    of `significand_bits` (up to 255 ranks in bfloat16, 2047 in float16, 67 000 in float32),
    products are powers of two with signs. Values differ between ranks and positions; every call
    returns the same values.
    """
    limit = 1 << significand_bits(dtype)
    largest = max(1, min(_LARGEST_VALUE, limit // blocks.num_ranks))

    def make_tile(generator: np.random.Generator, rank: int) -> Array:
        """Return a pattern of integers."""
        return _make_exact_tile(generator, rank, op, largest)

    return _repeat_tiles(blocks, elements, dtype, make_tile)


def random_inputs(
    blocks: BlockCounts, elements: int, dtype: np.dtype[Any], op: ReduceOp
) -> tuple[Array, ...]:
    """Return one input per rank of random numbers: -1 to 1, near 1 for products.

    Integers as in `exact_inputs`.
    """
    if not is_floating(dtype):
        return exact_inputs(blocks, elements, dtype, op)
    # Products of many numbers below 1 would underflow.
    low, high = (0.75, 1.25) if op is ReduceOp.PROD else (-1.0, 1.0)

    def make_tile(generator: np.random.Generator, rank: int) -> Array:
        """Return a pattern of random numbers."""
        return generator.uniform(low, high, _TILE)

    return _repeat_tiles(blocks, elements, dtype, make_tile)


def _make_exact_tile(
    generator: np.random.Generator, rank: int, op: ReduceOp, largest: int
) -> Array:
    """Return integers from 0 to `largest`; for products 1 and 2 with signs."""
    if op is not ReduceOp.PROD:
        return generator.integers(0, largest, _TILE, endpoint=True)
    is_doubling = rank < _DOUBLING_RANKS
    factor = generator.integers(1, 3, _TILE) if is_doubling else np.ones(_TILE, np.int64)
    signed: Array = factor * generator.choice([-1, 1], _TILE)
    return signed


def _repeat_tiles(
    blocks: BlockCounts, elements: int, dtype: np.dtype[Any], make_tile: _TileMaker
) -> tuple[Array, ...]:
    """Repeat each rank's pattern to its size: drawing every element would take longer than runs."""
    inputs = []
    for rank, size in enumerate((blocks.inputs * elements).tolist()):
        # One seed per rank: the data of a rank do not depend on the number of ranks.
        generator = np.random.default_rng([_SEED, rank])
        values = make_tile(generator, rank).astype(dtype)
        inputs.append(np.resize(values, size))
    return tuple(inputs)
