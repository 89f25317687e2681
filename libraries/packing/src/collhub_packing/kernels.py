"""Compiled flows: paths that augment, and least cuts to many sinks.

All kernels stand in one file, because numba's cache notices changes only in the file of the function that it
compiles. Import it late: importing numba takes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["Wires", "cut_side", "least_cut", "max_flow"]

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


class Wires(NamedTuple):
    """The wires of a network, both directions of a pair of nodes as two wires that are each other's `mate`.

    Those that leave node v: `first[v]:first[v + 1]`; `head`: where a wire ends.
    """

    first: Int64Array
    head: Int64Array
    mate: Int64Array


class _Room(NamedTuple):
    """Room to work in: int64 per node. `level`: distance from the source at the last search, -1 if not reached."""

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
def _search(wires: Wires, residual: Int64Array, room: _Room, source: int, sink: int) -> bool:
    """Find the distances from the source, until the sink is found; a sink that is the source never is."""
    level, queue = room.level, room.queue
    level[:] = -1
    level[source] = 0
    queue[0] = source
    done, found = 0, 1
    while done < found:
        node = queue[done]
        done += 1
        for wire in range(wires.first[node], wires.first[node + 1]):
            head = wires.head[wire]
            if residual[wire] > 0 and level[head] < 0:
                level[head] = level[node] + 1
                if head == sink:
                    return True
                queue[found] = head
                found += 1
    return False


@_compiled
def _push(wires: Wires, residual: Int64Array, trail: Int64Array, length: int, most: int) -> tuple[int, int]:
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
def _advance(wires: Wires, residual: Int64Array, room: _Room, node: int) -> int:
    """The next wire of a node that leads one level on, -1 if none is left."""
    while room.turn[node] < wires.first[node + 1]:
        wire = int(room.turn[node])
        if residual[wire] > 0 and room.level[wires.head[wire]] == room.level[node] + 1:
            return wire
        room.turn[node] += 1
    return -1


@_compiled
def _block(wires: Wires, residual: Int64Array, room: _Room, source: int, sink: int, limit: int) -> int:
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
def _augment(wires: Wires, residual: Int64Array, room: _Room, source: int, sink: int, limit: int) -> int:
    """Increase a flow by at most `limit` (Dinic 1970); below it, `room.level` marks the source side of a least cut."""
    pushed = 0
    while pushed < limit and _search(wires, residual, room, source, sink):
        pushed += _block(wires, residual, room, source, sink, limit - pushed)
    return pushed


@_entry
def max_flow(wires: Wires, residual: Int64Array, source: int, sink: int, limit: int) -> int:
    """Turn `residual` into what a largest flow, or one of `limit`, leaves of it; return the flow's value."""
    return _augment(wires, residual, _room(len(wires.first) - 1), source, sink, limit)


@_entry
def cut_side(wires: Wires, residual: Int64Array, source: int) -> BoolArray:
    """Nodes that can be reached from the source."""
    room = _room(len(wires.first) - 1)
    _search(wires, residual, room, source, source)
    return room.level >= 0


@_entry
def least_cut(wires: Wires, capacity: Int64Array, source: int, sinks: Int64Array, limit: int) -> tuple[int, int, BoolArray]:
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
            side[:] = room.level >= 0
    return least, which, side
