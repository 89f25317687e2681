"""Convert starts on links to transfers between NPUs, and to the chunks that they transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from collhub_packing.pipelining import windows_of

from collhub_flows.jobs import FlowJobs, FlowPaths
from collhub_flows.network import FlowDemand, FlowNetwork
from hub_core.columns import Int64Array, expanded_ranges, first_positions, row_pointer, run_mask
from hub_core.model import Collective
from hub_core.schedules import Chunks, Transfers


@dataclass(frozen=True, slots=True, eq=False)
class FlowSchedule:
    """Transfers in picoseconds, and the pieces of shares that they transfer.

    `share`, `offset`, `units`: int64, by chunk; a share is the index of a pair in `demand.pairs`.
    """

    transfers: Transfers
    share: Int64Array
    offset: Int64Array
    units: Int64Array
    share_units: int
    time_ps: int

    def order_first_messages(self) -> FlowSchedule:
        """Return the schedule in which messages that are ready at time 0 are sent in order.

        Without this, a link may start all of them at once.
        """
        transfers = self.transfers
        # A piece is ready at time 0 on its first arc.
        is_ready = run_mask(transfers.chunk)
        window = windows_of(
            transfers.link, transfers.start, transfers.finish, is_ready, len(transfers)
        )
        ordered = replace(transfers, window=window)
        return replace(self, transfers=ordered)

    def build_chunks(
        self,
        collective: Collective,
        npus: Sequence[int],
    ) -> Chunks:
        """Build the chunks of a collective whose shares have `share_units` units.

        The pieces come first. A share that stays on its rank is a further chunk without transfers.
        """
        shares = Chunks.cut(collective, [collective.units_per_rank])
        is_moved = shares.origin != shares.target
        moved = np.flatnonzero(is_moved)
        members = np.asarray(npus, np.int64)
        # Pairs of the demand are sorted by NPU, shares by rank; ranks may be in any order.
        sender = members[shares.origin[moved]]
        receiver = members[shares.target[moved]]
        by_npu = moved[np.lexsort((receiver, sender))]
        local = np.flatnonzero(~is_moved)
        rows = np.concatenate([by_npu[self.share], local])
        offset = np.concatenate([self.offset, np.zeros_like(local)])
        return Chunks(
            shares.origin[rows],
            shares.input_offset[rows] + offset,
            shares.output_offset[rows] + offset,
            np.concatenate([self.units, shares.count[local]]),
            shares.target[rows],
        )


def build_schedule(
    network: FlowNetwork, demand: FlowDemand, paths: FlowPaths, jobs: FlowJobs, start: Int64Array
) -> FlowSchedule:
    """Build the transfers of all pieces, one per arc of their paths, from the starts on links."""
    arcs_of_path = np.diff(paths.indptr)[jobs.path]
    arc = paths.arcs[expanded_ranges(paths.indptr[jobs.path], arcs_of_path)]
    chunk = np.repeat(np.arange(len(jobs.path)), arcs_of_path)
    # Jobs are sorted by piece and arc; a transfer starts on the first link of its arc and ends on
    # the last one.
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
        # Small pieces may be in flight on an arc at the same time.
        windows_of(jobs.link[first], begin, finish, np.zeros(len(arc), np.bool_), len(arc)),
    )
    share = paths.share[jobs.path]
    return FlowSchedule(
        transfers,
        share,
        _compute_offsets(share, jobs.units),
        jobs.units,
        paths.share_units,
        jobs.time_ps(start),
    )


def _compute_offsets(share: Int64Array, units: Int64Array) -> Int64Array:
    """Compute the offset of every piece in its share; pieces of a share are adjacent."""
    begin = first_positions(units)
    _, first, number = np.unique(share, return_index=True, return_inverse=True)
    offsets: Int64Array = begin - begin[first][number]
    return offsets
