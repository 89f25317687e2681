"""Inputs of runs: exact patterns, random numbers, and checks of given arrays.

Results of the exact patterns do not depend on the order of reduction. Undefined memory gets a
value that no correct result has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collhub_execution.data.element_types import AnyArray, Array, is_floating, significand_bits
from collhub_execution.levelling.program import BlockCounts
from hub_core.model import Collective, ReduceOp, UsageError

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


def are_results_exact(num_ranks: int, dtype: np.dtype[Any], op: ReduceOp) -> bool:
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


# Unlikely to occur elsewhere: odd, far from small integers, and its sums and products are not 0.
_UNDEFINED_INTEGER = 0x5A5A5A5B


def choose_background(dtype: np.dtype[Any], op: ReduceOp) -> np.generic:
    """Return the initial value of undefined memory, a value that `op` propagates.

    No correct result has it: the lowest value of the type for MIN, the highest for MAX, otherwise
    NaN or, for integers, a constant that results do not contain by accident.
    """
    if op is ReduceOp.MIN:
        value = float("-inf") if is_floating(dtype) else np.iinfo(dtype).min
    elif op is ReduceOp.MAX:
        value = float("inf") if is_floating(dtype) else np.iinfo(dtype).max
    else:
        value = float("nan") if is_floating(dtype) else _UNDEFINED_INTEGER
    filled: np.generic = dtype.type(value)
    return filled


def check_inputs(
    collective: Collective, blocks: BlockCounts, inputs: Sequence[AnyArray], fill: np.generic
) -> tuple[AnyArray, ...]:
    """Return read-only flat views of the inputs; an undefined INPUT is replaced by `fill`.

    `inputs`: one array per rank, all of one dtype and with the same number of elements per block.
    Raises `UsageError` for inputs that do not fit.
    """
    if len(inputs) != blocks.num_ranks:
        message = f"{len(inputs)} inputs are given for {blocks.num_ranks} ranks"
        raise UsageError(message, cure="give one array a rank")
    _refuse_misfits(blocks, inputs)
    views = []
    for array, is_defined in zip(inputs, collective.defined_inputs().tolist(), strict=True):
        # A separate view: the caller's array stays writeable.
        view = array.reshape(-1).view() if is_defined else np.full(array.size, fill)
        view.flags.writeable = False
        views.append(view)
    return tuple(views)


def count_block_elements(blocks: BlockCounts, inputs: Sequence[AnyArray]) -> int:
    """Return the elements per block, from the sizes of the inputs; 1 if no rank has an input."""
    sizes = blocks.inputs.tolist()
    # Ranks without INPUT, such as all but the root of a scatter, do not determine it.
    candidates: list[int] = [
        array.size // size for array, size in zip(inputs, sizes, strict=True) if size
    ]
    return max(candidates, default=1)


def _refuse_misfits(blocks: BlockCounts, inputs: Sequence[AnyArray]) -> None:
    """Raise `UsageError` for the first rank whose input differs from the others in size or type."""
    elements = count_block_elements(blocks, inputs)
    for rank, (array, size) in enumerate(zip(inputs, blocks.inputs.tolist(), strict=True)):
        # With an empty block every size would fit and every result would be right.
        if array.size != size * elements or not elements:
            raise UsageError(
                f"the input of rank {rank} has {array.size} elements, "
                f"expected {size} times {max(elements, 1)}",
                cure=f"give every rank a multiple of its {size} chunks, the same for all",
            )
        if array.dtype != inputs[0].dtype:
            message = f"the inputs mix {inputs[0].dtype} and {array.dtype}"
            raise UsageError(message, cure="give arrays of one dtype")
