"""Paths of all shares, their pieces as jobs on links, and the transfers of a schedule of jobs.

Jobs are ordered on their links. The starts on links become transfers between NPUs, and the chunks
that these transfer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from collhub_packing.pipelining import windows_of

from collhub_flows.optimal_flow import Flow, FlowArcs, FlowDemand, balance_paths
from hub_core.columns import (
    BoolArray,
    Float64Array,
    Int64Array,
    counted_positions,
    csr,
    expanded_ranges,
    first_positions,
    inverse,
    row_pointer,
    run_mask,
    stable_order,
    stable_order_by,
)
from hub_core.model import Collective
from hub_core.network import Occupancy, link_times_ps
from hub_core.schedules import Chunks, Transfers

# Fraction of a share below which a path costs more messages than it reduces load.
_MIN_FRACTION = 0.02


_MAX_PATHS = 8

# Minimum fraction and maximum number of paths of a share if shares have different sizes.
_UNEVEN_STRIP = (0.005, 16)

# Paths up to which their fractions are balanced by a linear program.
_MAX_BALANCED = 20_000


# Number of passes forward and backward; the gain of further passes is negligible.
_PASSES = 6


_MAX_FAILURES = 2

# Factors of the pseudo-random orders that break ties: Knuth's multiplicative hash and primes of
# xxHash.
_TIE_MULTIPLIERS = (2654435761, 2246822519, 3266489917, 668265263, 374761393)

NUM_TIE_ORDERS = len(_TIE_MULTIPLIERS)
"""Number of pseudo-random orders that break ties between jobs."""

# The progress of a path is compared in this fraction of its pieces.
_PROGRESS_SCALE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class FlowPaths:
    """Paths of shares; int64 columns.

    Path p transfers `units[p]` units of share `share[p]` on `arcs[indptr[p]:indptr[p + 1]]`.
    `share` ascends; the units of each share add up to `share_units` times its parts. `is_uneven`:
    shares have different sizes, or equal ones are divided like those of different sizes.
    """

    share: Int64Array
    units: Int64Array
    indptr: Int64Array
    arcs: Int64Array
    share_units: int
    is_uneven: bool = False

    @classmethod
    def of(
        cls,
        network: FlowArcs,
        demand: FlowDemand,
        flow: Flow,
        share_units: int,
        max_pieces: int,
        cost: Float64Array,
        *,
        is_fine: bool = False,
        is_approximate: bool = False,
    ) -> FlowPaths:
        """Divide the flow of every share into paths with integer numbers of units.

        A share is the data that one NPU sends to another, in the order of `demand.pairs`; at
        least one is required. An arc is a direct route between NPUs. `is_uneven` of the result
        means that shares have different sizes or `is_fine` is set. The division is balanced if
        it is uneven, and the topology has no switches or `is_approximate` is set. `flow` is not
        changed. The steps are:

        1. The widest path of the remaining flow of a share is taken repeatedly. It must be
           wider than 2 % of the share, and there are at most 8 paths. If balanced, the limits
           are 0.5 % and 16. The remaining flow is omitted.
        2. If balanced, and with at most 20 000 paths in all, the amounts of the paths are
           computed anew, so that the time of the busiest link is minimal. `cost`: time of one
           share on every link, float64[links].
        3. A share has `share_units` times its number of parts as units. Each path gets units in
           proportion to its amount, rounded down; the path with the largest amount gets the
           rest. Paths without units are omitted.
        4. Let g be the greatest common divisor of all units and `share_units`. If g is a
           multiple of `max_pieces`, all of them are divided by g / `max_pieces`.
        """
        # Imported here: numba takes a second.
        from collhub_flows.kernels import strip_paths

        all_arcs = np.arange(network.num_arcs)
        indptr, arcs = csr(network.destination, all_arcs, network.topology.num_npus)
        is_uneven = is_fine or demand.is_uneven
        # Messages contend at switches, which more balanced loads do not reduce, except for the
        # loads of an approximate flow, which may exceed the optimum by several percent.
        has_switches = network.topology.num_nodes > network.topology.num_npus
        is_balanced = is_uneven and (is_approximate or not has_switches)
        share, part, path_indptr, path_arcs = strip_paths(
            demand.sources,
            demand.wants,
            indptr,
            arcs,
            network.source,
            network.destination,
            flow.amounts.copy(),
            *(_UNEVEN_STRIP if is_balanced else (_MIN_FRACTION, _MAX_PATHS)),
        )
        if is_balanced and len(share) <= _MAX_BALANCED:
            lengths = np.diff(path_indptr)
            path = np.repeat(np.arange(len(share)), lengths)
            part = balance_paths(network, share, part, (path, path_arcs), cost)
        units = _round_units(share, part, share_units * demand.parts_of_shares)
        used = np.flatnonzero(units)
        first, lengths = path_indptr[used], np.diff(path_indptr)[used]
        chosen = path_arcs[expanded_ranges(first, lengths)]
        # A common divisor of all counts is removed, but enough units remain for the pieces.
        common = math.gcd(int(np.gcd.reduce(units)), share_units)
        piece_divisor = math.gcd(common, max_pieces)
        divisor = common // piece_divisor if piece_divisor == max_pieces else 1
        return cls(
            share[used],
            units[used] // divisor,
            row_pointer(lengths),
            chosen,
            share_units // divisor,
            is_uneven,
        )

    def divide(self, maximum: int) -> tuple[Int64Array, Int64Array]:
        """Divide each path into pieces; return path and units of every piece, both int64.

        A path has `maximum` pieces, or one per unit if it has fewer units. With `is_uneven`, the
        number `maximum` is first multiplied by the path's units divided by the mean of all paths,
        and rounded up, so that all pieces have similar sizes. The pieces of a path differ by at
        most one unit and add up to its units. Pieces are sorted by path.
        """
        wanted = np.full(len(self.units), maximum)
        if self.is_uneven:
            wanted = np.ceil(maximum * self.units / self.units.mean()).astype(np.int64)
        count = np.minimum(self.units, wanted)
        path = np.repeat(np.arange(len(self.units)), count)
        number = expanded_ranges(np.zeros(len(count), np.int64), count)
        units = self.units[path]
        # The ends of pieces are rounded down, so that the pieces add up to the units of the path.
        end = (number + 1) * units // count[path]
        begin = number * units // count[path]
        return path, end - begin


@dataclass(frozen=True, slots=True, eq=False)
class FlowJobs:
    """One job per piece and link of its path, sorted by piece and position; int64 columns.

    `piece`: piece of each job; `link`: row of the topology; `is_forwarded`: whether the link starts
    at a switch. `busy`, `arrival`: picoseconds for which the link is occupied, and until the piece
    arrives at its end. `indptr`: first job of each piece. `number`: index of each piece in its
    path; `units`: units of each piece; `path`: path of each piece. `around`: jobs in the order that
    breaks ties.
    """

    piece: Int64Array
    link: Int64Array
    is_forwarded: BoolArray
    busy: Int64Array
    arrival: Int64Array
    indptr: Int64Array
    number: Int64Array
    units: Int64Array
    path: Int64Array
    around: Int64Array
    num_links: int

    @classmethod
    def of(
        cls,
        network: FlowArcs,
        paths: FlowPaths,
        max_pieces: int,
        unit_bytes: float,
        occupancy: Occupancy,
    ) -> FlowJobs:
        """Create the jobs of all pieces: a job sends a piece over one link of its path.

        The pieces are those of `paths.divide(max_pieces)`. For even paths, each path has at most
        `max_pieces` pieces; for uneven paths (`is_uneven`), `max_pieces` is the mean number. A
        piece has at least one unit of `unit_bytes` bytes.

        Pieces are sorted by path, and numbered from 0 in each path. Jobs are sorted by piece, then
        along the path. A job whose link starts at a switch is marked as forwarded. Ties are broken
        by the pseudo-random order number 0 (`with_tie_order`).

        Times are whole picoseconds, by the occupancy model, as in `link_times_ps`. Raises its
        `InputError` (`too-long`) if a latency or a transmission takes more than 5e16 ps.
        """
        path, units = paths.divide(max_pieces)
        routes = network.routes
        arc_lengths = np.diff(routes.indptr)[paths.arcs]
        # The links of all paths, one path after the other.
        links = routes.links[expanded_ranges(routes.indptr[paths.arcs], arc_lengths)]
        indptr_of_path = row_pointer(arc_lengths)[paths.indptr]
        lengths = np.diff(indptr_of_path)[path]
        link = links[expanded_ranges(indptr_of_path[path], lengths)]
        piece = np.repeat(np.arange(len(path)), lengths)
        topology = network.topology
        bandwidth, latency_s = topology.bandwidth_bytes_per_s[link], topology.latency_s[link]
        busy, arrival = link_times_ps(bandwidth, latency_s, units[piece] * unit_bytes, occupancy)
        number = counted_positions(np.bincount(path))
        indptr = row_pointer(lengths)
        num_links = topology.num_links
        is_forwarded = topology.source[link] >= topology.num_npus
        around = _spread_jobs(piece, len(units))
        columns = piece, link, is_forwarded, busy, arrival, indptr, number, units, path, around
        return cls(*columns, num_links)

    def with_tie_order(self, number: int) -> FlowJobs:
        """Return the jobs with another pseudo-random order that breaks ties.

        `number`: 0 to `NUM_TIE_ORDERS` - 1; 0 is the order of `of`.
        """
        return replace(self, around=_spread_jobs(self.piece, len(self.units), number))

    def order_by_pieces(self) -> Int64Array:
        """Return the start of every job, int64 ps.

        On a link, lower piece numbers of a path come first, then jobs with more remaining time.
        """
        return self._compute_starts(
            self._rank_jobs(self.number[self.piece], -self._compute_remaining())
        )

    def order_by_progress(self, has_switches: bool) -> Int64Array:
        """Return the start time in ps of every job, so that all paths advance in proportion: int64.

        A job sends one piece over one link of its path. The jobs that are ready on a link are
        sent in the order of these keys:

        1. i / n, smallest first: i is the index of the piece in its path, from 0, and n the
           number of pieces of the path. With `has_switches`, i is first increased by the number
           of links that the piece has passed.
        2. The time from the start of the job to the arrival of the piece at its target without
           any waiting, longest first.
        3. The pseudo-random order `around`.

        Links that start at a switch ignore these keys, and send in the order of arrival.
        """
        count = np.bincount(self.path)[self.path][self.piece]
        number = self.number[self.piece]
        if has_switches:
            number = number + counted_positions(np.diff(self.indptr))
        return self._compute_starts(
            self._rank_jobs(number * _PROGRESS_SCALE // count, -self._compute_remaining())
        )

    def time_ps(self, start: Int64Array) -> int:
        """Return the arrival time of the last piece in ps, 0 for no pieces.

        `start`: of every job in ps, in their order.
        """
        return int((start + self.arrival).max(initial=0))

    def bound_ps(self) -> int:
        """Return a lower bound in ps of the time of any order of the jobs.

        It is the larger of the total occupied time of the busiest link and the largest latency of a
        path. The latency of a path is the sum over its links of arrival time minus occupied time. 0
        without jobs on a link.
        """
        load = np.bincount(self.link, self.busy, self.num_links)
        latency = np.add.reduceat(self.arrival - self.busy, self.indptr[:-1])
        return int(max(load.max(initial=0), latency.max(initial=0)))

    def improve_orders(self, initial: Int64Array | None = None) -> Iterator[Int64Array]:
        """Yield several schedules as starts of all jobs, int64[jobs] in ps, the initial one first.

        The first is `initial`, which has the same form. Without it, the first is a list schedule:
        of the jobs that are ready for a link, that with the longest remaining time starts first.

        Each pass makes a list schedule backward in time, with the jobs that ended last first. Then
        it makes one forward, with the jobs first that ended last in the backward schedule. This is
        the forward-backward improvement of Li and Willis (Eur. J. Oper. Res. 56, 1992). The forward
        schedule is yielded, also if it is slower than an earlier one: callers choose the best.

        The passes end after `_PASSES` of them, or after `_MAX_FAILURES` successive ones that are
        not faster than the best schedule so far. They also end at a pass whose starts equal those
        before it, which is not yielded. There must be at least one job.
        """
        start = initial
        if start is None:
            start = self._compute_starts(self._rank_jobs(-self._compute_remaining()))
        yield start
        backward = self._reverse()
        best_ps = self.time_ps(start)
        failures = 0
        for _ in range(_PASSES):
            before = start
            # The jobs that end last start first in the reversed schedule.
            back = backward._compute_starts(backward._rank_jobs(-(start + self.arrival)[::-1]))
            start = self._compute_starts(self._rank_jobs(-(back + backward.arrival)[::-1]))
            # Further passes would repeat the same result.
            if np.array_equal(start, before):
                return
            yield start
            failures = 0 if self.time_ps(start) < best_ps else failures + 1
            best_ps = min(best_ps, self.time_ps(start))
            # After two passes without a gain, further ones rarely have one.
            if failures == _MAX_FAILURES:
                return

    def _reverse(self) -> FlowJobs:
        """Return new jobs in reversed time: each piece moves from its target to its source.

        Job j of n becomes job n - 1 - j, and piece p of m becomes piece m - 1 - p; `piece` and
        `indptr` follow these new numbers. Each job keeps its link, durations and index in the path;
        each piece keeps its units and path. Two fields are new:

        - `around`, the order between equal times: tie order 0 (`_spread_jobs`) for the new pieces.
        - `is_forwarded`: False for all jobs. In reversed time no job is bound to the arrival order
          of a switch.
        """
        last = len(self.units) - 1
        lengths = np.diff(self.indptr)
        # Pieces are renumbered, so that the last one comes first.
        piece = last - self.piece[::-1]
        return FlowJobs(
            piece,
            self.link[::-1].copy(),
            # In reversed time no job is bound to the arrival order of a switch.
            np.zeros(len(piece), np.bool_),
            self.busy[::-1].copy(),
            self.arrival[::-1].copy(),
            row_pointer(lengths[::-1]),
            self.number[::-1].copy(),
            self.units[::-1].copy(),
            self.path[::-1].copy(),
            _spread_jobs(piece, last + 1),
            self.num_links,
        )

    def _compute_starts(self, rank: Int64Array) -> Int64Array:
        # Imported here: numba takes a second.
        from collhub_flows.list_kernel import list_starts

        # Every job except the last one of a piece is followed by the next job of the piece.
        has_next = np.ones(len(self.link), np.int64)
        has_next[self.indptr[1:] - 1] = 0
        following = np.flatnonzero(has_next) + 1
        links = self.link, row_pointer(has_next), following, self.busy, self.arrival
        return list_starts(*links, rank, self.is_forwarded, self.num_links)

    def _compute_remaining(self) -> Int64Array:
        """Return for each job the least time in ps from its start to the arrival of its piece.

        A job sends a piece over one link. The time is the sum of the arrival times of this and
        the later jobs of the piece on the way to its target, without any waiting. int64[jobs].
        """
        total = np.cumsum(self.arrival)
        end = total[self.indptr[1:] - 1][self.piece]
        remaining: Int64Array = end - total + self.arrival
        return remaining

    def _rank_jobs(self, *keys: Int64Array) -> Int64Array:
        """Sort the jobs by ascending keys, the first key first; return the position of each job.

        `keys`: int64[jobs] each. The result is int64[jobs], 0 for the first job. Ties, and all
        jobs if there is no key, are in the pseudo-random order `around`.
        """
        order = self.around
        for key in reversed(keys):
            order = order[stable_order(key[order])]
        return inverse(order)


@dataclass(frozen=True, slots=True, eq=False)
class FlowSchedule:
    """Transfers in picoseconds, and the pieces of shares that they transfer.

    `share`, `offset`, `units`: int64, by chunk; a share is the index of a pair in `demand.pairs`.
    `share_units`: units per part of a share.
    """

    transfers: Transfers
    share: Int64Array
    offset: Int64Array
    units: Int64Array
    share_units: int
    time_ps: int

    def order_first_messages(self) -> FlowSchedule:
        """Return a schedule in which messages ready at time 0 wait for the first one of the link.

        Only `transfers.window` is new: a window w means that a message waits until the one w
        positions before it on its (first) link has arrived. It is the minimum of these numbers:

        - the largest number of messages that the schedule has in flight on the link at once
        - `_MAX_IN_FLIGHT`
        - only for the first message of a piece, which is ready at time 0: the number of messages
          that start before it on the link, unless this is 0

        Without the last limit, a link might start all messages that are ready at time 0 at once.
        """
        transfers = self.transfers
        # A piece is ready at time 0 on its first arc.
        is_ready = run_mask(transfers.chunk)
        window = windows_of(
            transfers.link, transfers.start, transfers.finish, is_ready, len(transfers)
        )
        ordered = replace(transfers, window=window)
        return replace(self, transfers=ordered)

    def order_as_planned(self) -> FlowSchedule:
        """Return the schedule with windows that let messages await planned arrivals on their link.

        A message counts on its first link only. The messages of a link are ordered by planned
        start; equal starts stay in the order of rows. A window w means that a message waits for the
        message w positions before it. Message number k of a link, from 0, gets:

        - k - a, at least 1, if messages of the link arrive at or before its planned start. Of them,
          a is the number of the one that arrives last; of equal arrivals, the one with the largest
          number.
        - Otherwise k, at least 1: it waits for message 0, and message 0 waits for none.

        Only `transfers.window` differs; `self` is not changed. With windows of constant width
        instead, a message delayed at a switch would also delay later messages that the plan sends
        before its arrival.
        """
        transfers = self.transfers
        order = stable_order_by(transfers.link, transfers.start)
        link, start = transfers.link[order], transfers.start[order]
        ordinal = counted_positions(np.bincount(link))
        # Link and time are combined in one number, so that one sorted search serves all links.
        span = int(transfers.finish.max(initial=0)) + 1
        arrival = link * span + transfers.finish[order]
        by_arrival = np.argsort(arrival, kind="stable")
        latest = np.searchsorted(arrival[by_arrival], link * span + start, side="right") - 1
        awaited = by_arrival[np.maximum(latest, 0)]
        # An arrival on another link does not count.
        has_arrival = (latest >= 0) & (link[awaited] == link)
        window = np.empty(len(transfers), np.int64)
        window[order] = np.maximum(ordinal - np.where(has_arrival, ordinal[awaited], 0), 1)
        return replace(self, transfers=replace(transfers, window=window))

    def build_chunks(
        self,
        collective: Collective,
        npus: Sequence[int],
    ) -> Chunks:
        """Build the chunks of a collective: those of the schedule, then those that stay on a rank.

        A share is all data that one rank sends to another; a piece is a part of a share.
        Requirements, not checked: every block of the collective has one source and one target rank,
        as in an all-to-all, and at most `MAX_UNITS` units. Rank r runs on NPU `npus[r]`, in any
        order.

        1. One chunk per piece of the schedule, in their order, with the piece's number of units.
           Its input and output offsets are those of the share, plus the offset of the piece in the
           share. `self.share` numbers the shares by sending NPU, then receiving NPU.
        2. One chunk for the data of each rank for itself, in the order of the blocks, if not empty.

        Origins and targets of chunks are ranks, not NPUs.
        """
        shares = Chunks.of_blocks(collective)
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
    network: FlowArcs, paths: FlowPaths, jobs: FlowJobs, start: Int64Array
) -> FlowSchedule:
    """Build the schedule of all pieces: one transfer per arc of the path of a piece.

    An arc is a direct route between NPUs. `start`: start of every job, int64[jobs] in ps. `jobs`
    must be the jobs of `paths` in `network`.

    Transfers are sorted by piece, then along the path; chunk k of the transfers is piece k. A
    transfer lasts from the start on the first link of its arc to the arrival over the last link, in
    ps. Its `link` is that first link. No transfer reduces. Its window is the maximum number of
    messages that the plan has in flight on this link at once.

    The offset of a piece is the sum of the units of the pieces before it in its share (data from
    one NPU to another). `time_ps` is the latest arrival of a job, 0 without jobs.
    """
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
    # Compute the offset of every piece in its share; pieces of a share are adjacent.
    begin = first_positions(jobs.units)
    _, first, number = np.unique(share, return_index=True, return_inverse=True)
    offsets: Int64Array = begin - begin[first][number]
    return FlowSchedule(
        transfers,
        share,
        offsets,
        jobs.units,
        paths.share_units,
        jobs.time_ps(start),
    )


def _round_units(share: Int64Array, part: Float64Array, share_units: Int64Array) -> Int64Array:
    """Distribute the units of every share among its paths in proportion to their widths.

    `share`, `part`: share and width of every path; `share_units`: units of every share. Each
    share must have a path of positive width. The result is int64[paths]. Units are rounded
    down; the widest path of a share, the first of several, gets the remainder. Only the listed
    paths count: those that were omitted earlier get no units.
    """
    shares = int(share.max(initial=-1)) + 1
    # Narrow paths are omitted, so the remaining paths transfer the full share.
    total = np.bincount(share, part, minlength=shares)
    exact = share_units[share] * part / total[share]
    units = np.floor(exact + 1e-6).astype(np.int64)
    assigned = np.bincount(share, units, minlength=shares).astype(np.int64)
    # Sorted by width within a share, so the first row of a share is its widest path.
    order = np.lexsort((-part, share))
    _, first = np.unique(share[order], return_index=True)
    units[order[first]] += share_units - assigned
    return units


def _spread_jobs(piece: Int64Array, num_pieces: int, number: int = 0) -> Int64Array:
    """Return an order of the jobs in which the pieces are in a fixed pseudo-random order.

    The result is int64[jobs], the number of the first job first. The order prevents that
    all sources send to NPU 0 first. `piece`: number of the piece of each job, from 0 to
    `num_pieces` - 1. `number`: which of the `NUM_TIE_ORDERS` orders. The jobs of a piece
    are adjacent and keep their order.
    """
    # Otherwise all sources would send to NPU 0 first.
    spread = (piece * _TIE_MULTIPLIERS[number]) % max(num_pieces, 1)
    return np.lexsort((piece, spread))
