"""Pieces of messages: blocks that lie behind one another wherever they are read or written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from collhub_columns import BoolArray, Int64Array, ordinals, row_pointer, run_mask

from collhub_classic.lowering.accesses import BlockAccesses
from collhub_classic.lowering.places import BlockPlaces
from collhub_classic.message_plan import MessagePlan
from hub_core.model import Buffer


@dataclass(frozen=True, slots=True, eq=False)
class EntryPlaces:
    """Where the block of each entry is read and written: buffers and offsets, int64 an entry.

    `source`: what is sent; `target`: where the result of the message lies; `operand`: what is added
    to it. `staging`: where a message waits in SCRATCH that must not yet be added, or -1.
    `scratch_units`: of every rank. `is_copied`: the source reads what a COPY has put into OUTPUT
    before; `needs_copy`: the destination adds to that.
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
        """Choose the places: OUTPUT where a block is wanted, else SCRATCH, packed at every rank.

        A reduce-scatter adds in SCRATCH and writes its last sum to OUTPUT, since in place OUTPUT
        is a part of INPUT.
        """
        message, block = accesses.message, accesses.block
        source, target = plan.source[message], plan.destination[message]
        is_staged = plan.reduces[message] & accesses.crosses
        in_output = places.is_wanted(target, block)
        if places.collective.kind.traits.reduces and places.collective.kind.traits.split_by_target:
            in_output &= accesses.is_last
        scratch = _ScratchSlots.of(plan, target, block, ~in_output, is_staged)
        target_buffer = np.where(in_output, Buffer.OUTPUT, Buffer.SCRATCH)
        target_offset = np.where(in_output, places.output_offset(block), scratch.slot)
        needs_copy = is_staged & (accesses.write_after < 0)
        is_given = accesses.read_after < 0
        # What is sent with other blocks is read from OUTPUT, so that the message is one piece.
        joins = _is_kept(places, source, block) & is_given & (plan.counts[message] > 1)
        early = np.concatenate(
            [
                _place_keys(plan, source[joins], block[joins]),
                _place_keys(plan, target[needs_copy], block[needs_copy]),
            ]
        )
        # In place a copy may not run beside a send of the same block.
        is_copied = is_given & np.isin(_place_keys(plan, source, block), early)
        given = places.input_offset(block)
        wanted = places.output_offset(block)
        read = _read_places(accesses.read_after, target_buffer, target_offset, given)
        added = _read_places(accesses.write_after, target_buffer, target_offset, given)
        return cls(
            np.where(is_copied, Buffer.OUTPUT, read[0]),
            np.where(is_copied, wanted, read[1]),
            target_buffer,
            target_offset,
            np.where(needs_copy, Buffer.OUTPUT, added[0]),
            np.where(needs_copy, wanted, added[1]),
            scratch.staging,
            is_copied,
            needs_copy,
            scratch.units,
        )


@dataclass(frozen=True, slots=True, eq=False)
class MessagePieces:
    """Pieces as columns: `entry` is the first entry of each, `count` its blocks."""

    entry: Int64Array
    count: Int64Array
    of_entry: Int64Array

    @classmethod
    def of(cls, accesses: BlockAccesses, places: EntryPlaces) -> MessagePieces:
        """Cut messages where any of their places does not go on behind the one before."""
        rows = np.arange(len(accesses.message))
        offsets = (places.source_offset, places.target_offset, places.operand_offset)
        # A column that rises by one from row to row is constant when the row is taken off.
        level = [offset - rows for offset in (*offsets, places.staging)]
        buffers = (places.source_buffer, places.target_buffer, places.operand_buffer)
        flags = (places.staging >= 0, places.is_copied, places.needs_copy)
        is_staged = places.staging >= 0
        level[-1] = np.where(is_staged, level[-1], 0)
        starts = run_mask(accesses.message, *level, *buffers, *flags)
        entry = np.flatnonzero(starts)
        # Numbers the pieces: an entry belongs to the last one that began.
        of_entry = np.cumsum(starts) - 1
        return cls(entry, np.bincount(of_entry, minlength=len(entry)), of_entry)


@dataclass(frozen=True, slots=True, eq=False)
class _ScratchSlots:
    """SCRATCH of every rank: first what it keeps, then what waits to be added."""

    slot: Int64Array
    staging: Int64Array
    units: Int64Array

    @classmethod
    def of(
        cls,
        plan: MessagePlan,
        rank: Int64Array,
        block: Int64Array,
        is_kept: BoolArray,
        is_staged: BoolArray,
    ) -> _ScratchSlots:
        """Number the slots of every rank; `staging` is -1 where nothing is staged."""
        place = rank * plan.num_blocks + block
        ranks, blocks = plan.num_ranks, plan.num_blocks
        slot, kept = _packed(place, is_kept, ranks, blocks)
        staging, staged = _packed(place, is_staged, ranks, blocks)
        behind = np.where(is_staged, staging + kept[rank], -1)
        return cls(slot, behind, kept + staged)


def _packed(
    place: Int64Array, is_chosen: BoolArray, ranks: int, blocks: int
) -> tuple[Int64Array, Int64Array]:
    """(slot of every entry, slots of every rank) for the chosen places, ascending in a rank."""
    used = np.unique(place[is_chosen])
    of_rank = used // blocks
    slots = ordinals(of_rank)
    slot = np.zeros(len(place), np.int64)
    slot[is_chosen] = slots[np.searchsorted(used, place[is_chosen])]
    return slot, np.bincount(of_rank, minlength=ranks)


def _place_keys(plan: MessagePlan, rank: Int64Array, block: Int64Array) -> Int64Array:
    """A number for every block of every rank."""
    return rank * plan.num_blocks + block


def _is_kept(places: BlockPlaces, rank: Int64Array, block: Int64Array) -> BoolArray:
    """Whether the rank copies the block to its OUTPUT."""
    kept_rank, kept_block = places.kept()
    kept = kept_rank * places.num_blocks + kept_block
    mask: BoolArray = np.isin(rank * places.num_blocks + block, kept)
    return mask


def _read_places(
    after: Int64Array, buffer: Int64Array, offset: Int64Array, given: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Where a block lies after the write of an entry; -1: in INPUT, as it was given."""
    is_given = after < 0
    return (
        np.where(is_given, Buffer.INPUT, buffer[after]),
        np.where(is_given, given, offset[after]),
    )


def in_block_order(plan: MessagePlan) -> MessagePlan:
    """The plan with the blocks of every message in ascending order, so that pieces are few."""
    message = np.repeat(np.arange(len(plan)), plan.counts)
    order = np.lexsort((plan.blocks, message))
    return replace(plan, blocks=plan.blocks[order], indptr=row_pointer(plan.counts))
