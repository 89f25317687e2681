"""Inputs for runs on real data, and what memory holds before: element types, patterns whose results are exact, random numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.execution.program import LevelledProgram
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import PluginError, UsageError
from hub_core.model.kinds import REDUCING, Buffer, ReduceOp
from hub_core.model.quantities import format_bytes

Array = npt.NDArray[Any]

DTYPE_NAMES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")

# Prime, so that no shift by whole blocks of a usual size maps the pattern onto itself.
_TILE = 65521
_LARGEST_VALUE = 250
_DOUBLING_RANKS = 8
_SEED = 0x5EED
_UNDEFINED_INTEGER = 0x5A5A5A5B


def element_type(name: str) -> np.dtype[Any]:
    """The numpy dtype of one of `DTYPE_NAMES`. Raises `UsageError`, and `PluginError` where bfloat16 is not installed."""
    if name not in DTYPE_NAMES:
        raise UsageError(
            f"dtype {name!r} is not known", cure=f"use one of {', '.join(DTYPE_NAMES)}"
        )
    if name != "bfloat16":
        return np.dtype(name)
    try:
        # Imported here: numpy has no bfloat16 of its own, and most runs need none.
        import ml_dtypes
    except ImportError as error:
        raise PluginError(
            "bfloat16 needs the package ml_dtypes", cure="python -m pip install ml_dtypes"
        ) from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether values of this type are rounded; holds for bfloat16, which is no `np.floating`."""
    return not np.issubdtype(dtype, np.integer)


def significand_bits(dtype: np.dtype[Any]) -> int:
    """Whole numbers up to 2 to this power are exact."""
    if not is_floating(dtype):
        return 8 * dtype.itemsize - 1
    return {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}[dtype.name]


def rounding_unit(dtype: np.dtype[Any]) -> float:
    """The largest relative error of one rounding; 0 for integers."""
    return 2.0 ** -significand_bits(dtype) if is_floating(dtype) else 0.0


def block_elements(program: LevelledProgram, collective_bytes: int, dtype: np.dtype[Any]) -> int:
    """Elements of a block where the full buffer has `collective_bytes`. Raises `UsageError` unless that is whole."""
    block_bytes, rest = divmod(collective_bytes, program.unit_count)
    if not rest and block_bytes and block_bytes % dtype.itemsize == 0:
        return block_bytes // dtype.itemsize
    step = program.unit_count * dtype.itemsize
    sizes = [
        f"{step * factor}B"
        for factor in (collective_bytes // step, collective_bytes // step + 1)
        if factor
    ]
    raise UsageError(
        f"{collective_bytes} bytes are not a whole number of {dtype.name} elements in each of {program.unit_count} chunks",
        cure=f"use a multiple of {step} bytes, for example {' or '.join(sizes)}",
        code="indivisible-size",
    )


def is_exact(num_ranks: int, dtype: np.dtype[Any], op: ReduceOp) -> bool:
    """Whether the results of `exact_inputs` are exact: sums of too many ranks are not."""
    return op not in (ReduceOp.SUM, ReduceOp.AVG) or num_ranks < 1 << significand_bits(dtype)


def check_memory(program: LevelledProgram, elements: int, dtype: np.dtype[Any]) -> None:
    """Raise `UsageError` where inputs and the memory of all ranks are more than this machine has."""
    blocks = program.layout.total + int(program.layout.size[:, Buffer.INPUT].sum())
    needed = blocks * elements * dtype.itemsize
    available = (
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if hasattr(os, "sysconf")
        else needed
    )
    if needed > available:
        message = f"{program.num_ranks} ranks need {format_bytes(needed)} of memory, this machine has {format_bytes(available)}"
        raise UsageError(message, cure="use a smaller size", code="too-large")


def exact_inputs(
    program: LevelledProgram, elements: int, dtype: np.dtype[Any], op: ReduceOp
) -> tuple[Array, ...]:
    """One input a rank, small whole numbers whose reduction over all ranks is exact in any order, so that results are bitwise.

    `elements`: of a block. Sums stay below 2 to the power of `significand_bits` (up to 255 ranks in bfloat16, 2047 in
    float16, 67 000 in float32), products are powers of two with signs. Ranks and places differ; the same call gives the same
    values.
    """
    largest = max(1, min(_LARGEST_VALUE, (1 << significand_bits(dtype)) // program.num_ranks))
    return _tiled(program, elements, dtype, lambda rng, rank: _exact_tile(rng, rank, op, largest))


def random_inputs(
    program: LevelledProgram, elements: int, dtype: np.dtype[Any], op: ReduceOp
) -> tuple[Array, ...]:
    """One input a rank of random numbers: from -1 to 1, near 1 for products; integers as in `exact_inputs`."""
    if not is_floating(dtype):
        return exact_inputs(program, elements, dtype, op)
    low, high = (0.75, 1.25) if op is ReduceOp.PROD else (-1.0, 1.0)
    return _tiled(program, elements, dtype, lambda rng, rank: rng.uniform(low, high, _TILE))


def _exact_tile(rng: np.random.Generator, rank: int, op: ReduceOp, largest: int) -> Array:
    if op is not ReduceOp.PROD:
        return rng.integers(0, largest, _TILE, endpoint=True)
    factor = rng.integers(1, 3, _TILE) if rank < _DOUBLING_RANKS else np.ones(_TILE, np.int64)
    signed: Array = factor * rng.choice([-1, 1], _TILE)
    return signed


def _tiled(
    program: LevelledProgram, elements: int, dtype: np.dtype[Any], tile: Any
) -> tuple[Array, ...]:
    check_memory(program, elements, dtype)
    sizes = (program.layout.size[:, Buffer.INPUT] * elements).tolist()
    made = (tile(np.random.default_rng([_SEED, rank]), rank) for rank in range(program.num_ranks))
    return tuple(
        np.resize(values.astype(dtype), size) for values, size in zip(made, sizes, strict=True)
    )


def background(dtype: np.dtype[Any], op: ReduceOp) -> np.generic:
    """What undefined memory holds: a value that no correct result has and that `op` carries on."""
    limits = None if is_floating(dtype) else np.iinfo(dtype)
    extremes = {
        ReduceOp.MIN: float("-inf") if limits is None else limits.min,
        ReduceOp.MAX: float("inf") if limits is None else limits.max,
    }
    value: np.generic = dtype.type(
        extremes.get(op, float("nan") if limits is None else _UNDEFINED_INTEGER)
    )
    return value


def checked_inputs(
    collective: Collective,
    program: LevelledProgram,
    inputs: Sequence[npt.NDArray[np.generic]],
    fill: np.generic,
) -> tuple[npt.NDArray[np.generic], ...]:
    """Read-only views of inputs that fit the program; where a rank's INPUT is undefined, `fill`. Raises `UsageError`."""
    if len(inputs) != program.num_ranks:
        raise UsageError(
            f"{len(inputs)} inputs are given for {program.num_ranks} ranks",
            cure="give one array a rank",
        )
    blocks = program.layout.size[:, Buffer.INPUT].tolist()
    elements = max(array.size // size for array, size in zip(inputs, blocks, strict=True) if size)
    for rank, (array, size) in enumerate(zip(inputs, blocks, strict=True)):
        if array.size != size * elements or not elements:
            message = f"the input of rank {rank} has {array.size} elements, expected {size} times {max(elements, 1)}"
            raise UsageError(
                message, cure=f"give every rank a multiple of its {size} chunks, the same for all"
            )
        if array.dtype != inputs[0].dtype:
            raise UsageError(
                f"the inputs mix {inputs[0].dtype} and {array.dtype}",
                cure="give arrays of one dtype",
            )
    defined = collective.defined_inputs().tolist()
    views = [
        a.reshape(-1).view() if is_defined else np.full(a.size, fill)
        for a, is_defined in zip(inputs, defined, strict=True)
    ]
    for view in views:
        view.flags.writeable = False
    return tuple(views)


def averaged(
    collective: Collective, outputs: Sequence[npt.NDArray[np.generic]]
) -> tuple[npt.NDArray[np.generic], ...]:
    """Sums divided by the number of their contributions; integers are rounded towards zero, as NCCL does."""
    if collective.contract is not None and collective.contract.expected is not None:
        return _averaged_by_unit(collective, outputs)
    if collective.kind not in REDUCING:
        return tuple(outputs)
    return tuple(divided(output, collective.num_ranks) for output in outputs)


def _averaged_by_unit(
    collective: Collective, outputs: Sequence[npt.NDArray[np.generic]]
) -> tuple[npt.NDArray[np.generic], ...]:
    expected = collective.postcondition()
    assert expected is not None
    weights = np.where(expected.source_rank < 0, collective.num_ranks, 1)
    found = []
    for rank, (output, units) in enumerate(
        zip(outputs, collective.output_units().tolist(), strict=True)
    ):
        mine = (expected.rank == rank) & (expected.offset >= 0) & (expected.offset < units)
        divisor = np.maximum(np.bincount(expected.offset[mine], weights[mine], units), 1).astype(
            np.int64
        )
        found.append(divided(output, np.repeat(divisor, output.size // max(units, 1))))
    return tuple(found)


def divided(values: Array, divisor: int | npt.NDArray[np.int64]) -> Array:
    """`values` by `divisor` in their own dtype; integers are rounded towards zero."""
    if not is_floating(values.dtype):
        quotient: Array = np.sign(values) * (np.abs(values) // divisor)
        return quotient.astype(values.dtype)
    scaled: Array = (values / np.asarray(divisor, values.dtype)).astype(values.dtype)
    return scaled
