"""Compiled kernels: maximum flows, minimum cuts to many sinks, growing of trees, splitting of
switches.

Maximum flows are computed by Dinic's algorithm (1970): levels by breadth-first search, then paths
along decreasing levels until each has a saturated wire. A flow costs O(nodes^2 * wires) at worst;
on interconnects a few rounds suffice, so that it is nearly linear in the wires. Invariant of every
kernel: the residual capacities of a wire and of its mate are never below 0, and their sum is
constant while flow moves. All values are int64, so nothing is rounded.

All kernels are in one file, because numba's cache notices changes only in the file of the function
that it compiles. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collhub_packing.compiling import kernel, part
from hub_core.columns import BoolArray, Int64Array


class WirePairs(NamedTuple):
    """The wires of a network: both directions between two nodes, each the `mate` of the other.

    Wires that leave node v: `first[v]:first[v + 1]`; `head`: end node of a wire. All int64.
    """

    first: Int64Array
    head: Int64Array
    mate: Int64Array


class _Workspace(NamedTuple):
    """Scratch arrays for one search, int64 per node, allocated once for many flows.

    `level`: distance to the sink in the last search, -1 if not reached; `turn`: the next wire that
    a node tries; `queue`: nodes in the order of the search; `trail`: wires of the path so far.
    """

    level: Int64Array
    turn: Int64Array
    queue: Int64Array
    trail: Int64Array


@part
def _allocate_workspace(num_nodes: int) -> _Workspace:
    """Allocate the four int64 scratch arrays of a flow search, each of length `num_nodes`.

    Their values are not initialized.
    """
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
    """Compute the distances of nodes to the sink, until the source is found; return whether it is.

    A distance is a number of wires (directions between two nodes) with capacity left towards the
    sink. It is stored in `space.level`, with -1 for nodes that were not reached when the source was
    found. False also if the source is the sink.
    """
    level, queue = space.level, space.queue
    level[:] = -1
    level[sink] = 0
    queue[0] = sink
    next_index, count = 0, 1
    while next_index < count:
        node = queue[next_index]
        next_index += 1
        for wire in range(wires.first[node], wires.first[node + 1]):
            previous = wires.head[wire]
            # The search runs against the flow: room is needed in the direction towards `node`.
            if level[previous] < 0 and residual[wires.mate[wire]] > 0:
                level[previous] = level[node] + 1
                # Nodes at the source's level or beyond are on no shortest path.
                if previous == source:
                    return True
                queue[count] = previous
                count += 1
    return False


@part
def _mark_reached(
    wires: WirePairs,
    residual: Int64Array,
    space: _Workspace,
    source: int,
    side: BoolArray,
) -> None:
    """Mark the nodes that can be reached from the source over wires with capacity left.

    `side` is overwritten: True for the source and these nodes. After a maximum flow they are the
    smallest source side of all minimum cuts (Ford, Fulkerson 1956).
    """
    side[:] = False
    side[source] = True
    space.queue[0] = source
    next_index, count = 0, 1
    while next_index < count:
        node = space.queue[next_index]
        next_index += 1
        for wire in range(wires.first[node], wires.first[node + 1]):
            head = wires.head[wire]
            if residual[wire] > 0 and not side[head]:
                side[head] = True
                space.queue[count] = head
                count += 1


@part
def _push_along(
    wires: WirePairs,
    residual: Int64Array,
    trail: Int64Array,
    length: int,
    maximum: int,
) -> tuple[int, int]:
    """Push as much flow along a path as fits, at most `maximum`; return the amount.

    The path is the first `length` wires of `trail`. `residual`, the capacity left by wire, is
    reduced along the path and increased in the reverse direction. Also returns the index in `trail`
    of the first wire without capacity left, or `length` if there is none.
    """
    amount = maximum
    for position in range(length):
        amount = min(amount, residual[trail[position]])
    saturated = length
    for position in range(length - 1, -1, -1):
        wire = trail[position]
        residual[wire] -= amount
        residual[wires.mate[wire]] += amount
        if residual[wire] == 0:
            saturated = position
    return amount, saturated


@part
def _find_next_wire(wires: WirePairs, residual: Int64Array, space: _Workspace, node: int) -> int:
    """Return the next wire of a node, with capacity left, that leads one level closer to the sink.

    -1 if there is none. The search begins at `space.turn[node]`, which is advanced past skipped
    wires; these cannot be used again until the levels are recomputed.
    """
    next_level = space.level[node] - 1
    while space.turn[node] < wires.first[node + 1]:
        wire = int(space.turn[node])
        if residual[wire] > 0 and space.level[wires.head[wire]] == next_level:
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
    """Push flow along shortest paths until none has capacity left, or `limit` is reached.

    Paths follow `space.level`, one level closer to the sink per wire. Modifies `residual` (the
    capacity left by wire) and the work arrays. Returns the amount; 0 without a path.
    """
    space.turn[:] = wires.first[:-1]
    pushed, length, node = 0, 0, source
    while True:
        if node == sink:
            amount, length = _push_along(wires, residual, space.trail, length, limit - pushed)
            pushed += amount
            if pushed == limit:
                return pushed
            # The path up to the first saturated wire remains valid.
            node = wires.head[wires.mate[space.trail[length]]]
        wire = _find_next_wire(wires, residual, space, node)
        if wire >= 0:
            space.trail[length] = wire
            length += 1
            node = wires.head[wire]
        elif length == 0:
            return pushed
        else:
            # A dead end: step back, and skip the wire to it at these levels.
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
    """Increase a flow from the source to the sink by as much as fits, at most `limit` (Dinic 1970).

    Returns the increase. Modifies `residual`, the capacity left by wire. Levels are searched from
    the sink, so only paths that reach it are followed, and a saturated cut near the sink is found
    early.
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
    """Compute a maximum flow, or one of `limit`.

    Change `residual` accordingly and return its value.
    """
    return _augment(wires, residual, _allocate_workspace(len(wires.first) - 1), source, sink, limit)


@kernel
def least_cut(
    wires: WirePairs,
    capacity: Int64Array,
    source: int,
    sinks: Int64Array,
    limit: int,
) -> tuple[int, int, BoolArray]:
    """Find the smallest of the minimum cuts between the source and each sink.

    Returns (value, index of the sink in `sinks`, source side as bool[nodes]); (limit, -1, all
    False) if no cut is below `limit`. Of equal values the first sink is returned; its side is the
    smallest one. Each flow stops at the smallest value so far. `capacity` (by wire) is not changed.
    """
    num_nodes = len(wires.first) - 1
    space = _allocate_workspace(num_nodes)
    side = np.zeros(num_nodes, np.bool_)
    minimum, sink_index = limit, -1
    for index in range(len(sinks)):
        # Each flow has the full capacities.
        residual = capacity.copy()
        value = _augment(wires, residual, space, source, sinks[index], minimum)
        if value < minimum:
            minimum, sink_index = value, index
            _mark_reached(wires, residual, space, source, side)
    return minimum, sink_index, side


# --- growing trees ---
#
# Lovasz 1976 (a short proof of Edmonds' theorem), with capacities as in Berczi and Frank 2010: a
# tree may take an arc at a width if all unsent data still reaches all nodes afterwards. Invariant:
# the unsent weights always fit into the remaining capacities. One flow per trial; an arc that was
# refused stays refused at that width, so a tree of n nodes and m arcs takes at most m trials per
# width.


class GrowthField(NamedTuple):
    """A network from which trees are cut, one after the other; all arrays are int64.

    Arc a runs from `source[a]` to `destination[a]` along the wire `place[a]`; node v's out-arcs are
    `out[first[v]:first[v + 1]]`. `capacity`: remaining capacity per arc; `unsent`: total weight of
    the trees that node v has still to root. `residual`: both by wire; the wires have one more node,
    a common source, and `feed[v]` is the wire from it to node v.
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
    """A growing tree: `depth` of every node, -1 outside, and the `arc` into it, -1 if none.

    `order`: arcs in the order of the trials; `rank`: position of an arc in it. `work`: scratch
    array for the residual capacities of a trial flow.
    """

    depth: Int64Array
    arc: Int64Array
    order: Int64Array
    rank: Int64Array
    work: Int64Array
    space: _Workspace


@kernel
def grow_tree(field: GrowthField, root: int, salt: int, arc_of: Int64Array) -> int:
    """Build the widest possible tree from `root` to all nodes; return its width.

    The width is the data that the tree carries on each arc. Writes the arc into every node to
    `arc_of`, -1 for the root, and subtracts the tree from the capacities and unsent data of
    `field`. The tree starts at the width of all unsent data of the root. It is narrowed when no arc
    can be taken at this width; at a smaller width an arc always can, and the rest suffices for the
    other unsent data (Lovasz 1976; Berczi and Frank 2010). 0 if the unsent data do not fit; `field`
    is then not restored. `salt` shuffles arcs of equal capacity.
    """
    growth = _create_root_tree(field, root, salt, arc_of)
    width = int(field.unsent[root])
    _change_width(field, growth, root, width)
    while True:
        narrower = _add_reachable_nodes(field, growth, width)
        if np.all(growth.depth >= 0):
            return width
        # No arc can be taken: return the capacity that the narrower tree does not need, and
        # continue.
        _change_width(field, growth, root, narrower - width)
        width = narrower
        if width <= 0:
            return 0


@part
def _create_root_tree(field: GrowthField, root: int, salt: int, arc_of: Int64Array) -> _Growth:
    """Create a tree that contains only its root, and the order in which arcs are tried.

    Wide arcs come first; `salt` shuffles arcs of equal capacity. `arc_of` (arc into every node) is
    filled with -1 and becomes a part of the result. The depth is 0 at the root, -1 elsewhere.
    """
    num_nodes = len(field.first) - 1
    order, rank = _shuffle_arcs(field.capacity, salt)
    depth = np.full(num_nodes, -1, np.int64)
    depth[root] = 0
    arc_of[:] = -1
    work = np.empty_like(field.residual)
    # One more node, the common source.
    return _Growth(depth, arc_of, order, rank, work, _allocate_workspace(num_nodes + 1))


@part
def _shuffle_arcs(capacity: Int64Array, salt: int) -> tuple[Int64Array, Int64Array]:
    """Return the arcs by descending capacity, and the position of every arc in this order.

    Arcs of equal capacity are shuffled; `salt` selects the shuffle. The same `salt` and
    capacities always give the same order, also with other versions of numba. Both results are
    int64[arcs], and inverse permutations of each other.
    """
    shuffled = np.arange(len(capacity))
    state = np.uint64(salt) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019)
    for last in range(len(shuffled) - 1, 0, -1):
        # xorshift64 (Marsaglia 2003): numba's own generator may differ between its versions.
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        swap = np.int64((state >> np.uint64(16)) % np.uint64(last + 1))
        shuffled[last], shuffled[swap] = shuffled[swap], shuffled[last]
    # A stable sort, so that equal capacities stay shuffled.
    by_width = np.argsort(-capacity[shuffled], kind="mergesort")
    order = shuffled[by_width]
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return order, rank


@part
def _change_width(field: GrowthField, growth: _Growth, root: int, increase: int) -> None:
    """Increase the width of a tree (data on each of its arcs) by `increase`; negative: decrease it.

    The amount is subtracted in `field` from the unsent data of the root and from the capacity of
    every arc of the tree. Nothing is checked.
    """
    # `unsent` and the capacity from the common source always agree.
    field.unsent[root] -= increase
    field.residual[field.feed[root]] -= increase
    for node in range(len(growth.arc)):
        if growth.arc[node] >= 0:
            _take_capacity(field, growth.arc[node], increase)


@part
def _take_capacity(field: GrowthField, arc: int, amount: int) -> None:
    """Subtract `amount` from the capacity and the residual capacity of an arc, in place.

    Whether enough is left is not checked.
    """
    field.capacity[arc] -= amount
    field.residual[field.place[arc]] -= amount


@part
def _add_reachable_nodes(field: GrowthField, growth: _Growth, width: int) -> int:
    """Add every node to the tree that it can reach at the width `width`, level by level, in place.

    Arcs out of a level are tried in the order of `growth.rank`. An arc to a new node is taken, and
    the width subtracted from its capacity in `field`, if its capacity suffices and the unsent data
    of other trees still fit. Each level is processed once, because capacities only decrease.
    Returns the largest width, below `width`, at which more arcs can be taken; 0 if there is none.
    """
    unsent_weight = int(field.unsent.sum())
    pending_ranks = np.empty(len(field.source), np.int64)
    narrower, level, count = 0, 0, 1
    while count > 0:
        count = _list_arcs_out_of_level(field, growth, level, pending_ranks)
        for rank in np.sort(pending_ranks[:count]):
            arc = growth.order[rank]
            node = field.destination[arc]
            if growth.depth[node] >= 0:
                continue
            allowed = field.capacity[arc]
            # A flow is needed only if the arc itself is wide enough.
            if allowed >= width:
                allowed = _find_allowed_width(field, growth, arc, width, unsent_weight)
            if allowed >= width:
                growth.depth[node] = level + 1
                growth.arc[node] = arc
                _take_capacity(field, arc, width)
            else:
                narrower = max(narrower, allowed)
        level += 1
    return narrower


@part
def _list_arcs_out_of_level(
    field: GrowthField, growth: _Growth, level: int, pending_ranks: Int64Array
) -> int:
    """Write the ranks of the arcs that leave the nodes of a level to `pending_ranks`.

    Returns their number. A level is a depth in the tree. A rank is the arc's position in the order
    in which arcs are tried. Ranks are not sorted, and arcs to nodes of the tree are included.
    """
    count = 0
    for node in range(len(growth.depth)):
        if growth.depth[node] == level:
            for position in range(field.first[node], field.first[node + 1]):
                pending_ranks[count] = growth.rank[field.out[position]]
                count += 1
    return count


@part
def _find_allowed_width(
    field: GrowthField, growth: _Growth, arc: int, width: int, unsent_weight: int
) -> int:
    """Return the largest width, up to `width`, at which the tree may take an arc.

    It is 0 if the arc cannot be taken. All unsent data (`unsent_weight`) must still reach the end
    of the arc after its capacity is reduced by this width. The tree counts as a source at the start
    of the arc: the flow to the end beyond `unsent_weight` is the capacity that can be spared.
    """
    source = len(field.first) - 1
    limit = unsent_weight + width
    growth.work[:] = field.residual
    growth.work[field.feed[field.source[arc]]] = limit
    end = int(field.destination[arc])
    flow = _augment(field.wires, growth.work, growth.space, source, end, limit)
    return flow - unsent_weight


# --- splitting switches off ---
#
# Edge splitting (Lovasz; Mader; Bang-Jensen, Frank and Jackson 1995), with capacities. Instead of
# computing how much of a pair of links may move, all of it is moved at once: the flows to all sinks
# from before the move are repaired, and the irreparable amount is moved back. Invariant: `flows[k]`
# is a flow of value `demand` to sink k. Cost: a repair of n flows per pair.


class Junction(NamedTuple):
    """A switch, the links that meet in it, and a flow of value `demand` to every one of `sinks`.

    `inward[i]`, `outward[j]`: wires from the i-th neighbour before the switch and to the j-th after
    it; `across[i, j]`: the wire between these, -1 if they are one node. `capacity_in`,
    `capacity_out`: remaining capacity of these links. `flows[k]`: residual capacity of every wire
    under the flow to sink k.
    """

    wires: WirePairs
    source: int
    sinks: Int64Array
    demand: int
    inward: Int64Array
    outward: Int64Array
    across: Int64Array
    capacity_in: Int64Array
    capacity_out: Int64Array
    flows: Int64Array


@kernel
def supply(junction: Junction, capacity: Int64Array) -> bool:
    """Compute a flow of `junction.demand` from the source to every sink; return whether all exist.

    A junction is a switch with its flow network. The flows are independent: each has the full
    `capacity` by wire. The capacity left by flow k is stored in `junction.flows[k]`. The search
    ends at the first sink without a full flow, whose row then has an incomplete flow; later rows
    are unchanged.
    """
    wires, demand = junction.wires, junction.demand
    space = _allocate_workspace(len(wires.first) - 1)
    for k in range(len(junction.sinks)):
        # Every sink has the full network; the flows are independent.
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
    """Replace links through a switch by direct links: pairs (u, switch), (switch, t) become (u, t).

    Of each pair as much is replaced as leaves every sink its demand. In round r, the pairs of
    neighbour i are tried in the order `order[i, :]`, with at most `shares[r, i, j]` for the pair
    (i, j). The amounts are added to `moved[i, j]` and subtracted from the junction's capacities. A
    last round without a limit replaces everything if as much enters the switches as leaves them,
    because no cut gains capacity (Bang-Jensen, Frank and Jackson 1995).
    """
    space = _allocate_workspace(len(junction.wires.first) - 1)
    for shares_of_round in shares:
        for i in range(len(junction.capacity_in)):
            for j in order[i]:
                amount = min(
                    junction.capacity_in[i], junction.capacity_out[j], shares_of_round[i, j]
                )
                if amount > 0:
                    amount = _split_pair(junction, space, i, j, amount)
                    junction.capacity_in[i] -= amount
                    junction.capacity_out[j] -= amount
                    moved[i, j] += amount


@part
def _split_pair(junction: Junction, space: _Workspace, i: int, j: int, amount: int) -> int:
    """Replace a pair of links through the switch by a direct link, as far as possible.

    At most `amount` of capacity, from neighbour i to the switch and from there to neighbour j,
    moves to the direct link, as long as every sink keeps its full demand. Returns the moved amount.
    All flows in `junction.flows` are repaired. The capacities of the junction are not changed.
    """
    wires, source = junction.wires, junction.source
    for k in range(len(junction.sinks)):
        missing = _move_to_new_link(junction, space, k, i, j, amount)
        if missing > 0:
            # The violated cut is too small by exactly this amount: for sink k it is necessary and
            # sufficient to move `missing` less.
            for earlier in range(k + 1):
                _restore_pair(junction, earlier, i, j, missing)
            _augment(wires, junction.flows[k], space, source, junction.sinks[k], missing)
            amount -= missing
            if amount == 0:
                break
    return amount


@part
def _move_to_new_link(
    junction: Junction, space: _Workspace, k: int, i: int, j: int, amount: int
) -> int:
    """Move `amount` of capacity from a pair of links to the new link, and repair flow k.

    The pair is the link from neighbour i into the switch and that from there to neighbour j. The
    new link runs from i to j; there is none if they are the same. Flow over both moves to the new
    link; flow over one of them is sent by other routes. Returns the flow that could not be sent,
    which the sink has lost.
    """
    wires, residual = junction.wires, junction.flows[k]
    incoming, outgoing, across = junction.inward[i], junction.outward[j], junction.across[i, j]
    excess_in = _reduce_capacity(wires, residual, incoming, amount)
    excess_out = _reduce_capacity(wires, residual, outgoing, amount)
    # Flow over both links takes the new link.
    direct = min(excess_in, excess_out)
    if across >= 0:
        residual[across] += amount - direct
        residual[wires.mate[across]] += direct
    # Flow that lost its link is surplus at the link's start and missing at its end.
    cut_link = incoming if excess_in > direct else outgoing
    interrupted = max(excess_in, excess_out) - direct
    if interrupted == 0:
        return 0
    return _reroute(junction, space, k, cut_link, interrupted)


@part
def _reroute(junction: Junction, space: _Workspace, k: int, cut_link: int, interrupted: int) -> int:
    """Send the interrupted part of flow k from the start of a link to its end by other routes.

    Flow without such a route is taken back to the source and from the sink, and as much as possible
    is sent from the source again. Modifies `junction.flows[k]`. Returns the lost flow, 0 if all is
    repaired.
    """
    wires, residual = junction.wires, junction.flows[k]
    start, end = wires.head[wires.mate[cut_link]], wires.head[cut_link]
    interrupted -= _augment(wires, residual, space, start, end, interrupted)
    if interrupted > 0:
        # No route from start to end: take the flow back at the source and at the sink, which is
        # always possible, and send it again.
        source, sink = junction.source, junction.sinks[k]
        _augment(wires, residual, space, start, source, interrupted)
        _augment(wires, residual, space, sink, end, interrupted)
        interrupted -= _augment(wires, residual, space, source, sink, interrupted)
    return interrupted


@part
def _reduce_capacity(wires: WirePairs, residual: Int64Array, wire: int, amount: int) -> int:
    """Reduce the capacity of a wire, and its flow; return how much flow was lost.

    Modifies `residual` (capacity left) of the wire and its reverse. The result is 0 if the flow
    still fits.
    """
    residual[wire] -= amount
    excess = max(0, -int(residual[wire]))
    residual[wire] += excess
    residual[wires.mate[wire]] -= excess
    return excess


@part
def _restore_pair(junction: Junction, k: int, i: int, j: int, amount: int) -> None:
    """Undo `amount` of `_move_to_new_link` for flow k, without a search.

    The capacity moves back to both links of the pair; flow that loses the new link passes the
    switch again. If i and j are the same neighbour there is no new link, and only capacity is
    restored. Modifies `junction.flows[k]`.
    """
    wires, residual = junction.wires, junction.flows[k]
    incoming, outgoing, across = junction.inward[i], junction.outward[j], junction.across[i, j]
    excess = 0
    # Equal neighbours have no new link and no flow over it.
    if across >= 0:
        excess = _reduce_capacity(wires, residual, across, amount)
    residual[incoming] += amount - excess
    residual[wires.mate[incoming]] += excess
    residual[outgoing] += amount - excess
    residual[wires.mate[outgoing]] += excess
