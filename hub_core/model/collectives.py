"""Definition of collectives: contents of the buffers before, and required contents afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Int64Array,
    counted_positions,
    group_of_entry,
    row_pointer,
)
from hub_core.model.counts import UnitCounts
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import Buffer, CollectiveKind, ReduceOp

MAX_CONTRACT_UNITS = 1 << 26
"""Maximum number of units of all ranks that `Collective.postcondition` lists (2 GiB)."""

# Products of ranks by ranks, and of units by ranks, stay within int64.
MAX_RANKS = 1 << 20
MAX_UNITS = 1 << 62
# As source rank: the row represents one contribution of every rank.
ALL_RANKS = -1


@dataclass(frozen=True, slots=True)
class Contributions(ColumnTable):
    """A relation between output units and contributions: one row per pair, int64 columns.

    Row i: unit `offset[i]` of the OUTPUT of rank `rank[i]` must contain the contribution
    (`source_rank[i]`, `source_unit[i]`), the unit at `source_unit` in the INPUT of `source_rank`
    before the collective. `source_rank` -1 abbreviates one row per rank. Several rows of one output
    unit are reduced; output units without rows may have any contents.
    """

    rank: Int64Array
    offset: Int64Array
    source_rank: Int64Array
    source_unit: Int64Array

    def where(self, mask: BoolArray) -> Contributions:
        """Return the rows selected by `mask`, bool[rows]."""
        return Contributions(
            self.rank[mask], self.offset[mask], self.source_rank[mask], self.source_unit[mask]
        )

    def with_ranks_named(self, num_ranks: int) -> Contributions:
        """Return the same relation with one row per source rank for every row of `ALL_RANKS`.

        The new rows take the place of the old one, with source ranks 0 to `num_ranks` - 1. Returns
        the object itself if there is no such row.
        """
        is_everyone = self.source_rank == ALL_RANKS
        if not is_everyone.any():
            return self
        times = np.where(is_everyone, num_ranks, 1)
        row = np.repeat(np.arange(len(self)), times)
        named = np.where(is_everyone[row], counted_positions(times), self.source_rank[row])
        return Contributions(self.rank[row], self.offset[row], named, self.source_unit[row])


@dataclass(frozen=True, slots=True)
class CustomContract:
    """The definition of a custom collective.

    `input_units` and `output_units`: int64[num_ranks], buffer sizes in units. `defined`:
    bool[num_ranks], INPUT of the rank contains data before. `expected`: required contents
    afterwards, or None if the source does not define them; contents then cannot be verified.
    """

    input_units: Int64Array
    output_units: Int64Array
    defined: BoolArray
    expected: Contributions | None = None


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Addresses of all buffers in one flat memory of units; aliased buffers share addresses.

    `base` and `size`: int64[num_ranks, 3], indexed by `Buffer`; the address of unit k of a buffer
    is `base[rank, buffer] + k`, valid for 0 <= k < `size[rank, buffer]`. `total`: number of
    addresses.
    """

    base: Int64Array
    size: Int64Array
    total: int


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over ranks 0..num_ranks-1 whose full buffer is divided into equal units.

    Full buffer, of `unit_count` units: all-reduce, broadcast, reduce: the vector; all-gather: the
    gathered output; reduce-scatter: the input; all-to-all: one rank's buffer; gather, scatter: the
    large buffer of the root; custom: as in its contract. Uneven kinds have parts of the sizes in
    `counts`, and `unit_count` is the sum of all counts (all-to-all-v: of all pairs, including data
    that stay on their rank). `in_place`, `out_of_place`: calls for which the algorithm claims to be
    correct, at least one. Raises `InputError` for inconsistent values.
    """

    kind: CollectiveKind
    num_ranks: int
    unit_count: int
    root: int | None = None
    in_place: bool = False
    out_of_place: bool = True
    reduce_op: ReduceOp = ReduceOp.SUM
    contract: CustomContract | None = None
    counts: UnitCounts | None = None

    def __post_init__(self) -> None:
        if reason := self._defect() or self._counts_defect():
            message = f"{self.kind} of {self.num_ranks} ranks: {reason}"
            raise InputError(message, code="invalid-collective")

    def _defect(self) -> str | None:
        """Return a text about the first defect of all fields but the counts, or None.

        Checked in this order: 1 to `MAX_RANKS` ranks; 1 to 2^62 units; a root that is a rank if the
        kind has one, and no root if not; the unit count is a multiple of the number of parts of the
        buffer; a custom collective has a contract, and others have none; at least one of in place
        and out of place is claimed.
        """
        if not 1 <= self.num_ranks <= MAX_RANKS:
            return f"the number of ranks is not in 1..{MAX_RANKS}"
        if not 1 <= self.unit_count <= MAX_UNITS:
            return f"unit_count {self.unit_count} is not in 1..2^62"
        is_rooted = self.kind.traits.is_rooted
        if is_rooted and (self.root is None or not 0 <= self.root < self.num_ranks):
            return f"root {self.root} is not a rank"
        if not is_rooted and self.root is not None:
            return f"a root ({self.root}) has no meaning here"
        if self.unit_count % self.kind.traits.parts(self.num_ranks):
            return f"unit_count {self.unit_count} is not a multiple of the number of ranks"
        if (self.contract is not None) != (self.kind is CollectiveKind.CUSTOM):
            return "a contract belongs to custom collectives, and only to them"
        if not (self.in_place or self.out_of_place):
            return "neither in place nor out of place"
        return None

    def _counts_defect(self) -> str | None:
        """Return the first defect of the table of counts as a text, or None.

        The conditions are checked in this order: a table is present exactly if the kind is uneven
        (without both, the result is None); the table has one count per rank or per ordered pair of
        ranks, as the kind requires; it is for `num_ranks` ranks; its sum is `unit_count`.
        """
        traits, counts = self.kind.traits, self.counts
        if (counts is not None) != traits.is_uneven:
            return "a table of counts belongs to uneven collectives, and only to them"
        if counts is None:
            return None
        if counts.is_per_pair != traits.has_counts_per_pair:
            expected = "ordered pair of ranks" if traits.has_counts_per_pair else "rank"
            return f"the table of counts has another shape, expected one count per {expected}"
        if counts.num_ranks != self.num_ranks:
            return f"the table of counts is for {counts.num_ranks} ranks"
        if counts.total != self.unit_count:
            return f"the counts sum to {counts.total} units, expected unit_count {self.unit_count}"
        return None

    @property
    def units_per_rank(self) -> int:
        """Units of one rank's part of the full buffer; `unit_count` if the buffer is not split.

        Raises `InputError` (`uneven-parts`) for an uneven collective, whose parts differ in size.
        """
        if self.kind.traits.is_uneven:
            raise InputError(
                f"{self.kind} has parts of different sizes, expected a collective of equal parts",
                cure=f"use {self.kind.removesuffix('-v')}, or a format that lists {self.kind}",
                code="uneven-parts",
            )
        return self.unit_count // self.kind.traits.parts(self.num_ranks)

    @property
    def reduces(self) -> bool:
        """Whether contributions of several ranks may be combined."""
        # A contract may list several contributions of one unit.
        return self.kind.traits.reduces or self.kind is CollectiveKind.CUSTOM

    def in_blocks(self, unit: int) -> Collective:
        """Return the collective with `unit_count`, counts and contract sizes divided by `unit`.

        `unit` must divide all of them. `unit_count` is at least 1 then, counts and sizes may be 0.
        If `unit` is above 1, the expected contents of a contract, which are per unit, are dropped.
        The same object is returned if `unit` is 1.
        """
        if unit == 1:
            return self
        contract = self.contract
        if contract is not None:
            sizes = contract.input_units // unit, contract.output_units // unit
            contract = CustomContract(*sizes, contract.defined)
        # The model requires at least one unit.
        unit_count = max(1, self.unit_count // unit)
        counts = None if self.counts is None else self.counts.in_blocks(unit)
        return replace(self, unit_count=unit_count, contract=contract, counts=counts)

    def input_units(self) -> Int64Array:
        """Return the size of INPUT on every rank in units: int64[num_ranks].

        Custom: as in the contract. All-gather-v: the count of the rank. All-to-all-v: the units
        that it sends, also to itself. Scatter: `unit_count` at the root, else 0. Otherwise on all
        ranks: `units_per_rank` if INPUT is one rank's part of the buffer, else `unit_count`.
        """
        if self.contract is not None:
            return self.contract.input_units
        traits = self.kind.traits
        if self.counts is not None and traits.input_is_part:
            return self.counts.table
        if self.counts is not None and traits.has_counts_per_pair:
            return np.asarray(self.counts.table.sum(axis=1), np.int64)
        return self._buffer_units(traits.input_is_part, traits.from_root)

    def output_units(self) -> Int64Array:
        """Return the size of OUTPUT on every rank in units: int64[num_ranks].

        Custom: as in the contract. Reduce-scatter-v: the count of the rank. All-to-all-v: the units
        that it receives, also from itself. Gather: `unit_count` at the root, else 0. Otherwise on
        all ranks: `units_per_rank` if OUTPUT is one rank's part of the buffer, else `unit_count`.
        """
        if self.contract is not None:
            return self.contract.output_units
        traits = self.kind.traits
        if self.counts is not None and traits.output_is_part:
            return self.counts.table
        if self.counts is not None and traits.has_counts_per_pair:
            return np.asarray(self.counts.table.sum(axis=0), np.int64)
        return self._buffer_units(traits.output_is_part, traits.to_root)

    def _buffer_units(self, is_part: bool, is_of_root: bool) -> Int64Array:
        """Return the size in units of INPUT or OUTPUT on every rank: int64[num_ranks].

        With `is_of_root` in a split collective (scatter, gather): `unit_count` at the root, else 0.
        Otherwise, also in broadcast and reduce: `units_per_rank` on every rank with `is_part`, else
        `unit_count`. Raise `InputError` (`uneven-parts`) for a part of an uneven collective.
        """
        # Every rank passes a vector to broadcast and reduce; a buffer with the parts of all ranks
        # (output of gather, input of scatter) exists only at the root.
        if is_of_root and self.kind.traits.is_split:
            return self._at_root(self.unit_count)
        units = self.units_per_rank if is_part else self.unit_count
        return np.full(self.num_ranks, units, np.int64)

    def defined_inputs(self) -> BoolArray:
        """Return which ranks have data in INPUT before the collective: bool[num_ranks].

        For a custom collective the contract defines it. Otherwise it is only the root if all data
        come from the root, else every rank.
        """
        if self.contract is not None:
            return self.contract.defined
        if self.kind.traits.from_root:
            return self._at_root(1).astype(np.bool_)
        return np.ones(self.num_ranks, np.bool_)

    def postcondition(self) -> Contributions | None:
        """Return the required contents of OUTPUT, with rows by rank, then by unit of OUTPUT.

        A standard collective, also an uneven one, has one row per required unit: rank, unit, source
        rank (`ALL_RANKS` for a reduction), unit of the source's INPUT. For reduce and gather, only
        the root has rows. A custom collective has the rows of its contract; None if it has none.
        Raises `InputError` (`too-large`) for a standard collective with more than
        `MAX_CONTRACT_UNITS` (2^26) rows.
        """
        if self.contract is not None:
            return self.contract.expected
        to_root = self.kind.traits.to_root
        # OUTPUT of the other ranks exists and may have any contents.
        required = self._at_root(self.unit_count) if to_root else self.output_units()
        # Python's integers do not overflow.
        total = sum(required.tolist())
        if total > MAX_CONTRACT_UNITS:
            raise InputError(
                f"too large to list the contents of this {self.kind}: {total} units of all ranks "
                f"(limit {MAX_CONTRACT_UNITS})",
                cure="divide the buffer into fewer units",
                code="too-large",
            )
        rank = group_of_entry(row_pointer(required))
        offset = counted_positions(required)
        return Contributions(rank, offset, *self._origin(rank, offset))

    def _origin(self, rank: Int64Array, offset: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (source rank, unit of the source's INPUT) of required units of OUTPUT, int64 each.

        `offset[i]`: a unit o of the OUTPUT of rank r = `rank[i]`; a part has p = `units_per_rank`
        units. Reductions: (`ALL_RANKS`, o), reduce-scatter (`ALL_RANKS`, o + r p). All-gather and
        gather: (o // p, o % p). All-to-all: (o // p, o % p + r p). Broadcast: (root, o); scatter:
        (root, o + r p). Uneven: see `_uneven_origin`. The result for a custom collective has no
        meaning.
        """
        traits = self.kind.traits
        if self.counts is not None:
            return self._uneven_origin(self.counts, rank, offset)
        share, source_unit = self.units_per_rank, offset
        if traits.reduces:
            source_rank = np.full_like(rank, ALL_RANKS)
        elif traits.split_by_source:
            # OUTPUT consists of the parts of all ranks in order, so the part gives the source.
            source_rank, source_unit = offset // share, offset % share
        else:
            source_rank = np.full_like(rank, self.root or 0)
        if traits.split_by_target:
            # Each rank receives its part of the source's buffer.
            source_unit = source_unit + rank * share
        return source_rank, source_unit

    def _uneven_origin(
        self, counts: UnitCounts, rank: Int64Array, offset: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return (source rank, unit of the source's INPUT) of every unit of OUTPUT, int64 each.

        `rank`, `offset`: all units of the OUTPUT of all ranks, by rank, then unit. Parts are
        consecutive in rank order. Reduce-scatter-v: `ALL_RANKS`, and the unit in the full buffer.
        Otherwise: the rank whose part has the unit, and the unit in the INPUT of that rank.
        """
        first_input, first_output = counts.first_units()
        if self.kind.traits.output_is_part:
            return np.full_like(rank, ALL_RANKS), first_input[rank] + offset
        # The parts of OUTPUT by rank and source; empty parts own no unit.
        ranks = self.num_ranks
        shape = (ranks, ranks)
        parts = counts.table.T if counts.is_per_pair else np.broadcast_to(counts.table, shape)
        part = np.repeat(np.arange(ranks * ranks), parts.ravel())
        source_rank = part % ranks
        if not counts.is_per_pair:
            return source_rank, offset - first_output[source_rank]
        within = offset - first_output[source_rank, rank]
        return source_rank, first_input[source_rank, rank] + within

    def memory_layout(self, in_place: bool, scratch_units: Int64Array) -> MemoryLayout:
        """Return the addresses of INPUT, OUTPUT and SCRATCH of every rank in one memory, in units.

        `scratch_units`: int64[num_ranks]. The memory of rank r is followed by that of rank r + 1.
        SCRATCH of a rank follows its other buffers. Out of place, OUTPUT follows INPUT. In place,
        INPUT and OUTPUT overlap by NCCL's conventions (parts of -v kinds have their own sizes):

        - all-gather(-v), and gather at the root: INPUT is the rank's part of OUTPUT
        - reduce-scatter(-v), and scatter at the root: OUTPUT is the rank's part of INPUT
        - gather and scatter at the other ranks: no overlap, OUTPUT follows INPUT
        - all others: both start at the same address; the larger one determines the size
        """
        scratch = np.asarray(scratch_units, np.int64)
        size = np.stack([self.input_units(), self.output_units(), scratch], axis=1)
        traits = self.kind.traits
        # By rank: whether INPUT and OUTPUT do not overlap.
        separate: BoolArray = np.full(self.num_ranks, not in_place)
        if in_place and traits.is_rooted and traits.is_split:
            separate = np.arange(self.num_ranks) != self.root
        # Aliased buffers occupy the size of the larger one.
        both = size[:, Buffer.INPUT], size[:, Buffer.OUTPUT]
        span = np.where(separate, both[0] + both[1], np.maximum(*both))
        shift = np.zeros_like(size)
        if in_place and (traits.input_is_part or traits.output_is_part):
            # The buffer that is a part of the other one starts at this part.
            part = Buffer.INPUT if traits.input_is_part else Buffer.OUTPUT
            shift[:, part] = (
                np.arange(self.num_ranks) * self.units_per_rank
                if self.counts is None
                else self.counts.first_units()[0]
            )
        shift[separate, Buffer.INPUT] = 0
        shift[separate, Buffer.OUTPUT] = size[separate, Buffer.INPUT]
        shift[:, Buffer.SCRATCH] = span
        borders = row_pointer(span + scratch)
        return MemoryLayout(borders[:-1, None] + shift, size, int(borders[-1]))

    def _at_root(self, units: int) -> Int64Array:
        """Return int64[num_ranks]: `units` at the root, 0 at all other ranks.

        The collective must have a root; without one, every rank gets `units`.
        """
        sizes = np.zeros(self.num_ranks, np.int64)
        sizes[self.root] = units
        return sizes
