"""Compiled kernels: flows, least cuts to many sinks, trees that grow, switches that are split off.

Largest flows are found by Dinic's algorithm (1970): levels by breadth-first search, then paths
along falling levels until each has a full wire. A flow costs O(nodes^2 * wires) at worst; on
interconnects a few rounds suffice, so that it is nearly linear in the wires. Invariant of every
kernel: what is left of a wire and of its mate never sinks below 0, and their sum is constant
while flow moves. Everything is an int64, so nothing is ever rounded.

All kernels stand in one file, because numba's cache notices changes only in the file of the
function that it compiles. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_columns import BoolArray, Int64Array

from collhub_packing.compiling import kernel, part


class WirePairs(NamedTuple):
    """The wires of a network: both directions of a pair of nodes, each other's `mate`.

    Those that leave node v: `first[v]:first[v + 1]`; `head`: where a wire ends. All int64.
    """

    first: Int64Array
    head: Int64Array
    mate: Int64Array


class _Workspace(NamedTuple):
    """Room for one search, int64 per node, so that none is allocated per flow.

    `level`: distance to the sink at the last search, -1 if not reached; `turn`: the wire that a
    node tries next; `queue`: nodes in the order of the search; `trail`: wires of the path so far.
    """

    level: Int64Array
    turn: Int64Array
    queue: Int64Array
    trail: Int64Array


@part
def _workspace(num_nodes: int) -> _Workspace:
    return _Workspace(
        np.empty(num_nodes, np.int64),
        np.empty(num_nodes, np.int64),
        np.empty(num_nodes, np.int64),
        np.empty(num_nodes, np.int64),
    )


# --- largest flows and least cuts ---


@part
def _find_levels(
    wires: WirePairs,
    residual: Int64Array,
    space: _Workspace,
    source: int,
    sink: int,
) -> bool:
    """Find the distances to the sink, until the source is found; whether it is.

    A source that is the sink never is.
    """
    level, queue = space.level, space.queue
    level[:] = -1
    level[sink] = 0
    queue[0] = sink
    done, found = 0, 1
    while done < found:
        node = queue[done]
        done += 1
        for wire in range(wires.first[node], wires.first[node + 1]):
            before = wires.head[wire]
            # The search goes against the flow: what counts is the room on the way to `node`.
            if level[before] < 0 and residual[wires.mate[wire]] > 0:
                level[before] = level[node] + 1
                # No node at the source's level or farther lies on a shortest path.
                if before == source:
                    return True
                queue[found] = before
                found += 1
    return False


@part
def _mark_reached(
    wires: WirePairs,
    residual: Int64Array,
    space: _Workspace,
    source: int,
    side: BoolArray,
) -> None:
    """Mark the nodes that can be reached from the source: its side of the least cut.

    After a largest flow this is the smallest of all sides of least cuts (Ford, Fulkerson 1956).
    """
    side[:] = False
    side[source] = True
    space.queue[0] = source
    done, found = 0, 1
    while done < found:
        node = space.queue[done]
        done += 1
        for wire in range(wires.first[node], wires.first[node + 1]):
            head = wires.head[wire]
            if residual[wire] > 0 and not side[head]:
                side[head] = True
                space.queue[found] = head
                found += 1


@part
def _push_along(
    wires: WirePairs,
    residual: Int64Array,
    trail: Int64Array,
    length: int,
    most: int,
) -> tuple[int, int]:
    """Push what a path can take, at most `most`.

    Returns the amount, and the place of the first wire that it fills: the search goes on there.
    """
    amount = most
    for place in range(length):
        amount = min(amount, residual[trail[place]])
    full = length
    for place in range(length - 1, -1, -1):
        wire = trail[place]
        residual[wire] -= amount
        residual[wires.mate[wire]] += amount
        if residual[wire] == 0:
            full = place
    return amount, full


@part
def _next_wire(wires: WirePairs, residual: Int64Array, space: _Workspace, node: int) -> int:
    """The next wire of a node that leads one level nearer to the sink, -1 if none is left.

    Wires that were passed over stay so until the next levels: within these they are of no use.
    """
    # Levels count from the sink.
    nearer = space.level[node] - 1
    while space.turn[node] < wires.first[node + 1]:
        wire = int(space.turn[node])
        if residual[wire] > 0 and space.level[wires.head[wire]] == nearer:
            return wire
        space.turn[node] += 1
    return -1


@part
def _push_blocking_flow(
    wires: WirePairs,
    residual: Int64Array,
    space: _Workspace,
    source: int,
    sink: int,
    limit: int,
) -> int:
    """Push along shortest paths until each has a full wire, or `limit` is reached."""
    space.turn[:] = wires.first[:-1]
    pushed, length, node = 0, 0, source
    while True:
        if node == sink:
            amount, length = _push_along(wires, residual, space.trail, length, limit - pushed)
            pushed += amount
            if pushed == limit:
                return pushed
            # The path up to the first full wire still stands.
            node = wires.head[wires.mate[space.trail[length]]]
        wire = _next_wire(wires, residual, space, node)
        if wire >= 0:
            space.trail[length] = wire
            length += 1
            node = wires.head[wire]
        elif length == 0:
            return pushed
        else:
            # A dead end: step back, and never take the wire to it again at these levels.
            length -= 1
            node = wires.head[wires.mate[space.trail[length]]]
            space.turn[node] += 1


@part
def _augment(
    wires: WirePairs,
    residual: Int64Array,
    space: _Workspace,
    source: int,
    sink: int,
    limit: int,
) -> int:
    """Increase a flow by at most `limit` (Dinic 1970); return by how much.

    Searched from the sink, so that only paths that end there are followed, and a full cut near
    the sink is found at once.
    """
    pushed = 0
    while pushed < limit and _find_levels(wires, residual, space, source, sink):
        pushed += _push_blocking_flow(wires, residual, space, source, sink, limit - pushed)
    return pushed


@kernel
def max_flow(
    wires: WirePairs,
    residual: Int64Array,
    source: int,
    sink: int,
    limit: int,
) -> int:
    """Turn `residual` into what a largest flow, or one of `limit`, leaves; return its value."""
    return _augment(wires, residual, _workspace(len(wires.first) - 1), source, sink, limit)


@kernel
def least_cut(
    wires: WirePairs,
    capacity: Int64Array,
    source: int,
    sinks: Int64Array,
    limit: int,
) -> tuple[int, int, BoolArray]:
    """The least cut below `limit` between the source and one of the sinks.

    Returns its value, the place of the sink and the source's side; (limit, -1, nothing) if there
    is none. One flow a sink, which ends as soon as it reaches the least value so far.
    """
    num_nodes = len(wires.first) - 1
    space = _workspace(num_nodes)
    side = np.zeros(num_nodes, np.bool_)
    least, which = limit, -1
    for place in range(len(sinks)):
        # Flows to different sinks do not share the capacities.
        residual = capacity.copy()
        value = _augment(wires, residual, space, source, sinks[place], least)
        if value < least:
            least, which = value, place
            _mark_reached(wires, residual, space, source, side)
    return least, which, side


# --- growing trees ---
#
# Lovasz 1976 (a short proof of Edmonds' theorem), with capacities as in Berczi and Frank 2010:
# a tree may take an arc at a width if all that is unsent still reaches everybody afterwards.
# Invariant: the unsent weights always fit into the capacities that are left. One flow a try; an
# arc that was refused stays refused at that width, so a tree of n nodes and m arcs takes at most
# m tries a width.


class GrowthField(NamedTuple):
    """A network of which trees are cut, one after the other.

    Arc a leads from `source[a]` to `destination[a]` along the wire `place[a]`; node v's out-arcs
    are `out[first[v]:first[v + 1]]`. `capacity`: what is left of every arc; `unsent`: the weight
    of the trees that node v is still to send. `residual`: both by wire; the wires hold one more
    node, the source of all, and `feed[v]` is the wire from it to node v. All int64.
    """

    wires: WirePairs
    place: Int64Array
    source: Int64Array
    destination: Int64Array
    first: Int64Array
    out: Int64Array
    feed: Int64Array
    capacity: Int64Array
    unsent: Int64Array
    residual: Int64Array


class _Growth(NamedTuple):
    """A tree that grows: `depth` of every node, -1 outside, and the `arc` into it.

    `order`: arcs in the order in which they are tried; `rank`: the place of an arc in it.
    `work`: room for what a trial flow leaves of every wire.
    """

    depth: Int64Array
    arc: Int64Array
    order: Int64Array
    rank: Int64Array
    work: Int64Array
    space: _Workspace


@kernel
def grow_tree(field: GrowthField, root: int, salt: int, arc_of: Int64Array) -> int:
    """Cut a spanning out-tree out of the field, as wide as it gets.

    Writes the arc into every node to `arc_of`, -1 for the root. Returns the tree's width, 0 where
    the unsent weights do not fit. It grows at the width of all that the root has to send, and
    narrows where no arc can be taken at this width: one always can be at a lesser one, and what
    is left then suffices for the rest (Lovasz 1976; Berczi and Frank 2010 for capacities).
    """
    growth = _seedling(field, root, salt, arc_of)
    width = int(field.unsent[root])
    _widen(field, growth, root, width)
    while True:
        narrower = _reach(field, growth, width)
        if np.all(growth.depth >= 0):
            return width
        # Stuck: give back what the narrower tree does not need, and go on from where it stands.
        _widen(field, growth, root, narrower - width)
        width = narrower
        if width <= 0:
            return 0


@part
def _seedling(field: GrowthField, root: int, salt: int, arc_of: Int64Array) -> _Growth:
    """The tree that is its root alone."""
    num_nodes = len(field.first) - 1
    order, rank = _tries(field.capacity, salt)
    depth = np.full(num_nodes, -1, np.int64)
    depth[root] = 0
    arc_of[:] = -1
    work = np.empty_like(field.residual)
    # One more node than the network has: the source of all.
    return _Growth(depth, arc_of, order, rank, work, _workspace(num_nodes + 1))


@part
def _tries(capacity: Int64Array, salt: int) -> tuple[Int64Array, Int64Array]:
    """Arcs from wide to narrow, equal ones shuffled by the salt, and the place of each."""
    shuffled = np.arange(len(capacity))
    state = np.uint64(salt) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019)
    for last in range(len(shuffled) - 1, 0, -1):
        # xorshift64 (Marsaglia 2003): numba's own generator may differ between its versions.
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        other = np.int64((state >> np.uint64(16)) % np.uint64(last + 1))
        shuffled[last], shuffled[other] = shuffled[other], shuffled[last]
    # A stable sort, so that equal capacities stay shuffled.
    by_width = np.argsort(-capacity[shuffled], kind="mergesort")
    order = shuffled[by_width]
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return order, rank


@part
def _widen(field: GrowthField, growth: _Growth, root: int, more: int) -> None:
    """Make the tree wider by `more`, which its arcs lose, or narrower where that is negative."""
    # What is unsent and what the source of all may feed always agree.
    field.unsent[root] -= more
    field.residual[field.feed[root]] -= more
    for node in range(len(growth.arc)):
        if growth.arc[node] >= 0:
            _use(field, growth.arc[node], more)


@part
def _use(field: GrowthField, arc: int, amount: int) -> None:
    """Take capacity off an arc."""
    field.capacity[arc] -= amount
    field.residual[field.place[arc]] -= amount


@part
def _reach(field: GrowthField, growth: _Growth, width: int) -> int:
    """Add every node that the tree can reach at this width, level by level.

    Returns the greatest lesser width that leads farther. A level is done once: an arc that cannot
    be taken now cannot be taken later, since capacities only go down.
    """
    rest = int(field.unsent.sum())
    todo = np.empty(len(field.source), np.int64)
    narrower, level, count = 0, 0, 1
    while count > 0:
        count = _out_of_level(field, growth, level, todo)
        for rank in np.sort(todo[:count]):
            arc = growth.order[rank]
            node = field.destination[arc]
            if growth.depth[node] >= 0:
                continue
            allowed = field.capacity[arc]
            # A flow is needed only where the arc itself is wide enough.
            if allowed >= width:
                allowed = _allowed(field, growth, arc, width, rest)
            if allowed >= width:
                growth.depth[node] = level + 1
                growth.arc[node] = arc
                _use(field, arc, width)
            else:
                narrower = max(narrower, allowed)
        level += 1
    return narrower


@part
def _out_of_level(field: GrowthField, growth: _Growth, level: int, todo: Int64Array) -> int:
    """List the ranks of the arcs that leave the nodes of a level; return their number."""
    count = 0
    for node in range(len(growth.depth)):
        if growth.depth[node] == level:
            for position in range(field.first[node], field.first[node + 1]):
                todo[count] = growth.rank[field.out[position]]
                count += 1
    return count


@part
def _allowed(field: GrowthField, growth: _Growth, arc: int, width: int, rest: int) -> int:
    """The width, up to `width`, at which the tree may take an arc.

    All unsent weight, `rest`, must still reach the arc's end when the arc is narrower by that
    much. The tree itself counts as a source at the arc's start: what flows from there to the end
    beyond `rest` is what the arc, or a way round it, can spare.
    """
    source = len(field.first) - 1
    limit = rest + width
    growth.work[:] = field.residual
    growth.work[field.feed[field.source[arc]]] = limit
    end = int(field.destination[arc])
    flow = _augment(field.wires, growth.work, growth.space, source, end, limit)
    return flow - rest


# --- splitting switches off ---
#
# Edge splitting (Lovasz; Mader; Bang-Jensen, Frank and Jackson 1995), with capacities. Instead of
# computing how much of a pair of links may move, all of it is moved at once: the flows to all
# sinks that are kept from the move before are repaired, and what cannot be is moved back.
# Invariant: `flows[k]` holds a flow of value `demand` to sink k. Cost: a repair of n flows a pair.


class Junction(NamedTuple):
    """A switch, the links that meet in it, and a flow of value `demand` to every one of `sinks`.

    `inward[i]`, `outward[j]`: wires from the i-th neighbour before and to the j-th behind;
    `across[i, j]`: the wire between these, -1 where they are one node. `before`, `behind`:
    capacity left of these links. `flows[k]`: what the flow to sink k leaves of every wire.
    """

    wires: WirePairs
    source: int
    sinks: Int64Array
    demand: int
    inward: Int64Array
    outward: Int64Array
    across: Int64Array
    before: Int64Array
    behind: Int64Array
    flows: Int64Array


@kernel
def supply(junction: Junction, capacity: Int64Array) -> bool:
    """Send the demand to every sink; whether all of it arrives."""
    wires, demand = junction.wires, junction.demand
    space = _workspace(len(wires.first) - 1)
    for k in range(len(junction.sinks)):
        # Every sink is to be served from the whole network, not beside the others.
        junction.flows[k] = capacity
        residual = junction.flows[k]
        sink = junction.sinks[k]
        sent = _augment(wires, residual, space, junction.source, sink, demand)
        if sent < demand:
            return False
    return True


@kernel
def split_off(
    junction: Junction,
    order: Int64Array,
    shares: Int64Array,
    moved: Int64Array,
) -> None:
    """Replace pairs of links (u, switch), (switch, t) by links (u, t).

    As much of each as leaves every sink its demand. Rounds r: pairs of neighbour i with
    `order[i, :]` in turn, at most `shares[r, i, j]` at a time. The amounts are added to `moved`.
    No cut ever gains, so a last round without limit uses everything up (Bang-Jensen, Frank and
    Jackson 1995) where as much enters the switches as leaves them.
    """
    space = _workspace(len(junction.wires.first) - 1)
    for shares_of_round in shares:
        for i in range(len(junction.before)):
            for j in order[i]:
                amount = min(junction.before[i], junction.behind[j], shares_of_round[i, j])
                if amount > 0:
                    amount = _move(junction, space, i, j, amount)
                    junction.before[i] -= amount
                    junction.behind[j] -= amount
                    moved[i, j] += amount


@part
def _move(junction: Junction, space: _Workspace, i: int, j: int, amount: int) -> int:
    """Split as much as possible of a pair of links, at most `amount`.

    Returns how much, with all flows repaired.
    """
    wires, source = junction.wires, junction.source
    for k in range(len(junction.sinks)):
        missing = _detour(junction, space, k, i, j, amount)
        if missing > 0:
            # The cut that lacks it holds exactly so much too little, whatever the amount: moving
            # `missing` less is enough for sink k, and no less is.
            for earlier in range(k + 1):
                _restore(junction, earlier, i, j, missing)
            _augment(wires, junction.flows[k], space, source, junction.sinks[k], missing)
            amount -= missing
            if amount == 0:
                break
    return amount


@part
def _detour(junction: Junction, space: _Workspace, k: int, i: int, j: int, amount: int) -> int:
    """Move capacity from a pair of links to the new link, and repair flow k.

    Returns how much of the flow is lost.
    """
    wires, residual = junction.wires, junction.flows[k]
    enters, leaves, across = junction.inward[i], junction.outward[j], junction.across[i, j]
    too_much_in = _shrink(wires, residual, enters, amount)
    too_much_out = _shrink(wires, residual, leaves, amount)
    # Flow that went over both links takes the new one.
    direct = min(too_much_in, too_much_out)
    if across >= 0:
        residual[across] += amount - direct
        residual[wires.mate[across]] += direct
    # Flow that has lost its link waits at the start of this link and lacks at its end.
    cut_link = enters if too_much_in > direct else leaves
    waiting = max(too_much_in, too_much_out) - direct
    if waiting == 0:
        return 0
    return _rerouted(junction, space, k, cut_link, waiting)


@part
def _rerouted(junction: Junction, space: _Workspace, k: int, cut_link: int, waiting: int) -> int:
    """Send what waits at the start of a link to its end by other ways; return what is lost."""
    wires, residual = junction.wires, junction.flows[k]
    start, end = wires.head[wires.mate[cut_link]], wires.head[cut_link]
    waiting -= _augment(wires, residual, space, start, end, waiting)
    if waiting > 0:
        # No way from here to there: take the flow back at the source and at the sink, where it
        # always can be, and send it anew.
        source, sink = junction.source, junction.sinks[k]
        _augment(wires, residual, space, start, source, waiting)
        _augment(wires, residual, space, sink, end, waiting)
        waiting -= _augment(wires, residual, space, source, sink, waiting)
    return waiting


@part
def _shrink(wires: WirePairs, residual: Int64Array, wire: int, amount: int) -> int:
    """Lower the capacity of a wire; return by how much the flow along it is now too much."""
    residual[wire] -= amount
    excess = max(0, -int(residual[wire]))
    residual[wire] += excess
    residual[wires.mate[wire]] -= excess
    return excess


@part
def _restore(junction: Junction, k: int, i: int, j: int, amount: int) -> None:
    """Undo a part of `_detour`: what the new link loses goes through the switch again."""
    wires, residual = junction.wires, junction.flows[k]
    enters, leaves, across = junction.inward[i], junction.outward[j], junction.across[i, j]
    excess = 0
    # Where both neighbours are one node there is no new link, and nothing flowed over it.
    if across >= 0:
        excess = _shrink(wires, residual, across, amount)
    residual[enters] += amount - excess
    residual[wires.mate[enters]] += excess
    residual[leaves] += amount - excess
    residual[wires.mate[leaves]] += excess
