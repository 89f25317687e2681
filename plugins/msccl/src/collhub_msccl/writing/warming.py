"""Compile the kernels of list scheduling in advance, for `collhub doctor --warm`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from collhub_packing.warming import warm_check

from collhub_msccl.writing.draft import arrange, build_draft
from collhub_msccl.writing.execution_times import compute_begin_times, compute_link_times
from collhub_msccl.writing.list_kernels import compile_at_once, run
from collhub_msccl.writing.placement import PlacementLimits, place_chains
from collhub_msccl.writing.time_kernels import order_rows
from collhub_msccl.writing.waits import find_waits
from collhub_msccl.writing.work_graph import build_work_graph, schedule_nodes
from hub_core.model import Algorithm, Buffer, Collective, CollectiveKind, StepKind, StepTable
from hub_core.plugin_api import CheckReport, CheckRequest, WarmOptions


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile the missing kernels if `options.warm` is set; else report success."""
    return warm_check(options, run_every_kernel)


def run_every_kernel() -> None:
    """Compile all kernels of list scheduling by scheduling a small program.

    The program is an in-place broadcast of one unit from rank 0 to rank 1. Each kernel runs
    at least once, which compiles it unless it is already compiled. The schedule is discarded.
    """
    buffer, zeros = [Buffer.OUTPUT, Buffer.OUTPUT], [0, 0]
    columns: dict[str, Sequence[int]] = {
        "rank": [0, 1],
        "kind": [StepKind.SEND, StepKind.RECV],
        "peer": [1, 0],
        "src_buffer": buffer,
        "src_offset": zeros,
        "dst_buffer": buffer,
        "dst_offset": zeros,
        "count": [1, 1],
    }
    table = StepTable.from_columns(2, columns)
    collective = Collective(CollectiveKind.BROADCAST, 2, 1, root=0, in_place=True)
    algorithm = Algorithm(collective, table, np.zeros(2, np.int64))
    draft = build_draft(algorithm, with_control=False)
    nothing = np.zeros(0, np.int64)
    arrangement = arrange(draft, nothing, nothing, (nothing, nothing))
    assert arrangement is not None
    with compile_at_once():
        graph = build_work_graph(draft, arrangement, 1)
        schedule_nodes(graph, np.arange(2), 2, 1)
        find_waits(graph.start, graph.start, graph.start, graph.start, (nothing, nothing), nothing)
        compute_link_times(algorithm)
        run(
            order_rows,
            0,
            np.zeros(2, np.int64),
            np.zeros(3, np.int64),
            nothing,
            np.zeros(2, np.int64),
        )
        compute_begin_times(graph.start, (nothing, nothing), (nothing, nothing))
        place_chains(draft, graph, graph.start, PlacementLimits(2, 1, is_free=True))
