"""Pack the trees of an all-reduce on links that differ by direction: other trees up than down.

Data are reduced up in-trees and broadcast down out-trees. Both have the total weight w(r) at every
root r, and the rate t is the sum of all w(r). The link capacities c are divided: out-trees fit into
capacities d, and in-trees into c - d, if and only if for every set S of nodes with a compute node

    d(into S) + w(S) >= t        and        (c - d)(out of S) + w(S) >= t

(Edmonds 1973; Frank 1978 for several roots). This is a linear program for the largest t, which
divides every link between the directions, and the rate between the roots. A row is added when a
solution violates it, found by a minimum cut: two to four rows per node suffice. With switches, d
must enter a switch as much as leave it, so that it can be split off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from collhub_linear_programs import GrowingProgram, LinearProgram, Matrix

from collhub_packing.flows import UNLIMITED
from collhub_packing.graph import CapacityGraph, transposed
from collhub_packing.rates import SourcedNetwork, all_gather_rate
from collhub_packing.splitting import DirectNetwork, remove_switches
from collhub_packing.trees import SpanningTree, pack_rooted_trees
from hub_core.columns import BoolArray, Float64Array, Int64Array
from hub_core.model import InputError

# Minimum cuts count flow in this fraction of the largest capacity.
_FLOW_UNITS = 1 << 30
# Relative violation of a row that is accepted; the solver accepts 1e-7.
_TOLERANCE = 1e-6
# The networks of benchmarks/synthesis take up to 11 rounds, and 0.05 CPU s; 256 nodes take 1 s, and
# 512 nodes minutes.
_MAX_ROUNDS = 100
_MAX_NODES = 256
# Solutions are vertices, mostly with denominators of 1 to 6.
_MAX_DENOMINATOR = 120
# Distance of a value, in units of the largest capacity, from the fraction that it stands for.
_MAX_ERROR = 1e-6

# The networks of the ways down and up; the second one has the reversed links.
_TwoNetworks = tuple[SourcedNetwork, SourcedNetwork]
# Sets of nodes, each ascending.
_NodeSets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class TwoWayPacking:
    """Out-trees `down` in `down_network`; in-trees `up`, as out-trees of the reversed network.

    Trees with root r have the total weight `per_root[r]` in both directions. A weight of 1 is
    `unit`, in units of the original graph. `sending`, `receiving`: the sets of nodes S whose rows
    limit the rate, for links out of S on the way up, and for links into S on the way down.
    """

    unit: Fraction
    per_root: Int64Array
    down: list[SpanningTree]
    down_network: DirectNetwork
    up: list[SpanningTree]
    up_network: DirectNetwork
    sending: tuple[tuple[int, ...], ...]
    receiving: tuple[tuple[int, ...], ...]

    @property
    def rate(self) -> Fraction:
        """Total rate of the trees of one direction, in units of the original graph."""
        return int(self.per_root.sum()) * self.unit


def pack_two_ways(
    graph: CapacityGraph, *, seeds: int = 4, first_seed: int = 0
) -> TwoWayPacking | None:
    """Pack in-trees (for reducing) and out-trees (for broadcasting) of an all-reduce.

    In-trees and out-trees run at the same time and share the capacity of every link. At each root
    both kinds have the same total weight, `per_root`. The rate is the total weight of one kind. It
    is within 1e-6 of the maximum over all ways to divide the capacity of the links between the
    kinds. `up` has the in-trees as out-trees of the reversed graph, whose arcs have the same
    numbers. For `seeds` and `first_seed` see `pack_rooted_trees`. `graph` is not changed.

    The first case that applies:

    1. More than 256 nodes: None.
    2. Fewer than two compute nodes, too large capacities, or an unreachable compute node:
       `InputError` as in `all_gather_rate`.
    3. The linear program fails, or still has violated cuts after 100 rounds: None.
    4. The solution has no common denominator up to 120, or the capacities times the denominator add
       up to 2^60 or more: None.
    5. A switch whose links differ by direction cannot be replaced by direct links: None.
    """
    if graph.num_nodes > _MAX_NODES:
        return None
    # Raises an error for a network that is not connected.
    all_gather_rate(graph)
    solution = _divide_links(graph)
    if solution is None:
        return None
    division, sending, receiving = solution
    reverse = transposed(graph)

    def pack(way: CapacityGraph, capacity: Int64Array) -> tuple[list[SpanningTree], DirectNetwork]:
        """Pack the trees of one way into these capacities of its links, without switches.

        Raises `InputError`: `unbalanced-switch` for some switches whose links differ by direction,
        `no-room` if the weights of `division` do not fit.
        """
        network = remove_switches(replace(way, capacity=capacity), division.weights)
        sent = division.weights
        return pack_rooted_trees(network.graph, sent, seeds=seeds, first_seed=first_seed), network

    try:
        up, up_network = pack(reverse, division.up)
        if graph.has_switches:
            down, down_network = pack(graph, division.down)
        else:
            # The program gives most links that limit no cut to the way up. Each way gets all that
            # the trees of the other one leave, so that its trees are flat.
            total = division.down + division.up
            down, down_network = pack(graph, total - _sum_loads(graph, up))
            up, up_network = pack(reverse, total - _sum_loads(graph, down))
    except InputError as error:
        # Direct links cannot replace a switch whose links differ by direction. Other errors are
        # passed on.
        if error.diagnostics[0].code != "unbalanced-switch":
            raise
        return None
    return TwoWayPacking(
        unit=Fraction(1, division.scale),
        per_root=division.weights,
        down=down,
        down_network=down_network,
        up=up,
        up_network=up_network,
        sending=sending,
        receiving=receiving,
    )


def _sum_loads(graph: CapacityGraph, trees: Sequence[SpanningTree]) -> Int64Array:
    """Return the total weight of the trees on every arc of a network without switches: int64."""
    load = np.zeros(graph.num_arcs, np.int64)
    for tree in trees:
        # A tree has an arc only once.
        load[tree.arc[tree.arc >= 0]] += tree.weight
    return load


@dataclass(frozen=True, slots=True, eq=False)
class _Division:
    """Capacities of both directions, and weights of the roots: int64, in 1 / `scale` of a unit."""

    down: Int64Array
    up: Int64Array
    weights: Int64Array
    scale: int


def _divide_links(graph: CapacityGraph) -> tuple[_Division, _NodeSets, _NodeSets] | None:
    """Divide the links between the ways down and up by a linear program, for the highest rate.

    Cuts that a solution violates are added as rows, and the program is solved again, until there is
    no new one. Returns three values:

    - the capacities of both ways and the weights of the roots, as integers (`_to_integers`)
    - the sets of nodes whose cuts limit the rate on the way up
    - the same for the way down

    Returns None if the solver fails, if the 100th (`_MAX_ROUNDS`) solution still violates new cuts,
    or if `_to_integers` returns None. The graph must have capacity.
    """
    networks = SourcedNetwork(graph), SourcedNetwork(transposed(graph))
    cuts = _CutRows(graph, networks)
    for _ in range(_MAX_ROUNDS):
        solution = cuts.program.solve()
        if solution is None:
            return None
        down, weights = np.split(np.maximum(solution.values, 0.0), [graph.num_arcs])
        if not cuts.add_violated(down, weights):
            division = _to_integers(graph, networks, down, weights)
            if division is None:
                return None
            return division, *cuts.list_limiting(solution.row_prices)
    return None


class _CutRows:
    """The linear program, with the rows that were violated so far.

    Columns: d by arc, then w by compute node, both divided by the largest capacity.
    """

    def __init__(self, graph: CapacityGraph, networks: _TwoNetworks) -> None:
        """Create the linear program that divides links between trees down and trees up.

        `graph` has an arc of positive capacity. All capacities are divided by the largest one.
        Columns are first, by arc, the capacity that the arc gives to the way down, from 0 to its
        entire one; then, by compute node, the weight of the root from 0 without an upper limit.
        The sum of the weights is maximized (costs 0 and -1). The first rows, in this order, are:

        1. For each switch, ascending: the capacity for the way down is equal into and out of it.
        2. For each compute node v, ascending: the rows of `_add` for the set {v}, down then up,
           and for all nodes except v, down then up. A set with a row for the same way gets no
           second one.

        `networks`: the graph and its reverse; they are stored for `add_violated`.
        """
        self._graph = graph
        self._capacity = graph.capacity / graph.capacity.max()
        self._networks = networks
        none, no_limits = np.zeros(0, np.int64), np.zeros(0)
        num_columns = graph.num_arcs + graph.num_compute
        program = LinearProgram(
            costs=np.repeat([0.0, -1.0], [graph.num_arcs, graph.num_compute]),
            matrix=Matrix(none, none, no_limits, 0, num_columns),
            row_lower=no_limits,
            row_upper=no_limits,
            upper=np.concatenate([self._capacity, np.full(graph.num_compute, np.inf)]),
        )
        self.program = GrowingProgram(program)
        # The sets S that have a row, by direction, in the order of the rows.
        self._known: dict[tuple[bool, bytes], BoolArray] = {}
        for switch in range(graph.num_compute, graph.num_nodes):
            inward = np.flatnonzero(graph.destination == switch)
            outward = np.flatnonzero(graph.source == switch)
            values = np.repeat([1.0, -1.0], [len(inward), len(outward)])
            self.program.add_row(np.concatenate([inward, outward]), values, 0.0, 0.0)
        for node in range(graph.num_compute):
            alone = np.arange(graph.num_nodes) == node
            for side in (alone, ~alone):
                self._add(side, is_up=False)
                self._add(side, is_up=True)

    def _add(self, side: BoolArray, *, is_up: bool) -> bool:
        """Add the row of the program for the cut around a set of nodes; return whether it is new.

        If the set has a row for this way already, nothing is added and the result is False. `side`:
        the set S, bool[nodes]; it is stored, so it must not be changed later. The row requires that
        a capacity is at least the total weight of the compute nodes outside S:

        - If `is_up`, it is the capacity out of S that is left for the way up.
        - Otherwise it is the capacity into S for the way down.
        """
        key = is_up, side.tobytes()
        if key in self._known:
            return False
        self._known[key] = side
        graph = self._graph
        # w(S) - t is minus the weight outside S.
        outside = np.flatnonzero(~side[: graph.num_compute]) + graph.num_arcs
        if is_up:
            arcs = np.flatnonzero(side[graph.source] & ~side[graph.destination])
            coefficient, lower = -1.0, -float(self._capacity[arcs].sum())
        else:
            arcs = np.flatnonzero(~side[graph.source] & side[graph.destination])
            coefficient, lower = 1.0, 0.0
        values = np.repeat([coefficient, -1.0], [len(arcs), len(outside)])
        self.program.add_row(np.concatenate([arcs, outside]), values, lower)
        return True

    def add_violated(self, down: Float64Array, weights: Float64Array) -> bool:
        """Add the rows of the linear program that a solution violates; return whether any is new.

        `down`: capacity of each arc for the way down; the rest of its capacity is for the way up.
        `weights`: of the roots. Both are in units of the largest capacity.

        The way down is examined first, then the way up (in the reversed graph), each for all
        compute nodes in ascending order. Of a node, the minimum cut that separates it from a source
        counts. The source feeds the weight of every root into the root. The cut is violated if it
        carries less than the total weight by more than the relative `_TOLERANCE`. Its row is for
        the nodes on the side of the compute node. A cut that has a row already is not added, and
        does not make the result True. False means that the solution is valid.
        """
        sent = np.rint(weights * _FLOW_UNITS).astype(np.int64)
        total = int(sent.sum())
        limit = total - math.ceil(total * _TOLERANCE)
        is_new = False
        for is_up, room in ((False, down), (True, np.maximum(self._capacity - down, 0.0))):
            capacity = np.rint(room * _FLOW_UNITS).astype(np.int64)
            for side in self._networks[is_up].generate_cuts(capacity, sent, limit):
                is_new |= self._add(~side, is_up=is_up)
        return is_new

    def list_limiting(self, row_prices: Float64Array) -> tuple[_NodeSets, _NodeSets]:
        """Return the sets of nodes whose cuts limit the rate: (on the way up, on the way down).

        A set is a tuple of ascending node numbers. Each list keeps the order in which the cuts
        were added. A set limits the rate if the price of its cut is above 1e-6.

        `row_prices`: prices (dual values) of all rows of the linear program. The last ones are
        those of the cuts, in their order; earlier ones are ignored.
        """
        sets: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
        prices = row_prices[len(row_prices) - len(self._known) :]
        for ((is_up, _), side), price in zip(self._known.items(), prices.tolist(), strict=True):
            if price > _TOLERANCE:
                sets[0 if is_up else 1].append(tuple(np.flatnonzero(side).tolist()))
        return tuple(sets[0]), tuple(sets[1])


def _to_integers(
    graph: CapacityGraph, networks: _TwoNetworks, down: Float64Array, weights: Float64Array
) -> _Division | None:
    """Convert a solution to integers, with the smallest common denominator at which its trees fit.

    `down` (float64[arcs], capacity for the way down) and `weights` (float64[compute nodes]) are in
    units of the largest capacity. For each `scale` from 1 to 120, they are multiplied by the factor
    F = largest capacity x `scale`, and rounded. The first `scale` is used for which:

    - Every value differs from the rounded one by at most 1e-6 x F.
    - Some weight is above 0.
    - The weights can be sent to all compute nodes with the capacities of the way down, and in the
      reversed graph with the remaining ones (capacity x `scale` - down).

    Returns None without such a `scale`, and as soon as the sum of all capacities x `scale` and the
    weights is 2^60 or more.
    """
    largest, total = int(graph.capacity.max()), sum(graph.capacity.tolist())
    solution = np.concatenate([down, weights])
    for scale in range(1, _MAX_DENOMINATOR + 1):
        factor = largest * scale
        exact = solution * factor
        rounded = np.rint(exact)
        # Flows need a total below this limit; the source sends the weights.
        if total * scale + rounded[graph.num_arcs :].sum() >= UNLIMITED:
            return None
        if np.abs(exact - rounded).max() > _MAX_ERROR * factor:
            continue
        capacity_down, sent = np.split(rounded.astype(np.int64), [graph.num_arcs])
        capacities = capacity_down, graph.capacity * scale - capacity_down
        if sent.any() and all(
            network.shortage(capacity, sent) is None
            for network, capacity in zip(networks, capacities, strict=True)
        ):
            return _Division(*capacities, sent, scale)
    return None
