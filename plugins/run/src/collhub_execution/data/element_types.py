"""Element types of runs on real data, the precision of their arithmetic, and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.model import PluginError, ReduceOp, UsageError

Array = npt.NDArray[Any]

DTYPE_NAMES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")

# Bits of the significand including the hidden one: IEEE 754-2019, table 3.5; bfloat16 is binary32
# without its last 16 bits.
_SIGNIFICANDS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


def element_type(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of one of `DTYPE_NAMES`.

    Raises `UsageError` for another name, `PluginError` if bfloat16 is not installed.
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
    """Return whether values of this type are rounded; true for bfloat16 (not `np.floating`)."""
    is_whole = np.issubdtype(dtype, np.integer)
    return not is_whole


def significand_bits(dtype: np.dtype[Any]) -> int:
    """Return b such that all integers up to 2^b are exact."""
    if not is_floating(dtype):
        return 8 * dtype.itemsize - 1
    return _SIGNIFICANDS[dtype.name]


def rounding_unit(dtype: np.dtype[Any]) -> float:
    """Return the largest relative error of one rounding; 0 for integers."""
    if not is_floating(dtype):
        return 0.0
    return 2.0 ** -significand_bits(dtype)


Reduction = Callable[..., object]
"""`reduction(one, other, out=target)`, element by element."""

REDUCTIONS: dict[ReduceOp, Reduction] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}
