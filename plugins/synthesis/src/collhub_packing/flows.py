"""Maximum flows and minimum cuts on a fixed network with changing capacities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hub_core.columns import BoolArray, Int64Array, group_pointer, inverse
from hub_core.model import InputError

if TYPE_CHECKING:
    from collhub_packing.kernels import WirePairs


# Above every flow. Sums of capacities must be below, so that no int64 overflows.
UNLIMITED = 1 << 60

# Sinks per call of the kernel; Ctrl-C takes effect between calls.
_SINKS_PER_CALL = 256

_ROUNDING_CURE = "round the bandwidths, for example to whole GB/s"


def scaled(values: Int64Array, factor: int) -> Int64Array:
    """Return the values multiplied by a factor, as a new array.

    Raises `InputError` if the sum of the results is at least `UNLIMITED` (2^60).
    """
    # Python integers, since the sum may overflow.
    total = int(values.astype(object).sum())
    if total * factor >= UNLIMITED:
        raise _capacity_error("are too fine: their least common unit makes them too large")
    return values * factor


def _capacity_error(problem: str) -> InputError:
    """Return (do not raise) the error `capacities`; `problem` continues "the capacities ..."."""
    return InputError(f"the capacities {problem}", cure=_ROUNDING_CURE, code="capacities")


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A minimum cut: its capacity, the sink that it separates, and its nodes.

    `side`: bool[nodes], True for nodes on the source's side.
    """

    value: int
    sink: int
    side: BoolArray

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes on the source's side, ascending."""
        return tuple(int(node) for node in np.flatnonzero(self.side))


@dataclass(frozen=True, slots=True, eq=False)
class FlowNetwork:
    """Nodes and directed arcs (parallel arcs allowed) without capacities.

    Arc a is the wire `place[a]` of `wires`. The two directions between two nodes share a pair of
    wires, so a network of duplex links costs half. Methods take capacities as int64 per arc in the
    order given to `of`, with a sum below 2^60. Building costs one sort. Flows are computed by
    Dinic's algorithm (1970), compiled: O(nodes^2 * arcs) at worst, nearly linear on interconnects.
    """

    num_nodes: int
    wires: WirePairs
    place: Int64Array

    @classmethod
    def of(cls, num_nodes: int, source: Int64Array, destination: Int64Array) -> FlowNetwork:
        """Build the network for flows with an arc from `source[a]` to `destination[a]` for every a.

        Nodes are 0 to `num_nodes` - 1, which is not checked. Every pair of nodes with an arc gets
        two wires, one per direction; all arcs of one direction share a wire. Wires are sorted by
        the node where they start. Those of a node lead first to nodes with higher numbers,
        ascending, then to those with lower numbers, ascending. `place[a]` is the number of the wire
        of arc a. Without arcs there are no wires. Capacities are not stored: each method gets them
        by arc.
        """
        low, high = np.minimum(source, destination), np.maximum(source, destination)
        pairs, pair = np.unique(low * num_nodes + high, return_inverse=True)
        # Build the wires of pairs of nodes.
        low = pairs // num_nodes
        high = pairs % num_nodes
        # numba takes a second to import.
        from collhub_packing.kernels import WirePairs

        tail = np.concatenate([low, high]).astype(np.int64)
        head = np.concatenate([high, low]).astype(np.int64)
        order = np.argsort(tail, kind="stable")
        position = inverse(order)
        first = group_pointer(tail, num_nodes)
        # The maximum avoids a division by zero without arcs.
        mate = position[(order + len(low)) % max(1, len(order))]
        wires = WirePairs(first, head[order], mate)
        is_down = source > destination
        place = position[pair.ravel() + len(pairs) * is_down]
        return cls(num_nodes, wires, place)

    @classmethod
    def fed(
        cls,
        num_nodes: int,
        source: Int64Array,
        destination: Int64Array,
        receivers: Int64Array,
    ) -> FlowNetwork:
        """Build the network with one more node, number `num_nodes`, that feeds the receivers.

        It has one arc to each of `receivers`, in their order; these arcs come after the given
        arcs from `source` to `destination`. Capacities are passed to the methods later.
        """
        feeder = np.full(len(receivers), num_nodes)
        tails = np.concatenate([source, feeder])
        heads = np.concatenate([destination, receivers])
        return cls.of(num_nodes + 1, tails, heads)

    @classmethod
    def fed_and_drained(
        cls,
        num_nodes: int,
        source: Int64Array,
        destination: Int64Array,
    ) -> FlowNetwork:
        """Build the network with two additional nodes that feed all nodes and drain all nodes.

        The feeder, node `num_nodes`, has an arc to every node; the drain, node `num_nodes` + 1, an
        arc from every node. The given arcs come first, then those of the feeder, then those of the
        drain. Surplus and deficit of nodes thus become one flow problem.
        """
        node_numbers = np.arange(num_nodes)
        feeder, drain = np.full(num_nodes, num_nodes), np.full(num_nodes, num_nodes + 1)
        tails = np.concatenate([source, feeder, node_numbers])
        heads = np.concatenate([destination, node_numbers, drain])
        return cls.of(num_nodes + 2, tails, heads)

    def residual(self, capacity: Int64Array) -> Int64Array:
        """Return the capacity of every wire before any flow: int64[wires], a new array.

        A wire is one direction between two nodes; its capacity is the sum over its arcs, 0 without
        arcs. `capacity`: int64 by arc. Raises `InputError` if all capacities add up to `UNLIMITED`
        (2^60) or more.
        """
        # As doubles, because the sum of int64s might overflow to a small number.
        if float(np.sum(capacity, dtype=np.float64)) >= UNLIMITED:
            raise _capacity_error("add up to 2^60 or more")
        # The reverse direction of a one-way arc has capacity 0; it only takes flow that is pushed
        # back.
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
        """Return the value of the maximum flow from `source` to `sink`, at most `limit`.

        If the value is larger, the search ends at `limit`, which is returned. `capacity`: int64 per
        arc; it is not changed. The value is 0 if the sink is unreachable. Raises `InputError` as
        `residual` does.
        """
        from collhub_packing import kernels

        residual = self.residual(capacity)
        return int(kernels.max_flow(self.wires, residual, source, sink, limit))

    def remainder(
        self,
        capacity: Int64Array,
        source: int,
        sink: int,
    ) -> tuple[int, Int64Array]:
        """Compute a maximum flow; return its value, and the remaining capacity of every arc.

        The flow is from `source` to `sink`. The remaining capacities are int64 by arc. Flow
        along an arc increases the remaining capacity of the reverse arc. Parallel arcs share
        one remaining capacity, which is returned for each of them. `capacity` is not changed.
        Raises `InputError` as `residual` does.
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
        """Find the smallest of the minimum cuts between the source and each sink.

        The result has the value of the cut, its sink, and a mask of the nodes on the side of the
        source. Of sinks with equal values, the first one in `sinks` counts; of its minimum cuts,
        the one with the fewest nodes on the side of the source. A sink that cannot be reached has a
        cut of value 0. Returns None if no cut has a value below `limit`, and without sinks.

        `capacity`: int64 per arc, not negative; it is not changed. No sink may be the source.
        Raises `InputError` (`capacities`) if the capacities add up to `UNLIMITED` (2^60) or more.
        """
        from collhub_packing import kernels

        residual = self.residual(capacity)
        minimum_cut = None
        for start in range(0, len(sinks), _SINKS_PER_CALL):
            sink_block = np.asarray(sinks[start : start + _SINKS_PER_CALL], np.int64)
            value, sink_index, side = kernels.least_cut(
                self.wires, residual, source, sink_block, limit
            )
            if sink_index >= 0:
                # Later sinks, also in the next call, must give a smaller value.
                minimum_cut = Cut(int(value), int(sink_block[sink_index]), side)
                limit = minimum_cut.value
        return minimum_cut
