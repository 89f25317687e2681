"""Parameters of the analytical model, durations of computations, and the sizes that are allowed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_astra_sim.options import CONGESTION_AWARE, AnalyticalOptions
from hub_core import NodeTable, NodeType
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, InputError, UsageError, message_bytes
from hub_core.network import Occupancy
from hub_core.schedules import work_times_ns


@dataclass(frozen=True, slots=True)
class TimingModel:
    """Parameters of the analytical model, with ASTRA-sim's as defaults.

    `is_congestion_aware`: messages wait for one another on links. `reduce_bytes_per_s`,
    `copy_bytes_per_s`: speed of local steps without a duration; None: 1 ns per step.
    """

    is_congestion_aware: bool = True
    occupancy: Occupancy = Occupancy.SERIALIZATION
    reduce_bytes_per_s: float | None = None
    copy_bytes_per_s: float | None = None

    @classmethod
    def of_options(cls, options: AnalyticalOptions) -> TimingModel:
        """Return the model that the options of the simulator describe."""
        return cls(
            options.network == CONGESTION_AWARE,
            Occupancy(options.occupancy),
            options.reduce_bandwidth,
            options.copy_bandwidth,
        )


# ASTRA-sim turns a duration of 0 into one cycle.
SHORTEST_NS = 1


def get_trace_durations_ns(nodes: NodeTable) -> Int64Array:
    """Return the durations of the traces, int64 per node; at least 1 ns, also if missing."""
    return np.maximum(nodes.duration_ns, SHORTEST_NS)


def compute_durations_ns(
    algorithm: Algorithm, nodes: NodeTable, collective_bytes: int, model: TimingModel
) -> Int64Array:
    """Return durations, int64 per node; missing ones are computed from the model's bandwidths."""
    durations = get_trace_durations_ns(nodes)
    is_local = (nodes.type == NodeType.COMP) & (nodes.step >= 0)
    rows = np.flatnonzero(is_local & (nodes.duration_ns < 0))
    steps, unit_count = algorithm.steps, algorithm.collective.unit_count
    sizes = message_bytes(collective_bytes, unit_count, steps.count)
    times = work_times_ns(steps, sizes, model.reduce_bytes_per_s, model.copy_bytes_per_s)
    durations[rows] = times[nodes.step[rows]]
    return durations


def check_size(algorithm: Algorithm, collective_bytes: int) -> None:
    """Raise `UsageError` for less than a byte, `InputError` if a trace is fixed to another size.

    A trace with messages in bytes has no units that could be scaled.
    """
    if collective_bytes < 1:
        raise UsageError(
            f"a collective of {collective_bytes} bytes",
            cure="choose a size of at least 1 byte",
        )
    fixed = algorithm.collective_bytes
    if fixed is None or fixed == collective_bytes or algorithm.has_contents:
        return
    raise InputError(
        f"the trace states its messages in bytes, for a size of {fixed} bytes in all, "
        f"not {collective_bytes}",
        cure=f"use it at {fixed}B",
        code="fixed-size",
    )
