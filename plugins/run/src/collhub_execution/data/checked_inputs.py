"""Inputs as a program needs them, and what memory holds where nothing is defined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from collhub_execution.data.element_types import is_floating
from collhub_execution.levelling.blocks import BlockCounts
from hub_core.model import Collective, ReduceOp, UsageError

AnyArray = npt.NDArray[np.generic]

# Found nowhere else: odd, far from small whole numbers, and neither its sums nor products are 0.
_UNDEFINED_INTEGER = 0x5A5A5A5B


def background(dtype: np.dtype[Any], op: ReduceOp) -> np.generic:
    """What undefined memory holds: a value that no correct result has and that `op` carries on."""
    if op is ReduceOp.MIN:
        value = _lowest(dtype)
    elif op is ReduceOp.MAX:
        value = _highest(dtype)
    else:
        value = float("nan") if is_floating(dtype) else _UNDEFINED_INTEGER
    filled: np.generic = dtype.type(value)
    return filled


def _lowest(dtype: np.dtype[Any]) -> float:
    """What every minimum keeps."""
    return float("-inf") if is_floating(dtype) else np.iinfo(dtype).min


def _highest(dtype: np.dtype[Any]) -> float:
    """What every maximum keeps."""
    return float("inf") if is_floating(dtype) else np.iinfo(dtype).max


def checked_inputs(
    collective: Collective, blocks: BlockCounts, inputs: Sequence[AnyArray], fill: np.generic
) -> tuple[AnyArray, ...]:
    """Read-only flat views of inputs that fit; where a rank's INPUT is undefined, `fill`.

    `inputs`: one array a rank, all of one dtype and of the same number of elements a block. Raises
    `UsageError`.
    """
    if len(inputs) != blocks.num_ranks:
        message = f"{len(inputs)} inputs are given for {blocks.num_ranks} ranks"
        raise UsageError(message, cure="give one array a rank")
    _refuse_misfits(blocks, inputs)
    views = []
    for array, is_defined in zip(inputs, collective.defined_inputs().tolist(), strict=True):
        # A view of its own: the caller's array stays as writeable as it is.
        view = array.reshape(-1).view() if is_defined else np.full(array.size, fill)
        view.flags.writeable = False
        views.append(view)
    return tuple(views)


def elements_of_block(blocks: BlockCounts, inputs: Sequence[AnyArray]) -> int:
    """Elements of a block, from the sizes of the inputs; 1 if no rank has an input."""
    sizes = blocks.inputs.tolist()
    # Ranks without INPUT, as all but the root of a scatter, say nothing.
    stated: list[int] = [
        array.size // size for array, size in zip(inputs, sizes, strict=True) if size
    ]
    return max(stated, default=1)


def _refuse_misfits(blocks: BlockCounts, inputs: Sequence[AnyArray]) -> None:
    """Raise `UsageError` for the first rank whose input has another size or type than the rest."""
    elements = elements_of_block(blocks, inputs)
    for rank, (array, size) in enumerate(zip(inputs, blocks.inputs.tolist(), strict=True)):
        # An empty block would make every size fit and every result right.
        if array.size != size * elements or not elements:
            raise UsageError(
                f"the input of rank {rank} has {array.size} elements, "
                f"expected {size} times {max(elements, 1)}",
                cure=f"give every rank a multiple of its {size} chunks, the same for all",
            )
        if array.dtype != inputs[0].dtype:
            message = f"the inputs mix {inputs[0].dtype} and {array.dtype}"
            raise UsageError(message, cure="give arrays of one dtype")
