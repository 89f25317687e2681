"""Custom collectives with equal buffers, and those that promise what a plain run has left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from hub_core.model.collectives import Collective, Contributions, CustomContract
from hub_core.model.kinds import Buffer, CollectiveKind

Contents = Mapping[tuple[int, Buffer, int], Counter[tuple[int, int]]]
"""By (rank, buffer, unit): how often each contribution, (rank, unit), is in it."""


def promise_of(contents: Contents, num_ranks: int, unit_count: int) -> Collective:
    """A custom collective of `unit_count` units a rank whose OUTPUT must hold these contents.

    All of INPUT is given. Contents of other buffers are not promised.
    """
    rows = [
        (rank, unit, *contribution)
        for (rank, buffer, unit), counts in sorted(contents.items())
        if buffer is Buffer.OUTPUT
        for contribution in sorted(counts.elements())
    ]
    expected = Contributions(*np.asarray(rows, np.int64).reshape(-1, 4).T)
    return custom_collective(num_ranks, unit_count, expected)


def custom_collective(
    num_ranks: int,
    unit_count: int,
    expected: Contributions | None = None,
    *,
    in_place: bool = False,
    out_of_place: bool = True,
) -> Collective:
    """A custom collective whose INPUT, all of it given, and OUTPUT have `unit_count` units a rank.

    `expected`: what must lie where after; None promises nothing.
    """
    sizes = np.full(num_ranks, unit_count, np.int64)
    return Collective(
        CollectiveKind.CUSTOM,
        num_ranks,
        unit_count,
        in_place=in_place,
        out_of_place=out_of_place,
        contract=CustomContract(sizes, sizes, np.ones(num_ranks, np.bool_), expected),
    )
