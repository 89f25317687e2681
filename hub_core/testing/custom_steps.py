"""Write down the steps of a small custom algorithm, for rules that no sample shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Contributions
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.steps import StepTableBuilder
from hub_core.testing.contracts import custom_collective


class CustomSteps(StepTableBuilder):
    """Steps of a custom collective whose buffers have `unit_count` units at every rank.

    Steps wait for none but those that they are told to. `expected`: what must lie where after; by
    default nothing is promised.
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

    def send(self, rank: int, peer: int, unit: int = 0, count: int = 1, **more: Any) -> int:
        """A SEND out of INPUT."""
        more |= {"src_buffer": Buffer.INPUT, "src_offset": unit}
        return self.add(rank, StepKind.SEND, peer=peer, count=count, **more)

    def receive(self, rank: int, peer: int, unit: int = 0, count: int = 1, **more: Any) -> int:
        """A RECV into OUTPUT."""
        more |= {"dst_buffer": Buffer.OUTPUT, "dst_offset": unit}
        return self.add(rank, StepKind.RECV, peer=peer, count=count, **more)

    def algorithm(self, scratch_units: int | None = None) -> Algorithm:
        """The algorithm; SCRATCH is as large as the other buffers unless told."""
        units = self.collective.unit_count if scratch_units is None else scratch_units
        sizes = np.full(self.collective.num_ranks, units, np.int64)
        return Algorithm(self.collective, self.build(), sizes)
