"""Cuts: sets of nodes with few or slow links to the rest.

Every set gives a valid bound; the choice of sets determines only how good the bounds are. Two forms
keep the cost at a few passes over the links for any number of sets: a *partition* (a label per
node) and an *order* of the nodes, of which every prefix is a set.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hub_core.columns import BoolArray, Float64Array, Int64Array, distinct, inverse
from hub_core.network.topology import DimensionKind, Topology

NO_BLOCK = -1

# Sets of each partition and order whose latencies are examined.
EXAMINED_SETS = 2

# Maximum number of bandwidths at which a network is cut, evenly chosen from the distinct ones.
_MAX_THRESHOLDS = 12

# Nodes up to which eigenvectors are computed: cubic, 256 nodes take about 0.02 s.
_MAX_SPECTRAL_NODES = 256

_EIGENVECTORS = 3

_SLOPE = 1e-3

# Rounds in which switches join the set to which most of their neighbours belong.
_MAX_ROUNDS = 64


def partitions(topology: Topology) -> Iterator[Int64Array]:
    """Yield partitions of the nodes: the block of every node (0, 1, ...) as int64[nodes].

    `NO_BLOCK` marks a switch in no block; every NPU is in a block. In the first partition, NPU i is
    block i, and no switch is in a block. Then each division of `_node_labels` (by groups, faster
    links, levels of switches, first switches, coordinates, in this order) gives two partitions with
    the same blocks of NPUs:

    1. Switches belong to the blocks of the division. Any other switch joins the only block from
       which at least half of its incoming bandwidth comes, if there is just one (`_with_switches`).
    2. Switches are in no block.

    Only blocks with an NPU count; they are numbered by ascending label of the division. A division
    with one block, or with as many blocks as NPUs, is skipped. Equal partitions are repeated.
    """
    npus = topology.num_npus
    alone = np.full(topology.num_nodes, NO_BLOCK, np.int64)
    alone[:npus] = np.arange(npus)
    yield alone
    for label in _node_labels(topology):
        blocks = len(distinct(label[:npus]))
        if not 1 < blocks < npus:
            continue
        # Blocks with an NPU are numbered from 0, the others dropped.
        used = distinct(label[:npus])
        position = np.full(int(label.max()) + 1, NO_BLOCK, np.int64)
        position[used] = np.arange(len(used))
        numbered = np.where(label >= 0, position[label], NO_BLOCK)
        yield _with_switches(topology, numbered)
        only_npus = numbered.copy()
        only_npus[npus:] = NO_BLOCK
        yield only_npus


def orders(topology: Topology) -> Iterator[Int64Array]:
    """Yield orders of the nodes: the position of every node, int64[nodes].

    Nodes may share a position. All nodes up to a position are a set of nodes for a bound. Nodes
    with the position `NO_BLOCK` have no place; the caller must choose one. The orders are:

    - For every line and ring, if the network has dimensions: the coordinate of every NPU, and
      `NO_BLOCK` for switches.
    - The number of links from NPU 0 to every node, then from the farthest NPU, of equally far ones
      the lowest. A node without a path has the number of all nodes, so it is the farthest.
    - For 3 to 256 nodes: up to three orders by the eigenvectors of the 2nd to 4th smallest
      eigenvalues of the network's Laplacian (Fiedler 1973; `_spectral_orders`). They divide a
      network where its links are few and slow. Here no two nodes share a position.
    """
    for label, kind in _coordinates(topology):
        if kind in (DimensionKind.LINE, DimensionKind.RING):
            yield label
    nodes, ones = np.arange(topology.num_nodes), np.ones(topology.num_links)
    start = 0
    for _ in range(2):
        hops = topology.arcs().lengths_from(nodes == start, ones)
        distance = np.where(np.isfinite(hops), hops, topology.num_nodes).astype(np.int64)
        yield distance
        start = int(np.argmax(distance[: topology.num_npus]))
    yield from _spectral_orders(topology)


def leaving_rate(
    begins: Int64Array, ends: Int64Array, rate: Float64Array, count: int
) -> Float64Array:
    """Return the bandwidth in bytes/s of the links that leave each block: float64[count].

    `begins`, `ends`: int64[links], the blocks of the source and destination of every link;
    `rate`: its bytes/s. A link leaves the block of its source if its destination is in
    another block or in none (`NO_BLOCK`). Links whose source is in no block are ignored. A
    block without such links has 0.
    """
    leaves = (begins >= 0) & (begins != ends)
    return np.bincount(begins[leaves], rate[leaves], count).astype(np.float64)


def beginnings_rate(
    begins: Int64Array, ends: Int64Array, rate: Float64Array, count: int
) -> Float64Array:
    """Return the bytes/s of the links that leave each prefix of an order: float64[count - 1].

    Prefix k has the nodes at positions 0..k. `begins`, `ends`: int64[links], positions
    (0..count - 1) of the source and destination of every link; `rate`: its bytes/s. A link
    leaves prefix k if its source is in the prefix and its destination is not.
    """
    forward = begins < ends
    # A link from position a to position b leaves the prefixes a, ..., b - 1.
    steps = np.bincount(begins[forward], rate[forward], count)
    steps -= np.bincount(ends[forward], rate[forward], count)
    # Rounding errors of the sums must not give negative rates.
    return np.maximum(np.cumsum(steps)[: count - 1], 0.0)


def slowest_blocks(
    needs: Float64Array, rates: Float64Array, nearest: Int64Array, delay_ns: Float64Array
) -> list[int]:
    """Return the blocks with the longest times, then those with the longest delays.

    `needs`, `rates`: by block of a partition of the network. `nearest`, `delay_ns`: by link.

    - Time (s) of a block: its bytes in `needs` divided by its bytes/s in `rates`; infinite for
      rate 0.
    - Delay (ns) of a block: the sum of `delay_ns` of the links whose entry in `nearest` is the
      block. Infinite delays and links with `NO_BLOCK` are not counted.

    At most `EXAMINED_SETS` blocks are listed by each measure, the longest first, without
    repetition. Blocks with needs of 0 are omitted. Of blocks with equal time and equal delay
    (both rounded to 1 ps), only the first one is considered. Equal times are sorted by ascending
    delay, and equal delays by ascending time.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where(needs > 0, needs / rates, 0.0)
    # In a regular network all blocks are equal: one is examined instead of thousands.
    usable = (nearest >= 0) & np.isfinite(delay_ns)
    delays = np.bincount(nearest[usable], delay_ns[usable], len(needs))
    # Blocks without needs are removed first: other blocks may have the same rounded key.
    blocks = np.flatnonzero(needs > 0)
    keys = np.stack([np.round(times, 12), np.round(delays, 3)])[:, blocks]
    _, first = np.unique(keys, axis=1, return_index=True)
    needed = blocks[first]
    by_time = needed[np.argsort(-times[needed], kind="stable")][:EXAMINED_SETS]
    by_delay = needed[np.argsort(-delays[needed], kind="stable")][:EXAMINED_SETS]
    return list(dict.fromkeys([*by_time.tolist(), *by_delay.tolist()]))


def _node_labels(topology: Topology) -> Iterator[Int64Array]:
    """Yield divisions of the nodes into blocks: int64[nodes], equal labels within a block.

    Nodes in no block have `NO_BLOCK`. Components ignore the direction of links. In this order:

    1. If the topology has groups: a block per group. An NPU of several groups is in the last one,
       an NPU of none is a block. Switches are in no block.
    2. For each distinct bandwidth, at most 12, evenly chosen with the lowest and the highest,
       ascending: the components of all links that are faster.
    3. If there are switches: for each level except the highest, from 0, the components of the links
       between nodes of at most this level. The level of a node is the number of links to the
       nearest NPU, 0 if it reaches none.
    4. If there are switches: each NPU with the switch of its first link to one. Other nodes are
       blocks of one.
    5. For each dimension: the coordinates of the NPUs.
    """
    if topology.groups:
        label = np.arange(topology.num_nodes) + len(topology.groups)
        label[topology.num_npus :] = NO_BLOCK
        for number, members in enumerate(topology.groups.values()):
            label[list(members)] = number
        yield label
    rates = distinct(topology.bandwidth_bytes_per_s)
    # The slowest links are removed first.
    last = max(len(rates) - 1, 0)
    chosen = distinct(np.linspace(0, last, _MAX_THRESHOLDS).astype(np.int64))[: len(rates)]
    for rate in rates[chosen].tolist():
        yield _components(topology, topology.bandwidth_bytes_per_s > rate)
    if topology.num_nodes > topology.num_npus:
        # Number of links to the nearest NPU; 0 if no NPU is reachable.
        is_npu = np.arange(topology.num_nodes) < topology.num_npus
        hops = topology.arcs(backwards=True).lengths_from(is_npu, np.ones(topology.num_links))
        level = np.where(np.isfinite(hops), hops, 0).astype(np.int64)
        # Level 0 contains the NPUs; with the last level the network is one component.
        for top in range(int(level.max())):
            low = level <= top
            yield _components(topology, low[topology.source] & low[topology.destination])
        label = np.arange(topology.num_nodes)
        joins = (topology.source < topology.num_npus) & (topology.destination >= topology.num_npus)
        npus, first = np.unique(topology.source[joins], return_index=True)
        label[npus] = topology.destination[joins][first]
        yield label
    for label, _ in _coordinates(topology):
        yield label


def _components(topology: Topology, mask: BoolArray) -> Int64Array:
    """Return the component of every node over the links of `mask`, regardless of direction.

    `mask`: bool[links]. The result is int64[nodes]: the smallest node number of the component of
    each node, switches included. A node without a link in `mask` is a component of its own.
    """
    label = np.arange(topology.num_nodes)
    sources = np.concatenate([topology.source[mask], topology.destination[mask]])
    targets = np.concatenate([topology.destination[mask], topology.source[mask]])
    while True:
        minimum = label.copy()
        np.minimum.at(minimum, sources, label[targets])
        # Pointer jumping: the number of rounds is the logarithm of the diameter.
        minimum = minimum[minimum]
        if np.array_equal(minimum, label):
            return label
        label = minimum


def _coordinates(topology: Topology) -> Iterator[tuple[Int64Array, DimensionKind]]:
    """Yield (coordinate of every node, kind) for each dimension of a regular network.

    The coordinate is int64[nodes]: NPU n has n // stride % size, with the stride 1 for the first
    dimension and the product of the previous sizes for later ones. Switches have `NO_BLOCK`.
    Nothing is yielded without dimensions (an irregular network), and if the only dimension is
    neither a line nor a ring. With several dimensions, all are yielded, whatever their kind.
    """
    if len(topology.dimensions) == 1 and topology.dimensions[0].kind not in (
        DimensionKind.LINE,
        DimensionKind.RING,
    ):
        return
    stride = 1
    for dimension in topology.dimensions:
        label = np.full(topology.num_nodes, NO_BLOCK, np.int64)
        label[: topology.num_npus] = np.arange(topology.num_npus) // stride % dimension.size
        stride *= dimension.size
        yield label, dimension.kind


def _with_switches(topology: Topology, label: Int64Array) -> Int64Array:
    """Return the labels with switches added to blocks by their incoming bandwidth.

    `label`: block of every node, below 0 for none; it is not modified. A switch without a block
    joins the only block from which at least half of the bandwidth of all its incoming links
    comes. A switch with two such blocks, or without one, keeps its label. Rounds are repeated,
    since joined switches count in the next one, until no label changes or 64 rounds are done.
    """
    npus, count = topology.num_npus, int(label.max()) + 1
    extended = label.copy()
    free = np.flatnonzero(extended[npus:] < 0) + npus
    for _ in range(_MAX_ROUNDS):
        joins = (extended[topology.source] >= 0) & (topology.destination >= npus)
        joins &= extended[topology.destination] < 0
        if not len(free) or not joins.any():
            break
        key = topology.destination[joins] * count + extended[topology.source[joins]]
        pairs, pair_index = np.unique(key, return_inverse=True)
        bandwidth = np.bincount(pair_index.ravel(), topology.bandwidth_bytes_per_s[joins])
        total = np.bincount(topology.destination, topology.bandwidth_bytes_per_s, len(label))
        switch = pairs // count
        # With half of it, no more leaves the block than before.
        is_majority = 2 * bandwidth >= total[switch]
        # A switch with two such blocks stays between them.
        is_majority &= np.bincount(switch[is_majority], minlength=len(label))[switch] == 1
        if not is_majority.any():
            break
        extended[switch[is_majority]] = pairs[is_majority] % count
        free = np.flatnonzero(extended[npus:] < 0) + npus
    return extended


def _spectral_orders(topology: Topology) -> Iterator[Int64Array]:
    """Yield orders of the nodes by eigenvectors: the position of every node, int64[nodes].

    The matrix is the Laplacian of the network. Its weights are the bandwidths, summed over both
    directions and relative to the largest sum; a slope of at most 0.001 on the diagonal
    separates equal eigenvalues. The eigenvectors belong to the 2nd, 3rd and 4th smallest
    eigenvalues (a network of 3 nodes has only two of them). Nodes are ordered by their entries,
    ascending; entries that are equal to 9 decimal places keep the order of the nodes.

    Yields nothing for fewer than 3 or more than `_MAX_SPECTRAL_NODES` (256) nodes, because the
    cost is cubic.
    """
    nodes = topology.num_nodes
    if not 3 <= nodes <= _MAX_SPECTRAL_NODES:
        return
    weight = np.zeros((nodes, nodes))
    np.add.at(weight, (topology.source, topology.destination), topology.bandwidth_bytes_per_s)
    weight = weight + weight.T
    weight /= max(float(weight.max()), 1.0)
    # A small slope makes the eigenvalues of symmetric networks distinct: eigenvectors of equal
    # eigenvalues depend on the version of LAPACK.
    slope = _SLOPE * np.arange(nodes) / nodes
    _, vectors = np.linalg.eigh(np.diag(weight.sum(axis=1) + slope) - weight)
    for column in range(1, min(1 + _EIGENVECTORS, nodes)):
        # Rounded, so that nodes with equal values up to rounding errors keep their order.
        value = np.round(vectors[:, column], 9)
        position: Int64Array = inverse(np.argsort(value, kind="stable"))
        yield position
