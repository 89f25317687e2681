"""Grids: how a tensor is cut in chunks, which of them overlap, and which elements each one has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_coconet.program.tensors import block_bounds
from hub_core.columns import Int64Array, counted_positions


@dataclass(frozen=True, slots=True)
class Grid:
    """A tensor of `shape` cut in `blocks` blocks along `dimension`, each in `parts` chunks.

    Chunk `b * parts + s` is part s of block b. Blocks are those of sliced layouts, so that block b
    belongs to rank b of the group; one block: the whole tensor. Part s of a block of n elements, in
    their order, has elements s * n // parts to (s + 1) * n // parts, so that nothing is dropped
    where the sizes do not divide.

    `across`: of an AllToAll from slices of `dimension` to slices of another one, that other one.
    Block i * blocks + j is then what goes from rank i to rank j: block i along `dimension`, j along
    `across`.
    """

    shape: tuple[int, ...]
    dimension: int
    blocks: int
    parts: int
    across: int | None = None

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        # Of an exchange there is a block for every pair of ranks.
        pairs = 1 if self.across is None else self.blocks
        return self.blocks * pairs * self.parts

    def owners(self, chunks: Int64Array, dimension: int) -> Int64Array:
        """The rank that has each chunk of a tensor that is sliced along `dimension`."""
        block: Int64Array = chunks // self.parts
        # Of an exchange, those who send have one dimension, those who receive the other.
        if self.across is None:
            return block
        source, target = np.divmod(block, self.blocks)
        return target if dimension == self.across else source

    def is_comparable(self, other: Grid) -> bool:
        """Whether both cut one tensor in the same blocks, so that chunks overlap in order."""
        mine = self.shape, self.dimension, self.blocks, self.across
        return mine == (other.shape, other.dimension, other.blocks, other.across)

    def overlaps(self, chunks: Int64Array, other: Grid) -> tuple[Int64Array, Int64Array]:
        """(index into `chunks`, chunk of `other`) of all that share an element.

        Both are bounds of fractions of one block: element e of n lies in part s where
        s * n // parts <= e, hence s / parts < (e + 1) / n <= (s + 1) / parts.
        """
        block, part = np.divmod(chunks, self.parts)
        first = part * other.parts // self.parts
        behind = -(-(part + 1) * other.parts // self.parts)
        counts = behind - first
        index = np.repeat(np.arange(len(chunks)), counts)
        found = (block * other.parts + first)[index] + counted_positions(counts)
        return index, found

    def elements(self, chunk: int) -> Int64Array:
        """Indices of the elements of a chunk in the whole tensor, in the order of its block."""
        block, part = divmod(chunk, self.parts)
        inside = self._block(block)
        count = len(inside)
        return inside[part * count // self.parts : (part + 1) * count // self.parts]

    def _block(self, block: int) -> Int64Array:
        """Indices of the elements of a block, row by row."""
        whole = np.arange(int(np.prod(self.shape, dtype=np.int64))).reshape(self.shape)
        if self.blocks == 1:
            return whole.reshape(-1)
        place = [slice(None)] * len(self.shape)
        source, target = (block, 0) if self.across is None else divmod(block, self.blocks)
        place[self.dimension] = self._bounds(self.dimension, source)
        if self.across is not None:
            place[self.across] = self._bounds(self.across, target)
        return whole[tuple(place)].reshape(-1)

    def _bounds(self, dimension: int, block: int) -> slice:
        """A block of one dimension."""
        # As layouts cut it, the last block may be shorter.
        first, behind = block_bounds(self.shape[dimension], self.blocks, block)
        return slice(first, behind)
