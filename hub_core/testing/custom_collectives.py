"""Custom collectives with equal buffers, and a builder for small algorithms for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective, Contributions, CustomContract
from hub_core.model.kinds import Buffer, CollectiveKind, StepKind
from hub_core.model.steps import StepTableBuilder

Contents = Mapping[tuple[int, Buffer, int], Counter[tuple[int, int]]]
"""Per (rank, buffer, unit): number of times that it contains each contribution (rank, unit)."""


def promise_of(contents: Contents, num_ranks: int, unit_count: int) -> Collective:
    """Build a custom collective whose postcondition is that OUTPUT has these contents.

    INPUT and OUTPUT have `unit_count` units per rank, and all of INPUT is defined. Contents of
    other buffers are ignored.
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
    """Build a custom collective whose INPUT and OUTPUT have `unit_count` units per rank.

    All of INPUT is defined. `expected`: required content of OUTPUT; None: no requirement.
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


class CustomSteps(StepTableBuilder):
    """Builder of a custom algorithm whose buffers have `unit_count` units at every rank.

    Steps wait only for the steps that are given as their dependencies. `expected`: required content
    of OUTPUT; by default there is no requirement.
    """

    def __init__(
        self,
        num_ranks: int = 2,
        unit_count: int = 4,
        expected: Contributions | None = None,
        *,
        in_place: bool = False,
        out_of_place: bool = True,
    ) -> None:
        super().__init__(num_ranks)
        self.collective = custom_collective(
            num_ranks, unit_count, expected, in_place=in_place, out_of_place=out_of_place
        )

    def send(self, rank: int, peer: int, unit: int = 0, count: int = 1, **columns: Any) -> int:
        """Add a SEND of `count` units of INPUT from `unit` on; return its row.

        `columns`: further columns, and `data`/`control` dependencies, as by `StepTableBuilder.add`.
        """
        columns |= {"src_buffer": Buffer.INPUT, "src_offset": unit}
        return self.add(rank, StepKind.SEND, peer=peer, count=count, **columns)

    def receive(self, rank: int, peer: int, unit: int = 0, count: int = 1, **columns: Any) -> int:
        """Add a RECV of `count` units into OUTPUT at `unit`; return its row.

        `columns`: as by `send`.
        """
        columns |= {"dst_buffer": Buffer.OUTPUT, "dst_offset": unit}
        return self.add(rank, StepKind.RECV, peer=peer, count=count, **columns)

    def algorithm(self, scratch_units: int | None = None) -> Algorithm:
        """Build the algorithm. `scratch_units`: size of SCRATCH per rank, default `unit_count`."""
        units = self.collective.unit_count if scratch_units is None else scratch_units
        sizes = np.full(self.collective.num_ranks, units, np.int64)
        return Algorithm(self.collective, self.build(), sizes)
