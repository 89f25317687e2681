"""From starts on links to transfers between NPUs, and the chunks that they move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from collhub_packing.pipelining import windows_of

from collhub_flows.demand import FlowDemand
from collhub_flows.jobs import FlowJobs
from collhub_flows.network import FlowNetwork
from collhub_flows.paths import FlowPaths
from hub_core.columns import Int64Array, expanded_ranges, first_positions, row_pointer, run_mask
from hub_core.model import Collective
from hub_core.schedules import Chunks, Transfers


@dataclass(frozen=True, slots=True, eq=False)
class FlowSchedule:
    """Transfers in picoseconds, and the pieces of every share that they move.

    `share`, `offset`, `units`: int64 per chunk; `share` counts the pairs of the demand, by source.
    """

    transfers: Transfers
    share: Int64Array
    offset: Int64Array
    units: Int64Array
    share_units: int
    time_ps: int

    def in_turn(self) -> FlowSchedule:
        """The same, but what a link could begin with all at once waits for its first message."""
        moved = self.transfers
        # A piece waits for nothing on its first arc.
        is_ready = run_mask(moved.chunk)
        window = windows_of(moved.link, moved.start, moved.finish, is_ready, len(moved))
        turned = replace(moved, window=window)
        return replace(self, transfers=turned)

    def chunks_of(
        self,
        collective: Collective,
        npus: Sequence[int],
    ) -> Chunks:
        """Chunks of a collective whose shares have `share_units`; the pieces first.

        A share that stays with its rank is one more chunk, which no transfer moves.
        """
        whole = Chunks.cut(collective, [collective.units_per_rank])
        is_moved = whole.origin != whole.target
        moved = np.flatnonzero(is_moved)
        members = np.asarray(npus, np.int64)
        # Pairs of the demand ascend by NPU, shares by rank: ranks may stand in any order.
        giver = members[whole.origin[moved]]
        taker = members[whole.target[moved]]
        by_npu = moved[np.lexsort((taker, giver))]
        kept = np.flatnonzero(~is_moved)
        rows = np.concatenate([by_npu[self.share], kept])
        offset = np.concatenate([self.offset, np.zeros_like(kept)])
        return Chunks(
            whole.origin[rows],
            whole.input_offset[rows] + offset,
            whole.output_offset[rows] + offset,
            np.concatenate([self.units, whole.count[kept]]),
            whole.target[rows],
        )


def schedule_of(
    network: FlowNetwork, demand: FlowDemand, paths: FlowPaths, jobs: FlowJobs, start: Int64Array
) -> FlowSchedule:
    """Transfers of all pieces, one an arc of their paths, with the starts on the arcs' links."""
    arcs_of_path = np.diff(paths.indptr)[jobs.path]
    arc = paths.arcs[expanded_ranges(paths.indptr[jobs.path], arcs_of_path)]
    chunk = np.repeat(np.arange(len(jobs.path)), arcs_of_path)
    # Jobs stand by piece and arc: an arc's first and last link are where its jobs begin and end.
    edges = row_pointer(np.diff(network.routes.indptr)[arc])
    first, last = edges[:-1], edges[1:] - 1
    begin = start[first]
    finish = start[last] + jobs.arrival[last]
    transfers = Transfers(
        chunk,
        network.source[arc],
        network.destination[arc],
        jobs.link[first],
        begin,
        finish,
        np.zeros(len(arc), np.bool_),
        # Small pieces are many on their way.
        windows_of(jobs.link[first], begin, finish, np.zeros(len(arc), np.bool_), len(arc)),
    )
    share = paths.share[jobs.path]
    return FlowSchedule(
        transfers,
        share,
        _offsets(share, jobs.units),
        jobs.units,
        paths.share_units,
        jobs.time_ps(start),
    )


def _offsets(share: Int64Array, units: Int64Array) -> Int64Array:
    """Where every piece begins in its share; pieces of a share stand together."""
    begin = first_positions(units)
    _, first, number = np.unique(share, return_index=True, return_inverse=True)
    offsets: Int64Array = begin - begin[first][number]
    return offsets
