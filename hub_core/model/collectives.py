"""What a collective promises: who holds which contribution before, and who must hold what after."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt

from hub_core.model.diagnostics import InputError

Int64Array = npt.NDArray[np.int64]

MAX_RANKS = 1 << 20
MAX_UNITS = 1 << 62
ALL_RANKS = -1


class CollectiveKind(StrEnum):
    """The collectives of the field, and `custom` for a contract stated by a table."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    CUSTOM = "custom"


class ReduceOp(StrEnum):
    """Reduction operators; each is commutative and associative."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"


class Buffer(IntEnum):
    """The memories of a rank. UNKNOWN: the source does not say (timing-only traces), or the side is unused."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    UNKNOWN = 3


ROOTED = frozenset(
    {CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER}
)
REDUCING = frozenset(
    {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE}
)
_SPLIT_BY_RANK = frozenset(
    {
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.GATHER,
        CollectiveKind.SCATTER,
    }
)


@dataclass(frozen=True, slots=True)
class Contributions:
    """A relation between output units and contributions, one row a pair, as columns of equal length.

    Row i: unit `offset[i]` of the OUTPUT of rank `rank[i]` holds contribution (`source_rank[i]`,
    `source_unit[i]`), the unit that stands at `source_unit` in the INPUT of `source_rank` before the
    collective. `source_rank` -1 abbreviates one row per rank. Several rows of one output unit are reduced
    together; a unit without rows is free. All columns are int64.
    """

    rank: Int64Array
    offset: Int64Array
    source_rank: Int64Array
    source_unit: Int64Array

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True)
class CustomContract:
    """The stated contract of a custom collective.

    `input_units` and `output_units`: int64[num_ranks], buffer sizes in units. `defined`: bool, INPUT of a
    rank holds data before (bool[num_ranks]). `expected`: what must lie where after, or None where the source
    does not state it; contents can then not be judged.
    """

    input_units: Int64Array
    output_units: Int64Array
    defined: npt.NDArray[np.bool_]
    expected: Contributions | None = None


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Where the buffers of every rank lie in one flat unit-addressed memory; aliases share addresses.

    `base` and `size`: int64[num_ranks, 3], indexed by `Buffer`; the address of unit k of a buffer is
    `base[rank, buffer] + k`, valid for 0 <= k < `size[rank, buffer]`. `total`: number of addresses.
    """

    base: Int64Array
    size: Int64Array
    total: int


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over ranks 0..num_ranks-1 whose full buffer is cut in `unit_count` equal units.

    Full buffer: all-reduce, broadcast, reduce: the vector; all-gather: the gathered output; reduce-scatter:
    the input; all-to-all: one rank's buffer; gather, scatter: the root's big buffer; custom: stated.
    `in_place` and `out_of_place` say for which calls the algorithm claims to be usable; at least one holds.
    """

    kind: CollectiveKind
    num_ranks: int
    unit_count: int
    root: int | None = None
    in_place: bool = False
    out_of_place: bool = True
    reduce_op: ReduceOp = ReduceOp.SUM
    contract: CustomContract | None = None

    def __post_init__(self) -> None:
        if reason := self._defect():
            raise InputError(
                f"{self.kind} of {self.num_ranks} ranks: {reason}", code="invalid-collective"
            )

    def _defect(self) -> str | None:
        if not 1 <= self.num_ranks <= MAX_RANKS:
            return f"the number of ranks is not in 1..{MAX_RANKS}"
        if not 1 <= self.unit_count <= MAX_UNITS:
            return f"unit_count {self.unit_count} is not in 1..2^62"
        if self.kind in ROOTED and (self.root is None or not 0 <= self.root < self.num_ranks):
            return f"root {self.root} is not a rank"
        if self.kind not in ROOTED and self.root is not None:
            return f"a root ({self.root}) has no meaning here"
        if self.kind in _SPLIT_BY_RANK and self.unit_count % self.num_ranks:
            return f"unit_count {self.unit_count} is not a multiple of the number of ranks"
        if (self.contract is not None) != (self.kind is CollectiveKind.CUSTOM):
            return "a contract belongs to custom collectives, and only to them"
        if not (self.in_place or self.out_of_place):
            return "neither in place nor out of place"
        return None

    @property
    def units_per_rank(self) -> int:
        """One rank's share of the full buffer, in units (`unit_count` where it is not split by rank)."""
        return self.unit_count // self.num_ranks if self.kind in _SPLIT_BY_RANK else self.unit_count

    @property
    def reduces(self) -> bool:
        """Whether contributions of several ranks may be combined."""
        return self.kind in REDUCING or self.kind is CollectiveKind.CUSTOM

    def input_units(self) -> Int64Array:
        """Size of INPUT in units: int64[num_ranks]."""
        if self.contract is not None:
            return self.contract.input_units
        if self.kind is CollectiveKind.SCATTER:
            return self._at_root(self.unit_count)
        if self.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
            return self._everywhere(self.units_per_rank)
        return self._everywhere(self.unit_count)

    def output_units(self) -> Int64Array:
        """Size of OUTPUT in units: int64[num_ranks]."""
        if self.contract is not None:
            return self.contract.output_units
        if self.kind is CollectiveKind.GATHER:
            return self._at_root(self.unit_count)
        if self.kind in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER):
            return self._everywhere(self.units_per_rank)
        return self._everywhere(self.unit_count)

    def defined_inputs(self) -> npt.NDArray[np.bool_]:
        """Which ranks' INPUT holds data before the collective: bool[num_ranks]."""
        if self.contract is not None:
            return self.contract.defined
        if self.kind in (CollectiveKind.BROADCAST, CollectiveKind.SCATTER):
            return self._at_root(1).astype(np.bool_)
        return np.ones(self.num_ranks, np.bool_)

    def postcondition(self) -> Contributions | None:
        """What must lie where after the collective; None for a custom collective that states nothing."""
        if self.contract is not None:
            return self.contract.expected
        rank, offset = _cells(
            self.output_units()
            if self.kind is not CollectiveKind.REDUCE
            else self._at_root(self.unit_count)
        )
        source_rank, source_unit = self._origin(rank, offset)
        return Contributions(rank, offset, source_rank, source_unit)

    def _origin(self, rank: Int64Array, offset: Int64Array) -> tuple[Int64Array, Int64Array]:
        share = self.units_per_rank
        kind = self.kind
        if kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE):
            return np.full_like(rank, ALL_RANKS), offset
        if kind is CollectiveKind.REDUCE_SCATTER:
            return np.full_like(rank, ALL_RANKS), rank * share + offset
        if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
            return offset // share, offset % share
        if kind is CollectiveKind.ALL_TO_ALL:
            return offset // share, rank * share + offset % share
        root = np.full_like(rank, self.root if self.root is not None else 0)
        return (root, offset) if kind is CollectiveKind.BROADCAST else (root, rank * share + offset)

    def memory_layout(self, in_place: bool, scratch_units: Int64Array) -> MemoryLayout:
        """Lay out INPUT, OUTPUT and SCRATCH of every rank; in place, INPUT and OUTPUT alias as NCCL defines.

        all-gather, gather: INPUT is the rank's part of OUTPUT; reduce-scatter, scatter: OUTPUT is the rank's
        part of INPUT; gather, scatter: at the root only; all others: one buffer.
        """
        size = np.stack(
            [self.input_units(), self.output_units(), np.asarray(scratch_units, np.int64)], axis=1
        )
        ranks = np.arange(self.num_ranks, dtype=np.int64)
        shift = np.zeros((self.num_ranks, 3), np.int64)
        if in_place:
            span = np.maximum(size[:, Buffer.INPUT], size[:, Buffer.OUTPUT])
            apart = np.zeros(self.num_ranks, np.bool_)
            if self.kind in (CollectiveKind.GATHER, CollectiveKind.SCATTER):
                apart = ranks != self.root
            small = (
                Buffer.INPUT
                if self.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER)
                else Buffer.OUTPUT
            )
            if self.kind in _SPLIT_BY_RANK and self.kind is not CollectiveKind.ALL_TO_ALL:
                shift[:, small] = ranks * self.units_per_rank
        else:
            span = np.zeros(self.num_ranks, np.int64)
            apart = np.ones(self.num_ranks, np.bool_)
        shift[apart, Buffer.INPUT] = 0
        shift[apart, Buffer.OUTPUT] = size[apart, Buffer.INPUT]
        span = np.where(apart, size[:, Buffer.INPUT] + size[:, Buffer.OUTPUT], span)
        shift[:, Buffer.SCRATCH] = span
        ends = np.cumsum(span + size[:, Buffer.SCRATCH])
        starts = np.concatenate([[0], ends[:-1]])
        return MemoryLayout(starts[:, None] + shift, size, int(ends[-1]))

    def _everywhere(self, units: int) -> Int64Array:
        return np.full(self.num_ranks, units, np.int64)

    def _at_root(self, units: int) -> Int64Array:
        sizes = np.zeros(self.num_ranks, np.int64)
        sizes[self.root] = units
        return sizes


def _cells(sizes: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Enumerate (rank, offset) of every unit of buffers with these sizes, rank by rank."""
    rank = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    offset = np.arange(len(rank), dtype=np.int64) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank, offset
