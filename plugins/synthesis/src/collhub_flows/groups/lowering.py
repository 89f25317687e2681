"""From starts on links to one algorithm a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from collhub_packing.pipelining import windows_of

from collhub_flows.groups.jobs import TreeJobs
from collhub_flows.groups.joining import Turns
from collhub_flows.groups.shares import Shares, chunks_of_shares
from collhub_flows.groups.trees import Pieces, Trees
from collhub_flows.groups.wishes import GroupWish
from collhub_flows.network import FlowNetwork
from hub_core import installed_version
from hub_core.columns import Int64Array, positions_in
from hub_core.model import Algorithm, Provenance, StepKind
from hub_core.schedules import Chunks, Transfers, algorithm_of
from hub_core.schedules.lowering.link_order import order_links
from hub_core.schedules.lowering.message_ends import MessageEnds

NAME = "collhub-flows"


@dataclass(frozen=True, slots=True, eq=False)
class GroupSchedule:
    """Trees of all groups with the starts of their jobs, int64 picoseconds."""

    network: FlowNetwork
    shares: Shares
    trees: Trees
    jobs: TreeJobs
    start: Int64Array

    def algorithms(self, wishes: Sequence[GroupWish]) -> tuple[Algorithm, ...]:
        """The algorithm of every group, with one rank an NPU of the network."""
        transfers = self._transfers()
        group = self.shares.group[self.trees.pieces.share]
        made = []
        for number, wish in enumerate(wishes):
            mine = np.flatnonzero(group == number)
            rows = np.flatnonzero(group[transfers.chunk] == number)
            place = positions_in(mine, len(group))
            made.append(self._algorithm(wish, mine, _rows_of(transfers, rows, place)))
        return tuple(made)

    def turns(self, algorithms: Sequence[Algorithm]) -> Turns:
        """Order of all messages on every link, for the algorithms of this very schedule."""
        transfers = self._transfers()
        pieces = self.trees.pieces.share
        ends = MessageEnds.from_transfers(transfers, len(pieces), None)
        group = self.shares.group[pieces[ends.chunk]]
        # Copies apart, steps of a group stand in the order of its ends.
        row = np.empty(len(ends), np.int64)
        copies = []
        begin = 0
        for number, algorithm in enumerate(algorithms):
            is_copy = algorithm.steps.is_kind(StepKind.COPY)
            row[group == number] = begin + np.flatnonzero(~is_copy)
            copies.append(begin + np.flatnonzero(is_copy))
            begin += len(is_copy)
        earlier, later = order_links(ends, transfers)
        return Turns(np.concatenate([row, *copies]), row[earlier], row[later])

    def _transfers(self) -> Transfers:
        """One transfer an entry of the trees; the chunk is the piece."""
        trees, network, jobs = self.trees, self.network, self.jobs
        tree = trees.tree_of_entry
        # A transfer begins on the first link of its arc, and ends on the last one.
        first = jobs.first[:-1]
        last = jobs.first[1:] - 1
        start = self.start[first]
        finish = self.start[last] + jobs.arrival[last]
        # What a link can begin with at once goes at once.
        at_once = np.zeros(len(first), np.bool_)
        return Transfers(
            trees.piece[tree],
            network.source[trees.arcs],
            network.destination[trees.arcs],
            jobs.link[first],
            start,
            finish,
            trees.inward[tree],
            windows_of(jobs.link[first], start, finish, at_once, len(first)),
        )

    def _algorithm(self, wish: GroupWish, mine: Int64Array, transfers: Transfers) -> Algorithm:
        topology = self.network.topology
        pieces = self.trees.pieces
        rows = self.shares.row[pieces.share[mine]]
        return algorithm_of(
            wish.collective(pieces.share_units),
            _chunks(wish, pieces, mine, rows),
            transfers,
            npus=wish.npus,
            num_npus=topology.num_npus,
            provenance=own_provenance(topology.name),
            collective_bytes=wish.size,
        )


def own_provenance(topology: str) -> Provenance:
    """Who made algorithms of groups for a network of this name."""
    # Sources that are imported without being installed have no version.
    version = installed_version("collhub-synthesis") or ""
    return Provenance(NAME, version, topology, "", {"groups": "together"})


def _rows_of(transfers: Transfers, rows: Int64Array, place: Int64Array) -> Transfers:
    """Some transfers, with chunk c called `place[c]`."""
    return Transfers(
        place[transfers.chunk[rows]],
        transfers.source[rows],
        transfers.destination[rows],
        transfers.link[rows],
        transfers.start[rows],
        transfers.finish[rows],
        transfers.reduces[rows],
        transfers.window[rows],
        None if transfers.channel is None else transfers.channel[rows],
    )


def _chunks(
    wish: GroupWish,
    pieces: Pieces,
    mine: Int64Array,
    rows: Int64Array,
) -> Chunks:
    """The pieces of a group, then what stays with its rank; `rows`: the share of each piece."""
    whole = chunks_of_shares(wish, pieces.share_units)
    moves = np.zeros(len(whole), np.bool_)
    moves[rows] = True
    # A copy within the rank brings these where they must be.
    kept = np.flatnonzero(~moves)
    chosen = np.concatenate([rows, kept])
    offset = np.concatenate([pieces.offset[mine], np.zeros_like(kept)])
    return Chunks(
        whole.origin[chosen],
        whole.input_offset[chosen] + offset,
        whole.output_offset[chosen] + offset,
        np.concatenate([pieces.units[mine], whole.count[kept]]),
        whole.target[chosen],
    )
