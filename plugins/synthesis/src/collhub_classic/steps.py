"""Build the steps of a plan, with the dependencies that its memory requires.

Steps are cached for the next size: few plans depend on the size beyond their number of chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from collhub_classic.message_plan import MessagePlan
from collhub_classic.places import (
    BlockAccesses,
    BlockPlaces,
    EntryPlaces,
    MessagePieces,
    sort_blocks,
)
from hub_core.columns import BoolArray, Int64Array, expanded_ranges, inverse, run_mask, run_starts
from hub_core.model import Buffer, StepKind, StepTable

_Edges = tuple[Int64Array, Int64Array]


# Larger plans are not cached, to save memory.
_MAX_CACHED_BLOCKS = 1 << 18


# Rounds of the copies before all messages, and of those after them.
_FIRST_ROUND, _LAST_ROUND = -1, 1 << 40


def build_steps(
    plan: MessagePlan, places: BlockPlaces, *, is_synchronous: bool
) -> tuple[StepTable, Int64Array]:
    """Build the steps of a plan; return them with the SCRATCH units of every rank, int64[ranks].

    A block is one unit. Every piece of a message (adjacent blocks) gives a SEND on the source and a
    step on the destination:

    - no reduction: RECV
    - reduction, and the destination sends the same block in the same round (an exchange of full
      vectors): RECV into SCRATCH, then REDUCE, so that no send waits for a receive
    - other reductions: RECV_REDUCE

    COPY steps copy from INPUT to OUTPUT the blocks that a rank has at the start and requires at the
    end. They also copy a block to which a REDUCE adds, if the rank did not write the block before.

    Steps are sorted by rank, then by round, then SEND, receives, REDUCE, and COPY, then in the
    order of the messages in `plan`. A copy that messages read or add to is before all rounds, other
    copies are after them. Data dependencies order reads after writes, writes after reads, and
    writes after writes, for calls in place and out of place. A plan without messages gives only
    copies.

    `is_synchronous`: control dependencies let a rank finish all steps of a round before its next
    round, as with blocking calls. There is one from every step of a round to every step of the
    rank's next round, except copies. Otherwise there are none.

    `plan` is not changed. Raises `InputError` for ranks that the collective does not have.
    """
    ordered = sort_blocks(plan)
    accesses = BlockAccesses.of(ordered)
    where = EntryPlaces.of(ordered, accesses, places)
    pieces = MessagePieces.of(accesses, where)
    rows = _Rows.of(ordered, accesses, where, pieces, places)
    data = rows.find_data_edges(ordered, accesses, where)
    control = rows.find_round_edges() if is_synchronous else (data[0][:0], data[1][:0])
    order = np.lexsort((rows.phase, rows.round, rows.columns["rank"]))
    table = StepTable.from_columns(
        places.collective.num_ranks,
        {name: column[order] for name, column in rows.columns.items()},
        _renumber(data, order),
        _renumber(control, order),
    )
    return table, where.scratch_units


def build_steps_cached(
    plan: MessagePlan, places: BlockPlaces, *, is_synchronous: bool
) -> tuple[StepTable, Int64Array]:
    """Return the result of `build_steps`; the last 8 results are cached in this process.

    The cache is used for a plan with equal columns, equal `places` and equal
    `is_synchronous`. The SCRATCH sizes of cached results are read-only, because callers
    share them. Plans with more than `_MAX_CACHED_BLOCKS` blocks in messages are not
    cached. Raises the errors of `build_steps`.
    """
    if len(plan.blocks) > _MAX_CACHED_BLOCKS:
        return build_steps(plan, places, is_synchronous=is_synchronous)
    return _build_cached_steps(_PlanKey.of(plan), places, is_synchronous)


@dataclass(frozen=True, slots=True, eq=False)
class _Copies:
    """COPY steps from INPUT to OUTPUT of adjacent blocks of one rank.

    Early ones precede all messages. `place`: number of every copied block of every rank, ascending;
    `copy`: the step of each.
    """

    rank: Int64Array
    first: Int64Array
    count: Int64Array
    is_early: BoolArray
    place: Int64Array
    copy: Int64Array

    @classmethod
    def of(
        cls,
        plan: MessagePlan,
        accesses: BlockAccesses,
        where: EntryPlaces,
        places: BlockPlaces,
    ) -> _Copies:
        """Find the blocks that a rank copies from INPUT to OUTPUT, and join them into steps.

        Each pair (rank, block) is copied once. Two kinds of pairs are copied:

        - The rank has the block at the start and requires it at the end (`find_retained_blocks`).
        - `needs_copy` of an entry: a message that was received into SCRATCH adds to the block, and
          the receiver did not write the block before. The rank is the destination.

        A copy is early (before all messages) if an entry reads it (`is_copied`) or adds to it
        (`needs_copy`); otherwise late. A step joins consecutive pairs of one rank whose offsets in
        INPUT and in OUTPUT both increase by one per block, and which are all early or all late.
        Steps are sorted by rank and first block. `place` has rank * number of blocks + block of
        each pair, ascending. Without pairs all columns are empty.
        """
        blocks = plan.num_blocks
        copied_rank, copied_block = places.find_retained_blocks()
        added = where.needs_copy
        target = plan.destination[accesses.message]
        source = plan.source[accesses.message]
        needed = target[added] * blocks + accesses.block[added]
        read = source[where.is_copied] * blocks + accesses.block[where.is_copied]
        location = np.unique(np.concatenate([copied_rank * blocks + copied_block, needed]))
        is_early = np.isin(location, np.concatenate([needed, read]))
        rank, block = np.divmod(location, blocks)
        rows = np.arange(len(location))
        offsets = places.input_offset(block) - rows, places.output_offset(block) - rows
        starts = run_mask(rank, is_early, *offsets)
        head = np.flatnonzero(starts)
        copy = np.cumsum(starts) - 1
        count = np.bincount(copy, minlength=len(head))
        return cls(rank[head], block[head], count, is_early[head], location, copy)

    def find_copies(self, place: Int64Array) -> Int64Array:
        """Return the copy step of each of the given places, in their order.

        Every place must be copied; this is not checked.
        """
        return self.copy[np.searchsorted(self.place, place)]


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Steps before sorting: sends, receives, then reductions of pieces, then copies.

    `staged`: pieces that are received into SCRATCH first. `write[piece]`: row of the step that
    writes its result; the row of its SEND is the number of the piece.
    """

    columns: dict[str, Int64Array]
    round: Int64Array
    phase: Int64Array
    pieces: MessagePieces
    copies: _Copies
    staged: Int64Array
    write: Int64Array

    @classmethod
    def of(
        cls,
        plan: MessagePlan,
        accesses: BlockAccesses,
        where: EntryPlaces,
        pieces: MessagePieces,
        places: BlockPlaces,
    ) -> _Rows:
        """Build the columns of all steps: sends, receives, reductions, copies, in this order.

        A piece (adjacent blocks of a message) has one send and one receive, both in the order of
        `pieces`. A piece whose first entry has a staging slot (`where.staging` >= 0) is staged: it
        is received into SCRATCH, and one REDUCE adds it to its target, in the order of `pieces`.
        Copies are in the order of `_Copies.of`.

        - `write`: for each piece the row of the step that writes the target. It is the REDUCE of a
          staged piece, otherwise the receive. With P pieces, piece p has the send p and the receive
          P + p.
        - `round`: that of the message. Early copies have -1 (`_FIRST_ROUND`), late ones 2^40
          (`_LAST_ROUND`).
        - `phase`: 0 for sends, 1 for receives, 2 for reductions, 3 for copies.
        - `staged`: the numbers of the staged pieces, ascending.

        The steps are not sorted by rank or round.
        """
        copies = _Copies.of(plan, accesses, where, places)
        entry, message = pieces.entry, accesses.message[pieces.entry]
        sends = _build_columns(
            plan.source[message],
            np.full(len(entry), StepKind.SEND),
            pieces.count,
            source=(where.source_buffer[entry], where.source_offset[entry]),
            peer=plan.destination[message],
            channel=plan.channel[message],
        )
        staged = np.flatnonzero(where.staging[entry] >= 0)
        entry = entry[staged]
        reductions = _build_columns(
            plan.destination[message[staged]],
            np.full(len(staged), StepKind.REDUCE),
            pieces.count[staged],
            source=(np.full(len(staged), Buffer.SCRATCH), where.staging[entry]),
            target=(where.target_buffer[entry], where.target_offset[entry]),
        )
        num_copies = len(copies.rank)
        copied = _build_columns(
            copies.rank,
            np.full(num_copies, StepKind.COPY),
            copies.count,
            source=(np.full(num_copies, Buffer.INPUT), places.input_offset(copies.first)),
            target=(np.full(num_copies, Buffer.OUTPUT), places.output_offset(copies.first)),
        )
        parts = (sends, _build_receives(plan, accesses, where, pieces), reductions, copied)
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        number = len(pieces.entry)
        write = number + np.arange(number)
        write[staged] = 2 * number + np.arange(len(staged))
        rounds = plan.round[message]
        copy_rounds = np.where(copies.is_early, _FIRST_ROUND, _LAST_ROUND)
        sizes = [len(part["rank"]) for part in parts]
        return cls(
            columns,
            np.concatenate([rounds, rounds, rounds[staged], copy_rounds]),
            np.repeat(np.arange(len(parts)), sizes),
            pieces,
            copies,
            staged,
            write,
        )

    def find_data_edges(
        self, plan: MessagePlan, accesses: BlockAccesses, where: EntryPlaces
    ) -> _Edges:
        """Return (parent rows, child rows) of all data dependencies as two int64 arrays.

        A child starts after its parent. Pairs may repeat. Rows are those before sorting. A piece
        is a run of blocks of a message that one step transfers. A staged piece is received into
        SCRATCH, then added to its block by a REDUCE. The writer of a piece is its REDUCE if it is
        staged, otherwise its receive. The pairs are, in this order:

        1. last writer of a block on the sender -> send of the block
        2. previous writer of a block on the receiver -> writer of the piece
        3. send of a block -> next writer of the block on the sender
        4. receive of a staged piece -> its REDUCE
        5. REDUCE of a staged piece -> receive of the next staged piece, by round, for the same
           block of the same rank
        6. early copy (before all messages) -> send that reads the copied block in OUTPUT
        7. early copy -> REDUCE that adds to the copied block
        8. send that reads a block from INPUT -> late copy of the block on the sender
        """
        piece = self.pieces.of_entry
        writer, sender = self.write[piece], piece
        edges = [_collect_edges(accesses.read_after, writer, sender)]
        edges.append(_collect_edges(accesses.write_after, writer, writer))
        children, parents = _collect_edges(accesses.read_before, writer, sender)
        edges.append((parents, children))
        reduction = self.write[self.staged]
        edges.append((self.staged + len(self.write), reduction))
        # Collect edges from the reduction of a staged message to the next receive into its slot.
        is_staged = np.isin(self.pieces.of_entry, self.staged)
        entry = np.flatnonzero(is_staged)
        message = accesses.message[entry]
        location = plan.destination[message] * plan.num_blocks + accesses.block[entry]
        entry = entry[np.lexsort((plan.round[message], location))]
        location = np.sort(location)
        repeated = np.flatnonzero(location[1:] == location[:-1])
        piece = self.pieces.of_entry
        receive = piece + len(self.write)
        edges.append((self.write[piece[entry[repeated]]], receive[entry[repeated + 1]]))
        # Early copies precede sends of the copied block in OUTPUT, and REDUCEs that add to it.
        first = len(self.columns["rank"]) - len(self.copies.rank)
        source = plan.source[accesses.message] * plan.num_blocks + accesses.block
        target = plan.destination[accesses.message] * plan.num_blocks + accesses.block
        read, added = np.flatnonzero(where.is_copied), np.flatnonzero(where.needs_copy)
        edges.append((first + self.copies.find_copies(source[read]), piece[read]))
        edges.append((first + self.copies.find_copies(target[added]), self.write[piece[added]]))
        # In place, a late copy may overwrite the data of a send from INPUT on its rank.
        is_given = (accesses.read_after < 0) & ~where.is_copied
        late = np.flatnonzero(is_given & np.isin(source, self.copies.place))
        edges.append((piece[late], first + self.copies.find_copies(source[late])))
        return (
            np.concatenate([parent for parent, _ in edges]),
            np.concatenate([child for _, child in edges]),
        )

    def find_round_edges(self) -> _Edges:
        """Return (parent rows, child rows) that make each rank finish a round before its next one.

        Every send, receive and reduction of a rank in a round is a parent of every such step in the
        next round in which this rank has such steps. The local copies before the first and after
        the last round have no edges here. Edges are sorted by rank, round, parent row, then child
        row. Both arrays are empty if no rank has steps in two rounds.
        """
        is_message = (self.round != _FIRST_ROUND) & (self.round != _LAST_ROUND)
        rows = np.flatnonzero(is_message)
        rank, round_ = self.columns["rank"][rows], self.round[rows]
        order = np.lexsort((round_, rank))
        rows = rows[order]
        starts = run_starts(rank[order], round_[order])
        sizes = np.diff(np.append(starts, len(rows)))
        same_rank = np.flatnonzero(np.diff(rank[order][starts]) == 0)
        # Repeat every row of a group once per row of the next group of its rank.
        parent_group = np.repeat(same_rank, sizes[same_rank])
        parents = expanded_ranges(starts[same_rank], sizes[same_rank])
        times = sizes[parent_group + 1]
        children = expanded_ranges(starts[parent_group + 1], times)
        return rows[np.repeat(parents, times)], rows[children]


def _collect_edges(after: Int64Array, parent: Int64Array, child: Int64Array) -> _Edges:
    """Return the edges (parents, children) from `parent[after[i]]` to `child[i]` for every
    entry i.

    An entry is a block of a message. `after`: the entry that must come first, -1 for
    none; such entries give no edge. `parent`, `child`: rows of steps, one per entry.
    Edges from a row to itself are dropped; repeated edges remain.
    """
    entry = np.flatnonzero(after >= 0)
    pairs = parent[after[entry]], child[entry]
    # Drop edges of a step to itself.
    is_different = pairs[0] != pairs[1]
    return pairs[0][is_different], pairs[1][is_different]


def _renumber(edges: _Edges, order: Int64Array) -> _Edges:
    """Return edges between rows with the numbers that the rows have after sorting.

    `order[i]`: old number of the row at position i.
    """
    position = inverse(order)
    return position[edges[0]], position[edges[1]]


def _build_receives(
    plan: MessagePlan, accesses: BlockAccesses, where: EntryPlaces, pieces: MessagePieces
) -> dict[str, Int64Array]:
    """Return the columns of the receive steps, one per piece, in the order of `pieces`.

    The rank is the destination of the message and `peer` its source. `count` is the number of units
    (blocks) of the piece; `channel` is that of the message. The names are those of
    `_build_columns`.

    - Staged piece (its first entry has a staging slot): RECV into this slot of SCRATCH; a separate
      REDUCE adds the data later.
    - Other piece of a message that is reduced: RECV_REDUCE; the source is the operand of `where`.
    - Other piece: RECV.

    Except for staged pieces, the target is that of `where`. RECV has the source UNKNOWN at offset
    0.
    """
    entry = pieces.entry
    message = accesses.message[entry]
    is_staged = where.staging[entry] >= 0
    # Staged data is added by a separate step, once its operand is available.
    adds = plan.reduces[message] & ~is_staged
    return _build_columns(
        plan.destination[message],
        np.where(adds, StepKind.RECV_REDUCE, StepKind.RECV),
        pieces.count,
        source=(
            np.where(adds, where.operand_buffer[entry], Buffer.UNKNOWN),
            np.where(adds, where.operand_offset[entry], 0),
        ),
        target=(
            np.where(is_staged, Buffer.SCRATCH, where.target_buffer[entry]),
            np.where(is_staged, where.staging[entry], where.target_offset[entry]),
        ),
        peer=plan.source[message],
        channel=plan.channel[message],
    )


def _build_columns(
    rank: Int64Array,
    kind: Int64Array,
    count: Int64Array,
    *,
    source: tuple[Int64Array, Int64Array] | None = None,
    target: tuple[Int64Array, Int64Array] | None = None,
    peer: Int64Array | None = None,
    channel: Int64Array | None = None,
) -> dict[str, Int64Array]:
    """Return the columns of a step table by name, one entry per element of `rank`.

    The names in order: `rank`, `kind`, `peer`, `channel`, `src_buffer`, `src_offset`, `dst_buffer`,
    `dst_offset`, `count`. Given arrays are used without a copy, and their lengths are not checked.

    `source` (src) and `target` (dst): (buffers, offsets). If one is None, its buffers are UNKNOWN
    and its offsets 0. `peer` None gives -1, `channel` None gives 0, for all entries.
    """
    unused = np.full(len(rank), Buffer.UNKNOWN), np.zeros(len(rank), np.int64)
    source_buffer, source_offset = unused if source is None else source
    target_buffer, target_offset = unused if target is None else target
    return {
        "rank": rank,
        "kind": kind,
        "peer": np.full(len(rank), -1) if peer is None else peer,
        "channel": np.zeros(len(rank), np.int64) if channel is None else channel,
        "src_buffer": source_buffer,
        "src_offset": source_offset,
        "dst_buffer": target_buffer,
        "dst_offset": target_offset,
        "count": count,
    }


@dataclass(frozen=True, slots=True)
class _PlanKey:
    """Cache key of a plan: equal for plans with equal numbers of ranks, blocks and messages'
    columns.
    """

    plan: MessagePlan = field(compare=False)
    content: tuple[object, ...]

    @classmethod
    def of(cls, plan: MessagePlan) -> _PlanKey:
        """Return the cache key of a plan: numbers of ranks and blocks, bytes of all columns.

        The key keeps the plan itself, which is not compared.
        """
        columns = (
            *(plan.round, plan.source, plan.destination, plan.channel),
            *(plan.reduces, plan.indptr, plan.blocks),
        )
        content = (column.tobytes() for column in columns)
        return cls(plan, (plan.num_ranks, plan.num_blocks, *content))


# Enough for the rank orders and numbers of chunks of one algorithm.
@lru_cache(maxsize=8)
def _build_cached_steps(
    content: _PlanKey, places: BlockPlaces, is_synchronous: bool
) -> tuple[StepTable, Int64Array]:
    """Return the result of `build_steps` for the plan of `content`; the last 8 results are
    cached.

    The SCRATCH units per rank are a read-only int64 array, because callers share the
    result.
    """
    steps, scratch_units = build_steps(content.plan, places, is_synchronous=is_synchronous)
    # Read-only, because the cached array is shared.
    scratch_units.flags.writeable = False
    return steps, scratch_units
