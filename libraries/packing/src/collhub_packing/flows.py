"""Largest flows and least cuts on a fixed network whose capacities change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from collhub_columns import BoolArray, Int64Array, group_pointer, inverse

from hub_core.model import InputError

if TYPE_CHECKING:
    from collhub_packing.kernels import WirePairs


# Above every flow; sums of capacities stay below, so that no int64 overflows.
UNLIMITED = 1 << 60

# Between two calls of the kernel, each of so many flows, Ctrl-C is heard.
_SINKS_PER_CALL = 256

_ROUND = "round the bandwidths, for example to whole GB/s"


def scaled(values: Int64Array, factor: int) -> Int64Array:
    """Values times a factor. Raises `InputError` where their sum would not stay below 2^60."""
    # Python's integers, since the sum is what may overflow.
    total = int(values.astype(object).sum())
    if total * factor >= UNLIMITED:
        raise _too_large("are too fine: their least common unit makes them too large")
    return values * factor


def _too_large(what: str) -> InputError:
    """The refusal of capacities that flows cannot be computed with."""
    return InputError(f"the capacities {what}", cure=_ROUND, code="capacities")


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A least cut: its capacity, the sink that it holds back, and its nodes.

    `side`: bool per node, whether it is on the source's side.
    """

    value: int
    sink: int
    side: BoolArray

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes on the source's side, ascending."""
        return tuple(int(node) for node in np.flatnonzero(self.side))


@dataclass(frozen=True, slots=True, eq=False)
class FlowNetwork:
    """Nodes and directed arcs without capacities; parallel arcs may be.

    Arc a is the wire `place[a]` of `wires`. The two directions between a pair of nodes share one
    pair of wires, so a network with duplex links costs half. Capacities: int64 per arc, in the
    order given to `of`, with a sum below 2^60. Building costs one sort; a flow is by Dinic's
    algorithm (1970), compiled: O(nodes^2 * arcs) at worst, nearly linear on interconnects.
    """

    num_nodes: int
    wires: WirePairs
    place: Int64Array

    @classmethod
    def of(cls, num_nodes: int, source: Int64Array, destination: Int64Array) -> FlowNetwork:
        """A network with an arc from `source[a]` to `destination[a]` for every a."""
        low, high = np.minimum(source, destination), np.maximum(source, destination)
        pairs, pair = np.unique(low * num_nodes + high, return_inverse=True)
        wires, position = _wired(num_nodes, pairs // num_nodes, pairs % num_nodes)
        is_down = source > destination
        place = position[pair.ravel() + len(pairs) * is_down]
        return cls(num_nodes, wires, place)

    @classmethod
    def fed(
        cls,
        num_nodes: int,
        source: Int64Array,
        destination: Int64Array,
        takers: Int64Array,
    ) -> FlowNetwork:
        """The same, then arcs from one more node, `num_nodes`, to every one of `takers`."""
        feeder = np.full(len(takers), num_nodes)
        tails = np.concatenate([source, feeder])
        heads = np.concatenate([destination, takers])
        return cls.of(num_nodes + 1, tails, heads)

    @classmethod
    def fed_and_drained(
        cls,
        num_nodes: int,
        source: Int64Array,
        destination: Int64Array,
    ) -> FlowNetwork:
        """The same, then arcs from node `num_nodes` to all nodes, then from all to the next.

        So that nodes with too much and too little, or gains and losses, make one flow.
        """
        nodes = np.arange(num_nodes)
        feeder, drain = np.full(num_nodes, num_nodes), np.full(num_nodes, num_nodes + 1)
        tails = np.concatenate([source, feeder, nodes])
        heads = np.concatenate([destination, nodes, drain])
        return cls.of(num_nodes + 2, tails, heads)

    def residual(self, capacity: Int64Array) -> Int64Array:
        """Capacities by wire, parallel arcs added up: what is left before anything flows."""
        # As doubles, because the sum of int64s might wrap round and look small.
        if float(np.sum(capacity, dtype=np.float64)) >= UNLIMITED:
            raise _too_large("add up to 2^60 or more")
        # Directions that no arc has keep 0, and take what flows back.
        wires = np.zeros(len(self.wires.head), np.int64)
        np.add.at(wires, self.place, capacity)
        return wires

    def max_flow(
        self,
        capacity: Int64Array,
        source: int,
        sink: int,
        limit: int = UNLIMITED,
    ) -> int:
        """The largest flow from the source to the sink, or `limit` if that is less."""
        from collhub_packing import kernels

        residual = self.residual(capacity)
        return int(kernels.max_flow(self.wires, residual, source, sink, limit))

    def remainder(
        self,
        capacity: Int64Array,
        source: int,
        sink: int,
    ) -> tuple[int, Int64Array]:
        """The value of a largest flow, and what it leaves of every arc: int64 per arc.

        Flow along an arc makes room on its opposite.
        """
        from collhub_packing import kernels

        residual = self.residual(capacity)
        value = kernels.max_flow(self.wires, residual, source, sink, UNLIMITED)
        return int(value), residual[self.place]

    def least_cut(
        self,
        capacity: Int64Array,
        source: int,
        sinks: Sequence[int] | Int64Array,
        limit: int = UNLIMITED,
    ) -> Cut | None:
        """The least cut below `limit` between the source and any one of the sinks, or None.

        Of equal ones, that of the first sink, and of its cuts the one with the smallest source
        side.
        """
        from collhub_packing import kernels

        residual = self.residual(capacity)
        least = None
        for start in range(0, len(sinks), _SINKS_PER_CALL):
            goals = np.asarray(sinks[start : start + _SINKS_PER_CALL], np.int64)
            value, which, side = kernels.least_cut(self.wires, residual, source, goals, limit)
            if which >= 0:
                # Only what is less still counts, also within the next call.
                least = Cut(int(value), int(goals[which]), side)
                limit = least.value
        return least


def _wired(num_nodes: int, low: Int64Array, high: Int64Array) -> tuple[WirePairs, Int64Array]:
    """The wires of pairs of nodes, and where they stand: int64[2 * pairs].

    Wire p leads up pair p, wire p + pairs down it; they are sorted by the node that they leave.
    """
    # numba takes a second to import.
    from collhub_packing.kernels import WirePairs

    tail = np.concatenate([low, high]).astype(np.int64)
    head = np.concatenate([high, low]).astype(np.int64)
    order = np.argsort(tail, kind="stable")
    position = inverse(order)
    first = group_pointer(tail, num_nodes)
    # Without arcs there is nothing to divide by.
    mate = position[(order + len(low)) % max(1, len(order))]
    return WirePairs(first, head[order], mate), position
