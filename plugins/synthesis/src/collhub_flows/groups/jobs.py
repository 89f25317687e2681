"""Trees as jobs on links: their dependencies, their orders, and the algorithms of their starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from collhub_packing.pipelining import windows_of

from collhub_flows.groups.joining import Turns
from collhub_flows.groups.shares import GroupWish, Shares, Trees, create_share_chunks
from collhub_flows.optimal_flow import FlowArcs
from hub_core import installed_version
from hub_core.columns import (
    BoolArray,
    Float64Array,
    Int64Array,
    csr,
    expanded_ranges,
    group_of_entry,
    inverse,
    positions_in,
    row_pointer,
)
from hub_core.model import Algorithm, Provenance, StepKind
from hub_core.network import Occupancy, link_times_ps
from hub_core.schedules import Chunks, MessageEnds, Transfers, algorithm_of, order_links

# Maximum number of jobs for passes forward and backward; with more, they take too long.
_MAX_JOBS_FOR_PASSES = 60_000
_Edges = tuple[Int64Array, Int64Array]


@dataclass(frozen=True, slots=True, eq=False)
class TreeJobs:
    """One job per entry of the trees and link of its arc, sorted by entry; int64 columns.

    `is_forwarded`: the link starts at a switch. `busy`, `arrival`: picoseconds for which the link
    is occupied, and until the piece arrives. `first`: first job of each entry, and the number of
    jobs. `edges`: (job, dependent job). `number`: index of the piece in its share.
    """

    link: Int64Array
    is_forwarded: BoolArray
    busy: Int64Array
    arrival: Int64Array
    first: Int64Array
    edges: _Edges
    number: Int64Array
    num_links: int

    @classmethod
    def of(
        cls, network: FlowArcs, trees: Trees, share_bytes: Float64Array, occupancy: Occupancy
    ) -> TreeJobs:
        """Create the jobs of all trees: each job sends the data of one tree edge over one link.

        An edge has one job per link of its route. Jobs are sorted by edge of the trees, then along
        the route. A job whose link starts at a switch is marked as forwarded.

        `share_bytes`: bytes of every share (data of a group with one root). A tree carries one
        piece of a share, with the fraction (units of the piece) / (units of the share) of its
        bytes. Busy and arrival times are in whole ps (`link_times_ps`). `occupancy` decides
        whether a link is busy during its latency.

        - A job after the first one of a route waits for the job before it.
        - The first job of an edge towards the root waits for the edges from the children.
        - The first job of an edge away from the root waits for the edge from the parent, and at
          the root for all edges of the same piece towards the root.

        Raises `InputError` (`too-long`) for a latency or a transmission above 5e16 ps.
        """
        topology, routes = network.topology, network.routes
        lengths = np.diff(routes.indptr)[trees.arcs]
        link = routes.links[expanded_ranges(routes.indptr[trees.arcs], lengths)]
        piece = np.repeat(trees.piece[trees.tree_of_entry], lengths)
        pieces = trees.pieces
        size = share_bytes[pieces.share] * pieces.units / pieces.share_units
        bandwidth, latency_s = topology.bandwidth_bytes_per_s[link], topology.latency_s[link]
        busy, arrival = link_times_ps(bandwidth, latency_s, size[piece], occupancy)
        first = row_pointer(lengths)
        edges = _list_dependencies(trees, first)
        number = pieces.number[piece]
        is_forwarded = topology.source[link] >= topology.num_npus
        times = busy, arrival, first
        return cls(link, is_forwarded, *times, edges, number, topology.num_links)

    def orders(self, passes: int) -> Iterator[Int64Array]:
        """Yield several schedules of the jobs: the start times in ps, int64[jobs] each.

        In each schedule, a free link starts its ready job of the highest priority. Jobs on links
        from switches start in the order of arrival. Jobs of equal priority have a fixed
        pseudo-random order. The tail of a job is the longest time from its start to an arrival that
        depends on it. The schedules, with their priorities:

        1. the lowest piece number first, then the longest tail
        2. the longest tail first
        3. for each of `passes` passes, but none above `_MAX_JOBS_FOR_PASSES` (60 000) jobs: first a
           schedule in reversed time, which takes the latest arrivals of the previous schedule
           first. The jobs that start last in it have priority in the yielded schedule.

        A later schedule may be slower than an earlier one.
        """
        # Compute the longest path from the start of each job to an arrival, in picoseconds.
        from collhub_flows.groups.kernels import compute_longest_tails

        indptr, following = csr(*self.edges, len(self.link))
        tails = compute_longest_tails(indptr, following, self.arrival)
        yield self._compute_starts(self._rank_jobs(self.number, -tails))
        start = self._compute_starts(self._rank_jobs(-tails))
        yield start
        if len(self.link) > _MAX_JOBS_FOR_PASSES:
            return
        # The same jobs with reversed time.
        before, after = self.edges
        edges = (after, before)
        # In reversed time no job is bound to the arrival order of a switch.
        is_forwarded = np.zeros(len(self.link), np.bool_)
        columns = (self.link, is_forwarded, self.busy, self.arrival, self.first)
        backward = TreeJobs(*columns, edges, self.number, self.num_links)
        for _ in range(passes):
            back = backward._compute_starts(backward._rank_jobs(-(start + self.arrival)))
            start = self._compute_starts(self._rank_jobs(-(back + self.arrival)))
            yield start

    def time_ps(self, start: Int64Array) -> int:
        """Return the arrival time of the last piece in ps, 0 for no pieces.

        `start`: of every job in ps, in their order.
        """
        return int((start + self.arrival).max(initial=0))

    def bound_ps(self) -> int:
        """Return the largest load of a link in ps, a lower bound of the time of any schedule.

        The load of a link is the sum of the busy times of its jobs. Latencies after them are not
        included, because they overlap with other messages. 0 without jobs.
        """
        # Latencies are not included, because they overlap with other messages.
        load = np.bincount(self.link, self.busy, self.num_links)
        return int(load.max(initial=0))

    def _compute_starts(self, rank: Int64Array) -> Int64Array:
        """Return the start of every job in a list schedule; int64[jobs], in picoseconds.

        A job sends one piece over one link. It is ready when the data of all jobs that it
        waits for have arrived. A free link starts a ready job, and never waits for one that
        is not ready:

        - on a link from a switch (`is_forwarded`), the job that became ready first
        - on any other link, the job with the lowest `rank`

        `rank`: int64[jobs], priorities, each number from 0 to jobs - 1 once (not checked).
        """
        # Imported here, because the import of numba takes a second.
        from collhub_flows.list_kernel import list_starts

        count = len(self.link)
        indptr, following = csr(*self.edges, count)
        links = self.link, indptr, following, self.busy, self.arrival
        return list_starts(*links, rank, self.is_forwarded, self.num_links)

    def _rank_jobs(self, *keys: Int64Array) -> Int64Array:
        """Return the position of every job in the order by these keys: int64[jobs].

        Position 0 is the first. Keys are ascending, and the first key counts most. Ties are broken
        by a fixed pseudo-random order, so that equal pieces do not all begin at NPU 0.
        """
        count = len(self.link)
        # Otherwise equal pieces of all sources would be sent to NPU 0 first.
        number = np.arange(count)
        scattered = (number * 2654435761) % max(count, 1)
        return inverse(np.lexsort((scattered, *reversed(keys))))


def _list_dependencies(trees: Trees, first: Int64Array) -> _Edges:
    """List which job must wait for which other one, as two arrays (before, after) of jobs.

    `first`: first job of every entry (edge of a tree), and the number of jobs at the end. The pairs
    are, in this order:

    - Along the route of each edge, from each job to the next one.
    - Between an edge and its parent edge. In an outward tree, the first job of the edge waits for
      the last job of the parent. In an inward tree, the first job of the parent waits for the last
      job of the edge.
    - For a piece with an inward and an outward tree (a sum that is distributed): the first job of
      every outward edge at the root waits for the last job of every inward edge at the root.

    Both arrays are empty without edges.
    """
    head, last = first[:-1], first[1:] - 1
    inner = np.flatnonzero(np.diff(group_of_entry(first)) == 0)
    child = np.flatnonzero(trees.parent >= 0)
    parent = trees.parent[child]
    inward = trees.inward[trees.tree_of_entry[child]]
    # In inward trees the child is before its parent.
    before = np.where(inward, last[child], last[parent])
    after = np.where(inward, head[parent], head[child])
    # Pair every inward root entry of a piece with each of its outward root entries.
    tree = trees.tree_of_entry
    at_root = np.flatnonzero(trees.parent < 0)
    inward = trees.inward[tree[at_root]]
    piece = trees.piece[tree[at_root]]
    pieces = len(trees.pieces.share)
    indptr, spread = csr(piece[~inward], at_root[~inward], pieces)
    sums, owner = at_root[inward], piece[inward]
    counts = np.diff(indptr)[owner]
    copies = spread[expanded_ranges(indptr[owner], counts)]
    sums = np.repeat(sums, counts)
    return (
        np.concatenate([inner, before, last[sums]]),
        np.concatenate([inner + 1, after, head[copies]]),
    )


NAME = "collhub-flows"


@dataclass(frozen=True, slots=True, eq=False)
class GroupSchedule:
    """Trees of all groups, and the starts of their jobs in picoseconds, int64."""

    network: FlowArcs
    shares: Shares
    trees: Trees
    jobs: TreeJobs
    start: Int64Array

    def algorithms(self, wishes: Sequence[GroupWish]) -> tuple[Algorithm, ...]:
        """Create the algorithm of every group, in the order of `wishes`.

        Entry i of `wishes` is the wish of group i. Every algorithm has one rank per NPU of the
        network; ranks outside of the group only relay. It contains only the pieces and transfers of
        its group. Its chunks are the pieces of the group, numbered from 0 in their order, then the
        shares that stay on their rank, which are only copied. The steps have no times; their order
        on ranks and links follows from the times of the joint schedule. Raises `InputError`
        (`schedule-acausal`) for a piece that is sent before its source has it.
        """
        transfers = self._create_transfers()
        group = self.shares.group[self.trees.pieces.share]
        algorithms = []
        for number, wish in enumerate(wishes):
            mine = np.flatnonzero(group == number)
            rows = np.flatnonzero(group[transfers.chunk] == number)
            position = positions_in(mine, len(group))
            algorithms.append(
                self._create_algorithm(
                    wish,
                    mine,
                    Transfers(
                        position[transfers.chunk[rows]],
                        transfers.source[rows],
                        transfers.destination[rows],
                        transfers.link[rows],
                        transfers.start[rows],
                        transfers.finish[rows],
                        transfers.reduces[rows],
                        transfers.window[rows],
                        None if transfers.channel is None else transfers.channel[rows],
                    ),
                )
            )
        return tuple(algorithms)

    def turns(self, algorithms: Sequence[Algorithm]) -> Turns:
        """Return the order of all steps of the joint algorithm, and waits between its messages.

        `algorithms`: those of this schedule, one per group. Steps are numbered table after table.

        - `order`: first the sends and receives of all groups, by rank, then by time in the joint
          schedule (receives before simultaneous sends). Then follow all copies, algorithm by
          algorithm, by number.
        - `earlier`, `later`: pairs of steps of one rank that `order_links` requires. Step
          `later[i]`, a send, waits for step `earlier[i]`.

        All arrays are empty if there are no transfers and no copies.
        """
        transfers = self._create_transfers()
        pieces = self.trees.pieces.share
        endpoints = MessageEnds.from_transfers(transfers, len(pieces), None)
        group = self.shares.group[pieces[endpoints.chunk]]
        # Without the copies, the steps of a group are in the order of its message ends.
        row = np.empty(len(endpoints), np.int64)
        copies = []
        begin = 0
        for number, algorithm in enumerate(algorithms):
            is_copy = algorithm.steps.is_kind(StepKind.COPY)
            row[group == number] = begin + np.flatnonzero(~is_copy)
            copies.append(begin + np.flatnonzero(is_copy))
            begin += len(is_copy)
        earlier, later = order_links(endpoints, transfers)
        return Turns(np.concatenate([row, *copies]), row[earlier], row[later])

    def _create_transfers(self) -> Transfers:
        """Create one transfer per edge of the trees, in the order of the edges; times are in ps.

        A transfer has the piece of data of its tree as chunk, and NPUs as source and destination.
        It reduces if its tree leads inward, to the root. Its link is the first one of its route. It
        starts with the job on this link, and finishes with the arrival over the last link. Its
        window (number of messages of the link that may be in flight) is that of `windows_of`,
        without messages that are ready at once.
        """
        trees, network, jobs = self.trees, self.network, self.jobs
        tree = trees.tree_of_entry
        # A transfer starts on the first link of its arc and finishes on the last one.
        first = jobs.first[:-1]
        last = jobs.first[1:] - 1
        start = self.start[first]
        finish = self.start[last] + jobs.arrival[last]
        # Messages that a link can start immediately are not delayed.
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

    def _create_algorithm(
        self, wish: GroupWish, mine: Int64Array, transfers: Transfers
    ) -> Algorithm:
        topology = self.network.topology
        pieces = self.trees.pieces
        rows = self.shares.row[pieces.share[mine]]
        factor = wish.find_factor(pieces.share_units)
        # Pieces begin and end at the nearest unit below; all have at least one unit.
        units_of_share = wish.share_counts[rows] * factor
        begin = pieces.offset[mine] * units_of_share // pieces.share_units
        stop = (pieces.offset[mine] + pieces.units[mine]) * units_of_share // pieces.share_units
        # The chunks of a group: its pieces, then the shares that stay on their rank.
        shares = create_share_chunks(wish, factor)
        is_sent = np.zeros(len(shares), np.bool_)
        is_sent[rows] = True
        # Local shares are copied within their rank.
        local = np.flatnonzero(~is_sent)
        chosen = np.concatenate([rows, local])
        offset = np.concatenate([begin, np.zeros_like(local)])
        return algorithm_of(
            wish.collective(factor),
            Chunks(
                shares.origin[chosen],
                shares.input_offset[chosen] + offset,
                shares.output_offset[chosen] + offset,
                np.concatenate([stop - begin, shares.count[local]]),
                shares.target[chosen],
            ),
            transfers,
            npus=wish.npus,
            num_npus=topology.num_npus,
            provenance=own_provenance(topology.name),
            collective_bytes=wish.size,
        )


def own_provenance(topology: str) -> Provenance:
    """Return the provenance of group algorithms for the topology with this name.

    The version is empty if the package is not installed.
    """
    # Sources that are imported without an installation have no version.
    version = installed_version("collhub-synthesis") or ""
    return Provenance(NAME, version, topology, "", {"groups": "together"})
