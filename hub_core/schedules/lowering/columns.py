"""Columns of a step table under construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array
from hub_core.model import COLUMN_DEFAULTS, StepKind

StepColumns = dict[str, npt.NDArray[np.generic]]
"""Columns by name, of equal length; all of `STATED`."""
RowPairs = tuple[Int64Array, Int64Array]
"""Dependencies as (parent rows, child rows)."""

STATED = (
    "rank",
    "kind",
    "peer",
    "channel",
    "src_buffer",
    "src_offset",
    "dst_buffer",
    "dst_offset",
    "count",
    "duration_ns",
)


def steps_of_kind(kind: StepKind, given: Mapping[str, npt.NDArray[np.generic]]) -> StepColumns:
    """Columns of steps of one kind.

    `given`: columns by name, `rank` among them; others take their defaults.
    """
    rows = len(given["rank"])
    columns: StepColumns = {"kind": np.full(rows, kind)}
    for name in STATED:
        if name in given:
            columns[name] = given[name]
        elif name != "kind":
            default = COLUMN_DEFAULTS[name]
            columns[name] = np.full(rows, default)
    return columns


def concatenated(parts: Sequence[StepColumns]) -> StepColumns:
    """The rows of all parts, one part behind the other."""
    joined = {}
    for name in STATED:
        columns = [part[name] for part in parts]
        joined[name] = np.concatenate(columns)
    return joined
