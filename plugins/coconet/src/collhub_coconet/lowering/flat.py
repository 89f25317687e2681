"""Lower a program to one flat graph: computations chunk by chunk between the steps of algorithms.

A fused stage has no barrier: the computation of a chunk stands between the last reduction of this
chunk and its first send. In a chain the producer is cut in tiles, in the order in which the
algorithm of the consumer first needs them on that rank; a send or reduction waits for its own tile
alone. After CoCoNet (ASPLOS 2022), sections 3.3 and 5.3, for algorithms of any shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from collhub_coconet.lowering.algorithms import (
    Algorithms,
    Call,
    Choices,
    choice_of,
    fallbacks,
    full_bytes,
)
from collhub_coconet.lowering.chunk_order import (
    Tiles,
    chunk_numbers,
    ordered_chunks,
    tile_costs,
    tiles_of,
)
from collhub_coconet.lowering.contents import Contents
from collhub_coconet.lowering.flat_program import (
    Collected,
    FlatProgram,
    Junction,
    Message,
    Part,
    Segment,
    viewed,
)
from collhub_coconet.lowering.grids import Cut, Grid, cuts_of, needed_chunks, own_chunks, regions_of
from collhub_coconet.lowering.nodes import NodeList, Producers, Ready, Streams, take_turns
from collhub_coconet.program.operations import CONTRACTIONS, Kind, Operation
from collhub_coconet.program.program import Program, Stage, reduces_scalar
from collhub_coconet.program.tensors import Binding
from hub_core import Registry, Topology, installed_version, run_registry
from hub_core.columns import Int64Array
from hub_core.model import NodeColumns, NodeKind, ProcessGroup, Provenance, Workload


def flatten(
    program: Program,
    binding: Binding,
    topology: Topology,
    choices: Choices | None = None,
    *,
    registry: Registry | None = None,
) -> FlatProgram:
    """The flat graph of a program, as one workload and a record of what its nodes do.

    Rank i of group k is rank k * p + i of the job, on the NPU of this number. `choices`: algorithm
    and chunks by the name of a communication (rings in one piece; trees where there is a root,
    direct messages for an AllToAll). Names of nodes state `origin`, the operations that a
    node comes from, and `fused_group`, their stage. Raises `HubError` for algorithms that do not
    fit, or whose contents are wrong.
    """
    algorithms = Algorithms(topology, registry or run_registry())
    chosen = choices if choices is not None else fallbacks(program)
    job = _Flattening(program, binding, chosen, algorithms)
    for kernel in program.kernels():
        job.add_kernel(kernel)
    return job.finished()


@dataclass(slots=True)
class _Flattening:
    """A flat graph under construction."""

    program: Program
    binding: Binding
    choices: Choices
    algorithms: Algorithms
    regions: dict[str, int] = field(init=False)
    cuts: dict[str, Cut] = field(init=False)
    nodes: NodeList = field(default_factory=NodeList)
    parts: list[Part] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    producers: Producers = field(init=False)
    pass_through: dict[str, frozenset[tuple[int, int]]] = field(default_factory=dict)
    contents: dict[str, Contents] = field(default_factory=dict)
    stage_of: dict[str, Stage] = field(init=False)
    streams: Streams = field(init=False)
    orders: dict[Hashable, Int64Array] = field(default_factory=dict)
    tags: int = 0
    kernels: int = 0

    def __post_init__(self) -> None:
        self.producers = Producers(self.nodes, self._junction)
        self.stage_of = {name: stage for stage in self.program.stages for name in stage.members}
        self.regions = regions_of(self.program)
        self.cuts = cuts_of(self.program, self.binding, self.regions, self._grid)
        self.streams = Streams(self.program.num_groups * self.binding.num_ranks)

    def _ranks(self, group: int) -> Int64Array:
        """Ranks of the job in one group, as a column."""
        # Nodes are added by columns of ranks.
        return np.asarray(self.binding.ranks_of(group), np.int64)

    def _grid(self, operation: Operation, before: Grid | None) -> Grid:
        """The chunks of a communication, which its algorithm decides."""
        kind, operand = (self.program.types[name] for name in (operation.name, operation.reads[0]))
        shape, ranks = self.binding.shape(kind.shape), self.binding.num_ranks
        choice = choice_of(self.choices, operation.name)
        if operation.kind is Kind.SEND:
            layout = kind.layout
            blocks = ranks if layout.is_sliced else 1
            dimension = layout.dimension if layout.is_sliced else 0
            return before or Grid(shape, dimension, blocks, choice.chunks)
        contents = self._contents(operation)
        if operation.kind is Kind.REDUCE_SCATTER:
            dimension, blocks = operation.dimension or 0, ranks
        elif operation.kind in (Kind.ALL_GATHER, Kind.ALL_TO_ALL):
            dimension, blocks = operand.layout.dimension, ranks
        else:
            dimension, blocks = 0, 1
        across = kind.layout.dimension if operation.kind is Kind.ALL_TO_ALL else None
        return Grid(shape, dimension, blocks, choice.chunks * contents.units // blocks, across)

    def _contents(self, operation: Operation) -> Contents:
        """The algorithm of a collective for one of its pieces."""
        if operation.name not in self.contents:
            is_scalar = not operation.is_communication
            kind = self.program.types[operation.name if is_scalar else operation.reads[0]]
            choice = choice_of(self.choices, operation.name, is_scalar=is_scalar)
            members = self.binding.ranks_of(kind.group)
            size = full_bytes(self.program, self.binding, operation)
            piece = max(1, -(-size // choice.chunks))
            found = Kind.ALL_REDUCE if is_scalar else operation.kind
            root = operation.root if found in (Kind.BROADCAST, Kind.REDUCE) else None
            call = Call(found, members, root, piece)
            self.contents[operation.name] = self.algorithms.contents(call, choice)
        return self.contents[operation.name]

    def _name(self, operations: Sequence[Operation]) -> int:
        """Enter the name of nodes that come from these operations."""
        origin = "+".join(operation.name for operation in operations)
        stage = self.stage_of.get(operations[0].name)
        suffix = f" fused_group={stage.name}" if stage else ""
        self.names.append(f"origin={origin}{suffix}")
        return len(self.names) - 1

    def add_kernel(self, kernel: list[Operation]) -> None:
        """Add the nodes of a kernel: computations between communications, cut by cut."""
        pending: list[Operation] = []
        self.kernels += 1
        for operation in kernel:
            is_scalar = reduces_scalar(self.program, operation)
            if pending and (operation.is_communication or self._differs(pending[-1], operation)):
                self._compute(pending)
                pending = []
            if operation.kind is Kind.SEND:
                self._message(operation)
            elif operation.is_communication:
                self._collective(operation, operation.reads[0])
            else:
                pending.append(operation)
            if is_scalar:
                self._compute(pending, is_partial=True)
                pending = []
                self._collective(operation, _part_of(operation))
        self._compute(pending)

    def _differs(self, one: Operation, other: Operation) -> bool:
        """Whether two computations are cut otherwise, so that they are no one node."""
        cuts = self.cuts.get(one.name), self.cuts.get(other.name)
        groups = (self.program.types[each.name].group for each in (one, other))
        return cuts[0] != cuts[1] or len(set(groups)) > 1

    def _compute(self, operations: list[Operation], *, is_partial: bool = False) -> None:
        """One COMPUTE node a tile and rank, in order on each rank."""
        for operation in operations:
            source = viewed(self.program, operation)
            if source in self.producers.ready:
                self.producers.ready[operation.name] = self.producers.ready[source]
        working = [one for one in operations if viewed(self.program, one) is None]
        if not working:
            return
        # All have one cut, and one group.
        last = working[-1]
        stage, region = self.stage_of.get(last.name), self.regions[last.name]
        cut = self.cuts.get(last.name)
        tiles = self._tiles(last, cut)
        costs = tile_costs(self.program, self.binding, operations, stage, tiles)
        made = self.nodes.add(
            tiles.rank, len(self.parts), np.arange(len(tiles.rank)),
            kind=NodeKind.COMPUTE, name=self._name(working), operations=costs[0], bytes=costs[1],
        )  # fmt: skip
        grid = cut.grid if cut else None
        members = tuple(operations)
        self.parts.append(Segment(members, grid, tiles.chunks, self.kernels, is_partial))
        node = made[tiles.tile]
        for read in dict.fromkeys(read for one in operations for read in one.reads):
            asked, near = (tiles.owner, tiles.chunk, node), grid
            if cut is not None and read == cut.source and last.kind in CONTRACTIONS:
                index, chunk = self._needed(last, cut, tiles.chunk)
                asked, near = (tiles.owner[index], chunk, node[index]), self.cuts[read].grid
            self.producers.wait(read, region, near, *asked)
        self.streams.put(self.nodes, made, tiles.rank, stage)
        found = Ready(region, grid, tiles.owner, tiles.chunk, node)
        self.producers.ready |= dict.fromkeys((one.name for one in working), found)
        if is_partial:
            # The value itself is ready behind its all-reduce.
            self.producers.ready[_part_of(last)] = self.producers.ready.pop(last.name)

    def _tiles(self, operation: Operation, cut: Cut | None) -> Tiles:
        """The tiles of a computation on all ranks of its group."""
        kind = self.program.types[operation.name]
        ranks = self._ranks(kind.group)
        if cut is None:
            return tiles_of(ranks, [np.zeros(1, np.int64)] * len(ranks), None)
        choice = choice_of(self.choices, cut.lead)
        orders = []
        for position in range(len(ranks)):
            order = self._order(cut, position)
            if kind.layout.is_sliced:
                owners = cut.grid.owners(order, kind.layout.dimension)
                order = order[owners == position]
            orders.append(order)
        return tiles_of(ranks, orders, choice.tiles)

    def _order(self, cut: Cut, position: int) -> Int64Array:
        """All chunks in the order in which a rank works on them."""
        if cut.behind is not None:
            return own_chunks(cut.grid, self._order(cut.behind, position), position)
        contents = self.contents.get(cut.lead)
        if contents is None:
            return np.arange(cut.grid.chunks)
        pieces = choice_of(self.choices, cut.lead).chunks
        # Layers of a model have the same algorithms, and the same orders.
        key = id(contents), cut.grid, pieces, position, cut.is_needed
        if key not in self.orders:
            self.orders[key] = ordered_chunks(
                cut.grid, contents, pieces, position, is_needed=cut.is_needed
            )
        return self.orders[key]

    def _needed(
        self, operation: Operation, cut: Cut, chunk: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """(index into chunks of a product, chunk of the operand) of all that is needed."""
        assert cut.behind is not None
        kind = self.program.types[cut.source]
        leading = len(kind.shape) - (1 if cut.source == operation.reads[0] else 2)
        return needed_chunks(cut.grid, cut.behind.grid, leading, chunk)

    def _message(self, operation: Operation) -> None:
        """SEND on the ranks of one group and RECV on those of the other, one a chunk."""
        kind = self.program.types[operation.name]
        ours = self._ranks(self.program.types[operation.reads[0]].group)
        theirs = self._ranks(kind.group)
        cut = self.cuts[operation.name]
        grid, region = cut.grid, self.regions[operation.name]
        orders = [self._order(cut, position) for position in range(len(ours))]
        if kind.layout.is_sliced:
            owners = [grid.owners(one, kind.layout.dimension) for one in orders]
            orders = [one[owners[place] == place] for place, one in enumerate(orders)]
        tiles = tiles_of(ours, orders, None)
        shift = theirs[0] - ours[0]
        size = self.binding.bytes_of_rank(kind)
        parts = grid.parts if kind.layout.is_sliced else grid.chunks
        common = {
            "name": self._name([operation]),
            "bytes": max(1, -(-size // parts)),
            "tag": self.tags + tiles.chunk,
        }
        number = len(self.parts)
        sends = self.nodes.add(
            tiles.owner, number, tiles.chunk, kind=NodeKind.SEND, peer=tiles.owner + shift, **common
        )
        receives = self.nodes.add(
            tiles.owner + shift, number, tiles.chunk,
            kind=NodeKind.RECV, peer=tiles.owner, **common,
        )  # fmt: skip
        self.tags += grid.chunks
        self.parts.append(Message(operation, grid, int(ours[0]), int(theirs[0])))
        self.producers.wait(operation.reads[0], region, grid, tiles.owner, tiles.chunk, sends)
        ready = Ready(region, grid, tiles.owner + shift, tiles.chunk, receives)
        self.producers.ready[operation.name] = ready

    def _collective(self, operation: Operation, operand: str) -> None:
        """The nodes of an algorithm, piece by piece, on the ranks of a group."""
        contents = self._contents(operation)
        template, is_scalar = contents.template, not operation.is_communication
        first = int(self._ranks(self.program.types[operation.name].group)[0])
        pieces = 1 if is_scalar else choice_of(self.choices, operation.name).chunks
        grid = Grid((), 0, 1, contents.units) if is_scalar else self.cuts[operation.name].grid
        position = np.repeat(np.arange(len(template.first) - 1), np.diff(template.first))
        count = len(template)
        piece = np.repeat(np.arange(pieces), count)
        is_message = np.tile(template.peer >= 0, pieces)
        tag = self.tags + piece * template.tags + np.tile(template.message, pieces)
        made = self.nodes.add(
            np.tile(position, pieces) + first, len(self.parts), np.arange(pieces * count),
            kind=np.tile(template.kind, pieces), name=self._name([operation]),
            bytes=np.tile(template.bytes, pieces), tag=np.where(is_message, tag, 0),
            peer=np.where(is_message, np.tile(template.peer, pieces) + first, -1),
            duration_ns=np.tile(template.duration_ns, pieces),
        )  # fmt: skip
        self.tags += pieces * template.tags
        self.parts.append(Collected(operation, contents, grid, pieces, first, is_scalar))
        for edges, kept in (
            (template.data, self.nodes.data),
            (template.control, self.nodes.control),
        ):
            for number in range(pieces):
                kept.append((edges[0] + made[number * count], edges[1] + made[number * count]))
        most = choice_of(self.choices, operation.name).at_once
        take_turns(self.nodes, template, made, pieces, most)
        self._join(operation, operand, contents, grid, pieces, made, first)

    def _join(
        self,
        operation: Operation,
        operand: str,
        contents: Contents,
        grid: Grid,
        pieces: int,
        made: Int64Array,
        first: int,
    ) -> None:
        """Let the steps wait for what they read, and note what they give."""
        count, region = len(contents.template), self.regions[operation.name]
        given: list[tuple[Int64Array, Int64Array, Int64Array]] = []
        kept: list[tuple[Int64Array, Int64Array]] = []
        position = np.repeat(
            np.arange(len(contents.template.first) - 1), np.diff(contents.template.first)
        )
        for piece in range(pieces):
            base = made[piece * count]
            needed_by = position[contents.need_node]
            chunk = chunk_numbers(
                grid, contents, contents.need_unit, piece, needed_by, is_given=False
            )
            rank = first + needed_by
            self.producers.wait(operand, region, grid, rank, chunk, contents.need_node + base)
            chunk = chunk_numbers(
                grid, contents, contents.give_unit, piece, contents.give_rank, is_given=True
            )
            rank, is_made = first + contents.give_rank, contents.give_node >= 0
            given.append((rank[is_made], chunk[is_made], contents.give_node[is_made] + base))
            kept.append((rank[~is_made], chunk[~is_made]))
        rank, chunk = (np.concatenate(side) for side in zip(*kept, strict=True))
        self.pass_through[operation.name] = frozenset(
            zip(rank.tolist(), chunk.tolist(), strict=True)
        )
        index, node = self.producers.nodes_behind(operand, region, grid, rank, chunk)
        given.append((rank[index], chunk[index], node))
        columns = (np.concatenate(side) for side in zip(*given, strict=True))
        self.producers.ready[operation.name] = Ready(region, grid, *columns)

    def _junction(self, value: str, ranks: Int64Array) -> Int64Array:
        """MARKERs behind all that makes a value."""
        made = self.nodes.add(
            ranks, len(self.parts), np.zeros_like(ranks),
            kind=NodeKind.MARKER, name=self._name([self.program.by_name[value]]),
        )  # fmt: skip
        self.parts.append(Junction(value))
        return made

    def finished(self) -> FlatProgram:
        """The flat program; rows are grouped by rank, in the order in which they were made."""
        ranks = self.program.num_groups * self.binding.num_ranks
        table = NodeColumns.from_columns(
            ranks,
            self.nodes.columns(),
            self.nodes.edges("data"),
            self.nodes.edges("control"),
            file=self.program.name,
        )
        order = np.argsort(self.nodes.column("rank"), kind="stable")
        groups = tuple(
            ProcessGroup(str(1 + group), tuple(self._ranks(group).tolist()))
            for group in range(self.program.num_groups)
        )
        version = installed_version("collhub-coconet") or ""
        workload = Workload(
            table, tuple(self.names), groups, provenance=Provenance("coconet", version)
        )
        return FlatProgram(
            self.program, self.binding, workload, tuple(self.parts),
            self.nodes.column("part")[order], self.nodes.column("item")[order], self.pass_through,
        )  # fmt: skip


def _part_of(operation: Operation) -> str:
    """Key of a rank's part of a scalar, which is no name of a value."""
    return f"part of {operation.name}"
