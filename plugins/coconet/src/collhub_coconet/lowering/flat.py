"""Lower a program to one flat graph: computations chunk by chunk between the steps of algorithms.

A fused stage has no barrier: the computation of a chunk runs between the last reduction of this
chunk and its first send. In a chain the producer is cut into tiles, in the order in which the
algorithm of the consumer first needs them on that rank; a send or reduction waits only for its own
tile. After CoCoNet (ASPLOS 2022), sections 3.3 and 5.3, for algorithms of any shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
import numpy.typing as npt
from collhub_templates import Template

from collhub_coconet.lowering.algorithms import (
    AlgorithmCall,
    Algorithms,
    Choice,
    Choices,
    Contents,
    count_buffer_bytes,
    select_choice,
    select_fallbacks,
)
from collhub_coconet.lowering.flat_program import (
    Barrier,
    CollectiveRuns,
    FlatProgram,
    KernelSegment,
    LaunchList,
    MeshRuns,
    Message,
    Part,
    RowRuns,
    find_viewed_value,
)
from collhub_coconet.lowering.grids import (
    Grid,
    ValueChunks,
    build_row_grids,
    find_cuts,
    find_needed_chunks,
    number_regions,
    select_rank_chunks,
)
from collhub_coconet.lowering.nodes import (
    NodeList,
    Producers,
    Ready,
    Streams,
    Tiles,
    compute_tile_costs,
    cut_tiles,
    limit_pieces_in_flight,
    number_chunks,
    order_chunks,
)
from collhub_coconet.program.operations import (
    CONTRACTIONS,
    UNEVEN_COLLECTIVES,
    Binding,
    Kind,
    Operation,
)
from collhub_coconet.program.program import (
    Program,
    Stage,
    check_binding,
    find_axis_positions,
    reduces_scalar,
)
from collhub_coconet.program.uneven_rows import count_row_bytes, read_counts, select_chunk
from hub_core import Registry, Topology, installed_version, run_registry
from hub_core.columns import Int64Array, distinct, group_of_entry
from hub_core.model import (
    NodeColumns,
    NodeKind,
    ProcessGroup,
    Provenance,
    Workload,
)


def flatten(
    program: Program,
    binding: Binding,
    topology: Topology,
    choices: Choices | None = None,
    *,
    registry: Registry | None = None,
    algorithms: Algorithms | None = None,
    has_launches: bool = False,
) -> FlatProgram:
    """Lower a program to a flat graph: a workload, and a record of the meaning of its nodes.

    Rank i of group k is rank k * (ranks per group) + i of the job, on the NPU of this number.

    - `choices`: algorithm and chunks by name of a communication; "" is for any other. None:
      trees if there is a root, direct for AllToAll and AllToAllV, else rings; one piece.
    - `registry`: None for that of the run.
    - `algorithms`: of an earlier call; they replace `topology` and `registry`.
    - `has_launches`: each communicating kernel gets a launch node on every rank.

    Raises `InputError` for layouts that do not fit the ranks, and `HubError` for algorithms
    that do not fit or are incorrect. A file fits only one chunk of an uneven collective.
    """
    check_binding(program, binding)
    algorithms = algorithms or Algorithms(topology, registry or run_registry())
    choices = choices if choices is not None else select_fallbacks(program)
    builder = _FlatBuilder(program, binding, choices, algorithms, has_launches)
    for kernel in program.kernels():
        builder.add_kernel(kernel)
    return builder.build()


@dataclass(slots=True)
class _FlatBuilder:
    """Flat graph under construction.

    `contents`: algorithm by name of a collective. `orders`: cached results of `_order_chunks`.
    `complete_tiles`: by group, the tiles of computations on complete values. `tags`: number of
    message tags in use.
    """

    program: Program
    binding: Binding
    choices: Choices
    algorithms: Algorithms
    has_launches: bool = False
    regions: dict[str, int] = field(init=False)
    cuts: dict[str, ValueChunks] = field(init=False)
    nodes: NodeList = field(default_factory=NodeList)
    parts: list[Part] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    producers: Producers = field(init=False)
    pass_through: dict[str, frozenset[tuple[int, int]]] = field(default_factory=dict)
    contents: dict[str, Contents] = field(default_factory=dict)
    stage_of: dict[str, Stage] = field(init=False)
    streams: Streams = field(init=False)
    orders: dict[Hashable, Int64Array] = field(default_factory=dict)
    complete_tiles: dict[int, Tiles] = field(default_factory=dict)
    tags: int = 0
    kernels: int = 0
    launches: LaunchList = field(default_factory=LaunchList)

    def __post_init__(self) -> None:
        self.producers = Producers(self.nodes, self._add_barrier)
        self.stage_of = {name: stage for stage in self.program.stages for name in stage.members}
        self.regions = number_regions(self.program)
        if len(self.program.mesh) > 1:
            # Collectives of a mesh of several axes work on complete values.
            self.cuts = {
                operation.name: ValueChunks(
                    Grid((1,), 0, 1, select_choice(self.choices, operation.name).chunks),
                    operation.name,
                    is_needed=False,
                )
                for operation in self.program.operations
                if operation.kind is Kind.SEND
            }
        else:
            self.cuts = find_cuts(self.program, self.binding, self.regions, self._find_grid)
        self.streams = Streams(self.program.num_groups * self.binding.num_ranks)

    def _ranks(self, group: int) -> Int64Array:
        """Ranks of the job in one group, int64."""
        return np.asarray(self.binding.ranks_of(group), np.int64)

    def _find_grid(self, operation: Operation, before: Grid | None) -> Grid:
        """Return the division of the result of a communication into blocks and chunks.

        C is the number of chunks that is chosen for the operation, or for the first member of its
        bucket. U is the number of units of the chosen algorithm.

        - Uneven collective: one block with C chunks of rows.
        - Send: `before`, the operand's grid. If it is None: C chunks per block, with one block per
          rank along the sliced dimension, or one block along dimension 0 if it is not sliced.
        - ReduceScatter: one block per rank along its dimension (0 if it has none).
        - AllGather, AllToAll: one block per rank along the sliced dimension of the operand. Only
          for an AllToAll, `across` is set: the sliced dimension of the result.
        - Any other operation: one block along dimension 0.

        In the last three cases a block has C * U // blocks chunks. Raises `HubError` for an
        algorithm that cannot be used (`_find_contents`).
        """
        kind, operand = (self.program.types[name] for name in (operation.name, operation.reads[0]))
        shape, ranks = self.binding.shape(kind.shape), self.binding.num_ranks
        choice = select_choice(self.choices, self._find_lead(operation).name)
        if operation.kind in UNEVEN_COLLECTIVES:
            return build_row_grids(self.program, self.binding, operation, choice.chunks)[1]
        if operation.kind is Kind.SEND:
            layout = kind.layout
            dimension, blocks = (layout.dimension, ranks) if layout.is_sliced else (0, 1)
            return before or Grid(shape, dimension, blocks, choice.chunks)
        contents = self._find_contents(operation)
        if operation.kind is Kind.REDUCE_SCATTER:
            dimension, blocks = operation.dimension or 0, ranks
        elif operation.kind in (Kind.ALL_GATHER, Kind.ALL_TO_ALL):
            dimension, blocks = operand.layout.dimension, ranks
        else:
            dimension, blocks = 0, 1
        across = kind.layout.dimension if operation.kind is Kind.ALL_TO_ALL else None
        return Grid(shape, dimension, blocks, choice.chunks * contents.units // blocks, across)

    def _find_lead(self, operation: Operation) -> Operation:
        """Return the first member of the bucket that contains a collective, or the operation
        itself.

        The choice of the lead applies to the entire bucket.
        """
        return self.program.buckets.get(operation.name, (operation,))[0]

    def _find_contents(self, operation: Operation) -> Contents:
        """Return the contents of the algorithm of a collective: its nodes, inputs and outputs.

        `Contents` gives the nodes of the algorithm, and which of them read and write which units.
        The algorithm runs on a piece of the full buffer: one of `choice.chunks` parts of equal
        size, rounded up to a whole byte. A piece has at least one byte per rank.

        For a bucket (collectives performed as one), the buffer is that of all members, and the
        choice is that of the first one. A reduction to a scalar is an all-reduce of the result,
        whose piece has at least one byte in total.

        The result is cached by the name of the operation, or of the first member of its bucket.
        Raises `HubError` if the chosen algorithm cannot be read or synthesized, is incorrect, or
        does not perform this collective on these ranks.
        """
        operation = self._find_lead(operation)
        if operation.name not in self.contents:
            is_scalar = not operation.is_communication
            kind = self.program.types[operation.name if is_scalar else operation.reads[0]]
            choice = select_choice(self.choices, operation.name, is_scalar=is_scalar)
            members = self.binding.ranks_of(kind.group)
            bucket = self.program.buckets.get(operation.name, (operation,))
            size = sum(count_buffer_bytes(self.program, self.binding, one) for one in bucket)
            # Algorithms cut a tensor into one part per rank, of at least one byte.
            piece = max(1 if is_scalar else len(members), -(-size // choice.chunks))
            kind_of_call = Kind.ALL_REDUCE if is_scalar else operation.kind
            root = operation.root if kind_of_call in (Kind.BROADCAST, Kind.REDUCE) else None
            call = AlgorithmCall(kind_of_call, members, root, piece)
            self.contents[operation.name] = self.algorithms.contents(call, choice)
        return self.contents[operation.name]

    def _add_name(self, operations: Sequence[Operation]) -> int:
        """Add the name of the nodes of these operations, at least one, and return its number.

        It is `origin=` and the names of the operations, joined by `+`. If the first operation
        is in a stage, ` fused_group=` and the name of the stage follow. Every call adds a name,
        also if an equal one exists.
        """
        origin = "+".join(operation.name for operation in operations)
        stage = self.stage_of.get(operations[0].name)
        suffix = f" fused_group={stage.name}" if stage else ""
        self.names.append(f"origin={origin}{suffix}")
        return len(self.names) - 1

    def add_kernel(self, kernel: list[Operation]) -> None:
        """Add the nodes of a kernel, and record it for launches.

        `kernel`: operations in program order, at least one. The rules are those of
        `_add_nodes`. The number of `kernels` is increased, and the kernel is added to
        `launches` with the nodes that were created. Raise `HubError` for an algorithm that does
        not fit or is incorrect; nodes that were added before remain.
        """
        self.kernels += 1
        first = self.nodes.count
        self._add_nodes(kernel)
        self.launches.add(self.program, kernel, self.kernels, range(first, self.nodes.count))

    def _add_nodes(self, kernel: list[Operation]) -> None:
        """Add the nodes of a kernel, operation by operation in the given order.

        `kernel`: at least one operation.

        - If the first operation is in a bucket, the whole kernel is performed as one collective.
        - Otherwise adjacent computations with equal cut (division into chunks) and group form a
          run, and the nodes of a run compute all of its operations. A communication ends the run
          before it.
        - A Send becomes messages, any other communication the nodes of its algorithm.
        - A reduction of a sliced tensor to a scalar ends its run after it. The run computes a
          partial result on each rank, and an all-reduce of the partial results follows.

        Raises `HubError` for an algorithm that does not fit or is incorrect; nodes that were added
        before remain.
        """
        pending: list[Operation] = []
        cut_and_group_of_pending: tuple[ValueChunks | None, int] | None = None
        if kernel[0].name in self.program.buckets:
            self._add_collective(kernel, [operation.reads[0] for operation in kernel])
            return
        for operation in kernel:
            is_scalar = reduces_scalar(self.program, operation)
            # Computations that differ in cut or group need separate nodes.
            cut_and_group = self.cuts.get(operation.name), self.program.types[operation.name].group
            if pending and (
                operation.is_communication or cut_and_group != cut_and_group_of_pending
            ):
                self._add_computation(pending)
                pending = []
            cut_and_group_of_pending = cut_and_group
            if operation.kind is Kind.SEND:
                self._add_messages(operation)
            elif operation.is_communication:
                self._add_collective([operation], [operation.reads[0]])
            else:
                pending.append(operation)
            if is_scalar:
                self._add_computation(pending, is_partial=True)
                pending = []
                self._add_collective([operation], [_partial_name(operation)])
        self._add_computation(pending)

    def _add_views(self, operations: Sequence[Operation]) -> None:
        """Give each view (`find_viewed_value`) the producers of its source, if these are known."""
        for operation in operations:
            source = find_viewed_value(self.program, operation)
            if source in self.producers.ready:
                self.producers.ready[operation.name] = self.producers.ready[source]

    def _add_computation(self, operations: list[Operation], *, is_partial: bool = False) -> None:
        """Add one COMPUTE node per rank and tile (set of chunks) for all given operations together.

        The operations must have equal cuts into chunks and equal groups. A view has no node, but
        gets the producers of its source. Tiles are those of the last operation that is no view;
        with only views no node is added. The costs on a rank are divided among its tiles by their
        numbers of chunks. A `KernelSegment` is appended to `parts`.

        For each value read, a node waits on its rank. The first rule that applies:

        1. If chunks are rows of an uneven collective: for the complete right operand of a
           contraction, and as in rule 3 for any other value.
        2. For the operand of a contraction from which its cut was derived: the chunks of the
           operand that the tile needs.
        3. For a value with the same cut in the same chain or stage: the chunks that overlap its
           chunks. For any other value: the complete value.

        The nodes become the producers of the values. With `is_partial`, an all-reduce completes
        the last value later. The nodes are then producers of its partial value only.
        """
        self._add_views(operations)
        working = [
            operation
            for operation in operations
            if find_viewed_value(self.program, operation) is None
        ]
        if not working:
            return
        # All operations have the same cut and group.
        last = working[-1]
        stage, region = self.stage_of.get(last.name), self.regions[last.name]
        cut = self.cuts.get(last.name)
        tiles = self._cut_tiles(last, cut)
        costs = compute_tile_costs(self.program, self.binding, operations, stage, tiles)
        numbers = self.nodes.add(
            tiles.rank, len(self.parts), np.arange(len(tiles.rank)),
            kind=NodeKind.COMPUTE, name=self._add_name(working),
            operations=costs[0], bytes=costs[1],
        )  # fmt: skip
        grid = cut.grid if cut else None
        self.parts.append(
            KernelSegment(tuple(operations), grid, tiles.chunks, self.kernels, is_partial)
        )
        node = numbers[tiles.tile]
        for read in dict.fromkeys(read for operation in operations for read in operation.reads):
            needs, grid_of_read = (tiles.owner, tiles.chunk, node), grid
            if grid is not None and grid.row_blocks is not None:
                # A row of a product needs the same row of the left operand, and all of the right.
                if last.kind in CONTRACTIONS and read in last.reads[1:]:
                    grid_of_read = None
            elif cut is not None and read == cut.source and last.kind in CONTRACTIONS:
                assert cut.source_cut is not None
                leading = len(self.program.types[read].shape) - (1 if read == last.reads[0] else 2)
                index, chunk = find_needed_chunks(
                    cut.grid, cut.source_cut.grid, leading, tiles.chunk
                )
                needs = tiles.owner[index], chunk, node[index]
                grid_of_read = self.cuts[read].grid
            self.producers.wait(read, region, grid_of_read, *needs)
        self.streams.append(self.nodes, numbers, tiles.rank, stage)
        ready = Ready(region, grid, tiles.owner, tiles.chunk, node)
        self.producers.ready |= dict.fromkeys((operation.name for operation in working), ready)
        # Views of the values of these nodes.
        self._add_views(operations)
        if is_partial:
            # The value itself is ready after its all-reduce.
            self.producers.ready[_partial_name(last)] = self.producers.ready.pop(last.name)

    def _cut_tiles(self, operation: Operation, cut: ValueChunks | None) -> Tiles:
        """Return the tiles of a computation on all ranks of its group.

        They are ordered by rank, then by the order of work. A tile is a set of chunks that a node
        computes. Without a cut there is one tile per rank with chunk 0; the result is cached by
        group and shared. With a cut:

        1. The chunks of a rank are those of `_order_chunks`, in its order. If the value is sliced,
           only the chunks that the rank owns remain, unless chunks are rows of an uneven
           collective.
        2. The tiles of a rank are consecutive chunks of this order, in nearly equal numbers: 5
           chunks in 2 tiles give 2, then 3. Their number is the limit `tiles` of the choice for the
           leading collective, at most one tile per chunk. Without a limit (None) each chunk is a
           tile.

        A rank without chunks has no tile.
        """
        kind = self.program.types[operation.name]
        ranks = self._ranks(kind.group)
        if cut is None:
            if kind.group not in self.complete_tiles:
                orders = [np.zeros(1, np.int64)] * len(ranks)
                self.complete_tiles[kind.group] = cut_tiles(ranks, orders, None)
            return self.complete_tiles[kind.group]
        choice = select_choice(self.choices, cut.lead)
        orders = []
        for position in range(len(ranks)):
            order = self._order_chunks(cut, position)
            if kind.layout.is_sliced and cut.grid.row_blocks is None:
                owners = cut.grid.owners(order, kind.layout.dimension)
                order = order[owners == position]
            orders.append(order)
        return cut_tiles(ranks, orders, choice.tiles)

    def _order_chunks(self, cut: ValueChunks, position: int) -> Int64Array:
        """Return all chunks of a cut (division into chunks) in the order of a rank's work: int64.

        `position`: of the rank in its group, from 0. The first rule that applies:

        1. Chunks of rows of an uneven collective: ascending.
        2. A cut that is derived from another one (`source_cut`): the order of the other cut. If
           `across` divides a second dimension, only the chunks that the rank computes
           (`select_rank_chunks`).
        3. The algorithm of the leading collective is not in `contents` yet: ascending.
        4. `cut.is_needed`: the order in which the algorithm of the leading collective needs the
           chunks on this rank. Otherwise the order in which it produces them there
           (`order_chunks`). Chunks that the algorithm does not use are last, ascending.

        Results of rule 4 are cached in `self.orders`; do not change them.
        """
        if cut.grid.row_blocks is not None:
            return np.arange(cut.grid.chunks)
        if cut.source_cut is not None:
            order = self._order_chunks(cut.source_cut, position)
            return select_rank_chunks(cut.grid, order, position)
        contents = self.contents.get(cut.lead)
        if contents is None:
            return np.arange(cut.grid.chunks)
        pieces = select_choice(self.choices, cut.lead).chunks
        # Cached, since the layers of a model have the same algorithms and orders.
        key = id(contents), cut.grid, pieces, position, cut.is_needed
        if key not in self.orders:
            self.orders[key] = order_chunks(
                cut.grid, contents, pieces, position, is_needed=cut.is_needed
            )
        return self.orders[key]

    def _add_messages(self, operation: Operation) -> None:
        """Add the SEND and RECV nodes that move a value from one group of ranks to another one.

        Each rank sends to the rank at the same position of the other group, one message per chunk,
        in the order of `_order_chunks`. If the result is sliced (each rank has a part of it), a
        rank sends only the chunks that it owns; otherwise it sends all chunks. All SENDs are added
        before all RECVs.

        The tag is `self.tags` plus the number of the chunk; then `self.tags` grows by the number of
        all chunks. The bytes of a message are the bytes of the result on a rank, divided by the
        chunks that a rank sends, rounded up; then divided by `data_share`, rounded up; at least 1;
        plus `step_bytes`.

        A SEND waits for the producers of its chunk. The RECV becomes the producer of the result. A
        `Message` is appended to `self.parts`.
        """
        kind = self.program.types[operation.name]
        ours = self._ranks(self.program.types[operation.reads[0]].group)
        theirs = self._ranks(kind.group)
        cut = self.cuts[operation.name]
        grid, region = cut.grid, self.regions[operation.name]
        orders = [self._order_chunks(cut, position) for position in range(len(ours))]
        if kind.layout.is_sliced:
            owners = [grid.owners(order, kind.layout.dimension) for order in orders]
            orders = [order[owners[position] == position] for position, order in enumerate(orders)]
        tiles = cut_tiles(ours, orders, None)
        shift = theirs[0] - ours[0]
        choice = select_choice(self.choices, operation.name)
        size = self.binding.bytes_of_rank(kind)
        parts = grid.parts if kind.layout.is_sliced else grid.chunks
        common: dict[str, npt.ArrayLike] = {
            "name": self._add_name([operation]),
            "bytes": max(1, ceil(-(-size // parts) / choice.data_share)) + choice.step_bytes,
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

    def _add_collective(self, operations: Sequence[Operation], operands: Sequence[str]) -> None:
        """Add the nodes of a collective's algorithm, once for every piece of its data.

        `operations`: a single operation, or the members of a bucket (fused into one collective).
        `operands`: names of their inputs, in the same order. With a mesh of several axes, or for an
        uneven collective (with counts per rank), another method adds the nodes.

        `select_choice` for the first operation gives the number of pieces and `at_once`. On each
        rank, piece i waits until piece i - `at_once` has ended there; if this needs many edges,
        MARKER nodes are added. Each node that reads chunks of an operand waits for their producers
        on its rank.

        An operation that is no communication reduces to a scalar; it is an all-reduce in one piece.
        Message tags differ between pieces. One `CollectiveRuns` is appended to `parts`, and the
        producers of the results are recorded. Raises `HubError` for an algorithm that does not fit
        or is incorrect.
        """
        if len(self.program.mesh) > 1:
            self._add_mesh_collective(operations, operands)
            return
        operation = operations[0]
        if operation.kind in UNEVEN_COLLECTIVES:
            self._add_row_collective(operations, operands)
            return
        contents = self._find_contents(operation)
        template, is_scalar = contents.template, not operation.is_communication
        first = int(self._ranks(self.program.types[operation.name].group)[0])
        choice = select_choice(self.choices, operation.name, is_scalar=is_scalar)
        pieces = 1 if is_scalar else choice.chunks
        grid = Grid((), 0, 1, contents.units) if is_scalar else self.cuts[operation.name].grid
        position = group_of_entry(template.first)
        count = len(template)
        piece = np.repeat(np.arange(pieces), count)
        is_message = np.tile(template.peer >= 0, pieces)
        tag = self.tags + piece * template.tags + np.tile(template.message, pieces)
        sizes = _compute_message_bytes(template, choice)
        numbers = self.nodes.add(
            np.tile(position, pieces) + first, len(self.parts), np.arange(pieces * count),
            kind=np.tile(template.kind, pieces), name=self._add_name(operations),
            bytes=np.tile(sizes, pieces), tag=np.where(is_message, tag, 0),
            peer=np.where(is_message, np.tile(template.peer, pieces) + first, -1),
            duration_ns=np.tile(template.duration_ns, pieces),
        )  # fmt: skip
        self.tags += pieces * template.tags
        others = tuple((other, self.cuts[other.name].grid) for other in operations[1:])
        runs = CollectiveRuns(operation, contents, grid, pieces, first, is_scalar, others)
        self.parts.append(runs)
        targets = self.nodes.data, self.nodes.control
        for edges, target in zip((template.data, template.control), targets, strict=True):
            for start in numbers[::count][:pieces]:
                target.append((edges[0] + start, edges[1] + start))
        firsts = numbers[::count][:pieces].tolist()
        limit_pieces_in_flight(
            self.nodes, [(template, node) for node in firsts], choice.at_once,
            lambda: self._add_barrier(
                operation.name, first + np.arange(len(template.first) - 1, dtype=np.int64)
            ),
        )  # fmt: skip
        for member, operand in enumerate(operands):
            self._connect(runs, member, operand, numbers, position)

    def _add_row_collective(self, operations: Sequence[Operation], operands: Sequence[str]) -> None:
        """Add the nodes of a collective with counts per rank: one algorithm per chunk of rows.

        `operations`: a single operation, or the members of a bucket, which have equal counts.
        `operands`: the values that they read, in the same order.

        The choice for the first operation gives the number of chunks and `at_once`. Chunks
        without rows are skipped; one must have rows. On each rank, chunk i (with rows) waits
        until chunk i - `at_once` has ended there. Nodes that read rows wait for this chunk of all
        operands on their rank. Readers of a result wait for all nodes that write the chunk on
        their rank. One `RowRuns` per chunk is appended to `parts`. Raises `HubError` for an unfit
        or incorrect algorithm.
        """
        operation = operations[0]
        choice = select_choice(self.choices, operation.name)
        counts = read_counts(operation)
        members = self._ranks(self.program.types[operation.name].group)
        row_bytes = sum(count_row_bytes(self.program, self.binding, one) for one in operations)
        pieces, ready = [], []
        for chunk in range(choice.chunks):
            piece = select_chunk(counts, chunk, choice.chunks)
            if piece is None:
                continue
            size = piece.total * row_bytes
            call = AlgorithmCall(
                operation.kind, tuple(members.tolist()), None, size, piece.multiplied(row_bytes)
            )
            contents = self.algorithms.contents(call, choice)
            numbers, rank = self._add_template(operations, contents, choice, members)
            pieces.append((contents.template, int(numbers[0])))
            others, first = tuple(operations[1:]), int(members[0])
            runs = RowRuns(operation, contents, first, chunk, choice.chunks, others)
            self.parts.append(runs)
            needed = distinct(contents.need_node)
            for one, operand in zip(operations, operands, strict=True):
                self.producers.wait(
                    operand, self.regions[one.name], self.cuts[one.name].operand_grid,
                    rank[needed], np.full_like(needed, chunk), numbers[needed],
                )  # fmt: skip
            written = distinct(contents.give_node)
            ready.append((rank[written], np.full_like(written, chunk), numbers[written]))
        limit_pieces_in_flight(
            self.nodes, pieces, choice.at_once,
            lambda: self._add_barrier(operation.name, members),
        )  # fmt: skip
        columns = [np.concatenate(side) for side in zip(*ready, strict=True)]
        for one in operations:
            self.producers.ready[one.name] = Ready(
                self.regions[one.name], self.cuts[one.name].grid, *columns
            )

    def _add_template(
        self,
        operations: Sequence[Operation],
        contents: Contents,
        choice: Choice,
        members: Int64Array,
    ) -> tuple[Int64Array, Int64Array]:
        """Add the nodes of an algorithm once; return the number and the rank of each node.

        Both results are int64[nodes] in the order of the algorithm (`contents.template`). The
        numbers are consecutive. Position i of the algorithm runs on rank `members[i]` of the job.

        The nodes get the bytes of `_compute_message_bytes` for `choice`, and the algorithm's kinds,
        durations in ns, and data and control dependencies. Messages get new tags, and `self.tags`
        advances. Nodes that are no messages have tag 0 and peer -1. All have one name: `origin=`,
        the names of `operations` (at least one) joined by `+`, and the stage of the first
        (`_add_name`). They belong to the part of the program that the caller appends to `parts`
        next.
        """
        template = contents.template
        position = group_of_entry(template.first)
        is_message = template.peer >= 0
        numbers = self.nodes.add(
            members[position], len(self.parts), np.arange(len(template)),
            kind=template.kind, name=self._add_name(operations),
            bytes=_compute_message_bytes(template, choice),
            tag=np.where(is_message, self.tags + template.message, 0),
            peer=np.where(is_message, members[template.peer], -1),
            duration_ns=template.duration_ns,
        )  # fmt: skip
        self.tags += template.tags
        for edges, target in (
            (template.data, self.nodes.data),
            (template.control, self.nodes.control),
        ):
            target.append((edges[0] + numbers[0], edges[1] + numbers[0]))
        return numbers, members[position]

    def _add_mesh_collective(
        self, operations: Sequence[Operation], operands: Sequence[str]
    ) -> None:
        """Add the nodes of a collective on a mesh: its algorithm once for every subgroup of ranks.

        `operations`: one operation or the members of a bucket; `operands`: the values that they
        read, in the same order. A subgroup has the ranks that differ only along the axes of the
        collective. The producers of a value are the nodes that write it.

        If subgroups have one rank, no nodes are added. The result of each operation then has the
        producers of its operand, if these are known.

        Otherwise the algorithm (`select_choice`) runs once per subgroup on the data of all members,
        without a division into chunks. A reduction to a scalar is an all-reduce. Nodes that read
        INPUT wait for the producers of all operands on their rank. On each rank, the producers of
        every result are the algorithm's nodes that write there, or else the producers of all
        operands.

        Appends one `MeshRuns` per subgroup to `parts`. Raises `HubError` for an algorithm that does
        not fit or is incorrect.
        """
        operation = operations[0]
        is_scalar = not operation.is_communication
        group = self.program.types[operation.name].group
        axes = find_axis_positions(self.program, operation)
        subgroups = self.binding.subgroups(axes)
        if len(subgroups[0]) == 1:
            for one, operand in zip(operations, operands, strict=True):
                if operand in self.producers.ready:
                    self.producers.ready[one.name] = self.producers.ready[operand]
            return
        choice = select_choice(self.choices, operation.name, is_scalar=is_scalar)
        smallest = 1 if is_scalar else len(subgroups[0])
        sizes = [count_buffer_bytes(self.program, self.binding, one) for one in operations]
        size = max(smallest, sum(sizes))
        kind = Kind.ALL_REDUCE if is_scalar else operation.kind
        root = operation.root if kind in (Kind.BROADCAST, Kind.REDUCE) else None
        counts = None
        if kind in UNEVEN_COLLECTIVES:
            row_bytes = sum(count_row_bytes(self.program, self.binding, one) for one in operations)
            counts = read_counts(operation).multiplied(row_bytes)
        region = self.regions[operation.name]
        ready_ranks, ready_nodes = [], []
        for positions in subgroups:
            members = self._ranks(group)[positions]
            call = AlgorithmCall(kind, tuple(members.tolist()), root, size, counts)
            contents = self.algorithms.contents(call, choice)
            numbers, rank_of_node = self._add_template(operations, contents, choice, members)
            self.parts.append(MeshRuns(operation, contents, tuple(call.members)))
            needed = contents.need_node
            for operand in operands:
                self.producers.wait(
                    operand, region, None, rank_of_node[needed],
                    np.zeros_like(needed), numbers[needed],
                )  # fmt: skip
            written = contents.give_node >= 0
            ready_ranks.append(members[contents.give_rank[written]])
            ready_nodes.append(numbers[contents.give_node[written]])
            # Ranks that only send keep their operand.
            writers = contents.give_rank[written]
            for kept in np.setdiff1d(np.arange(len(members)), writers).tolist():
                chunk = np.zeros(1, np.int64)
                for operand in operands:
                    _, before = self.producers.find_producers(
                        operand, region, None, members[kept : kept + 1], chunk
                    )
                    ready_ranks.append(np.repeat(members[kept], len(before)))
                    ready_nodes.append(before)
        rank, node = np.concatenate(ready_ranks), np.concatenate(ready_nodes)
        ready = Ready(region, None, rank, np.zeros_like(rank), node)
        self.producers.ready |= dict.fromkeys((one.name for one in operations), ready)

    def _connect(
        self,
        runs: CollectiveRuns,
        member: int,
        operand: str,
        numbers: Int64Array,
        position: Int64Array,
    ) -> None:
        """Connect the nodes of a collective with its operand; record the producers of its result.

        - `member`: number of the operation in `runs.members`, 0 unless it is a bucket
        - `operand`: name of the value that the member reads
        - `numbers`: numbers of the nodes of all pieces, piece after piece; a piece is one run of
          the algorithm on a part of the data
        - `position`: for every node of the algorithm, the position of its rank in the group;
          position 0 is rank `runs.first_rank` of the job

        Each node that reads chunks of the operand waits for the producers of these chunks on its
        rank. Two records are stored under the name of the operation:

        - `self.producers.ready`: the producers of the result by rank and chunk. The producer of a
          chunk is the last node that writes it on the rank (`give_node`), or the producers of the
          operand if no node writes it.
        - `self.pass_through`: the (rank of the job, chunk) pairs that no node writes.
        """
        contents, first = runs.contents, runs.first_rank
        operation, grid = runs.members[member]
        count, region = len(contents.template), self.regions[operation.name]
        results: list[tuple[Int64Array, Int64Array, Int64Array]] = []
        unchanged: list[tuple[Int64Array, Int64Array]] = []
        for piece in range(runs.pieces):
            base = numbers[piece * count]
            needed_by = position[contents.need_node]
            chunk = number_chunks(
                grid, contents, contents.need_unit, piece, needed_by, is_given=False
            )
            rank = first + needed_by
            self.producers.wait(operand, region, grid, rank, chunk, contents.need_node + base)
            chunk = number_chunks(
                grid, contents, contents.give_unit, piece, contents.give_rank, is_given=True
            )
            rank, has_node = first + contents.give_rank, contents.give_node >= 0
            results.append((rank[has_node], chunk[has_node], contents.give_node[has_node] + base))
            unchanged.append((rank[~has_node], chunk[~has_node]))
        rank, chunk = (np.concatenate(side) for side in zip(*unchanged, strict=True))
        pairs = zip(rank.tolist(), chunk.tolist(), strict=True)
        self.pass_through[operation.name] = frozenset(pairs)
        index, node = self.producers.find_producers(operand, region, grid, rank, chunk)
        results.append((rank[index], chunk[index], node))
        columns = (np.concatenate(side) for side in zip(*results, strict=True))
        self.producers.ready[operation.name] = Ready(region, grid, *columns)

    def _add_barrier(self, value: str, ranks: Int64Array) -> Int64Array:
        """Add one MARKER (a node without work) on each of `ranks`; return the node numbers.

        `value`: name of the operation that names the markers. `ranks`: ranks of the job; the
        result has their order. The markers become a new part (`Barrier`) of the flat program.
        The caller adds their dependencies.
        """
        markers = self.nodes.add(
            ranks, len(self.parts), np.zeros_like(ranks),
            kind=NodeKind.MARKER, name=self._add_name([self.program.by_name[value]]),
        )  # fmt: skip
        self.parts.append(Barrier(value))
        return markers

    def build(self) -> FlatProgram:
        """Return the flat program of all nodes added so far, with rows grouped by ascending rank.

        Within a rank, rows are in the order in which the nodes were added. With `has_launches`, the
        launch nodes (`LaunchList.add_nodes`) are added first, so that they are the last rows of
        their ranks; call `build` only once then. The workload has one process group per group of
        the program, named `1`, `2`, and so on, with the ranks of the group. `part` and `item` of
        the result are int64 by row: the index in `parts`, and the number of the node within that
        part.
        """
        ranks = self.program.num_groups * self.binding.num_ranks
        if self.has_launches:
            self.launches.add_nodes(self.nodes, self.parts, self._add_name)
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
        provenance = Provenance("coconet", installed_version("collhub-coconet") or "")
        workload = Workload(table, tuple(self.names), groups, provenance=provenance)
        return FlatProgram(
            self.program, self.binding, workload, tuple(self.parts),
            self.nodes.column("part")[order], self.nodes.column("item")[order], self.pass_through,
        )  # fmt: skip


def _compute_message_bytes(template: Template, choice: Choice) -> Int64Array:
    """Return the bytes of all nodes of an algorithm: int64[nodes].

    Messages (nodes with a peer) have their bytes divided by `choice.data_share`, rounded
    up, plus `choice.step_bytes`; a message of 0 bytes thus gets `step_bytes`. Other nodes
    keep their bytes. Without such overheads the array of the template itself is returned.
    """
    sizes: Int64Array = template.bytes
    if choice.data_share == 1.0 and choice.step_bytes == 0:
        return sizes
    sent = np.ceil(sizes / choice.data_share).astype(np.int64) + choice.step_bytes
    return np.where(template.peer >= 0, sent, sizes)


def _partial_name(operation: Operation) -> str:
    """Key of the partial results of a scalar; it is not a valid name of a value."""
    return f"part of {operation.name}"
