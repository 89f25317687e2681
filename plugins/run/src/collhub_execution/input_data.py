"""Inputs of runs and their element types: exact patterns, random numbers, checks of given arrays.

Results of the exact patterns do not depend on the order of reduction. Undefined memory gets a
value that no correct result has. An element type defines the precision of arithmetic and the
reductions; averages are divided sums, so that no transport needs an operator for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from collhub_execution.program_levels import BlockCounts
from hub_core.columns import Int64Array
from hub_core.model import REDUCING, Collective, PluginError, ReduceOp, UsageError

Array = npt.NDArray[Any]
AnyArray = npt.NDArray[np.generic]


Reduction = Callable[..., object]


REDUCTIONS: dict[ReduceOp, Reduction] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


DTYPE_NAMES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")

# Bits of the significand including the hidden one: IEEE 754-2019, table 3.5; bfloat16 is binary32
# without its last 16 bits.
_SIGNIFICANDS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


# Prime, so that no shift by a multiple of a usual block size maps the pattern to itself.
_TILE = 65521


_LARGEST_VALUE = 250


# Number of ranks whose factors may be 2; the remaining factors are 1, so no product overflows
# float16.
_DOUBLING_RANKS = 8


_SEED = 0x5EED


_TileMaker = Callable[[np.random.Generator, int], Array]


# Unlikely to occur elsewhere: odd, far from small integers, and its sums and products are not 0.
_UNDEFINED_INTEGER = 0x5A5A5A5B


def element_type(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of one of `DTYPE_NAMES`; `bfloat16` is that of the package ml_dtypes.

    Raises `UsageError` for another name, and `PluginError` for bfloat16 if ml_dtypes is not
    installed.
    """
    if name not in DTYPE_NAMES:
        cure = f"use one of {', '.join(DTYPE_NAMES)}"
        raise UsageError(f"dtype {name!r} is not known", cure=cure)
    if name != "bfloat16":
        return np.dtype(name)
    try:
        # Imported here: numpy has no bfloat16, and most runs need none.
        import ml_dtypes
    except ImportError as error:
        cure = "python -m pip install ml_dtypes"
        raise PluginError("bfloat16 needs the package ml_dtypes", cure=cure) from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Return whether sums of values of this type are rounded.

    False for integers, True for all other types, also for bfloat16, which numpy does not count as
    floating.
    """
    is_whole = np.issubdtype(dtype, np.integer)
    return not is_whole


def significand_bits(dtype: np.dtype[Any]) -> int:
    """Return the number of bits b with which the type stores integers exactly.

    For a floating-point type b counts the hidden bit, such as 24 for float32: all integers
    from -2^b to 2^b are exact. For an integer type of n bytes b is 8 * n - 1, also if it is
    unsigned: all integers from 0 to 2^b - 1 are exact. Raise `KeyError` for a
    floating-point type that is not in `_SIGNIFICANDS`.
    """
    if not is_floating(dtype):
        return 8 * dtype.itemsize - 1
    return _SIGNIFICANDS[dtype.name]


def rounding_unit(dtype: np.dtype[Any]) -> float:
    """Return the largest relative error of one rounding to this type.

    It is 2^-b with b of `significand_bits`, and 0 for integers.
    """
    if not is_floating(dtype):
        return 0.0
    return 2.0 ** -significand_bits(dtype)


"""`reduction(one, other, out=target)`, element by element."""


def divide_averages(collective: Collective, outputs: Sequence[AnyArray]) -> tuple[AnyArray, ...]:
    """Return every rank's OUTPUT, with sums divided to get averages.

    `outputs`: OUTPUT of every rank after a run that sums; they are not changed. The first
    case that applies decides:

    1. A custom contract with an expected result: each unit is divided by its number of
       contributions; one of all ranks counts as many as there are ranks, one outside of OUTPUT is
       ignored. Units without any are not divided.
    2. A collective that only moves data: the same arrays are returned.
    3. Any other collective: all elements are divided by the number of ranks.

    In cases 1 and 3 the arrays are new, of the same types. Integers are rounded towards zero.
    """
    contract = collective.contract
    if contract is None or contract.expected is None:
        if collective.kind not in REDUCING:
            return tuple(outputs)
        return tuple(divide_values(output, collective.num_ranks) for output in outputs)
    expected = contract.expected
    # A source rank below 0 means all ranks.
    weights = np.where(expected.source_rank < 0, collective.num_ranks, 1)
    averages = []
    for rank, units in enumerate(collective.output_units().tolist()):
        output = outputs[rank]
        # Contributions outside OUTPUT are reported by the verifier, not here.
        is_mine = (expected.rank == rank) & (expected.offset >= 0) & (expected.offset < units)
        counts = np.bincount(expected.offset[is_mine], weights[is_mine], units)
        divisor = np.maximum(counts, 1).astype(np.int64)
        elements = output.size // max(units, 1)
        averages.append(divide_values(output, np.repeat(divisor, elements)))
    return tuple(averages)


def exact_inputs(
    blocks: BlockCounts, elements: int, dtype: np.dtype[Any], op: ReduceOp
) -> tuple[Array, ...]:
    """Return one flat array per rank of small integers whose reduction is exact in any order.

    So results can be compared bitwise. `blocks`: size of each rank's INPUT in blocks; `elements`:
    number of elements per block. An array has blocks times elements values of `dtype`; it is empty
    for a rank without blocks.

    Products get 1 and -1, in the first `_DOUBLING_RANKS` (8) ranks also 2 and -2. All other
    operators get 0 to m, where m is the smaller of `_LARGEST_VALUE` (250) and 2^b // ranks, with b
    of `significand_bits`, but at least 1. So sums stay exact up to 2^b ranks (256 in bfloat16, 2048
    in float16) and may be rounded for more.

    Values are random, but repeat after `_TILE` (65521) elements. Calls with equal type, operator
    and number of ranks give a rank equal values.
    """
    limit = 1 << significand_bits(dtype)
    largest = max(1, min(_LARGEST_VALUE, limit // blocks.num_ranks))

    def make_tile(generator: np.random.Generator, rank: int) -> Array:
        """Draw the `_TILE` integers of one rank: from 0 to `largest`, inclusive.

        For products they are 1 or -1, in the first `_DOUBLING_RANKS` ranks also 2 or -2, so that no
        product overflows float16.
        """
        if op is not ReduceOp.PROD:
            return generator.integers(0, largest, _TILE, endpoint=True)
        is_doubling = rank < _DOUBLING_RANKS
        factor = generator.integers(1, 3, _TILE) if is_doubling else np.ones(_TILE, np.int64)
        signed: Array = factor * generator.choice([-1, 1], _TILE)
        return signed

    return _repeat_tiles(blocks, elements, dtype, make_tile)


def random_inputs(
    blocks: BlockCounts, elements: int, dtype: np.dtype[Any], op: ReduceOp
) -> tuple[Array, ...]:
    """Return one flat array of random numbers per rank, as large as its INPUT.

    They are uniform in -1 to 1, or in 0.75 to 1.25 for PROD, whose products of smaller
    numbers would underflow. They are rounded to `dtype` and repeat after `_TILE` (65521)
    elements. Integer types get the result of `exact_inputs`. `elements`: per block. Every
    call with the same type and operator gives a rank the same numbers, except that those of
    integer types also depend on the number of ranks.
    """
    if not is_floating(dtype):
        return exact_inputs(blocks, elements, dtype, op)
    # Products of many numbers below 1 would underflow.
    low, high = (0.75, 1.25) if op is ReduceOp.PROD else (-1.0, 1.0)

    def make_tile(generator: np.random.Generator, rank: int) -> Array:
        """Draw numbers with a uniform distribution from `low` to `high`."""
        return generator.uniform(low, high, _TILE)

    return _repeat_tiles(blocks, elements, dtype, make_tile)


def check_inputs(
    collective: Collective, blocks: BlockCounts, inputs: Sequence[AnyArray], fill: np.generic
) -> tuple[AnyArray, ...]:
    """Check the given inputs, and return them as read-only flat views, one per rank.

    `inputs`: one array per rank. Let n be the largest quotient, rounded down, of the size of an
    array and its rank's number of blocks; ranks without blocks do not count. n is 1 if no rank has
    blocks. Each array must have n elements per block, so none for a rank without blocks.

    A contiguous array is not copied, and stays writeable for the caller. Other arrays are copied.
    If the collective does not define the INPUT of a rank (for example, a rank that is not the root
    of a broadcast), its result is a new array of the same size, filled with `fill`.

    Raises `UsageError` for another number of arrays. Then the first rank with a wrong size, or with
    another dtype than rank 0, raises it. If n is 0, rank 0 has a wrong size.
    """
    if len(inputs) != blocks.num_ranks:
        message = f"{len(inputs)} inputs are given for {blocks.num_ranks} ranks"
        raise UsageError(message, cure="give one array per rank")
    elements = count_block_elements(blocks, inputs)
    columns = blocks.inputs.tolist(), collective.defined_inputs().tolist()
    views = []
    for rank, (array, size, is_defined) in enumerate(zip(inputs, *columns, strict=True)):
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
        # A separate view: the caller's array stays writeable.
        view = array.reshape(-1).view() if is_defined else np.full(array.size, fill)
        view.flags.writeable = False
        views.append(view)
    return tuple(views)


def are_results_exact(num_ranks: int, dtype: np.dtype[Any], op: ReduceOp) -> bool:
    """Return whether reductions of `exact_inputs` over `num_ranks` ranks are certainly exact.

    A sum or average is, in any order, if there are fewer than 2^b ranks, where b is
    `significand_bits` of the type (256 in bfloat16). The result is True for all other
    operators.
    """
    # Sums grow with the ranks; products of signs and few twos, minima and maxima do not.
    is_sum = op in (ReduceOp.SUM, ReduceOp.AVG)
    return not is_sum or num_ranks < 1 << significand_bits(dtype)


def block_elements(
    blocks: BlockCounts, collective_bytes: int, dtype: np.dtype[Any], is_padded: bool = False
) -> int:
    """Return the number of elements per block so that the full buffer has about `collective_bytes`.

    The full buffer is all data of the collective: `blocks.full_buffer` blocks of one size.
    The number is rounded down, as in nccl-tests, or up with `is_padded`, so that all bytes are in a
    block. It is at least 1, because empty blocks would test no data.
    """
    bytes_per_element = blocks.full_buffer * dtype.itemsize
    if is_padded:
        return max(1, -(-collective_bytes // bytes_per_element))
    return max(1, collective_bytes // bytes_per_element)


def count_block_elements(blocks: BlockCounts, inputs: Sequence[AnyArray]) -> int:
    """Return the number of elements per block, computed from the sizes of the inputs.

    It is the size of an input divided by its number of blocks, rounded down: the largest one if
    inputs disagree; 1 if no rank has an INPUT.
    """
    sizes = blocks.inputs.tolist()
    # Ranks without INPUT, such as all but the root of a scatter, do not determine it.
    candidates: list[int] = [
        array.size // size for array, size in zip(inputs, sizes, strict=True) if size
    ]
    return max(candidates, default=1)


def choose_background(dtype: np.dtype[Any], op: ReduceOp) -> np.generic:
    """Return the value with which undefined memory is filled, so that its use makes a result wrong.

    It is the lowest value of the type for MIN and the highest for MAX (infinities for
    floating-point types), which win every reduction. All other operators use NaN, or for integers a
    constant that results do not contain by accident.
    """
    if op is ReduceOp.MIN:
        value = float("-inf") if is_floating(dtype) else np.iinfo(dtype).min
    elif op is ReduceOp.MAX:
        value = float("inf") if is_floating(dtype) else np.iinfo(dtype).max
    else:
        value = float("nan") if is_floating(dtype) else _UNDEFINED_INTEGER
    filled: np.generic = dtype.type(value)
    return filled


def divide_values(values: Array, divisor: int | Int64Array) -> Array:
    """Return the values divided by one number or by an array of divisors, as a new array.

    It has the same dtype. Integers are rounded towards zero, as in NCCL. Floating-point values
    are divided by the divisor in their own dtype. Divisors must be positive; an array has one
    divisor per value.
    """
    if not is_floating(values.dtype):
        quotient = values // divisor
        # numpy's // rounds towards minus infinity. Absolute values lack that of the lowest number.
        is_rounded_down = (values < 0) & (values % divisor != 0)
        rounded: Array = (quotient + is_rounded_down).astype(values.dtype)
        return rounded
    # bfloat16 times a Python number would be computed in another type.
    scaled: Array = values / np.asarray(divisor, values.dtype)
    return scaled.astype(values.dtype)


def _repeat_tiles(
    blocks: BlockCounts, elements: int, dtype: np.dtype[Any], make_tile: _TileMaker
) -> tuple[Array, ...]:
    """Create the input of every rank: values of `make_tile`, repeated up to the rank's size.

    `make_tile(generator, rank)` draws a fixed number of values; drawing every element would
    take longer than the run. `elements`: number of elements per block of `blocks`. A rank
    without blocks has an empty array. The values are converted to `dtype`. The generator is
    seeded with the rank only, so its numbers do not depend on the number of ranks or
    blocks.
    """
    inputs = []
    for rank, size in enumerate((blocks.inputs * elements).tolist()):
        # One seed per rank: the data of a rank do not depend on the number of ranks.
        generator = np.random.default_rng([_SEED, rank])
        values = make_tile(generator, rank).astype(dtype)
        inputs.append(np.resize(values, size))
    return tuple(inputs)
