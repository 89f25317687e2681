"""Compiled kernels: flows, least cuts to many sinks, trees that grow, and switches that are split off.

All kernels stand in one file, because numba's cache notices changes only in the file of the function that it
compiles. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_Function = TypeVar("_Function", bound=Callable[..., object])

# What only compiled code calls needs no way in from Python; half of the time to compile would go there.
_WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def _compiled(function: _Function) -> _Function:
    """Compile when the first caller is compiled; the typed form of numba's decorator."""
    return cast(_Function, numba.njit(nogil=True, **_WITHOUT_WRAPPERS)(function))


def _entry(function: _Function) -> _Function:
    """Compile on the first call and keep the machine code on disk."""
    try:
        return cast(_Function, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # No folder for the cache can be written to.
        return cast(_Function, numba.njit(nogil=True)(function))


class WirePairs(NamedTuple):
    """The wires of a network, both directions of a pair of nodes as two wires that are each other's `mate`.

    Those that leave node v: `first[v]:first[v + 1]`; `head`: where a wire ends.
    """

    first: Int64Array
    head: Int64Array
    mate: Int64Array


class _Room(NamedTuple):
    """Room to work in: int64 per node. `level`: distance to the sink at the last search, -1 if not reached."""

    level: Int64Array
    turn: Int64Array
    queue: Int64Array
    trail: Int64Array


@_compiled
def _room(num_nodes: int) -> _Room:
    return _Room(
        np.empty(num_nodes, np.int64),
        np.empty(num_nodes, np.int64),
        np.empty(num_nodes, np.int64),
        np.empty(num_nodes, np.int64),
    )


@_compiled
def _search(wires: WirePairs, residual: Int64Array, room: _Room, source: int, sink: int) -> bool:
    """Find the distances to the sink, until the source is found; a source that is the sink never is."""
    level, queue = room.level, room.queue
    level[:] = -1
    level[sink] = 0
    queue[0] = sink
    done, found = 0, 1
    while done < found:
        node = queue[done]
        done += 1
        for wire in range(wires.first[node], wires.first[node + 1]):
            before = wires.head[wire]
            if level[before] < 0 and residual[wires.mate[wire]] > 0:
                level[before] = level[node] + 1
                if before == source:
                    return True
                queue[found] = before
                found += 1
    return False


@_compiled
def _reach_from(
    wires: WirePairs, residual: Int64Array, room: _Room, source: int, side: BoolArray
) -> None:
    """Mark the nodes that can be reached from the source."""
    side[:] = False
    side[source] = True
    room.queue[0] = source
    done, found = 0, 1
    while done < found:
        node = room.queue[done]
        done += 1
        for wire in range(wires.first[node], wires.first[node + 1]):
            head = wires.head[wire]
            if residual[wire] > 0 and not side[head]:
                side[head] = True
                room.queue[found] = head
                found += 1


@_compiled
def _push(
    wires: WirePairs, residual: Int64Array, trail: Int64Array, length: int, most: int
) -> tuple[int, int]:
    """Push what a path can take, at most `most`; return the amount and the place of the first wire that it fills."""
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


@_compiled
def _advance(wires: WirePairs, residual: Int64Array, room: _Room, node: int) -> int:
    """The next wire of a node that leads one level nearer to the sink, -1 if none is left."""
    nearer = room.level[node] - 1
    while room.turn[node] < wires.first[node + 1]:
        wire = int(room.turn[node])
        if residual[wire] > 0 and room.level[wires.head[wire]] == nearer:
            return wire
        room.turn[node] += 1
    return -1


@_compiled
def _block(
    wires: WirePairs, residual: Int64Array, room: _Room, source: int, sink: int, limit: int
) -> int:
    """Push along shortest paths until each has a full wire, or `limit` is reached."""
    room.turn[:] = wires.first[:-1]
    pushed, length, node = 0, 0, source
    while True:
        if node == sink:
            amount, length = _push(wires, residual, room.trail, length, limit - pushed)
            pushed += amount
            if pushed == limit:
                return pushed
            node = wires.head[wires.mate[room.trail[length]]]
        wire = _advance(wires, residual, room, node)
        if wire >= 0:
            room.trail[length] = wire
            length += 1
            node = wires.head[wire]
        elif length == 0:
            return pushed
        else:
            length -= 1
            node = wires.head[wires.mate[room.trail[length]]]
            room.turn[node] += 1


@_compiled
def _augment(
    wires: WirePairs, residual: Int64Array, room: _Room, source: int, sink: int, limit: int
) -> int:
    """Increase a flow by at most `limit` (Dinic 1970).

    Searched from the sink, so that only paths that end there are followed, and a full cut near the sink is found at once.
    """
    pushed = 0
    while pushed < limit and _search(wires, residual, room, source, sink):
        pushed += _block(wires, residual, room, source, sink, limit - pushed)
    return pushed


@_entry
def max_flow(wires: WirePairs, residual: Int64Array, source: int, sink: int, limit: int) -> int:
    """Turn `residual` into what a largest flow, or one of `limit`, leaves of it; return the flow's value."""
    return _augment(wires, residual, _room(len(wires.first) - 1), source, sink, limit)


@_entry
def least_cut(
    wires: WirePairs, capacity: Int64Array, source: int, sinks: Int64Array, limit: int
) -> tuple[int, int, BoolArray]:
    """The least cut below `limit` between the source and one of the sinks: value, the place of the sink, source side.

    (limit, -1, nothing) if there is none.
    """
    room = _room(len(wires.first) - 1)
    side = np.zeros(len(wires.first) - 1, np.bool_)
    least, which = limit, -1
    for place in range(len(sinks)):
        residual = capacity.copy()
        value = _augment(wires, residual, room, source, sinks[place], least)
        if value < least:
            least, which = value, place
            _reach_from(wires, residual, room, source, side)
    return least, which, side


# --- growing trees ---


class GrowthField(NamedTuple):
    """A network of which trees are cut, one after the other.

    Arc a leads from `source[a]` to `destination[a]` along the wire `place[a]`; node v's out-arcs are
    `out[first[v]:first[v + 1]]`. `capacity`: what is left of every arc; `unsent`: the weight of the trees that node
    v is still to send. `residual`: both by wire; the wires hold one more node, the source of all, and `feed[v]` is the
    wire from it to node v.
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
    """A tree that grows: `depth` of every node, -1 outside, and its `arc`; `order` in which arcs are tried, `rank` in it."""

    depth: Int64Array
    arc: Int64Array
    order: Int64Array
    rank: Int64Array
    work: Int64Array
    room: _Room


@_entry
def grow_tree(field: GrowthField, root: int, salt: int, arc_of: Int64Array) -> int:
    """Cut a spanning out-tree out of the field, as wide as it gets; write the arc into every node to `arc_of`.

    Returns its width, 0 where the unsent weights do not fit. It grows at the width of all that the root has to send, and
    narrows where no arc can be taken at this width: one always can be at a lesser one, and what is left then suffices
    for the rest (Lovasz 1976; Berczi and Frank 2010 for capacities).
    """
    n = len(field.first) - 1
    order, rank = _tries(field.capacity, salt)
    growth = _Growth(
        np.full(n, -1, np.int64), arc_of, order, rank, np.empty_like(field.residual), _room(n + 1)
    )
    growth.depth[root] = 0
    arc_of[:] = -1
    width = int(field.unsent[root])
    _widen(field, growth, root, width)
    while True:
        narrower = _reach(field, growth, width)
        if np.all(growth.depth >= 0):
            return width
        _widen(field, growth, root, narrower - width)
        width = narrower
        if width <= 0:
            return 0


@_compiled
def _tries(capacity: Int64Array, salt: int) -> tuple[Int64Array, Int64Array]:
    """Arcs from wide to narrow, equal ones shuffled by the salt, and the place of each."""
    shuffled = np.arange(len(capacity))
    state = np.uint64(salt) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019)
    for last in range(len(shuffled) - 1, 0, -1):
        # xorshift64 (Marsaglia 2003)
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        other = np.int64((state >> np.uint64(16)) % np.uint64(last + 1))
        shuffled[last], shuffled[other] = shuffled[other], shuffled[last]
    order = shuffled[np.argsort(-capacity[shuffled], kind="mergesort")]
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return order, rank


@_compiled
def _widen(field: GrowthField, growth: _Growth, root: int, more: int) -> None:
    """Make the tree wider: its arcs lose `more` of their capacity, and its root has `more` less to send."""
    field.unsent[root] -= more
    field.residual[field.feed[root]] -= more
    for node in range(len(growth.arc)):
        if growth.arc[node] >= 0:
            _use(field, growth.arc[node], more)


@_compiled
def _use(field: GrowthField, arc: int, amount: int) -> None:
    field.capacity[arc] -= amount
    field.residual[field.place[arc]] -= amount


@_compiled
def _reach(field: GrowthField, growth: _Growth, width: int) -> int:
    """Add every node that the tree can reach at this width, level by level; return what lesser width leads farther.

    A level is done once: an arc that cannot be taken now cannot be taken later, since capacities only go down.
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


@_compiled
def _out_of_level(field: GrowthField, growth: _Growth, level: int, todo: Int64Array) -> int:
    """List the ranks of the arcs that leave the nodes of a level; return their number."""
    count = 0
    for node in range(len(growth.depth)):
        if growth.depth[node] == level:
            for position in range(field.first[node], field.first[node + 1]):
                todo[count] = growth.rank[field.out[position]]
                count += 1
    return count


@_compiled
def _allowed(field: GrowthField, growth: _Growth, arc: int, width: int, rest: int) -> int:
    """The width, up to `width`, at which the tree may take an arc so that all unsent weight can still be sent."""
    source = len(field.first) - 1
    growth.work[:] = field.residual
    growth.work[field.feed[field.source[arc]]] = rest + width
    limit = rest + width
    flow = _augment(
        field.wires, growth.work, growth.room, source, int(field.destination[arc]), limit
    )
    return flow - rest


# --- splitting switches off ---


class Junction(NamedTuple):
    """A switch, the links that meet in it, and flows of value `demand` from `source` to every one of `sinks`.

    `inward[i]`, `outward[j]`: wires from the i-th neighbour before and to the j-th behind; `across[i, j]`: the wire
    between these, -1 where they are one node. `before`, `behind`: capacity left of these links. `flows[k]`: what
    the flow to sink k leaves of every wire.
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


@_entry
def supply(junction: Junction, capacity: Int64Array) -> bool:
    """Send the demand to every sink; whether all of it arrives."""
    room = _room(len(junction.wires.first) - 1)
    for k in range(len(junction.sinks)):
        junction.flows[k] = capacity
        residual = junction.flows[k]
        if (
            _augment(
                junction.wires, residual, room, junction.source, junction.sinks[k], junction.demand
            )
            < junction.demand
        ):
            return False
    return True


@_entry
def split_off(junction: Junction, order: Int64Array, shares: Int64Array, moved: Int64Array) -> None:
    """Replace pairs of links (u, switch), (switch, t) by links (u, t), as much as leaves every sink its demand.

    Rounds r: pairs of neighbour i with `order[i, :]` in turn, at most `shares[r, i, j]` at a time. The amounts are
    added to `moved`. No cut ever gains, so a last round without limit uses everything up (Bang-Jensen, Frank and
    Jackson 1995) where as much enters the switches as leaves them.
    """
    room = _room(len(junction.wires.first) - 1)
    for shares_of_round in shares:
        for i in range(len(junction.before)):
            for j in order[i]:
                amount = min(junction.before[i], junction.behind[j], shares_of_round[i, j])
                if amount > 0:
                    amount = _move(junction, room, i, j, amount)
                    junction.before[i] -= amount
                    junction.behind[j] -= amount
                    moved[i, j] += amount


@_compiled
def _move(junction: Junction, room: _Room, i: int, j: int, amount: int) -> int:
    """Split as much as possible of a pair of links, at most `amount`; return how much, with all flows repaired."""
    for k in range(len(junction.sinks)):
        missing = _detour(junction, room, k, i, j, amount)
        if missing > 0:
            # The cut that lacks it holds exactly so much too little, whatever the amount.
            for earlier in range(k + 1):
                _restore(junction, earlier, i, j, missing)
            _augment(
                junction.wires, junction.flows[k], room, junction.source, junction.sinks[k], missing
            )
            amount -= missing
            if amount == 0:
                break
    return amount


@_compiled
def _detour(junction: Junction, room: _Room, k: int, i: int, j: int, amount: int) -> int:
    """Move capacity from the pair of links to the new link and repair flow k; return how much of the flow is lost."""
    wires, residual = junction.wires, junction.flows[k]
    enters, leaves, across = junction.inward[i], junction.outward[j], junction.across[i, j]
    too_much_in = _shrink(wires, residual, enters, amount)
    too_much_out = _shrink(wires, residual, leaves, amount)
    direct = min(too_much_in, too_much_out)
    if across >= 0:
        residual[across] += amount - direct
        residual[wires.mate[across]] += direct
    # Flow that has lost its link waits at the start of this link and lacks at its end.
    cut_link = enters if too_much_in > direct else leaves
    waiting = max(too_much_in, too_much_out) - direct
    if waiting == 0:
        return 0
    start, end = wires.head[wires.mate[cut_link]], wires.head[cut_link]
    waiting -= _augment(wires, residual, room, start, end, waiting)
    if waiting > 0:
        source, sink = junction.source, junction.sinks[k]
        _augment(wires, residual, room, start, source, waiting)
        _augment(wires, residual, room, sink, end, waiting)
        waiting -= _augment(wires, residual, room, source, sink, waiting)
    return waiting


@_compiled
def _shrink(wires: WirePairs, residual: Int64Array, wire: int, amount: int) -> int:
    """Lower the capacity of a wire; return by how much the flow along it has become too much."""
    residual[wire] -= amount
    excess = max(0, -int(residual[wire]))
    residual[wire] += excess
    residual[wires.mate[wire]] -= excess
    return excess


@_compiled
def _restore(junction: Junction, k: int, i: int, j: int, amount: int) -> None:
    """Undo a part of `_detour`: flow that the new link can no longer take goes through the switch again."""
    wires, residual = junction.wires, junction.flows[k]
    enters, leaves, across = junction.inward[i], junction.outward[j], junction.across[i, j]
    excess = 0
    if across >= 0:
        excess = _shrink(wires, residual, across, amount)
    residual[enters] += amount - excess
    residual[wires.mate[enters]] += excess
    residual[leaves] += amount - excess
    residual[wires.mate[leaves]] += excess
