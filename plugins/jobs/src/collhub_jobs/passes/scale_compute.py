"""Make computations longer or shorter, on all ranks or on stragglers."""

from __future__ import annotations

import numpy as np
from collhub_job_traces.rebuilding import columns_of, rebuilt

from collhub_jobs.passes.options import ScaleOptions
from hub_core import UsageError
from hub_core.model import NodeKind, Workload, parse_ranks
from hub_core.plugin_api import PassReport


def run(workload: Workload, options: ScaleOptions) -> tuple[Workload, PassReport]:
    """Scale durations, rounded to ns, and operations and bytes with them.

    All three, so that times by the roofline scale as stated ones do. Raises `UsageError` for a rank
    that is not there.
    """
    nodes = workload.nodes
    chosen = nodes.is_kind(NodeKind.COMPUTE)
    if options.ranks is not None:
        ranks = parse_ranks(options.ranks)
        if max(ranks) >= workload.num_ranks:
            message = f"rank {max(ranks)} is not there: the job has {workload.num_ranks}"
            raise UsageError(message, cure="change -O ranks", code="rank-range")
        chosen &= np.isin(nodes.rank, ranks)
    columns = columns_of(nodes)
    for name in ("duration_ns", "operations", "bytes"):
        column = getattr(nodes, name).copy()
        # What is not stated, or zero, stays.
        rows = chosen & (column > 0)
        scaled = np.rint(column[rows].astype(np.float64) * options.factor)
        # A computation without time would be taken for one that states none.
        column[rows] = np.maximum(scaled, 1).astype(np.int64)
        columns[name] = column
    result = rebuilt(workload, columns, nodes.data_edges, nodes.control_edges, chosen)
    count = int(chosen.sum())
    said = f"{count} computations take {options.factor:g} times as long"
    return result, PassReport((said,) if count else ())
