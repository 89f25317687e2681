"""Who has a chunk before the collective, and who must have it after."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns import BoolArray, Int64Array, positions_in
from hub_core.model import ALL_RANKS
from hub_core.schedules.chunks import NO_RANK, Chunks


@dataclass(frozen=True, slots=True, eq=False)
class ChunkHolders:
    """The holders of chunks by NPU.

    `members`: int64[num_ranks], the NPU of a rank; `rank_of`: int64[num_npus], the rank of an NPU,
    or -1 for one that only relays.
    """

    chunks: Chunks
    members: Int64Array
    rank_of: Int64Array

    @classmethod
    def of(cls, chunks: Chunks, members: Int64Array, num_npus: int) -> ChunkHolders:
        """The holders where rank r is NPU `members[r]`."""
        # NPUs that only relay have no rank.
        rank_of = positions_in(members, num_npus)
        return cls(chunks, members, rank_of)

    @property
    def num_npus(self) -> int:
        """Number of NPUs, relays included."""
        return len(self.rank_of)

    def has_before(self, npu: Int64Array, chunk: Int64Array) -> BoolArray:
        """Whether these NPUs have these chunks before, or a contribution to them.

        `npu`, `chunk`: int64 columns of equal length.
        """
        return self._is_one_of(self.chunks.origin, npu, chunk)

    def needs(self, npu: Int64Array, chunk: Int64Array) -> BoolArray:
        """Whether these NPUs must have these chunks after.

        `npu`, `chunk`: int64 columns of equal length.
        """
        return self._is_one_of(self.chunks.target, npu, chunk)

    def kept_chunks(self) -> tuple[Int64Array, Int64Array]:
        """(npu, chunk) of chunks that one rank alone gives and must have itself after, int64."""
        origin, target = self.chunks.origin, self.chunks.target
        # A reduction of one contribution is that contribution.
        lone_giver = 0 if len(self.members) == 1 else NO_RANK
        giver = np.where(origin == ALL_RANKS, lone_giver, origin)
        is_target = (target == ALL_RANKS) | (target == giver)
        chunk = np.flatnonzero(is_target & (giver >= 0))
        return self.members[giver[chunk]], chunk

    def _is_one_of(self, stated: Int64Array, npu: Int64Array, chunk: Int64Array) -> BoolArray:
        """Whether the NPUs have a rank, and `stated` of the chunk is that rank or `ALL_RANKS`."""
        rank = self.rank_of[npu]
        wanted = stated[chunk]
        is_named = (wanted == ALL_RANKS) | (wanted == rank)
        # A relay has no rank, and is not meant by "all ranks".
        matches: BoolArray = is_named & (rank >= 0)
        return matches
