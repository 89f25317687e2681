"""From starts on links to transfers between NPUs, and the chunks that they move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_columns import Int64Array, expanded_ranges, first_positions, inverse, row_pointer
from collhub_schedules import Chunks, Transfers

from collhub_flows.demand import FlowDemand
from collhub_flows.jobs import FlowJobs
from collhub_flows.network import FlowNetwork
from collhub_flows.paths import FlowPaths
from hub_core.model import Collective


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

    def chunks_of(self, collective: Collective, npus: Sequence[int]) -> Chunks:
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
        windows(jobs.busy, jobs.arrival, edges),
        channels_of(arc, begin, finish),
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


def channels_of(arc: Int64Array, begin: Int64Array, finish: Int64Array) -> Int64Array:
    """Channel of every transfer, int64: behind switches messages of an arc may change places."""
    # Imported here: numba takes a second.
    from collhub_flows.list_kernel import overtaking_channels

    # What is received on a channel is what was sent first there.
    order = np.lexsort((begin, arc))
    found = overtaking_channels(arc[order], finish[order])
    channels: Int64Array = found[inverse(order)]
    return channels


def windows(busy: Int64Array, arrival: Int64Array, edges: Int64Array) -> Int64Array:
    """Messages of a link on their way at once: as many as start before the first one arrives.

    `busy`, `arrival`: of jobs on links; transfer i has the jobs `edges[i]:edges[i + 1]`. All int64.
    """
    first = edges[:-1]
    path_ps = np.add.reduceat(arrival, first) if len(first) else first
    taken = np.maximum(busy[first], 1)
    later = path_ps - taken
    return 1 + -(-later // taken)


def _offsets(share: Int64Array, units: Int64Array) -> Int64Array:
    """Where every piece begins in its share; pieces of a share stand together."""
    begin = first_positions(units)
    _, first, number = np.unique(share, return_index=True, return_inverse=True)
    offsets: Int64Array = begin - begin[first][number]
    return offsets
