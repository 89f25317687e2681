"""Demand of a collective: which NPU has a share for which other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hub_core.columns import BoolArray, Float64Array, Int64Array
from hub_core.model import Collective, CollectiveKind, InputError

KINDS = (CollectiveKind.ALL_TO_ALL, CollectiveKind.SCATTER, CollectiveKind.GATHER)
"""Collectives of which every share goes from one rank to one other."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowDemand:
    """`wants[i, t]` shares, one or none by default, from `sources[i]` to NPU t.

    `sources`: int64, ascending NPUs; `wants`: bool or float64 [sources, NPUs].
    """

    sources: Int64Array
    wants: BoolArray | Float64Array

    @classmethod
    def of(cls, collective: Collective, npus: Sequence[int], num_npus: int) -> FlowDemand:
        """Demand where rank r runs on `npus[r]`. Raises `InputError` for other collectives."""
        if collective.kind not in KINDS:
            raise InputError(
                f"flows makes no {collective.kind}: its data do not go from one rank to one other",
                cure="choose all-to-all, scatter or gather, or use tacos or blink",
                code="collective-unsupported",
            )
        table = np.zeros((num_npus, num_npus), np.bool_)
        members = np.asarray(npus, np.int64)
        givers = takers = members
        if collective.kind is CollectiveKind.SCATTER:
            givers = members[[collective.root or 0]]
        if collective.kind is CollectiveKind.GATHER:
            takers = members[[collective.root or 0]]
        table[np.ix_(givers, takers)] = True
        np.fill_diagonal(table, False)
        sources = np.flatnonzero(table.any(axis=1))
        return cls(sources, table[sources])

    @property
    def pairs(self) -> tuple[Int64Array, Int64Array]:
        """Source and target of every share, int64 each, by source."""
        row, target = np.nonzero(self.wants)
        return self.sources[row], target
