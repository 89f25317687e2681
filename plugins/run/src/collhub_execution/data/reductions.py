"""The operators of reductions in numpy; an average is a sum that is divided later."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hub_core.model import ReduceOp

Reduction = Callable[..., object]
"""`reduction(one, other, out=target)`, element by element."""

REDUCTIONS: dict[ReduceOp, Reduction] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}
