"""Nodes of a flat program under construction: columns, dependencies, streams, and order of chunks.

Chunks have an order in the computations of a rank (tiles) and in the steps of a collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from collhub_templates import Lists, Template

from collhub_coconet.lowering.algorithms import Contents
from collhub_coconet.lowering.grids import Grid
from collhub_coconet.program.operations import Binding, Operation
from collhub_coconet.program.program import Program, Stage
from collhub_coconet.transformations.costs import count_memory_bytes, count_operations
from hub_core.columns import Int64Array, distinct, expanded_ranges
from hub_core.model import NODE_DEFAULTS, NodeKind

_COLUMNS = ("rank", "kind", "name", "operations", "bytes", "peer", "tag", "duration_ns", "group")


# Readers of a complete value wait directly for up to this number of nodes per rank; beyond it,
# they wait for a MARKER.
_MAX_DIRECT_DEPENDENCIES = 4
_MAX_DIRECT_EDGES = 4096


@dataclass(slots=True)
class NodeList:
    """Nodes in blocks, with the dependencies between them.

    `part`, `item`: by node, its part of the program and its item of that part. `blocks`: number of
    the first node, number of nodes, and the columns of each block without those of default values.
    """

    count: int = 0
    blocks: list[tuple[int, int, dict[str, npt.ArrayLike]]] = field(default_factory=list)
    data: list[tuple[Int64Array, Int64Array]] = field(default_factory=list)
    control: list[tuple[Int64Array, Int64Array]] = field(default_factory=list)

    def add(
        self, rank: Int64Array, part: int, item: Int64Array, **columns: npt.ArrayLike
    ) -> Int64Array:
        """Add one node per entry of `rank`, and return the consecutive numbers of the nodes.

        `part`: number of the part of the program (such as a collective) to which the nodes
        belong. `item`: number of each node in this part. `columns`: further columns by name, as
        an array or as one value for all nodes; missing columns have the defaults of a workload.
        Names and values are not checked.
        """
        rows = len(rank)
        block = {"rank": rank, "part": part, "item": item, **columns}
        self.blocks.append((self.count, rows, block))
        self.count += rows
        return np.arange(self.count - rows, self.count)

    def column(self, name: str) -> Int64Array:
        """Return a column of all nodes, int64, in the order in which they were added.

        Nodes that were added without it have the default of a workload, or 0 for a name that is
        no column of a workload. The array is empty without nodes.
        """
        values = np.full(self.count, NODE_DEFAULTS.get(name, 0), np.int64)
        for first, rows, block in self.blocks:
            if name in block:
                values[first : first + rows] = block[name]
        return values

    def columns(self) -> dict[str, npt.ArrayLike]:
        """Return the columns of the workload model that this list fills, by name.

        Rows are in the order of adding.
        """
        return {name: self.column(name) for name in _COLUMNS}

    def chain(self, nodes: Int64Array, rank: Int64Array) -> None:
        """Add control dependencies by which the nodes of each rank run one after the other.

        `nodes`: node numbers in the order of execution; nodes of several ranks may be mixed.
        `rank`: rank of each node. Nodes of different ranks do not wait for each other.
        """
        order = np.argsort(rank, kind="stable")
        ordered, owner = nodes[order], rank[order]
        is_next = owner[1:] == owner[:-1]
        self.control.append((ordered[:-1][is_next], ordered[1:][is_next]))

    def edges(self, kind: str) -> tuple[Int64Array, Int64Array]:
        """Return all distinct dependencies of a kind, `data` or `control`: (parents, children).

        Both are int64 node numbers, sorted by child and then parent; empty if there are none.
        """
        pairs = getattr(self, kind)
        if not pairs:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        parents, children = (np.concatenate(side) for side in zip(*pairs, strict=True))
        keys = distinct(children * (self.count + 1) + parents)
        children, parents = np.divmod(keys, self.count + 1)
        return parents, children


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """Producers of a value: node `node[i]` produces chunk `chunk[i]` on rank `rank[i]` of the job.

    `grid`: None for a complete value, whose chunk is 0. A chunk may have several nodes. A chunk
    without a node is available from the start.
    """

    region: int
    grid: Grid | None
    rank: Int64Array
    chunk: Int64Array
    node: Int64Array

    def nodes_of(self, rank: Int64Array, chunk: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return all pairs (i, node that produces chunk `chunk[i]` on rank `rank[i]`).

        They are two int64 arrays, sorted by i. A chunk may have several nodes, which are in the
        order of `self.node`, or none. Ranks are those of the job.
        """
        width = 1 + max(int(self.chunk.max(initial=0)), int(chunk.max(initial=0)))
        key, requested_key = self.rank * width + self.chunk, rank * width + chunk
        order = np.argsort(key, kind="stable")
        first = np.searchsorted(key[order], requested_key, side="left")
        counts = np.searchsorted(key[order], requested_key, side="right") - first
        index = np.repeat(np.arange(len(requested_key)), counts)
        return index, self.node[order][expanded_ranges(first, counts)]


@dataclass(slots=True)
class Producers:
    """Producers of all values so far; `add_barrier(value, ranks)` adds MARKERs on these ranks.

    Chunks are matched only within a region: a kernel ends before another one reads its result.
    """

    nodes: NodeList
    add_barrier: Callable[[str, Int64Array], Int64Array]
    ready: dict[str, Ready] = field(default_factory=dict)
    complete: dict[str, Ready] = field(default_factory=dict)

    def wait(
        self,
        value: str,
        region: int,
        grid: Grid | None,
        rank: Int64Array,
        chunk: Int64Array,
        node: Int64Array,
    ) -> None:
        """Add data dependencies of nodes on all producers of the chunks of a value that they need.

        Node `node[i]` waits for the producers of chunk `chunk[i]` on rank `rank[i]` of the job.
        `region` (number of the chain or stage) and `grid` (division into chunks, None for a
        complete value) are those of the reader. If the value is in another region, or its
        blocks differ, the node waits for the complete value on the rank, and a MARKER per rank
        may be added (`find_producers`). A value without producers, such as an argument of the
        program, adds no dependency.
        """
        index, parents = self.find_producers(value, region, grid, rank, chunk)
        self.nodes.data.append((parents, node[index]))

    def find_producers(
        self, value: str, region: int, grid: Grid | None, rank: Int64Array, chunk: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Find the nodes that produce parts of a value; return pairs (i, node) as int64 arrays.

        `rank` and `chunk` list the reads; i is a position in them. `grid`: division of the reader,
        whose chunks are numbered in `chunk`. `region`: number of the reader's chain or stage. The
        first rule that applies:

        1. The value has no producers, such as an argument of the program: both arrays are empty.
        2. The value is of another region, or its grid or `grid` is None, or the two grids have
           different blocks: every node that produces the value on rank `rank[i]`. `chunk` is
           ignored. If some rank has more than 4 of these nodes, each rank gets one new MARKER node
           that waits for its nodes, and i has this MARKER instead. A value gets MARKERs only once.
        3. Otherwise: every node on rank `rank[i]` that produces a chunk which overlaps chunk
           `chunk[i]`. The number of chunks per block may differ. A node can occur repeatedly.

        The pairs are sorted by i. An i without such nodes has no pair.
        """
        ready = self.ready.get(value)
        if ready is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        is_near = ready.region == region
        if not is_near or grid is None or ready.grid is None or not grid.is_comparable(ready.grid):
            complete = self._find_complete(value, ready)
            if is_ascending(rank) and np.array_equal(complete.rank, rank):
                return np.arange(len(rank)), complete.node
            return complete.nodes_of(rank, np.zeros_like(rank))
        index, overlapping = grid.overlaps(chunk, ready.grid)
        inner, node = ready.nodes_of(rank[index], overlapping)
        return index[inner], node

    def _find_complete(self, value: str, ready: Ready) -> Ready:
        """Return the nodes after which the complete value is available on each rank.

        `ready`: the producers of the value by chunk. If some rank has more than
        `_MAX_DIRECT_DEPENDENCIES` (4) of them, one MARKER per rank is added that waits for all
        of its rank, and the markers are returned. Otherwise the producers are returned, without
        their chunks. The result is cached by the name of the value.
        """
        if value not in self.complete:
            rank, node = ready.rank, ready.node
            if not is_ascending(rank):
                ranks, counts = np.unique(rank, return_counts=True)
                if counts.max(initial=0) > _MAX_DIRECT_DEPENDENCIES:
                    markers = self.add_barrier(value, ranks)
                    self.nodes.data.append((node, markers[np.searchsorted(ranks, rank)]))
                    rank, node = ranks, markers
            self.complete[value] = Ready(ready.region, None, rank, np.zeros_like(rank), node)
        return self.complete[value]


def is_ascending(rank: Int64Array) -> bool:
    """Whether ranks ascend strictly: each occurs at most once, so that nothing must be sorted."""
    return bool((rank[1:] > rank[:-1]).all())


class Streams:
    """Last computation of every rank, after which its next kernel runs."""

    def __init__(self, ranks: int) -> None:
        self._last = np.full(ranks, -1, np.int64)

    def append(
        self, nodes: NodeList, numbers: Int64Array, rank: Int64Array, stage: Stage | None
    ) -> None:
        """Order new computations of each rank one after the other by control dependencies.

        `numbers`: the nodes of one kernel, `rank`: the rank of each; nodes of one rank are in the
        order of execution, and ranks may be mixed. On each rank:

        - Each node waits for the one before it.
        - If `stage` is None (a single operation without communication) or of the family
          `pointwise`, the first node also waits for the last node of the previous such kernel of
          the rank. The last node is recorded, so that the next such kernel waits for it.
        - With any other family, the kernel communicates and runs concurrently with other kernels.
          Nothing is recorded, so that no other kernel waits for it here.
        """
        ranks, first_nodes, last_nodes = rank, numbers, numbers
        if not is_ascending(rank):
            nodes.chain(numbers, rank)
            order = np.argsort(rank, kind="stable")
            ranks, first, counts = np.unique(rank[order], return_index=True, return_counts=True)
            first_nodes, last_nodes = numbers[order][first], numbers[order][first + counts - 1]
        if stage is not None and stage.family != "pointwise":
            return
        before = self._last[ranks]
        has_predecessor = before >= 0
        nodes.control.append((before[has_predecessor], first_nodes[has_predecessor]))
        self._last[ranks] = last_nodes


def limit_pieces_in_flight(
    nodes: NodeList,
    pieces: Sequence[tuple[Template, int]],
    max_in_flight: int,
    add_markers: Callable[[], Int64Array],
) -> None:
    """Limit the pieces of a collective that run at the same time on a rank.

    Pieces are equal shares of the data, for each of which the algorithm runs once. A piece may
    begin on a rank after the piece `max_in_flight` (at least 1) before it has ended there. If all
    ran at once, they would share the links and end together, which would delay the first chunk.

    `pieces`: for each, the nodes of its algorithm, and the number of the first one. On every rank,
    control dependencies are added to `nodes` from each last node of the earlier piece to each first
    node of the later one that is no receive. If some rank would need more than `_MAX_DIRECT_EDGES`
    of them between two pieces, MARKER nodes stand between these two pieces on all ranks:
    `add_markers` adds one per position and returns their numbers, and the dependencies to and from
    it are data dependencies. With at most `max_in_flight` pieces no dependency is added.
    """
    # The ends and the starts of a template, by position; templates are compared by identity.
    lists: dict[int, tuple[list[Int64Array], list[Int64Array]]] = {}
    for template, _ in pieces:
        if id(template) not in lists:
            is_receive = template.kind == NodeKind.RECV
            begins = [group[~is_receive[group]] for group in _split_lists(template.starts)]
            lists[id(template)] = _split_lists(template.ends), begins
    for (earlier, first), (later, last) in zip(pieces, pieces[max_in_flight:], strict=False):
        pairs = list(zip(lists[id(earlier)][0], lists[id(later)][1], strict=True))
        if max(len(ends) * len(starts) for ends, starts in pairs) > _MAX_DIRECT_EDGES:
            for marker, (ends, starts) in zip(add_markers(), pairs, strict=True):
                # Data dependencies, so that the MARKER belongs to the kernel (`LaunchList`).
                nodes.data.append((ends + first, np.full_like(ends, marker)))
                nodes.data.append((np.full_like(starts, marker), starts + last))
            continue
        for ends, starts in pairs:
            # Every end precedes every start.
            before, after = np.repeat(ends, len(starts)), np.tile(starts, len(ends))
            nodes.control.append((before + first, after + last))


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """Tiles of all ranks of a group; those of a rank in the order of computation.

    By tile: `rank` int64, `chunks`. By chunk of a tile, int64: `tile`, `owner` (its rank), `chunk`.
    """

    rank: Int64Array
    chunks: tuple[tuple[int, ...], ...]
    tile: Int64Array
    owner: Int64Array
    chunk: Int64Array


def cut_tiles(ranks: Int64Array, orders: Sequence[Int64Array], max_tiles: int | None) -> Tiles:
    """Divide the chunks of each rank into at most `max_tiles` tiles of nearly equal length.

    `orders`: chunks of each rank, one array per entry of `ranks`. A tile has consecutive chunks of
    one array. A rank with n chunks gets t = min(`max_tiles`, n) tiles, or n with None. Tile k has
    the positions k * n // t to (k + 1) * n // t - 1: 5 chunks in 2 tiles give 2, then 3 chunks.
    With n = 0, or `max_tiles` below 1, a rank has no tile and its chunks are in none. Tiles are
    ordered by rank as in `ranks`, then by k.

    Raises `ValueError` if `ranks` and `orders` have different lengths.
    """
    rank, chunks = [], []
    for number, order in zip(ranks.tolist(), orders, strict=True):
        count = len(order) if max_tiles is None else min(max_tiles, len(order))
        borders = [tile * len(order) // count for tile in range(count + 1)] if count else [0]
        chunk_list = order.tolist()
        for low, high in pairwise(borders):
            rank.append(number)
            chunks.append(tuple(chunk_list[low:high]))
    lengths = [len(tile_chunks) for tile_chunks in chunks]
    tile = np.repeat(np.arange(len(chunks)), lengths)
    owner = np.asarray(rank, np.int64)
    flat = np.asarray([chunk for tile_chunks in chunks for chunk in tile_chunks], np.int64)
    return Tiles(owner, tuple(chunks), tile, owner[tile], flat)


def compute_tile_costs(
    program: Program,
    binding: Binding,
    operations: Sequence[Operation],
    stage: Stage | None,
    tiles: Tiles,
) -> tuple[Int64Array, Int64Array]:
    """Return (operations, bytes) of every tile, its share of the costs of its rank: int64[tiles].

    The total of a rank is equal for all ranks: the computing operations of `operations`, and the
    bytes that they read and write in memory (`count_memory_bytes`). Values that are exchanged with
    other members of `stage` cause no memory traffic; None means no other members.

    The tiles of a rank must be adjacent. If the tiles before a tile have a of the n chunks of the
    rank, and the tile has b chunks, its share is total (a + b) // n minus total a // n (products,
    rounded down). So the shares add up to the total: 10 operations and tiles of 1, 1 and 1 chunks
    give 3, 3 and 4. Raises `InputError` (`symbol`) for a symbol without a number.
    """
    members = stage.members if stage else ()
    count = sum(count_operations(program, operation, binding) for operation in operations)
    traffic = count_memory_bytes(program, operations, binding, members)
    if is_ascending(tiles.rank):
        # Every rank has a single tile.
        shape = len(tiles.rank)
        return np.full(shape, count, np.int64), np.full(shape, traffic, np.int64)
    size = np.bincount(tiles.tile, minlength=len(tiles.rank))
    end = np.cumsum(size)
    ranks, first = np.unique(tiles.rank, return_index=True)
    start = (end - size)[first]
    rank_index = np.searchsorted(ranks, tiles.rank)
    chunks_of_rank = np.bincount(rank_index, size).astype(np.int64)
    high = end - start[rank_index]
    low = high - size
    shares = [
        _compute_share(total, high, chunks_of_rank[rank_index])
        - _compute_share(total, low, chunks_of_rank[rank_index])
        for total in (count, traffic)
    ]
    return shares[0], shares[1]


def number_chunks(
    grid: Grid,
    contents: Contents,
    units: Int64Array,
    piece: int,
    position: Int64Array,
    *,
    is_given: bool,
) -> Int64Array:
    """Return the number in `grid` of the chunk that contains each unit in one piece.

    The result is int64 of the shape of `units`. A piece is one run of the algorithm, whose
    full buffer has `contents.units` equal units. Each block of `grid` has `grid.parts` chunks:
    one per unit of piece 0, then of piece 1, and so on. With s = `contents.units` //
    `grid.blocks`, unit u is in block u // s. The result is
    block * `grid.parts` + `piece` * s + u % s.

    Only for an AllToAll (`grid.across` is not None), the block is source * `grid.blocks` +
    target, with two ranks of the group. With `is_given`, the source is u // s and the target
    `position`. Otherwise the source is `position` and the target u // s.
    """
    share = contents.units // grid.blocks
    block, offset = np.divmod(units, share)
    if grid.across is not None:
        source, target = (block, position) if is_given else (position, block)
        block = source * grid.blocks + target
    chunks: Int64Array = block * grid.parts + piece * share + offset
    return chunks


def order_chunks(
    grid: Grid, contents: Contents, pieces: int, position: int, *, is_needed: bool
) -> Int64Array:
    """Return the numbers of all chunks in the order in which a rank needs or produces them.

    `position`: the rank in its group. A piece is one run of the algorithm on a share of the data.
    The result has all used chunks of piece 0, then of piece 1, and so on, then the chunks that no
    piece uses, ascending.

    Within a piece, each node that needs a chunk (`is_needed`), or that produces one (otherwise),
    gives the chunk a place by these rules. The first place of a chunk counts.

    1. Chunks that are available from the start come first, in the order of `contents`.
    2. Then the level of the node decides: the number of nodes on the longest path to it.
    3. At equal levels, without `is_needed`, local nodes come before receives.
    4. Then the number of the node decides.
    """
    if is_needed:
        node, unit = contents.need_node, contents.need_unit
        first = contents.template.first
        is_mine = (node >= first[position]) & (node < first[position + 1])
    else:
        node, unit = contents.give_node, contents.give_unit
        is_mine = contents.give_rank == position
    node, unit = node[is_mine], unit[is_mine]
    # Units that are available from the start have no node.
    level = np.where(node >= 0, contents.level[np.maximum(node, 0)], -1)
    # Within a level, units of the rank itself precede received ones.
    is_received = contents.template.kind[node] == NodeKind.RECV
    order = np.lexsort((node, is_received & ~np.bool_(is_needed), level))
    ranked = unit[order]
    _, first_seen = np.unique(ranked, return_index=True)
    ranked = ranked[np.sort(first_seen)]
    positions = np.full_like(ranked, position)
    numbers = [
        number_chunks(grid, contents, ranked, piece, positions, is_given=not is_needed)
        for piece in range(pieces)
    ]
    used = np.concatenate(numbers)
    unused = np.setdiff1d(np.arange(grid.chunks), used)
    return np.concatenate([used, unused])


def _split_lists(lists: Lists) -> list[Int64Array]:
    """Split lists in CSR form (pointer, numbers) into one array per list.

    There must be at least one list. `pointer[i]` is the position in `numbers` where list i
    begins; the last entry is the length. Empty lists give empty arrays. The arrays are
    views of `numbers`.
    """
    pointer, numbers = lists
    return np.split(numbers, pointer[1:-1])


def _compute_share(total: int, count: Int64Array, total_count: Int64Array) -> Int64Array:
    """Compute total * count / total_count, rounded down, for each entry: int64.

    `count` must be at most `total_count`, of which an entry of 0 counts as 1. If a product
    might reach 2**62, all are computed with Python integers, so that no product overflows.
    """
    if total < 2**62 // max(1, int(total_count.max(initial=1))):
        return np.asarray(total * count // np.maximum(total_count, 1), np.int64)
    return np.asarray(count.astype(object) * total // np.maximum(total_count, 1), np.int64)
