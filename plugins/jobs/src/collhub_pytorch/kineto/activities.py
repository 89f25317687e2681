"""One rank's profile as work and the points at which its host issues or awaits that work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_pytorch.calls import Call
from collhub_pytorch.kineto.idle import StreamIdle
from hub_core.columns import BoolArray, Int64Array

Pairs = tuple[Int64Array, Int64Array]
NO_PAIRS: Pairs = (np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class RankProfile:
    """Activities and points of one rank, times in ns of its own clock; -1 means none.

    Activities are in the order of their starts, collectives of the host in that of their issue;
    points in that of their times.

    Activities (kernels, copies; collectives of the host in profiles without a device): `start`,
    `end`; `stream`; `label`: index of `names`; `call`: index of `calls` for communication;
    `issue`: the point that issued it. Points of the host: `time`; `awaited`: the activity for whose
    end the host waited before it went on; `work`: index of `names` for what the host did since the
    point before, -1 where nothing is known of it.

    `assumed`, `stated`: (earlier activity, later activity), dependencies between streams that
    explain what the file shows, and those that it states. `unknown`: kernels of communication of
    which nothing tells what they do; `communication_names`: their names. `memory_names`: names of
    activities that copy or set memory. `is_recorded`: bool[activities], whether the file has the
    time of an activity; None for all. `idle`: the idle time of each stream. `host_calls`: number of
    collectives of libraries of the host, which are the last activities.
    """

    file: str
    rank: int
    world_size: int | None
    names: Sequence[str]
    calls: Sequence[Call]
    start: Int64Array
    end: Int64Array
    stream: Int64Array
    label: Int64Array
    call: Int64Array
    issue: Int64Array
    time: Int64Array
    awaited: Int64Array
    work: Int64Array
    is_on_host: bool = False
    assumed: Pairs = NO_PAIRS
    stated: Pairs = NO_PAIRS
    unknown: int = 0
    communication_names: frozenset[str] = frozenset()
    memory_names: frozenset[str] = frozenset()
    is_recorded: BoolArray | None = None
    idle: tuple[StreamIdle, ...] = ()
    host_calls: int = 0

    def order_times(self) -> Int64Array:
        """When each activity takes its place among the nodes: at its start, or at its issue.

        Collectives of the host are placed at their issue: that is the order common to all ranks.
        """
        times = self.start.copy()
        first = 0 if self.is_on_host else len(times) - self.host_calls
        times[first:] = self.time[self.issue[first:]]
        return times
