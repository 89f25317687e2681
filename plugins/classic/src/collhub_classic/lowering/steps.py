"""The steps of a plan, with the dependencies that its memory asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array, expanded_ranges, run_mask, run_starts

from collhub_classic.lowering.accesses import BlockAccesses
from collhub_classic.lowering.pieces import EntryPlaces, MessagePieces, in_block_order
from collhub_classic.lowering.places import BlockPlaces
from collhub_classic.message_plan import MessagePlan
from hub_core.model import Buffer, StepKind, StepTable

_Edges = tuple[Int64Array, Int64Array]
# Copies that come before all rounds, and those that come last.
_BEFORE, _BEHIND = -1, 1 << 40


def steps_of(
    plan: MessagePlan, places: BlockPlaces, *, is_synchronous: bool
) -> tuple[StepTable, Int64Array]:
    """The steps of a plan whose blocks have these places, and the units of SCRATCH of every rank.

    A message is a SEND and a RECV, or RECV_REDUCE, for every piece of it that lies together. One
    that must wait until its destination has sent the same block on, as in an exchange of whole
    vectors, is received into SCRATCH and then added by a REDUCE, so that no send waits for a
    receive. Data dependencies are those of the memory, for calls in place and out of place: reads
    after writes, writes after reads and writes.

    `is_synchronous`: every rank also ends a round before it begins its next one, as blocking calls
    do. Cost: sorts of the blocks of all messages, and for synchronous rounds the product of a
    rank's steps in neighbouring rounds.
    """
    ordered = in_block_order(plan)
    accesses = BlockAccesses.of(ordered)
    where = EntryPlaces.of(ordered, accesses, places)
    pieces = MessagePieces.of(accesses, where)
    rows = _Rows.of(ordered, accesses, where, pieces, places)
    data = rows.data_edges(ordered, accesses, where)
    control = rows.round_edges() if is_synchronous else (data[0][:0], data[1][:0])
    order = np.lexsort((rows.phase, rows.round, rows.columns["rank"]))
    table = StepTable.from_columns(
        places.collective.num_ranks,
        {name: column[order] for name, column in rows.columns.items()},
        _moved(data, order),
        _moved(control, order),
    )
    return table, where.scratch_units


@dataclass(frozen=True, slots=True, eq=False)
class _Copies:
    """COPY steps from INPUT to OUTPUT: pieces of blocks of one rank, `early` ones before all else.

    `place`: a number for every block of every rank that is copied, ascending; `copy`: of each.
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
        blocks = plan.num_blocks
        kept_rank, kept_block = places.kept()
        added = where.needs_copy
        target = plan.destination[accesses.message]
        source = plan.source[accesses.message]
        needed = target[added] * blocks + accesses.block[added]
        read = source[where.is_copied] * blocks + accesses.block[where.is_copied]
        place = np.unique(np.concatenate([kept_rank * blocks + kept_block, needed]))
        is_early = np.isin(place, np.concatenate([needed, read]))
        rank, block = np.divmod(place, blocks)
        rows = np.arange(len(place))
        offsets = places.input_offset(block) - rows, places.output_offset(block) - rows
        starts = run_mask(rank, is_early, *offsets)
        head = np.flatnonzero(starts)
        copy = np.cumsum(starts) - 1
        count = np.bincount(copy, minlength=len(head))
        return cls(rank[head], block[head], count, is_early[head], place, copy)

    def at(self, place: Int64Array) -> Int64Array:
        """The copy of each of these places, which all are copied."""
        return self.copy[np.searchsorted(self.place, place)]


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Steps before they are ordered: sends, receives, then reductions of pieces, then copies.

    `send`, `write`: by piece, the row of its SEND, and of the step that writes its result.
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
        copies = _Copies.of(plan, accesses, where, places)
        staged = np.flatnonzero(where.staging[pieces.entry] >= 0)
        parts = (
            _sends(plan, accesses, where, pieces),
            _receives(plan, accesses, where, pieces),
            _reductions(plan, accesses, where, pieces, staged),
            _copy_columns(copies, places),
        )
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        number = len(pieces.entry)
        write = number + np.arange(number)
        write[staged] = 2 * number + np.arange(len(staged))
        rounds = plan.round[accesses.message[pieces.entry]]
        copied = np.where(copies.is_early, _BEFORE, _BEHIND)
        sizes = [len(part["rank"]) for part in parts]
        return cls(
            columns,
            np.concatenate([rounds, rounds, rounds[staged], copied]),
            np.repeat(np.arange(len(parts)), sizes),
            pieces,
            copies,
            staged,
            write,
        )

    def data_edges(self, plan: MessagePlan, accesses: BlockAccesses, where: EntryPlaces) -> _Edges:
        """(parent, child) rows of all dependencies."""
        piece = self.pieces.of_entry
        writer, sender = self.write[piece], piece
        edges = [_known(accesses.read_after, writer, sender)]
        edges.append(_known(accesses.write_after, writer, writer))
        children, parents = _known(accesses.read_before, writer, sender)
        edges.append((parents, children))
        reduction = self.write[self.staged]
        edges.append((self.staged + len(self.write), reduction))
        edges.append(self._staging_edges(plan, accesses))
        edges += self._copy_edges(plan, accesses, where)
        return (
            np.concatenate([parent for parent, _ in edges]),
            np.concatenate([child for _, child in edges]),
        )

    def round_edges(self) -> _Edges:
        """(parent, child) rows: all steps of a rank in one round before all in its next one."""
        is_message = (self.round != _BEFORE) & (self.round != _BEHIND)
        rows = np.flatnonzero(is_message)
        rank, round_ = self.columns["rank"][rows], self.round[rows]
        order = np.lexsort((round_, rank))
        rows = rows[order]
        starts = run_starts(rank[order], round_[order])
        sizes = np.diff(np.append(starts, len(rows)))
        same_rank = np.flatnonzero(np.diff(rank[order][starts]) == 0)
        # Every row of a group, as often as the next group of its rank has rows.
        parent_group = np.repeat(same_rank, sizes[same_rank])
        parents = expanded_ranges(starts[same_rank], sizes[same_rank])
        times = sizes[parent_group + 1]
        children = expanded_ranges(starts[parent_group + 1], times)
        return rows[np.repeat(parents, times)], rows[children]

    def _staging_edges(self, plan: MessagePlan, accesses: BlockAccesses) -> _Edges:
        """What waits in SCRATCH is added before the next message takes its place."""
        is_staged = np.isin(self.pieces.of_entry, self.staged)
        entry = np.flatnonzero(is_staged)
        message = accesses.message[entry]
        place = plan.destination[message] * plan.num_blocks + accesses.block[entry]
        entry = entry[np.lexsort((plan.round[message], place))]
        place = np.sort(place)
        again = np.flatnonzero(place[1:] == place[:-1])
        piece = self.pieces.of_entry
        receive = piece + len(self.write)
        return self.write[piece[entry[again]]], receive[entry[again + 1]]

    def _copy_edges(
        self, plan: MessagePlan, accesses: BlockAccesses, where: EntryPlaces
    ) -> list[_Edges]:
        """Early copies before what uses them, other ones behind the sends of what they copy."""
        first = len(self.columns["rank"]) - len(self.copies.rank)
        blocks, piece = plan.num_blocks, self.pieces.of_entry
        source = plan.source[accesses.message] * blocks + accesses.block
        target = plan.destination[accesses.message] * blocks + accesses.block
        read, added = np.flatnonzero(where.is_copied), np.flatnonzero(where.needs_copy)
        edges = [
            (first + self.copies.at(source[read]), piece[read]),
            (first + self.copies.at(target[added]), self.write[piece[added]]),
        ]
        is_given = (accesses.read_after < 0) & ~where.is_copied
        late = np.flatnonzero(is_given & np.isin(source, self.copies.place))
        edges.append((piece[late], first + self.copies.at(source[late])))
        return edges


def _known(after: Int64Array, parent: Int64Array, child: Int64Array) -> _Edges:
    """(parent of the entry that `after` names, child of the entry), where there is one."""
    entry = np.flatnonzero(after >= 0)
    pairs = parent[after[entry]], child[entry]
    # Blocks of one piece meet blocks of one other piece: an edge of each pair is enough.
    is_other = pairs[0] != pairs[1]
    return pairs[0][is_other], pairs[1][is_other]


def _moved(edges: _Edges, order: Int64Array) -> _Edges:
    """Edges between rows that were put in another order."""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return position[edges[0]], position[edges[1]]


def _sends(
    plan: MessagePlan, accesses: BlockAccesses, where: EntryPlaces, pieces: MessagePieces
) -> dict[str, Int64Array]:
    entry = pieces.entry
    message = accesses.message[entry]
    return _columns(
        plan.source[message],
        np.full(len(entry), StepKind.SEND),
        pieces.count,
        source=(where.source_buffer[entry], where.source_offset[entry]),
        peer=plan.destination[message],
        channel=plan.channel[message],
    )


def _receives(
    plan: MessagePlan, accesses: BlockAccesses, where: EntryPlaces, pieces: MessagePieces
) -> dict[str, Int64Array]:
    entry = pieces.entry
    message = accesses.message[entry]
    is_staged = where.staging[entry] >= 0
    # What is staged is added by a step of its own, when its operand is there.
    adds = plan.reduces[message] & ~is_staged
    return _columns(
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


def _reductions(
    plan: MessagePlan,
    accesses: BlockAccesses,
    where: EntryPlaces,
    pieces: MessagePieces,
    staged: Int64Array,
) -> dict[str, Int64Array]:
    entry = pieces.entry[staged]
    return _columns(
        plan.destination[accesses.message[entry]],
        np.full(len(entry), StepKind.REDUCE),
        pieces.count[staged],
        source=(np.full(len(entry), Buffer.SCRATCH), where.staging[entry]),
        target=(where.target_buffer[entry], where.target_offset[entry]),
    )


def _copy_columns(copies: _Copies, places: BlockPlaces) -> dict[str, Int64Array]:
    number = len(copies.rank)
    return _columns(
        copies.rank,
        np.full(number, StepKind.COPY),
        copies.count,
        source=(np.full(number, Buffer.INPUT), places.input_offset(copies.first)),
        target=(np.full(number, Buffer.OUTPUT), places.output_offset(copies.first)),
    )


def _columns(
    rank: Int64Array,
    kind: Int64Array,
    count: Int64Array,
    *,
    source: tuple[Int64Array, Int64Array] | None = None,
    target: tuple[Int64Array, Int64Array] | None = None,
    peer: Int64Array | None = None,
    channel: Int64Array | None = None,
) -> dict[str, Int64Array]:
    """Columns of a step table, int64; sides, peers and channels that are not given are unused."""
    nothing = np.full(len(rank), Buffer.UNKNOWN), np.zeros(len(rank), np.int64)
    source_buffer, source_offset = nothing if source is None else source
    target_buffer, target_offset = nothing if target is None else target
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
