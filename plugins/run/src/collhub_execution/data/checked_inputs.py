"""Inputs in the form that a program needs, and the initial value of undefined memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from collhub_execution.data.element_types import is_floating
from collhub_execution.levelling.blocks import BlockCounts
from hub_core.model import Collective, ReduceOp, UsageError

AnyArray = npt.NDArray[np.generic]

# Unlikely to occur elsewhere: odd, far from small integers, and its sums and products are not 0.
_UNDEFINED_INTEGER = 0x5A5A5A5B


def background(dtype: np.dtype[Any], op: ReduceOp) -> np.generic:
    """Return the initial value of undefined memory: no correct result has it, and `op` propagates
    it.
    """
    if op is ReduceOp.MIN:
        value = _get_lowest(dtype)
    elif op is ReduceOp.MAX:
        value = _get_highest(dtype)
    else:
        value = float("nan") if is_floating(dtype) else _UNDEFINED_INTEGER
    filled: np.generic = dtype.type(value)
    return filled


def _get_lowest(dtype: np.dtype[Any]) -> float:
    """Return the value that every minimum preserves."""
    return float("-inf") if is_floating(dtype) else np.iinfo(dtype).min


def _get_highest(dtype: np.dtype[Any]) -> float:
    """Return the value that every maximum preserves."""
    return float("inf") if is_floating(dtype) else np.iinfo(dtype).max


def checked_inputs(
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


def elements_of_block(blocks: BlockCounts, inputs: Sequence[AnyArray]) -> int:
    """Return the elements per block, from the sizes of the inputs; 1 if no rank has an input."""
    sizes = blocks.inputs.tolist()
    # Ranks without INPUT, such as all but the root of a scatter, do not determine it.
    candidates: list[int] = [
        array.size // size for array, size in zip(inputs, sizes, strict=True) if size
    ]
    return max(candidates, default=1)


def _refuse_misfits(blocks: BlockCounts, inputs: Sequence[AnyArray]) -> None:
    """Raise `UsageError` for the first rank whose input differs from the others in size or type."""
    elements = elements_of_block(blocks, inputs)
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
