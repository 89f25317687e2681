"""The place of every block of a collective, and the accesses of messages to blocks.

Blocks are in INPUT if given, in OUTPUT if required, else in SCRATCH. Messages with adjacent blocks
are combined to pieces. The order in which messages access a block decides which place they read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from collhub_classic.message_plan import MessagePlan
from hub_core.columns import BoolArray, Int64Array, group_of_entry, ordinals, row_pointer, run_mask
from hub_core.model import Buffer, Collective, CollectiveKind

NONE = -1


@dataclass(frozen=True, slots=True)
class BlockPlaces:
    """The places of blocks of one unit each.

    Number of a block: its unit if the vector is not split; share * pieces + piece if it is; for an
    all-to-all (source * ranks + destination) * pieces + piece.
    """

    collective: Collective
    num_blocks: int

    @property
    def pieces(self) -> int:
        """Return the number of blocks per share: `num_blocks` divided by the number of shares.

        A share is the part of a rank if the collective has such parts, else the full buffer;
        in an all-to-all the data of a pair of ranks. The number of blocks must be a multiple
        of the number of shares; this is not checked.
        """
        kind, ranks = self.collective.kind, self.collective.num_ranks
        shares = kind.traits.parts(ranks)
        if kind is CollectiveKind.ALL_TO_ALL:
            shares *= ranks
        return self.num_blocks // shares

    def input_offset(self, block: Int64Array) -> Int64Array:
        """Return the offset of each block in the INPUT of the rank that contributes it, in
        blocks.

        `block`: block numbers; the result has the same shape. In an all-to-all, INPUT has the
        blocks in the order of their target ranks. If every rank contributes only its own
        share (as in an all-gather or gather), the blocks of this share start at 0. Otherwise
        the offset is the block number.
        """
        traits, pieces = self.collective.kind.traits, self.pieces
        share, piece = np.divmod(block, pieces)
        if traits.split_by_source and traits.split_by_target:
            return share % self.collective.num_ranks * pieces + piece
        return piece if traits.split_by_source else block

    def output_offset(self, block: Int64Array) -> Int64Array:
        """Return the offset of each block in the OUTPUT of a rank that requires it, in blocks.

        `block`: block numbers; the result has the same shape. In an all-to-all, OUTPUT has
        the blocks in the order of their source ranks. If every rank receives only its own
        share (as in a reduce-scatter or scatter), the blocks of this share start at 0.
        Otherwise the offset is the block number.
        """
        traits, pieces = self.collective.kind.traits, self.pieces
        share, piece = np.divmod(block, pieces)
        if traits.split_by_source and traits.split_by_target:
            return share // self.collective.num_ranks * pieces + piece
        return piece if traits.split_by_target else block

    def is_required(self, rank: Int64Array, block: Int64Array) -> BoolArray:
        """Return whether each rank requires the block in its OUTPUT at the end: bool per entry.

        `rank`, `block`: int64 of equal length. The share of a block is block // `pieces`. The first
        rule that applies decides:

        1. A collective to a root (reduce, gather): only the root requires blocks, and it requires
           all. A root of None counts as 0.
        2. All-to-all: the rank is share % number of ranks, the destination of the block.
        3. Other collectives that split the result (reduce-scatter, scatter): the rank is the share.
        4. All others, such as all-reduce and broadcast: every rank requires every block.
        """
        traits, share = self.collective.kind.traits, block // self.pieces
        if traits.to_root:
            return np.equal(rank, self.collective.root or 0)
        if traits.split_by_source and traits.split_by_target:
            return np.equal(rank, share % self.collective.num_ranks)
        if traits.split_by_target:
            return np.equal(rank, share)
        return np.ones(len(rank), np.bool_)

    def find_retained_blocks(self) -> tuple[Int64Array, Int64Array]:
        """Return all blocks that a rank has at the start and requires at the end, as (rank, block).

        Two int64 columns, by rank, then ascending by block. By collective:

        - reductions: no blocks
        - broadcast: all blocks, on the root
        - scatter and gather: the blocks of the root's own share, on the root
        - all-to-all: the blocks from each rank to itself
        - others, such as an all-gather: the blocks of the own share of every rank
        """
        kind, ranks = self.collective.kind, self.collective.num_ranks
        traits, pieces = kind.traits, self.pieces
        if traits.reduces:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        if kind is CollectiveKind.BROADCAST:
            share, rank = np.zeros(1, np.int64), np.asarray([self.collective.root])
        elif kind is CollectiveKind.ALL_TO_ALL:
            rank = np.arange(ranks)
            share = rank * ranks + rank
        else:
            is_rooted = traits.from_root or traits.to_root
            rank = np.asarray([self.collective.root]) if is_rooted else np.arange(ranks)
            share = rank
        block = share[:, None] * pieces + np.arange(pieces)
        return np.repeat(rank, pieces), block.ravel()


@dataclass(frozen=True, slots=True, eq=False)
class EntryPlaces:
    """Where the block of every entry is read and written: buffers and offsets, int64 per entry.

    `source`: data to send; `target`: result of the message; `operand`: data to which it is added.
    `staging`: offset in SCRATCH for a message that may not be added on arrival, or -1.
    `scratch_units`: size of SCRATCH per rank. `is_copied`: the source reads data that a COPY moved
    to OUTPUT before; `needs_copy`: the destination adds to such data.
    """

    source_buffer: Int64Array
    source_offset: Int64Array
    target_buffer: Int64Array
    target_offset: Int64Array
    operand_buffer: Int64Array
    operand_offset: Int64Array
    staging: Int64Array
    is_copied: BoolArray
    needs_copy: BoolArray
    scratch_units: Int64Array

    @classmethod
    def of(cls, plan: MessagePlan, accesses: BlockAccesses, places: BlockPlaces) -> EntryPlaces:
        """Choose where each entry (a block of a message) is read and written, in units of a block.

        A retained block is one that a rank copies from its INPUT to its OUTPUT. An earlier write of
        a block is the last one before the entry, on the sender (for `source`) or the receiver.

        - `target`: OUTPUT if the receiver needs the block (for a reduce-scatter only at the last
          write). Otherwise a SCRATCH slot of the rank, one per block, ascending from 0.
        - `source`, `operand`: `target` of the earlier write; INPUT without one.
        - `staging`: for a reduction whose receiver sends the block in the same round, a SCRATCH
          slot after all those slots; the data are added from there later. Otherwise -1.
        - `needs_copy`: staged entries without an earlier write; their `operand` is a copy in
          OUTPUT.
        - `is_copied`: entries without an earlier write whose `source` is a copy in OUTPUT. A rank
          has such a copy of a block if it is retained and sent in a message of several blocks, or
          if `needs_copy` requires it.
        """
        message, block = accesses.message, accesses.block
        source, target = plan.source[message], plan.destination[message]
        is_staged = plan.reduces[message] & accesses.crosses
        in_output = places.is_required(target, block)
        if places.collective.kind.traits.reduces and places.collective.kind.traits.split_by_target:
            in_output &= accesses.is_last
        scratch = _ScratchSlots.of(plan, target, block, ~in_output, is_staged)
        target_buffer = np.where(in_output, Buffer.OUTPUT, Buffer.SCRATCH)
        target_offset = np.where(in_output, places.output_offset(block), scratch.slot)
        needs_copy = is_staged & (accesses.write_after < 0)
        is_given = accesses.read_after < 0
        # A message of several blocks reads given blocks from OUTPUT too, so that it is one piece.
        sent = _to_place_keys(plan, source, block)
        is_retained = np.isin(sent, _to_place_keys(plan, *places.find_retained_blocks()))
        joins_message = is_retained & is_given & (plan.counts[message] > 1)
        early = np.concatenate(
            [
                _to_place_keys(plan, source[joins_message], block[joins_message]),
                _to_place_keys(plan, target[needs_copy], block[needs_copy]),
            ]
        )
        # In place, a copy may not run concurrently with a send of the same block.
        is_copied = is_given & np.isin(sent, early)
        input_offset = places.input_offset(block)
        result_offset = places.output_offset(block)
        read = _find_read_places(accesses.read_after, target_buffer, target_offset, input_offset)
        added = _find_read_places(accesses.write_after, target_buffer, target_offset, input_offset)
        return cls(
            np.where(is_copied, Buffer.OUTPUT, read[0]),
            np.where(is_copied, result_offset, read[1]),
            target_buffer,
            target_offset,
            np.where(needs_copy, Buffer.OUTPUT, added[0]),
            np.where(needs_copy, result_offset, added[1]),
            scratch.staging,
            is_copied,
            needs_copy,
            scratch.units,
        )


@dataclass(frozen=True, slots=True, eq=False)
class MessagePieces:
    """Pieces of messages as columns.

    `entry`: first entry of a piece; `count`: number of its blocks; `of_entry`: piece of every
    entry.
    """

    entry: Int64Array
    count: Int64Array
    of_entry: Int64Array

    @classmethod
    def of(cls, accesses: BlockAccesses, places: EntryPlaces) -> MessagePieces:
        """Divide every message into the longest pieces that one step can transfer each.

        An entry is a block of a message. A piece is a run of consecutive entries of one message.
        From one entry to the next, the offsets of source, target and operand increase by one, and
        that of staging too if there is one. The three buffers, the presence of staging,
        `is_copied` and `needs_copy` are equal. A new piece begins wherever one of these conditions
        fails.

        The columns are int64: first entry and number of entries per piece, in the order of the
        entries, and for every entry the number of its piece, from 0. Without entries all three are
        empty.
        """
        rows = np.arange(len(accesses.message))
        offsets = (places.source_offset, places.target_offset, places.operand_offset)
        # An offset that increases by one per row is constant after subtracting the row.
        level = [offset - rows for offset in (*offsets, places.staging)]
        buffers = (places.source_buffer, places.target_buffer, places.operand_buffer)
        flags = (places.staging >= 0, places.is_copied, places.needs_copy)
        is_staged = places.staging >= 0
        level[-1] = np.where(is_staged, level[-1], 0)
        starts = run_mask(accesses.message, *level, *buffers, *flags)
        entry = np.flatnonzero(starts)
        # Number of the last piece that has begun.
        of_entry = np.cumsum(starts) - 1
        return cls(entry, np.bincount(of_entry, minlength=len(entry)), of_entry)


@dataclass(frozen=True, slots=True, eq=False)
class BlockAccesses:
    """Accesses as columns, one entry per block of every message, in the order of the plan.

    `message`, `block`: of the entry. `read_after`: the entry whose write the source reads, or -1 if
    it reads the input. `write_after`: the entry that wrote the destination's block last, or -1.
    `read_before`: the entry whose write overwrites the data that the source reads, or -1.
    `is_last`: no later write to this block of the destination. `crosses`: in the round of the
    write, the destination sends the same block.
    """

    message: Int64Array
    block: Int64Array
    read_after: Int64Array
    write_after: Int64Array
    read_before: Int64Array
    is_last: BoolArray
    crosses: BoolArray

    @classmethod
    def of(cls, plan: MessagePlan) -> BlockAccesses:
        """Find for every entry of a plan the neighbouring writes of its block.

        An entry is a block of a message, in the order of the plan. It reads the block at the
        sender and writes it at the receiver. All accesses to a block of a rank are ordered by
        round, in a round reads before writes, then by entry. In this order:

        - `read_after`: entry of the last write at the sender before the read of this entry
        - `write_after`: entry of the last write at the receiver before the write of this entry
        - `read_before`: entry of the first write at the sender after the read of this entry
        - `is_last`: no write at the receiver follows the write of this entry
        - `crosses`: in the round of this entry, the receiver also sends the block

        The first three are int64, -1 without such a write.
        """
        message = group_of_entry(plan.indptr)
        entries = len(message)
        # The first half of the accesses are reads, the second half writes.
        rank = np.concatenate([plan.source[message], plan.destination[message]])
        location = rank * plan.num_blocks + np.tile(plan.blocks, 2)
        time = np.concatenate([plan.round[message] * 2, plan.round[message] * 2 + 1])
        order = np.lexsort((time, location))
        is_write = order >= entries
        position = np.arange(2 * entries)
        start = np.maximum.accumulate(np.where(run_mask(location[order]), position, 0))
        before = _find_last_marked(is_write, start)
        # Find per position the next marked position of its group, or -1; also whether there is
        # none.
        group = location[order]
        reversed_start = np.maximum.accumulate(
            np.where(run_mask(group[::-1]), np.arange(len(group)), 0)
        )
        reversed_last = _find_last_marked(is_write[::-1], reversed_start)
        after = np.where(reversed_last >= 0, len(group) - 1 - reversed_last, NONE)[::-1]
        is_final = after < 0
        read_before_in_round = _find_last_marked(~is_write, start)
        same_round = time[order][read_before_in_round] // 2 == time[order] // 2
        crosses = (read_before_in_round >= 0) & same_round
        entry = order % max(entries, 1)
        neighbours = {name: np.empty(2 * entries, np.int64) for name in ("before", "after")}
        neighbours["before"][order] = np.where(before >= 0, entry[before], NONE)
        neighbours["after"][order] = np.where(after >= 0, entry[after], NONE)
        last, crossing = np.empty(2 * entries, np.bool_), np.empty(2 * entries, np.bool_)
        last[order], crossing[order] = is_final, crosses
        return cls(
            message,
            plan.blocks,
            neighbours["before"][:entries],
            neighbours["before"][entries:],
            neighbours["after"][:entries],
            last[entries:],
            crossing[entries:],
        )


def sort_blocks(plan: MessagePlan) -> MessagePlan:
    """Return a plan in which the blocks of every message ascend, so that many are adjacent.

    The messages and their order are unchanged. Repeated blocks of a message remain. The
    given plan is not changed.
    """
    message = np.repeat(np.arange(len(plan)), plan.counts)
    order = np.lexsort((plan.blocks, message))
    return replace(plan, blocks=plan.blocks[order], indptr=row_pointer(plan.counts))


def _find_last_marked(is_marked: BoolArray, start: Int64Array) -> Int64Array:
    """Return for each position i the largest marked j with `start[i]` <= j < i, or -1.

    `is_marked`: bool per position; `start`: int64 per position. The result is int64 of equal
    length.
    """
    position = np.arange(len(is_marked))
    latest = np.maximum.accumulate(np.where(is_marked, position, NONE))
    earlier = np.concatenate([[NONE], latest[:-1]])[: len(is_marked)]
    return np.where(earlier >= start, earlier, NONE)


@dataclass(frozen=True, slots=True, eq=False)
class _ScratchSlots:
    """Slots in SCRATCH of every rank: first stored blocks, then staged messages.

    `slot`, `staging`: offset per entry; `units`: size per rank.
    """

    slot: Int64Array
    staging: Int64Array
    units: Int64Array

    @classmethod
    def of(
        cls,
        plan: MessagePlan,
        rank: Int64Array,
        block: Int64Array,
        is_stored: BoolArray,
        is_staged: BoolArray,
    ) -> _ScratchSlots:
        """Number the SCRATCH slots of every rank: stored blocks first, then staging slots.

        Entry i puts block `block[i]` on rank `rank[i]`. A slot has the size of one block.
        Entries of `is_stored` have a slot for stored blocks, entries of `is_staged` a staging
        slot; an entry may have both. Entries of one kind with equal rank and block share a
        slot.

        - Stored slots count from 0 on every rank, ascending by block. Other entries have a 0,
          which has no meaning.
        - Staging slots count on from the last stored slot of the rank, ascending by block.
          Other entries have -1.

        The result also has the number of slots of every rank, both kinds together.
        """
        location = rank * plan.num_blocks + block
        ranks, blocks = plan.num_ranks, plan.num_blocks
        slot, stored_count = _number_slots(location, is_stored, ranks, blocks)
        staging, staged_count = _number_slots(location, is_staged, ranks, blocks)
        staging_offset = np.where(is_staged, staging + stored_count[rank], -1)
        return cls(slot, staging_offset, stored_count + staged_count)


def _number_slots(
    location: Int64Array, is_chosen: BoolArray, ranks: int, blocks: int
) -> tuple[Int64Array, Int64Array]:
    """Number the distinct chosen locations within each rank from 0, ascending.

    `location`: int64 per entry, rank * `blocks` + block. Returns (slot of every entry, 0 if it is
    not chosen; number of slots of every rank, int64[ranks]). Entries with equal locations share a
    slot.
    """
    used = np.unique(location[is_chosen])
    of_rank = used // blocks
    slots = ordinals(of_rank)
    slot = np.zeros(len(location), np.int64)
    slot[is_chosen] = slots[np.searchsorted(used, location[is_chosen])]
    return slot, np.bincount(of_rank, minlength=ranks)


def _to_place_keys(plan: MessagePlan, rank: Int64Array, block: Int64Array) -> Int64Array:
    """Return rank * number of blocks + block, int64: unique for each pair of rank and block."""
    return rank * plan.num_blocks + block


def _find_read_places(
    after: Int64Array, buffer: Int64Array, offset: Int64Array, input_offset: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return (buffer, offset) in which each block is after a write, with one entry per block.

    `after`: number of the write. `buffer`, `offset`: where each write stores, by its number.
    If `after` is -1, nothing was written: the block is in INPUT at `input_offset` (one entry per
    block).
    """
    is_given = after < 0
    return (
        np.where(is_given, Buffer.INPUT, buffer[after]),
        np.where(is_given, input_offset, offset[after]),
    )
