"""Requests of groups, the shares of data that they transfer, and pieces and trees of shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collhub_flows.optimal_flow import FlowDemand
from hub_core import resolve_counts
from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Float64Array,
    Int64Array,
    counted_positions,
    expanded_ranges,
    first_positions,
    group_of_entry,
    row_pointer,
)
from hub_core.model import (
    ALL_RANKS,
    STANDARD_KINDS,
    UNEVEN_KINDS,
    Collective,
    CollectiveKind,
    InputError,
    ReduceOp,
    UnitCounts,
    UsageError,
    parse_ranks,
    parse_size,
    parse_time,
    standard_kind,
    uneven_kind,
)
from hub_core.schedules import Chunks

_CURE = "write --groups '0-7,8-15', or '0,5,9;1,2,4' where groups are no ranges"
_FIELDS = (
    "NPUS[:COLLECTIVE[:SIZE[:START[:COUNTS]]]], as 0-7:all-gather:1MiB:20us or "
    "0-7:all-to-all-v:1MiB::zipf:1.2"
)
# Later starts than this number of ns are refused: no job waits that long.
_MAX_START_NS = 10**15


@dataclass(frozen=True, slots=True)
class GroupWish:
    """A requested collective of `size` bytes among `npus`; its rank r runs on `npus[r]`.

    A rooted collective has its root on the first NPU. `start_ns`: time at which its data are ready
    on all of its NPUs; no message of the group is sent before. `counts`: units of the parts of an
    uneven collective, None for all other collectives. They are divided by their greatest common
    divisor, so that equal exchanges have equal counts. `counts_text`: the text that states them,
    for reports.
    """

    npus: tuple[int, ...]
    kind: CollectiveKind
    size: int
    reduce_op: ReduceOp = ReduceOp.SUM
    start_ns: int = 0
    counts: UnitCounts | None = None
    counts_text: str = ""

    def __post_init__(self) -> None:
        """Divide the counts by their greatest common divisor."""
        if self.counts is not None:
            # A frozen class has no other way to set an attribute.
            object.__setattr__(self, "counts", self.counts.in_blocks(self.counts.common_divisor))

    def collective(self, units: int) -> Collective:
        """Return the collective of the group, in place, with this number of units per share.

        A share of an uneven collective has `units` units per unit of its count. Ranks are numbered
        within the group. A rooted collective has root 0, the first NPU of the group.
        """
        counts = None if self.counts is None else self.counts.multiplied(units)
        return Collective(
            self.kind,
            len(self.npus),
            units * self.shares if counts is None else counts.total,
            root=0 if self.kind.traits.is_rooted else None,
            in_place=True,
            reduce_op=self.reduce_op,
            counts=counts,
        )

    @property
    def shares(self) -> int:
        """Return the number of equal parts of the full buffer.

        It is the number of ranks for an all-reduce, because a single vector would load a single
        root, and for every kind that splits the buffer, also an all-to-all, whose `share_counts`
        have one entry per pair; otherwise 1. The collective must have no counts (not checked).
        """
        # An all-reduce has a share per rank, because a single vector would load a single root.
        if self.kind is CollectiveKind.ALL_REDUCE:
            return len(self.npus)
        return self.kind.traits.parts(len(self.npus))

    @property
    def share_counts(self) -> Int64Array:
        """Units of every share, int64 in the order of `create_share_chunks`.

        - Uneven collective: its counts row by row, without zeros.
        - All-to-all: 1 for every ordered pair of ranks, also of a rank with itself.
        - Any other kind: 1 for each of the `shares` equal parts of the buffer.
        """
        if self.counts is not None:
            units = self.counts.table.ravel()
            return units[units > 0]
        traits = self.kind.traits
        is_for_pairs = traits.split_by_source and traits.split_by_target
        return np.ones(self.shares**2 if is_for_pairs else self.shares, np.int64)

    @property
    def share_bytes(self) -> Float64Array:
        """Size of every share in bytes, float64 in the order of `share_counts`.

        It need not be an integer.
        """
        return np.asarray(self.share_counts * (self.size / self.total_units), np.float64)

    @property
    def total_units(self) -> int:
        """Units of the full buffer: the sum of the counts, or 1 per equal part."""
        return self.shares if self.counts is None else self.counts.total

    def find_factor(self, share_units: int) -> int:
        """Return the least number by which units must be divided to divide shares.

        Every share is to have at least `share_units` units. For a collective with equal parts it is
        `share_units`, for counts of at least `share_units` it is 1.
        """
        return -(-share_units // int(self.share_counts.min()))


@dataclass(frozen=True, slots=True)
class CommonWish:
    """Default collective, size and counts of groups; None if there is no default.

    The counts are those of groups with an uneven collective.
    """

    kind: str | None = None
    size: str | None = None
    reduce_op: ReduceOp = ReduceOp.SUM
    counts: str | None = None


def parse_groups(
    together: str | None, single: Sequence[str], common: CommonWish
) -> tuple[GroupWish, ...]:
    """Parse the groups of `--groups`, then of every `--group`, in this order.

    `together`: lists of NPUs, separated by semicolons, or by commas if there is no semicolon; blank
    lists are dropped; None: none. `single`: texts of the form
    `NPUS[:COLLECTIVE[:SIZE[:START[:COUNTS]]]]`. START is a time with a unit, at most 1e6 s, by
    default 0. Other absent and empty fields have the values of `common`. Groups may overlap.

    Raises `UsageError` for an invalid text, a group of one NPU, and a missing collective, size or
    counts. Also for counts of a group without an uneven collective, counts in `common` without any
    uneven group, and if there is no group (`no-groups`). Raises `InputError` for an invalid file of
    counts.
    """
    texts: list[str] = []
    if together is not None:
        separator = ";" if ";" in together else ","
        texts = [text for text in together.split(separator) if text.strip()]
    # A list of NPUs has no colon, so both forms have the same parser.
    wishes = tuple(_parse_group(text, common) for text in (*texts, *single))
    if not wishes:
        raise UsageError("no group is named", cure=_CURE, code="no-groups")
    if common.counts is not None and not any(wish.counts for wish in wishes):
        kinds = ", ".join(UNEVEN_KINDS)
        message = "--counts has no meaning: no group has an uneven collective"
        raise UsageError(message, cure=f"leave it out, or name one of {kinds}")
    return wishes


def check_groups(wishes: Sequence[GroupWish], num_npus: int, topology: str) -> None:
    """Raise `UsageError` for the first group with an NPU that the topology lacks.

    NPUs are 0 to `num_npus` - 1; the message names the highest one of the group, and `topology`.
    """
    for wish in wishes:
        highest = max(wish.npus)
        if highest >= num_npus:
            raise UsageError(
                f"topology {topology} has no NPU {highest}",
                cure=f"name NPUs of 0..{num_npus - 1}",
                code="npu-range",
            )


def _parse_group(text: str, common: CommonWish) -> GroupWish:
    # The text of counts, such as `zipf:1.2`, may contain colons.
    fields = text.split(":", 4)
    # Empty fields have the default values.
    values = [*fields, "", "", "", ""]
    kind, size = values[1] or common.kind, values[2] or common.size
    if not kind or not size:
        missing = "size" if kind else "collective"
        message = f"group {text[:80]!r}: its {missing} is not said"
        raise UsageError(message, cure=f"give --{missing}, or write {_FIELDS}")
    npus = parse_ranks(fields[0], "NPU")
    if len(npus) < 2:
        message = f"group {text[:80]!r} has one NPU, which has nobody to talk to"
        raise UsageError(message, cure=_CURE, code="group-of-one")
    start_ns = round(parse_time(values[3]) * 1e9) if values[3] else 0
    if start_ns > _MAX_START_NS:
        message = f"group {text[:80]!r} starts too late"
        raise UsageError(message, cure="give a start of at most 1e6 s", code="invalid-group")
    parsed = standard_kind(kind) or uneven_kind(kind)
    if parsed is None:
        known = ", ".join(map(str, (*STANDARD_KINDS, *UNEVEN_KINDS)))
        message = f"group {text[:80]!r}: there is no collective {kind[:40]!r}"
        raise UsageError(message, cure=f"use one of {known}", code="unknown-collective")
    counts_text = values[4] or (common.counts if parsed.traits.is_uneven else None)
    try:
        size_cure = "give one count per NPU of the group"
        name = "its fifth field COUNTS"
        counts = resolve_counts(counts_text, parsed, len(npus), size_cure, name)
    except (InputError, UsageError) as error:
        finding = error.diagnostics[0]
        # The text of counts may be that of the group or of --counts.
        message = f"group {text[:80]!r}: {finding.message.removeprefix('--counts ')}"
        raise type(error)(message, cure=finding.cure, code=finding.code) from None
    size_bytes = parse_size(size)
    return GroupWish(
        npus, parsed, size_bytes, common.reduce_op, start_ns, counts, counts_text or ""
    )


@dataclass(frozen=True, slots=True, eq=False)
class Shares(ColumnTable):
    """One row per transferred share; `row`: its index among the shares of its `group`.

    `root`: the NPU where it starts, or where it is reduced. `gathers`: all members contribute to it
    on the path to the root; `spreads`: it is sent from the root to `target`, or to all members if
    `target` is -1. `bytes`: float64; the remaining columns are int64 and bool.
    """

    group: Int64Array
    row: Int64Array
    root: Int64Array
    target: Int64Array
    gathers: BoolArray
    spreads: BoolArray
    bytes: Float64Array

    @classmethod
    def of(cls, wishes: Sequence[GroupWish]) -> Shares:
        """Create the shares of all groups as columns, sorted by group.

        Groups are numbered from 0 in the order of `wishes`, of which at least one is needed. The
        shares of a group are in the order of `create_share_chunks`, without those that stay on
        their rank: those that are no sum and whose only target is their root. `row` is the index
        among all shares of the group, including these.

        - Root of a share that is no sum: the NPU that has the data. Of a sum that one NPU needs:
          this NPU. Of a sum k that all members need: member k mod members.
        - Target: the NPU that needs the share, -1 if all members need it.
        - Only a sum that one NPU needs is not sent from its root.
        - Sizes in bytes need not be integers.
        """
        tables = []
        for number, wish in enumerate(wishes):
            chunks = create_share_chunks(wish, 1)
            members = np.asarray(wish.npus)
            summed, wide = chunks.origin == ALL_RANKS, chunks.target == ALL_RANKS
            # Sums for all members have their roots on the members, round robin.
            round_robin = np.arange(len(chunks)) % len(members)
            end = np.where(wide, round_robin, chunks.target)
            root = members[np.where(summed, end, chunks.origin)]
            target = np.where(wide, -1, members[chunks.target])
            # Shares that stay at their rank are not transferred.
            row = np.flatnonzero(summed | wide | (root != target))
            group = np.full(len(row), number, np.int64)
            spreads, size = (wide | ~summed)[row], wish.share_bytes[row]
            tables.append((group, row, root[row], target[row], summed[row], spreads, size))
        columns = (np.concatenate(column) for column in zip(*tables, strict=True))
        return cls(*columns)

    @property
    def are_pairs(self) -> bool:
        """True if every share is sent from one NPU to one other NPU, without reductions."""
        return not bool(self.gathers.any()) and bool(np.all(self.target >= 0))

    def demand(self, num_npus: int) -> FlowDemand:
        """Return the demand between pairs of NPUs, as fractions of the bytes of the largest pair.

        All shares must have one root and one target. The rows of the table are the NPUs that send.
        Overlapping groups may have several shares for one pair; their bytes add up.
        """
        table = np.zeros((num_npus, num_npus))
        # Groups that overlap may have several shares for one pair.
        np.add.at(table, (self.root, self.target), self.bytes)
        sources = np.flatnonzero(table.any(axis=1))
        return FlowDemand(sources, table[sources] / table.max())


def create_share_chunks(wish: GroupWish, units: int) -> Chunks:
    """Return one chunk for every share of a group, also for shares that stay on their rank.

    A share is a part of the data with one source or sum. Its chunk has `units` units; that
    of an uneven collective has `units` times its count, and shares with count 0 have no
    chunk. The chunks are in the order of `Chunks.cut`: for an all-to-all by source rank,
    then target rank.
    """
    collective = wish.collective(units)
    if wish.counts is not None:
        return Chunks.of_blocks(collective)
    # More than one if an unsplit vector has a share per rank.
    pieces = collective.units_per_rank // units
    return Chunks.cut(collective, [units] * pieces)


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Piece p is `units[p]` units of share `share[p]`, from `offset[p]` on; int64, by share.

    A share has `share_units` units; `number[p]`: index of the piece in its share.
    """

    share: Int64Array
    offset: Int64Array
    units: Int64Array
    number: Int64Array
    share_units: int

    @classmethod
    def one_behind_another(cls, share: Int64Array, units: Int64Array, share_units: int) -> Pieces:
        """Create pieces that follow one another within each share, the first at offset 0.

        `share`: share of each piece, ascending from 0 without gaps. `units`: size of each piece.
        `share_units`: size of a share.
        """
        begin = first_positions(units)
        counts = np.bincount(share)
        first = begin[first_positions(counts)]
        return cls(share, begin - first[share], units, counted_positions(counts), share_units)

    def cut(self, parts: int) -> Pieces:
        """Divide every piece of data into `parts` equal, adjacent parts; return them as new pieces.

        The size of a unit becomes 1 / `parts` of the previous one, so `units` of a part is that of
        its piece, `share_units` is multiplied by `parts`, and part k begins at offset * `parts` + k
        * units. Part k of piece p is row p * `parts` + k. In a share of n pieces, part k of the
        piece with number i gets the number k * n + i. The numbers order the transfer, so all first
        parts come before all second parts.
        """
        piece = np.repeat(np.arange(len(self.share)), parts)
        part = np.tile(np.arange(parts), len(self.share))
        units = self.units[piece]
        pieces_of_share = np.bincount(self.share)[self.share[piece]]
        return Pieces(
            self.share[piece],
            self.offset[piece] * parts + part * units,
            units,
            # The first parts of all pieces have lower numbers than the second ones.
            part * pieces_of_share + self.number[piece],
            self.share_units * parts,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Tree t carries piece `piece[t]` on the entries `indptr[t]:indptr[t + 1]`; int64 and bool.

    Entry e is the arc `arcs[e]`, and its parent is entry `parent[e]`, -1 at the root. In `inward`
    trees data flow towards the root, else away from it. A piece with two trees uses the inward tree
    first.
    """

    pieces: Pieces
    piece: Int64Array
    inward: BoolArray
    indptr: Int64Array
    arcs: Int64Array
    parent: Int64Array

    @property
    def tree_of_entry(self) -> Int64Array:
        """The tree of every entry, int64."""
        return group_of_entry(self.indptr)

    def cut(self, parts: int) -> Trees:
        """Return the trees for pieces that are divided: one copy of a tree per part.

        `parts`: parts of each piece. Part k of piece p is piece p * parts + k. The copies of a tree
        are adjacent and have the same arcs and direction; parents refer to entries of the same
        copy.
        """
        trees = len(self.piece)
        # Copies of a tree are adjacent, so that its pieces are in order.
        tree = np.repeat(np.arange(trees), parts)
        copy = np.tile(np.arange(parts), trees)
        lengths = np.diff(self.indptr)[tree]
        entry = expanded_ranges(self.indptr[tree], lengths)
        indptr = row_pointer(lengths)
        shift = np.repeat(indptr[:-1] - self.indptr[tree], lengths)
        hung = self.parent[entry]
        parent = np.where(hung < 0, -1, hung + shift)
        piece = self.piece[tree] * parts + copy
        return Trees(
            self.pieces.cut(parts), piece, self.inward[tree], indptr, self.arcs[entry], parent
        )
