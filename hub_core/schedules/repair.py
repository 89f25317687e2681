"""Messages of an algorithm that failed links block, and its repair by relays for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hub_core.columns import (
    BoolArray,
    Float64Array,
    Int64Array,
    group_of_entry,
    inverse,
    topological_levels,
)
from hub_core.model import (
    COLUMN_DEFAULTS,
    COLUMN_DTYPES,
    PLACEMENT,
    Algorithm,
    Buffer,
    Findings,
    InputError,
    Messages,
    StepKind,
    StepTable,
    UsageError,
    match_messages,
    message_bytes,
    placement_of,
)
from hub_core.network import Routes, Topology, remove_rows


@dataclass(frozen=True, slots=True)
class Repair:
    """A repaired algorithm.

    `changed`, `messages`: number of rerouted messages, and of all messages of the original.
    `paths`: the ranks of every new path with both ends, in the order of the connections.
    """

    algorithm: Algorithm
    changed: int
    messages: int
    paths: tuple[tuple[int, ...], ...]


def repair_messages(
    algorithm: Algorithm,
    topology: Topology,
    fails: BoolArray,
    collective_bytes: int,
    measure: Callable[[Algorithm], int | None] | None = None,
) -> Repair:
    """Reroute the messages that the failed links cut off; change no other message.

    `fails`: bool[links]. Candidates are messages whose route uses a failed link. All of them change
    if one has no remaining route, or if a plane has no remaining link; otherwise those whose
    shortest remaining route passes an NPU while the old one passed none. Without changes the result
    has `algorithm` itself. A new one keeps only the placement extension. The changed messages of a
    connection (rank, peer, channel) take one path and the lowest channel of the plane that is free
    on it; its inner NPUs receive into new scratch units and send on. Connections choose by
    descending bytes; each takes the fastest path for its largest message, and its bytes delay later
    choices. If `measure` gives a time (ns), choices that are also delayed by the bytes of all old
    routes are tried; the first fastest result is returned. Raises `UsageError` (`not-connected`)
    without a path, `InputError` for unmatched messages, missing routes and an invalid placement.
    """
    findings = Findings(algorithm.provenance.source_name or None)
    messages = match_messages(algorithm.steps, findings)
    if findings.has_errors():
        raise InputError(findings)
    routes = MessageRoutes.of(algorithm, topology)
    failed = remove_rows(topology, fails)
    pairs = routes.blocked(failed, routes.using(fails))
    steps = algorithm.steps
    total = len(routes.pair_of_message)
    if not len(pairs):
        return Repair(algorithm, 0, total, ())
    sends = np.flatnonzero(steps.sends)
    sizes = np.zeros(len(steps), np.int64)
    sizes[sends] = message_bytes(
        collective_bytes, algorithm.collective.unit_count, steps.count[sends]
    )
    rows = np.flatnonzero(np.isin(routes.pair_of_message, pairs))
    changed = messages.send[np.isin(messages.send, sends[rows])]
    receives = messages.receive[np.isin(messages.send, changed)]
    loads = np.zeros(topology.num_links, np.int64)
    for pair, size in zip(routes.pair_of_message.tolist(), sizes[sends].tolist(), strict=True):
        links = routes.routes.links[routes.routes.indptr[pair] : routes.routes.indptr[pair + 1]]
        loads[links] += size
    best: tuple[int, Algorithm, tuple[tuple[int, ...], ...]] | None = None
    for waiting in (np.zeros(failed.num_links), loads[~fails].astype(np.float64)):
        paths = _choose_paths(algorithm, failed, changed, sizes, waiting)
        repaired = _insert_relays(algorithm, messages, changed, receives, paths, failed.num_planes)
        time_ns = None if measure is None else measure(repaired)
        if best is None or (time_ns is not None and time_ns < best[0]):
            best = (time_ns or 0, repaired, tuple(paths.values()))
        if time_ns is None:
            break
    assert best is not None
    return Repair(best[1], len(changed), total, best[2])


_Connection = tuple[int, int, int]  # Source rank, destination rank, channel.


def _list_connections(steps: StepTable, sends: Int64Array) -> list[_Connection]:
    """Return the connection (rank, peer, channel) of every row of `sends`, in that order."""
    columns = (steps.rank[sends], steps.peer[sends], steps.channel[sends])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _choose_paths(
    algorithm: Algorithm,
    failed: Topology,
    sends: Int64Array,
    sizes: Int64Array,
    waiting_bytes: Float64Array,
) -> dict[_Connection, tuple[int, ...]]:
    """Return the fastest path of each (source, destination, channel), as ranks from end to end.

    `sends`: rows of the SENDs to reroute. `sizes`: bytes by row of all steps. `waiting_bytes`: by
    link, not changed. A path has switches (omitted in the result), NPUs with a rank, and links of
    plane `channel` mod planes. The connection with most bytes, of equal ones the lower, chooses
    first. A link takes its latency plus (waiting bytes + largest message of the connection) /
    bandwidth. Of equally fast paths, one with the fewest links is used. Then all bytes of the
    connection wait on its links. Raises `UsageError` (`not-connected`) without a path.
    """
    npus = placement_of(algorithm) or tuple(range(algorithm.num_ranks))
    rank_of_npu = {npu: rank for rank, npu in enumerate(npus)}
    totals: dict[_Connection, int] = {}
    largest: dict[_Connection, int] = {}
    connections = _list_connections(algorithm.steps, sends)
    for connection, size in zip(connections, sizes[sends].tolist(), strict=True):
        totals[connection] = totals.get(connection, 0) + size
        largest[connection] = max(largest.get(connection, 0), size)
    bytes_per_ns = failed.bandwidth_bytes_per_s / 1e9
    nodes = np.arange(failed.num_nodes)
    is_usable = (nodes >= failed.num_npus) | np.isin(nodes, npus)
    waiting = waiting_bytes.copy()
    paths = {}
    for connection in sorted(totals, key=lambda each: (-totals[each], each)):
        source, destination, channel = connection
        time = failed.latency_ns + (waiting + largest[connection]) / bytes_per_ns
        time[~is_usable[failed.destination]] = np.inf
        time[failed.plane != channel % failed.num_planes] = np.inf
        links = _find_path(failed, npus[source], npus[destination], time)
        waiting[links] += totals[connection]
        passed = [npus[source], *failed.destination[links].tolist()]
        paths[connection] = tuple(rank_of_npu[node] for node in passed if node < failed.num_npus)
    return {connection: paths[connection] for connection in sorted(paths)}


def _find_path(
    topology: Topology, source: int, destination: int, time_ns: Float64Array
) -> list[int]:
    """Return the links of a fastest path between two nodes, from the source on; [] for equal ends.

    `time_ns`: float64[links], infinite for unusable links. Ties: the fewest links, then, from the
    destination backwards, the first link in link order. Raises `UsageError` (`not-connected`).
    """
    arcs, starts = topology.arcs(), np.arange(topology.num_nodes) == source
    reached_ns = arcs.lengths_from(starts, time_ns)
    if not np.isfinite(reached_ns[destination]):
        names = f"{topology.node_name(source)} to {topology.node_name(destination)}"
        raise UsageError(
            f"no path remains from {names} without the failed links",
            cure="restore one of the links, or synthesize an algorithm for the remaining ones",
            code="not-connected",
        )
    # Links of fastest paths. Those without a time may form cycles, so that links are counted.
    is_tight = reached_ns[topology.source] + time_ns <= reached_ns[topology.destination]
    link_counts = arcs.lengths_from(starts, np.where(is_tight, 1.0, np.inf))
    links, node = list[int](), destination
    while node != source:
        candidates = np.flatnonzero(is_tight & (topology.destination == node))
        links.append(int(candidates[np.argmin(link_counts[topology.source[candidates]])]))
        node = int(topology.source[links[-1]])
    return links[::-1]


def _insert_relays(
    algorithm: Algorithm,
    messages: Messages,
    sends: Int64Array,
    receives: Int64Array,
    paths: dict[_Connection, tuple[int, ...]],
    num_planes: int,
) -> Algorithm:
    """Return the algorithm with the messages of `sends` and `receives` (rows) on the new `paths`.

    All hops of a path use one channel (`_choose_channels`). Each rank between the ends gets, per
    message, a receive into new SCRATCH units and a send that depends on it; with lanes, in one new
    lane per path. Ranks that could run row by row still can. Of the extensions, only the placement
    is kept. The given algorithm is unchanged.
    """
    steps = algorithm.steps
    columns = {name: getattr(steps, name).tolist() for name in COLUMN_DTYPES}
    keys = _compute_order_keys(steps, messages)
    channels = _choose_channels(steps, sends, paths, num_planes)
    lane_of_rank = np.full(steps.num_ranks, -1, np.int64)
    np.maximum.at(lane_of_rank, steps.rank, steps.lane)
    lanes = lane_of_rank.tolist()
    relay_lane: dict[tuple[_Connection, int], int] = {}
    scratch = algorithm.scratch_units.copy()
    parents, children = [], []
    connections = _list_connections(steps, sends)
    for send, receive, connection in zip(
        sends.tolist(), receives.tolist(), connections, strict=True
    ):
        path, channel = paths[connection], channels[connection]
        columns["peer"][send], columns["channel"][send] = path[1], channel
        columns["peer"][receive], columns["channel"][receive] = path[-2], channel
        count = int(steps.count[send])
        for hop, rank in enumerate(path[1:-1], 1):
            if lanes[rank] >= 0 and (connection, rank) not in relay_lane:
                lanes[rank] += 1
                relay_lane[connection, rank] = lanes[rank]
            lane = relay_lane.get((connection, rank), -1)
            ends = (path[hop - 1], path[hop + 1])
            for row in _relay_rows(rank, ends, channel, count, int(scratch[rank]), lane):
                for name, column in columns.items():
                    column.append(row[name])
                keys.append(keys[send] + hop / len(path))
            parents.append(len(keys) - 2)
            children.append(len(keys) - 1)
            scratch[rank] += count
    return replace(
        algorithm,
        steps=_order_rows(steps, columns, keys, parents, children),
        scratch_units=scratch,
        extensions={
            name: value for name, value in algorithm.extensions.items() if name == PLACEMENT
        },
    )


def _relay_rows(
    rank: int, ends: tuple[int, int], channel: int, count: int, offset: int, lane: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the columns of the RECV and of the SEND by which a rank relays a message.

    `ends`: the ranks before and after it on the path. `offset`: the scratch unit of `rank` where
    the `count` units are stored. `lane`: -1 for none. The SEND does not yet depend on the RECV.
    """
    shared = {**COLUMN_DEFAULTS, "rank": rank, "channel": channel, "count": count, "lane": lane}
    receive = {"kind": StepKind.RECV, "peer": ends[0], "dst_buffer": Buffer.SCRATCH}
    send = {"kind": StepKind.SEND, "peer": ends[1], "src_buffer": Buffer.SCRATCH}
    return (
        {**shared, **receive, "dst_offset": offset},
        {**shared, **send, "src_offset": offset},
    )


def _order_rows(
    steps: StepTable,
    columns: dict[str, list[int]],
    keys: list[float],
    parents: list[int],
    children: list[int],
) -> StepTable:
    """Return the table of the original and the added rows, sorted by rank and then by key.

    `columns`: values of all rows, with those of `steps` first. `keys`: one number per row; rows
    with equal rank and key keep their order. All dependencies of `steps` are kept. `parents`,
    `children`: data dependencies in addition, as positions in `columns`.
    """
    order = np.lexsort((np.arange(len(keys)), np.asarray(keys), np.asarray(columns["rank"])))
    position = inverse(order)
    data_parents, data_children = steps.data_edges
    data = (
        position[np.append(data_parents, parents).astype(np.int64)],
        position[np.append(data_children, children).astype(np.int64)],
    )
    control_parents, control_children = steps.control_edges
    return StepTable.from_columns(
        steps.num_ranks,
        {name: np.asarray(column)[order] for name, column in columns.items()},
        data,
        (position[control_parents], position[control_children]),
    )


def _compute_order_keys(steps: StepTable, messages: Messages) -> list[float]:
    """Return a number per row that increases along every rank's program and every message.

    It is the longest chain of steps and messages before the row, if ranks run row by row. If that
    deadlocks, it is the row number, which increases only within a rank.
    """
    rows = np.arange(len(steps))
    is_next = steps.rank[1:] == steps.rank[:-1]
    parents = np.concatenate([rows[:-1][is_next], messages.send])
    children = np.concatenate([rows[1:][is_next], messages.receive])
    order = topological_levels(len(steps), parents, children)
    if not order.is_complete:
        return [float(row) for row in rows.tolist()]
    levels = np.empty(len(steps), np.float64)
    levels[order.nodes] = group_of_entry(order.level_indptr)
    return [float(level) for level in levels.tolist()]


def _choose_channels(
    steps: StepTable, sends: Int64Array, paths: dict[_Connection, tuple[int, ...]], num_planes: int
) -> dict[_Connection, int]:
    """Choose a channel for every path: the lowest one of its plane that is free on all hops.

    The plane is the path's former channel modulo `num_planes`. Messages other than `sends` (rows),
    and paths earlier in `paths`, occupy their channel between two ranks, in their direction.
    """
    remaining = np.delete(
        np.flatnonzero(steps.sends), np.searchsorted(np.flatnonzero(steps.sends), sends)
    )
    used = set(_list_connections(steps, remaining))
    channels = {}
    for connection, path in paths.items():
        channel = connection[2] % num_planes
        hops: Sequence[tuple[int, int]] = list(pairwise(path))
        while any((*hop, channel) in used for hop in hops):
            channel += num_planes
        used.update((*hop, channel) for hop in hops)
        channels[connection] = channel
    return channels


@dataclass(frozen=True, slots=True)
class MessageRoutes:
    """Routes of the pairs of NPUs that exchange messages, on the complete network.

    `sources`, `destinations`, `channels`: int64[pairs], distinct triples, channels modulo the
    planes. `pair_of_message`: int64[sends], the pair of each send of the algorithm in row order.
    """

    topology: Topology
    sources: Int64Array
    destinations: Int64Array
    channels: Int64Array
    routes: Routes
    pair_of_message: Int64Array

    @classmethod
    def of(cls, algorithm: Algorithm, topology: Topology) -> MessageRoutes:
        """Find the shortest routes of all messages of an algorithm on the complete `topology`.

        There is one route per (source NPU, destination NPU, plane), ascending. Ranks are on the
        NPUs of `placement_of`, else rank r on NPU r; the plane is channel modulo number of planes.
        Raises `InputError` for a message without a path and for an invalid placement.
        """
        steps = algorithm.steps
        sends = np.flatnonzero(steps.sends)
        npus = np.asarray(placement_of(algorithm) or range(algorithm.num_ranks), np.int64)
        table = np.stack(
            [
                npus[steps.rank[sends]],
                npus[steps.peer[sends]],
                steps.channel[sends] % topology.num_planes,
            ]
        )
        pairs, pair_of_message = np.unique(table, axis=1, return_inverse=True)
        routes = topology.routes(*pairs)
        return cls(topology, pairs[0], pairs[1], pairs[2], routes, pair_of_message.reshape(-1))

    def using(self, fails: BoolArray) -> Int64Array:
        """Return the pairs whose route uses a link of `fails`, bool[links]: ascending positions."""
        used = np.flatnonzero(fails[self.routes.links])
        return np.unique(group_of_entry(self.routes.indptr)[used])

    def blocked(self, failed: Topology, pairs: Int64Array) -> Int64Array:
        """Return, in order, those of `pairs` that only `failed` connects through relay NPUs.

        `pairs`: positions in `sources`. All are returned if `failed` has fewer planes than the
        complete network, or lacks a route for any of them. Otherwise those whose shortest route
        passes an NPU between its ends on `failed`, but not on the complete network.
        """
        if failed.num_planes < self.topology.num_planes:
            # A plane without links is lost, and channels would use other planes.
            return pairs
        ends = (self.sources[pairs], self.destinations[pairs], self.channels[pairs])
        try:
            rerouted = failed.routes(*ends)
        except InputError:
            return pairs
        relayed = _pass_npus(failed, rerouted)
        before = _pass_npus(self.topology, self.routes)[pairs]
        blocked: Int64Array = pairs[relayed & ~before]
        return blocked


def _pass_npus(topology: Topology, routes: Routes) -> BoolArray:
    """Return which routes pass an NPU between their first and last node: bool[routes]."""
    is_last = np.zeros(len(routes.links), np.bool_)
    filled = np.flatnonzero(np.diff(routes.indptr))
    is_last[routes.indptr[filled + 1] - 1] = True
    inner = np.flatnonzero(~is_last & (topology.destination[routes.links] < topology.num_npus))
    result = np.zeros(len(routes.indptr) - 1, np.bool_)
    result[group_of_entry(routes.indptr)[inner]] = True
    return result
