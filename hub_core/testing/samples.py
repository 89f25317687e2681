"""Small and large correct algorithms, built directly as step tables, for tests, benchmarks and demonstrations."""

from __future__ import annotations

import numpy as np

from hub_core.algorithm import Algorithm, Provenance
from hub_core.collectives import Buffer, Collective, CollectiveKind
from hub_core.steps import StepKind, StepTable

__all__ = ["ring_all_reduce"]

_PROVENANCE = Provenance(producer="collhub-samples", producer_version="1")


def ring_all_reduce(num_ranks: int) -> Algorithm:
    """In-place ring all-reduce: n - 1 reducing steps, then n - 1 copying steps, one unit each, 4 (n - 1) steps a rank.

    Rank r sends to r + 1 and receives from r - 1 (mod n), steps alternate SEND, RECV. A SEND waits for what it
    forwards (data); a RECV waits for the SEND of the unit that it overwrites (data, from the second half on).
    Columns are computed at once: 1024 ranks (4.2 million steps) take a few seconds.
    """
    n = num_ranks
    grid = np.meshgrid(np.arange(n), np.arange(2 * (n - 1)), [0, 1], indexing="ij")
    rank, half_step, is_receive = (axis.ravel() for axis in grid)
    sent_unit = (rank - half_step) % n
    unit = np.where(is_receive == 1, (rank - half_step - 1) % n, sent_unit)
    reducing = (is_receive == 1) & (half_step < n - 1)
    kind = np.where(is_receive == 0, StepKind.SEND, np.where(reducing, StepKind.RECV_REDUCE, StepKind.RECV))
    rows = np.arange(len(rank))
    forwards = np.flatnonzero((is_receive == 0) & (half_step > 0))
    # The RECV of half step k >= n - 1 overwrites what the SEND of half step k - (n - 1) read: 2n - 1 rows earlier.
    overwrites = np.flatnonzero((is_receive == 1) & (half_step >= n - 1))
    table = StepTable.from_columns(
        n,
        {
            "rank": rank,
            "kind": kind,
            "peer": np.where(is_receive == 1, (rank - 1) % n, (rank + 1) % n),
            "src_buffer": np.where((is_receive == 0) | reducing, Buffer.OUTPUT, Buffer.UNKNOWN),
            "src_offset": np.where((is_receive == 0) | reducing, unit, 0),
            "dst_buffer": np.where(is_receive == 1, Buffer.OUTPUT, Buffer.UNKNOWN),
            "dst_offset": np.where(is_receive == 1, unit, 0),
            "count": np.ones(len(rank), np.int64),
            "lane": np.zeros(len(rank), np.int64),
        },
        data=(np.concatenate([forwards - 1, overwrites + 1 - 2 * n]), np.concatenate([rows[forwards], overwrites])),
    )
    collective = Collective(CollectiveKind.ALL_REDUCE, n, n, in_place=True, out_of_place=False)
    return Algorithm(collective, table, np.zeros(n, np.int64), _PROVENANCE)
